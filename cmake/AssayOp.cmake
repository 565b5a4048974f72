# assay_op(<op> <Type> [COMPOSITE]): everything that follows from one op.
#   kernels/<op>/{ref,cases,stock}.cpp (+ stock.cu with CUDA), variants/<op>/*.cpp (+ *.cu with CUDA),
#   a generated table in which a variant's file stem is its name and its symbol. assay_parity_programs() adds parity_<op>.
# assay_test(<target> SOURCES .. LIBS .. [LABELS ..]): one GoogleTest executable, one CTest entry per test case.

add_library(assay_ops STATIC)
target_link_libraries(assay_ops PUBLIC assay_base)
set_property(GLOBAL PROPERTY ASSAY_OP_NAMES "")

# Under a sanitizer a test's own code is built plain: what it tests stays checked in full, and the build takes half the time.
set(ASSAY_TEST_OPTIONS "")
if(ASSAY_SANITIZE)
  set(ASSAY_TEST_OPTIONS -O0 -fno-sanitize=undefined)
endif()

# Tests run without the developer's ASSAY_* switches. What every test parses first is compiled once for all of them;
# scripts/tidy reads the files without it, so each still has to include what it uses.
include(GoogleTest)
function(assay_test target)
  if(NOT TARGET assay_test_headers)
    file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/generated/test_headers.cpp" CONTENT "// Carries the tests' precompiled headers.\n")
    add_library(assay_test_headers OBJECT "${CMAKE_BINARY_DIR}/generated/test_headers.cpp")
    target_link_libraries(assay_test_headers PRIVATE assay_base GTest::gtest)
    target_compile_options(assay_test_headers PRIVATE ${ASSAY_TEST_OPTIONS})
    target_precompile_headers(assay_test_headers PRIVATE <gtest/gtest.h> <nlohmann/json.hpp> <algorithm> <filesystem> <fstream>
      <functional> <map> <sstream> <string> <vector>)
  endif()
  cmake_parse_arguments(T "" "LABEL;TIMEOUT" "SOURCES;LIBS;ARGS" ${ARGN})
  if(NOT T_LABEL)
    set(T_LABEL host)
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  add_executable(${target} ${T_SOURCES})
  target_link_libraries(${target} PRIVATE assay_flags ${T_LIBS} GTest::gtest GTest::gtest_main)
  target_precompile_headers(${target} REUSE_FROM assay_test_headers)
  target_compile_options(${target} PRIVATE ${ASSAY_TEST_OPTIONS})
  target_compile_definitions(${target} PRIVATE
    ASSAY_SOURCE_DIR="${CMAKE_SOURCE_DIR}" ASSAY_BINARY_DIR="${CMAKE_BINARY_DIR}")
  gtest_discover_tests(${target} DISCOVERY_TIMEOUT 60 DISCOVERY_MODE PRE_TEST
    PROPERTIES LABELS ${T_LABEL} TIMEOUT ${T_TIMEOUT})
endfunction()

