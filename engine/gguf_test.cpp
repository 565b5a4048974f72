#include "engine/gguf.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/gguf_writer.h"
#include "kernels/base/error.h"

namespace assay {
namespace {

class Gguf : public testing::Test {
 protected:
  Gguf()
      : path_((std::filesystem::path(testing::TempDir()) /
               ("assay_gguf_" + std::to_string(::getpid()) + "_" +
                testing::UnitTest::GetInstance()->current_test_info()->name()))
                  .string()) {}
  ~Gguf() override { std::filesystem::remove_all(path_); }

  GgufFile open(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return GgufFile::open(path_);
  }
  // The message must name the file and hold every part.
  void refused(const std::string& bytes, std::initializer_list<const char*> parts) {
    try {
      (void)open(bytes);
      ADD_FAILURE() << "accepted";
    } catch (const InputError& e) {
      const std::string what = e.what();
      EXPECT_EQ(what.find(path_), 0U) << what;
      for (const char* part : parts)
        EXPECT_NE(what.find(part), std::string::npos) << what << "  lacks  " << part;
    }
  }
  std::string path_;
};

template <class T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
std::string text(const std::string& s) { return raw<std::uint64_t>(s.size()) + s; }
// A file by hand: magic, version, counts, then what is given.
std::string file(std::uint64_t tensors,
                 std::uint64_t keys,
                 const std::string& rest,
                 std::uint32_t version = 3) {
  return "GGUF" + raw(version) + raw(tensors) + raw(keys) + rest;
}
std::string pair(const std::string& key, MetaType type, const std::string& value) {
  return text(key) + raw(static_cast<std::uint32_t>(type)) + value;
}
std::string array(MetaType element, std::uint64_t count, const std::string& elements) {
  return raw(static_cast<std::uint32_t>(element)) + raw(count) + elements;
}
std::string record(const std::string& name,
                   std::vector<std::int64_t> ne,
                   std::uint32_t type,
                   std::uint64_t offset) {
  std::string out = text(name) + raw(static_cast<std::uint32_t>(ne.size()));
  for (const std::int64_t n : ne) out += raw(n);
  return out + raw(type) + raw(offset);
}
std::string padded(std::string s, std::size_t data = 0, std::size_t alignment = 32) {
  s.resize((s.size() + alignment - 1) / alignment * alignment, '\0');
  return s + std::string(data, '\x3C');  // 0x3C3C3C3C is a finite float
}

TEST_F(Gguf, ReadsBothVersionsAndEveryValueType) {
  for (const std::uint32_t version : {2U, 3U}) {
    const std::string meta =
        pair("u8", MetaType::kU8, raw<std::uint8_t>(200)) +
        pair("i8", MetaType::kI8, raw<std::int8_t>(-3)) +
        pair("u16", MetaType::kU16, raw<std::uint16_t>(60000)) +
        pair("i16", MetaType::kI16, raw<std::int16_t>(-300)) +
        pair("u32", MetaType::kU32, raw<std::uint32_t>(4000000000U)) +
        pair("i32", MetaType::kI32, raw<std::int32_t>(-5)) +
        pair("f32", MetaType::kF32, raw(1.5F)) +
        pair("bool", MetaType::kBool, raw<std::uint8_t>(7)) +
        pair("text", MetaType::kString, text("gemma")) +
        pair("u64", MetaType::kU64, raw<std::uint64_t>(1ULL << 60)) +
        pair("i64", MetaType::kI64, raw<std::int64_t>(-(1LL << 60))) +
        pair("f64", MetaType::kF64, raw(0.1)) +
        pair("bools", MetaType::kArray, array(MetaType::kBool, 3, std::string("\1\0\2", 3))) +
        pair("texts",
             MetaType::kArray,
             array(MetaType::kString, 3, text("a") + text("") + text("b c"))) +
        pair("none", MetaType::kArray, array(MetaType::kString, 0, ""));
    const GgufFile f = open(file(0, 15, meta, version));
    EXPECT_EQ(f.version(), version);
    EXPECT_EQ(f.integer("u8"), 200);
    EXPECT_EQ(f.integer("i8"), -3);
    EXPECT_EQ(f.integer("u16"), 60000);
    EXPECT_EQ(f.integer("i16"), -300);
    EXPECT_EQ(f.integer("u32"), 4000000000);
    EXPECT_EQ(f.integer("i32"), -5);
    EXPECT_EQ(f.number("f32"), 1.5);
    EXPECT_TRUE(f.boolean("bool")) << "any non-zero byte is true";
    EXPECT_EQ(f.text("text"), "gemma");
    EXPECT_EQ(f.integer("u64"), 1LL << 60);
    EXPECT_EQ(f.integer("i64"), -(1LL << 60));
    EXPECT_EQ(f.number("f64"), 0.1);
    EXPECT_EQ(f.integers("bools"), (std::vector<std::int64_t>{1, 0, 1}));
    EXPECT_EQ(f.strings("texts").size(), 3U);
    EXPECT_EQ(f.strings("texts")[1], "");
    EXPECT_EQ(f.strings("texts")[2], "b c");
    EXPECT_EQ(f.strings("none").size(), 0U);
    EXPECT_EQ(f.find_integer("absent"), std::nullopt);
    EXPECT_EQ(f.keys().front(), "u8");
  }
}

TEST_F(Gguf, RefusesValuesOfAnotherKindAndNamesKeyAndOffset) {
  const GgufFile f = open(file(
      0,
      5,
      pair("n", MetaType::kU32, raw<std::uint32_t>(1)) + pair("t", MetaType::kString, text("x")) +
          pair("a", MetaType::kArray, array(MetaType::kI32, 1, raw<std::int32_t>(1))) +
          pair("nan", MetaType::kF32, raw(std::numeric_limits<float>::quiet_NaN())) +
          pair("big", MetaType::kU64, raw<std::uint64_t>(1ULL << 63))));
  const auto refuses = [](const std::function<void()>& f2, const char* part) {
    try {
      f2();
      ADD_FAILURE() << "accepted: " << part;
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  refuses([&] { (void)f.text("n"); }, "key 'n' (at byte 37)");
  refuses([&] { (void)f.number("n"); }, "key 'n'");
  refuses([&] { (void)f.boolean("n"); }, "key 'n'");
  refuses([&] { (void)f.integer("t"); }, "key 't'");
  refuses([&] { (void)f.integer("a"); }, "key 'a'");
  refuses([&] { (void)f.integers("n"); }, "key 'n'");
  refuses([&] { (void)f.strings("a"); }, "key 'a'");
  refuses([&] { (void)f.number("nan"); }, "not finite");
  refuses([&] { (void)f.integer("big"); }, "out of range");
  refuses([&] { (void)f.integer("absent"); }, "key 'absent'");
  refuses([&] { (void)f.tensor("absent"); }, "tensor 'absent'");
}

TEST_F(Gguf, RefusesForeignFiles) {
  refused("", {"0 bytes", "byte 0"});
  refused("GGU", {"3 bytes"});
  refused("GGML" + raw<std::uint32_t>(3), {"not a GGUF file"});
  refused("GGUF", {"version", "byte 4"});
  for (const std::uint32_t version : {0U, 1U, 4U, 0xFFFFFFFFU}) {
    refused(file(0, 0, "", version), {"byte 4", "version"});
  }
  refused(file(0, 0, "", 0x03000000U), {"big-endian"});
}

TEST_F(Gguf, RefusesImpossibleCounts) {
  for (const std::uint64_t n :
       {std::uint64_t{1} << 31, std::uint64_t{1} << 63, ~std::uint64_t{0}, std::uint64_t{3}}) {
    refused(file(n, 0, ""), {"tensor count", "byte 8"});
    refused(file(0, n, ""), {"key count", "byte 16"});
  }
}

TEST_F(Gguf, RefusesImpossibleKeysAndValues) {
  const auto one = [](const std::string& rest) { return file(0, 1, rest + std::string(16, '\0')); };
  for (const std::uint64_t n : {std::uint64_t{1} << 63, ~std::uint64_t{0}, std::uint64_t{70000}}) {
    refused(one(raw(n)), {"key", "byte 24"});
    refused(one(text("k") + raw<std::uint32_t>(8) + raw(n)), {"'k'", "byte 37"});
  }
  refused(one(pair("", MetaType::kU8, raw<std::uint8_t>(1))), {"empty key", "byte 24"});
  refused(one(text("k") + raw<std::uint32_t>(13)), {"'k'", "value type 13", "byte 33"});
  refused(one(pair("k", MetaType::kArray, array(MetaType::kArray, 1, ""))),
          {"'k'", "array of arrays"});
  refused(one(pair("k", MetaType::kArray, raw<std::uint32_t>(99) + raw<std::uint64_t>(1))),
          {"'k'", "99"});
  for (const std::uint64_t n : {std::uint64_t{1} << 61, ~std::uint64_t{0}, std::uint64_t{100}}) {
    refused(one(pair("k", MetaType::kArray, array(MetaType::kU64, n, ""))), {"'k'", "byte 41"});
    refused(one(pair("k", MetaType::kArray, array(MetaType::kString, n, ""))), {"'k'", "byte 41"});
  }
  refused(one(pair("k", MetaType::kArray, array(MetaType::kString, 1, raw(~std::uint64_t{0})))),
          {"'k'", "element 0"});
  refused(file(0, 2, pair("k", MetaType::kU8, "\1") + pair("k", MetaType::kU8, "\1")),
          {"'k'", "twice"});
}

TEST_F(Gguf, RefusesSplitFiles) {
  refused(file(0, 1, pair("split.count", MetaType::kU16, raw<std::uint16_t>(2))), {"split.count"});
  refused(file(0, 1, pair("split.no", MetaType::kU16, raw<std::uint16_t>(1))), {"split.no"});
  EXPECT_NO_THROW(open(file(0, 1, pair("split.count", MetaType::kU16, raw<std::uint16_t>(1)))));
}

TEST_F(Gguf, RefusesOddAlignments) {
  const auto with = [](MetaType type, const std::string& value) {
    return padded(file(1, 1, pair("general.alignment", type, value) + record("t", {8}, 0, 0)), 64);
  };
  refused(with(MetaType::kU32, raw<std::uint32_t>(0)), {"general.alignment", "power of two"});
  refused(with(MetaType::kU32, raw<std::uint32_t>(3)), {"general.alignment", "power of two"});
  refused(with(MetaType::kU32, raw<std::uint32_t>(1U << 31)), {"past the end"});
  refused(with(MetaType::kU64, raw<std::uint64_t>(32)), {"general.alignment", "u32"});
  EXPECT_NO_THROW(open(with(MetaType::kU32, raw<std::uint32_t>(8))));
}

TEST_F(Gguf, RefusesImpossibleTensors) {
  const auto one = [](const std::string& r) { return padded(file(1, 0, r), 4096); };
  EXPECT_NO_THROW(open(one(record("t", {32, 2}, 2, 0))));
  refused(one(record("", {32}, 0, 0)), {"empty tensor name"});
  refused(one(record(std::string(64, 'x'), {32}, 0, 0)), {"64 bytes"});
  refused(one(record("t", {}, 0, 0)), {"'t'", "0 dimensions"});
  refused(one(record("t", {1, 1, 1, 1, 1}, 0, 0)), {"'t'", "5 dimensions"});
  refused(one(record("t", {0}, 0, 0)), {"'t'", "dimension 0 is 0", "byte 37"});
  refused(one(record("t", {32, -1}, 0, 0)), {"'t'", "dimension 1 is -1", "byte 45"});
  refused(one(record("t", {std::int64_t{1} << 42 | 32, std::int64_t{1} << 42}, 0, 0)),
          {"'t'", "overflow"});
  refused(one(record("t", {std::int64_t{1} << 62}, 0, 0)), {"'t'", "overflow"});
  refused(one(record("t", {std::int64_t{1} << 40}, 0, 0)), {"'t'", "past the end"});
  refused(one(record("t", {33}, 2, 0)), {"'t'", "33", "multiple of 32"});
  refused(one(record("t", {128}, 12, 0)), {"'t'", "multiple of 256"});
  for (const std::uint32_t type : {4U, 5U, 9U, 15U, 31U, 39U, 0xFFFFFFFFU}) {
    refused(one(record("t", {256}, type, 0)), {"'t'", "unsupported tensor type", "q4_0"});
  }
  refused(one(record("t", {32}, 0, 32)), {"'t'", "offset 32"});
  refused(one(record("t", {32}, 0, 7)), {"'t'", "not aligned"});
  refused(one(record("t", {32}, 0, ~std::uint64_t{0} - 31)), {"'t'", "offset"});
}

TEST_F(Gguf, RefusesGapsOverlapsAndDuplicates) {
  const auto two = [](const std::string& a, const std::string& b) {
    return padded(file(2, 0, a + b), 4096);
  };
  EXPECT_NO_THROW(open(two(record("a", {8}, 0, 0), record("b", {8}, 0, 32))));
  refused(two(record("a", {16}, 0, 0), record("b", {8}, 0, 32)), {"'b'", "end at 64"});
  refused(two(record("a", {8}, 0, 0), record("b", {8}, 0, 64)), {"'b'", "end at 32"});
  refused(two(record("a", {8}, 0, 32), record("b", {8}, 0, 0)), {"'a'"});
  refused(two(record("a", {8}, 0, 0), record("a", {8}, 0, 32)), {"'a'", "twice"});
}

TEST_F(Gguf, RefusesEveryTruncation) {
  GgufWriter w;
  w.add_text("general.architecture", "gemma4");
  w.add_texts("list", std::vector<std::string>{"a", "bc", ""});
  w.add_tensor("t", BlockType::kF32, {16});
  w.add_tensor("u", BlockType::kQ4_0, {32});
  std::string whole = w.head();
  whole.resize(w.tensors()[1].offset + w.tensors()[1].bytes, '\0');
  EXPECT_NO_THROW(open(whole)) << "without the last padding";
  for (std::size_t n = 0; n < whole.size(); ++n) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << whole.substr(0, n);
    EXPECT_THROW((void)GgufFile::open(path_), InputError) << n;
  }
}

TEST_F(Gguf, RefusesWhatIsNotARegularFile) {
  EXPECT_THROW((void)GgufFile::open(path_), InputError) << "missing";
  std::filesystem::create_directory(path_);
  refused("", {"directory"});
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THROW((void)GgufFile::open(path_), InputError) << "a fifo must not hang";
  EXPECT_THROW((void)GgufFile::open("/dev/zero"), InputError);
}

TEST_F(Gguf, ReadsTensorsWholeAndInPart) {
  std::string data;
  for (int i = 0; i < 16; ++i) data += raw(static_cast<float>(i));
  const GgufFile f = open(padded(file(1, 0, record("t", {8, 2}, 0, 0))) + data);
  const TensorInfo& t = f.tensor("t");
  EXPECT_EQ(t.rows(), 2);
  EXPECT_EQ(f.read_f32(t)[15], 15.0F);
  float row[8] = {};
  f.read_tensor(t, 32, std::as_writable_bytes(std::span(row)));
  EXPECT_EQ(row[0], 8.0F);
}

TEST_F(Gguf, AFileThatShrinksWhileInUseIsAnErrorNotASignal) {
  const GgufFile f = open(padded(file(1, 0, record("t", {1024}, 0, 0)), 4096));
  ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(f.tensor("t").offset + 100)), 0);
  std::vector<std::byte> bytes(4096);
  try {
    f.read_tensor(f.tensor("t"), bytes);
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("'t' (at byte " +
                                         std::to_string(f.tensor("t").offset + 100) + ")"),
              std::string::npos)
        << e.what();
  }
}

