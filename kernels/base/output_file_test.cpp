#include "kernels/base/output_file.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/program.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

class Output : public testing::Test {
 protected:
  Output() {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  ~Output() override { fs::remove_all(dir_); }
  std::string at(const std::string& name) const { return (dir_ / name).string(); }
  static std::string text_of(const std::string& path) {
    std::ostringstream out;
    out << std::ifstream(path).rdbuf();
    return out.str();
  }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(dir_), fs::directory_iterator()));
  }
  const fs::path dir_ = fs::temp_directory_path() / ("assay_output_" + std::to_string(::getpid()));
};

TEST_F(Output, ReplacesAFileWholeOrNotAtAll) {
  write_file_atomic(at("a"), "old");
  {
    OutputFile file(at("a"));
    file.write("ne", 2);
    EXPECT_EQ(text_of(at("a")), "old");
  }
  EXPECT_EQ(text_of(at("a")), "old");
  EXPECT_EQ(files(), 1U) << "the temporary is left behind";
  OutputFile file(at("a"));
  file.write("new", 3);
  file.finish();
  EXPECT_EQ(text_of(at("a")), "new");
  EXPECT_EQ(files(), 1U);
}

TEST_F(Output, ALinkIsFollowedAndStays) {
  write_file_atomic(at("target"), "old");
  fs::create_symlink("target", at("link"));
  fs::create_symlink("made", at("ahead"));
  write_file_atomic(at("link"), "new");
  write_file_atomic(at("ahead"), "first");
  EXPECT_TRUE(fs::is_symlink(at("link")));
  EXPECT_TRUE(fs::is_symlink(at("ahead")));
  EXPECT_EQ(text_of(at("target")), "new");
  EXPECT_EQ(text_of(at("made")), "first");
  fs::create_symlink("loop", at("loop"));
  EXPECT_THROW(write_file_atomic(at("loop"), "x"), UserError);
}

TEST_F(Output, APipeIsWrittenNotReplaced) {
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  const int reader = ::open(at("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  write_file_atomic(at("pipe"), "through");
  char got[16] = {};
  EXPECT_EQ(::read(reader, got, sizeof got), 7);
  EXPECT_STREQ(got, "through");
  ::close(reader);
  EXPECT_TRUE(fs::is_fifo(at("pipe")));
}

TEST_F(Output, ADeviceThatIsFullSaysSoAndStaysADevice) {
  if (!fs::is_character_file("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  // Through a link of our own: were it replaced, only the link would be lost.
  fs::create_symlink("/dev/full", at("full"));
  EXPECT_TRUE(output_target(at("full")).in_place);
  EXPECT_THROW(write_file_atomic(at("full"), "x"), Error);
  EXPECT_TRUE(fs::is_symlink(at("full")));
}

TEST_F(Output, AnInputOfTheSameRunIsRefused) {
  write_file_atomic(at("in"), "precious");
  fs::create_symlink("in", at("link"));
  protect_input(at("in"));
  EXPECT_THROW(write_file_atomic(at("in"), "x"), UserError);
  EXPECT_THROW(write_file_atomic(at("link"), "x"), UserError);
  EXPECT_EQ(text_of(at("in")), "precious");
  EXPECT_THROW(write_file_atomic(dir_.string(), "x"), UserError);
  EXPECT_THROW(write_file_atomic("", "x"), UserError);
}

}  // namespace
}  // namespace assay
