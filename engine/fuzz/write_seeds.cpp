// write_fuzz_seeds: writes the seed files of the fuzz targets, which lie in the tree under engine/fuzz/seeds. A test
// compares them with what this program writes.
#include <filesystem>
#include <fstream>
#include <iostream>

#include "engine/fuzz/seeds.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"

int main(int argc, char** argv) {
  return assay::run_program("write_fuzz_seeds", argc, argv, [](int count, char** arguments) {
    if (count != 2)
      throw assay::UserError("usage: write_fuzz_seeds FOLDER, for example engine/fuzz/seeds");
    for (const auto& [name, bytes] : assay::fuzz_seeds()) {
      const std::filesystem::path path = std::filesystem::path(arguments[1]) / name;
      std::filesystem::create_directories(path.parent_path());
      std::ofstream(path, std::ios::binary) << bytes;
      std::cout << path.string() << '\n';
    }
    return 0;
  });
}
