#include <filesystem>
#include <fstream>
#include <set>

#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/fuzz/malformed_gguf.h"
#include "engine/fuzz/seeds.h"
#include "engine/make_model.h"

namespace assay {
namespace {

class HostileGguf : public testing::Test {
 protected:
  HostileGguf()
      : path_((std::filesystem::path(testing::TempDir()) /
               ("assay_hostile_" + std::to_string(::getpid()) + "_" +
                testing::UnitTest::GetInstance()->current_test_info()->name()))
                  .string()) {}
  ~HostileGguf() override { std::filesystem::remove(path_); }
  std::string load(const std::string& bytes, std::uint64_t shrinks_to = 0) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    return load_everything(path_, shrinks_to);
  }
  std::string path_;
};

TEST_F(HostileGguf, TheSmallestModelIsSoundAndTakingApartIsExact) {
  const std::string bytes = smallest_model().write();
  EXPECT_EQ(load(bytes), "");
  EXPECT_EQ(take_apart(path_).write(), bytes);
}

// Six hundred of the stream that `hostile_gguf --count 10000` runs whole.
TEST_F(HostileGguf, EveryMalformedFileIsRefusedWithNameAndPlace) {
  make_model({.preset = "spec", .type = "q4_0"}, path_, 1);
  const MalformedGguf stream(take_apart(path_), 1);
  ASSERT_EQ(load_everything(path_), "");
  std::set<std::string> changes;
  for (std::uint64_t i = 0; i < 600; ++i) {
    const MalformedFile file = stream.make(i);
    changes.insert(file.change);
    const std::string refusal = load(file.bytes, file.shrinks_to);
    EXPECT_NE(refusal, "") << "accepted, file " << i << ": " << file.change;
    if (!refusal.empty()) {
      EXPECT_TRUE(well_formed_refusal(refusal, path_)) << file.change << ": " << refusal;
    }
  }
  EXPECT_GT(changes.size(), 450U) << "the stream repeats itself";
}

TEST_F(HostileGguf, TheStreamIsTheSameFromTheSameSeed) {
  const GgufParts base = smallest_model();
  const MalformedGguf a(base, 7);
  const MalformedGguf b(base, 7);
  const MalformedGguf c(base, 8);
  int different = 0;
  for (std::uint64_t i = 0; i < 56; ++i) {
    EXPECT_EQ(a.make(i).bytes, b.make(i).bytes);
    different += a.make(i).bytes != c.make(i).bytes ? 1 : 0;
  }
  EXPECT_GT(different, 28);
}

TEST(FuzzSeeds, InTheTreeAreWhatTheProgramWrites) {
  const std::filesystem::path folder =
      std::filesystem::path(ASSAY_SOURCE_DIR) / "engine/fuzz/seeds";
  for (const auto& [name, bytes] : fuzz_seeds()) {
    std::ifstream in(folder / name, std::ios::binary);
    ASSERT_TRUE(in) << name;
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), bytes)
        << name << " differs: run write_fuzz_seeds engine/fuzz/seeds";
  }
}

TEST(WellFormedRefusal, WantsFileNameAndOffset) {
  EXPECT_TRUE(well_formed_refusal("f: key 'k' (at byte 12): wrong", "f"));
  EXPECT_TRUE(well_formed_refusal("f: tensor 't' (at byte 0): wrong", "f"));
  EXPECT_FALSE(well_formed_refusal("g: key 'k' (at byte 12): wrong", "f"));
  EXPECT_FALSE(well_formed_refusal("f: key 'k': wrong", "f"));
  EXPECT_FALSE(well_formed_refusal("f: something (at byte 12): wrong", "f"));
  EXPECT_FALSE(well_formed_refusal("f: key 'k' (at byte ): wrong", "f"));
  EXPECT_FALSE(well_formed_refusal("f: key 'k' (at byte 12): ", "f"));
}

}  // namespace
}  // namespace assay