TEST_F(Gguf, NamesAreEscapedInMessages) {
  refused(padded(file(1, 0, record("a\n\x1b[31m", {0}, 0, 0)), 64), {"a\\x0a\\x1b[31m"});
}

// ---- NaN and infinity ----

TEST(Finite, FindsTheFirstBadScaleOfEveryType) {
  for (const BlockType type : kAllBlockTypes) {
    SCOPED_TRACE(to_string(type));
    const std::size_t size = block_bytes(type);
    const std::size_t blocks = 5000;
    const std::vector<std::byte> clean(size * blocks, std::byte{0x2B});
    EXPECT_EQ(find_nonfinite(type, clean), std::nullopt);
    const bool scale_at_end = type == BlockType::kQ6_K;
    std::vector<std::size_t> fields = {scale_at_end ? std::size_t{208} : std::size_t{0}};
    if (type == BlockType::kQ4_1 || type == BlockType::kQ5_1 || type == BlockType::kQ4_K ||
        type == BlockType::kQ5_K) {
      fields.push_back(2);
    }
    for (const std::size_t field : fields) {
      for (const std::size_t block :
           {std::size_t{0}, std::size_t{1023}, std::size_t{1024}, blocks - 1}) {
        for (const std::uint32_t bad : {0x7C00U, 0xFC00U, 0x7E01U}) {  // inf, -inf, NaN
          std::vector<std::byte> bytes = clean;
          if (type == BlockType::kF32) {
            const std::uint32_t word = (bad & 0x8000U) << 16 | 0x7F800000U | (bad & 0x3FFU);
            std::memcpy(bytes.data() + block * size, &word, 4);
          } else {
            const auto half = static_cast<std::uint16_t>(
                type == BlockType::kBF16 ? (bad & 0x8000U) | 0x7F80U | (bad & 0x7FU) : bad);
            std::memcpy(bytes.data() + block * size + field, &half, 2);
          }
          ASSERT_EQ(find_nonfinite(type, bytes), block) << field;
          // The check agrees with what the values become.
          std::vector<float> values(block_elements(type));
          dequantize(type, bytes.data() + block * size, values.size(), values.data());
          bool finite = true;
          for (const float v : values) finite = finite && v - v == 0.0F;
          EXPECT_FALSE(finite);
        }
      }
    }
    // Codes may be anything.
    std::vector<std::byte> codes = clean;
    if (block_elements(type) > 1) {
      codes[size - (scale_at_end ? 3 : 1)] = std::byte{0xFF};
      codes[size - (scale_at_end ? 4 : 2)] = std::byte{0x7F};
      EXPECT_EQ(find_nonfinite(type, codes), std::nullopt);
    }
  }
}

TEST_F(Gguf, NamesTheBlockOfANanScale) {
  std::string data(18 * 4, '\0');
  data[18 * 2 + 1] = '\x7E';
  const GgufFile f = open(padded(file(1, 0, record("q", {32, 4}, 2, 0))) + data);
  std::vector<std::byte> bytes(72);
  try {
    f.read_finite_tensor(f.tensor("q"), bytes);
    FAIL();
  } catch (const InputError& e) {
    const std::string at = std::to_string(f.tensor("q").offset + 36);
    EXPECT_NE(std::string(e.what()).find("'q' (at byte " + at + "): the scale of block 2"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace assay