# assay_fuzz_target(<name> <lib>): fuzz_<name>.cpp of this folder with the driver of engine/fuzz, seeds in seeds/<name>.
#   bin/fuzz_<name> --runs N    seeded mutations of the seeds, any compiler; a short run is a test
function(assay_fuzz_target name lib)
  if(NOT TARGET assay_fuzz_driver)
    add_library(assay_fuzz_driver STATIC "${CMAKE_SOURCE_DIR}/engine/fuzz/driver.cpp")
    target_link_libraries(assay_fuzz_driver PUBLIC assay_base)
  endif()
  set(seeds "${CMAKE_BINARY_DIR}/generated/fuzz/${name}_seeds.cpp")
  file(CONFIGURE OUTPUT "${seeds}" CONTENT "extern const char* const fuzz_seeds;
const char* const fuzz_seeds = \"${CMAKE_CURRENT_SOURCE_DIR}/seeds/${name}\";
")
  add_executable(fuzz_${name} fuzz_${name}.cpp "${seeds}")
  target_link_libraries(fuzz_${name} PRIVATE assay_fuzz_driver ${lib})
  add_test(NAME fuzz_${name}.smoke COMMAND fuzz_${name} --runs 5000 --artifacts "${CMAKE_BINARY_DIR}/fuzz")
  set_tests_properties(fuzz_${name}.smoke PROPERTIES LABELS host TIMEOUT 300)
endfunction()

# CUDA sources: nvcc's, or with ASSAY_SIMT ordinary C++ over kernels/base/simt. Source properties hold for the folder of
# the target that compiles them: assay_ops lives at the root, assay_base in kernels/.
function(assay_device_sources)
  if(ASSAY_SIMT AND ARGN)
    set_source_files_properties(${ARGN} DIRECTORY "${CMAKE_SOURCE_DIR}" "${CMAKE_SOURCE_DIR}/kernels"
      PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-Wno-unknown-pragmas;-Wno-unused-function")
  endif()
endfunction()

function(assay_op op type)
  cmake_parse_arguments(A "COMPOSITE;POLICY" "" "" ${ARGN})
  set(dir "${CMAKE_SOURCE_DIR}/kernels/${op}")
  set(vdir "${CMAKE_SOURCE_DIR}/variants/${op}")
  file(GLOB op_src CONFIGURE_DEPENDS "${dir}/*.cpp")
  file(GLOB var_src CONFIGURE_DEPENDS "${vdir}/*.cpp")
  file(GLOB tests CONFIGURE_DEPENDS "${dir}/*_test.cpp" "${vdir}/*_test.cpp")
  file(GLOB benches CONFIGURE_DEPENDS "${dir}/*_bench.cpp")
  list(FILTER op_src EXCLUDE REGEX "_(test|bench)\\.cpp$")
  list(FILTER var_src EXCLUDE REGEX "_test\\.cpp$")
  set(stems stock)
  foreach(f IN LISTS var_src)
    get_filename_component(stem "${f}" NAME_WE)
    list(APPEND stems "${stem}")
  endforeach()
  set(cu_src "")
  if(ASSAY_CUDA OR ASSAY_SIMT)
    file(GLOB cu_src CONFIGURE_DEPENDS "${dir}/*.cu" "${vdir}/*.cu")
    assay_device_sources(${cu_src})
  endif()

  # The table: stock first, then the variants by name.
  set(decls "")
  set(rows "")
  foreach(stem IN LISTS stems)
    string(APPEND decls "extern const Variant<${type}> variant_${type}_${stem};\n")
    string(APPEND rows "    {\"${stem}\", &variant_${type}_${stem}},\n")
  endforeach()
  set(ASSAY_OP ${op})
  set(ASSAY_TYPE ${type})
  set(ASSAY_DECLS "${decls}")
  set(ASSAY_ROWS "${rows}")
  set(table "${CMAKE_BINARY_DIR}/generated/tables/${op}_table.cpp")
  configure_file("${CMAKE_SOURCE_DIR}/cmake/op_table.cpp.in" "${table}" @ONLY)

  target_sources(assay_ops PRIVATE ${op_src} ${var_src} ${cu_src} "${table}")
  set_property(GLOBAL APPEND PROPERTY ASSAY_OP_NAMES ${op})
  set_property(GLOBAL PROPERTY ASSAY_OP_STEMS_${op} "${stems}")
  set_property(GLOBAL PROPERTY ASSAY_OP_COMPOSITE_${op} "${A_COMPOSITE}")
  if(tests)
    assay_test(${op}_test SOURCES ${tests} LIBS assay_ops)
  endif()
  # Programs that measure what no case of the op can show; built on demand only.
  foreach(b IN LISTS benches)
    get_filename_component(stem "${b}" NAME_WE)
    add_executable(${op}_${stem} EXCLUDE_FROM_ALL "${b}")
    target_link_libraries(${op}_${stem} PRIVATE assay_flags assay_ops)
  endforeach()
endfunction()

# Called once after all assay_op lines: the list of ops, then one parity_<op> and bench_<op> each.
function(assay_ops_finish)
  get_property(ops GLOBAL PROPERTY ASSAY_OP_NAMES)
  set(decls "")
  set(rows "")
  foreach(op IN LISTS ops)
    string(APPEND decls "const OpInfo& op_info_${op}();\n")
    string(APPEND rows "      &op_info_${op}(),\n")
  endforeach()
  set(ASSAY_OP_DECLS "${decls}")
  set(ASSAY_OP_ROWS "${rows}")
  set(list_src "${CMAKE_BINARY_DIR}/generated/tables/op_list.cpp")
  configure_file("${CMAKE_SOURCE_DIR}/cmake/op_list.cpp.in" "${list_src}" @ONLY)
  target_sources(assay_ops PRIVATE "${list_src}")
endfunction()

# parity_<op> for every op with cases, and one CTest entry a variant: parity.<op>.<variant>. Called by parity/.
function(assay_parity_programs)
  get_property(ops GLOBAL PROPERTY ASSAY_OP_NAMES)
  foreach(op IN LISTS ops)
    if(NOT EXISTS "${CMAKE_SOURCE_DIR}/kernels/${op}/cases.cpp")
      continue()
    endif()
    add_executable(parity_${op} "${CMAKE_CURRENT_SOURCE_DIR}/main.cpp")
    target_link_libraries(parity_${op} PRIVATE assay_parity)
    target_compile_definitions(parity_${op} PRIVATE ASSAY_PARITY_OP="${op}")
    get_property(stems GLOBAL PROPERTY ASSAY_OP_STEMS_${op})
    foreach(variant IN LISTS stems)
      add_test(NAME parity.${op}.${variant} COMMAND parity_${op} --variant ${variant})
      set_tests_properties(parity.${op}.${variant} PROPERTIES LABELS host TIMEOUT 600 SKIP_RETURN_CODE 77)
    endforeach()
  endforeach()
endfunction()

# assay_area(<name> [LIBS ..]): the folder's *.cpp (without tests and main.cpp) as library assay_<name>, and one test
# executable per *_test.cpp.
function(assay_area name)
  cmake_parse_arguments(A "" "" "LIBS" ${ARGN})
  file(GLOB src CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  set(tests ${src})
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(FILTER src EXCLUDE REGEX "(_test|/main)\\.cpp$")
  if(src)
    add_library(assay_${name} STATIC ${src})
    target_link_libraries(assay_${name} PUBLIC assay_base ${A_LIBS})
  else()
    add_library(assay_${name} INTERFACE)
    target_link_libraries(assay_${name} INTERFACE assay_base ${A_LIBS})
  endif()
  foreach(t IN LISTS tests)
    get_filename_component(stem "${t}" NAME_WE)
    assay_test(${name}_${stem} SOURCES "${t}" LIBS assay_${name})
  endforeach()
endfunction()
