// The C interface: the engine's own numbers come through it, and nothing a caller does wrong is more than a status.
#include "engine/assay.h"

#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "engine/chat_template.h"
#include "engine/golden.h"
#include "engine/sampler.h"

namespace assay {
namespace {

struct Loaded {
  assay_model* model = nullptr;
  assay_session* session = nullptr;
  Loaded() {
    const assay_model_options options{sizeof options, 1, 2, 512};
    EXPECT_EQ(assay_model_load(kShippedModel.c_str(), &options, &model), ASSAY_OK) << assay_error();
    EXPECT_EQ(assay_session_new(model, &session), ASSAY_OK);
  }
  ~Loaded() {
    assay_model_free(model);  // before its session: allowed
    assay_session_free(session);
  }
};

std::string reply_of_the_engine(const std::string& message, int n) {
  Model model(kShippedModel, {.numerics = Numerics::kFast, .threads = 2, .context = 512});
  Session session(model);
  auto logits = session.feed(encode_user_prompt(model.tokenizer(), message));
  std::vector<TokenId> ids;
  for (int i = 0; i < n; ++i) {
    ids.push_back(greedy_token(logits));
    if (model.tokenizer().is_stop(ids.back())) break;
    logits = session.feed({&ids.back(), 1});
  }
  return model.tokenizer().decode(ids);
}

int collect(void* user, int32_t id, const char* text, std::size_t bytes) {
  EXPECT_GE(id, 0);
  static_cast<std::string*>(user)->append(text, bytes);
  return 0;
}

TEST(CInterface, GivesTheEnginesReply) {
  const std::string want = reply_of_the_engine("SQLite: VACUUM", 20);
  Loaded l;
  std::vector<int32_t> ids(64);
  std::size_t count = 0;
  ASSERT_EQ(assay_chat_prompt(l.model, "SQLite: VACUUM", 14, ids.data(), ids.size(), &count),
            ASSAY_OK);
  std::vector<float> logits(static_cast<std::size_t>(assay_model_vocabulary(l.model)));
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(assay_session_feed(l.session, ids.data(), count, logits.data()), ASSAY_OK);
    EXPECT_EQ(assay_session_position(l.session), static_cast<int32_t>(count));
    std::string text;
    assay_stop stop{};
    ASSERT_EQ(assay_session_generate(l.session, nullptr, 20, collect, &text, &stop), ASSAY_OK)
        << assay_error();
    EXPECT_EQ(text, want);
    EXPECT_EQ(stop, ASSAY_STOP_LENGTH);
    ASSERT_EQ(assay_session_cut(l.session, 0), ASSAY_OK);
  }
}

TEST(CInterface, TheExampleInCPrintsIt) {
  const std::string command =
      std::string(ASSAY_EXAMPLE " ") + kShippedModel + " 'SQLite: VACUUM' 20 2>/dev/null";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string text;
  std::array<char, 256> part{};
  while (const std::size_t n = std::fread(part.data(), 1, part.size(), pipe))
    text.append(part.data(), n);
  EXPECT_EQ(::pclose(pipe), 0);
  EXPECT_EQ(text, reply_of_the_engine("SQLite: VACUUM", 20) + "\n");
}

TEST(CInterface, TokensGoThereAndBack) {
  Loaded l;
  const std::string text = "na\xC3\xAFve <|turn> \xF0\x9F\x99\x82";
  std::size_t count = 0;
  EXPECT_EQ(assay_tokenize(l.model, text.data(), text.size(), 0, 0, nullptr, 0, &count),
            ASSAY_TOO_SMALL);
  EXPECT_NE(std::string(assay_error()).find("are needed"), std::string::npos);
  std::vector<int32_t> ids(count);
  ASSERT_EQ(assay_tokenize(l.model, text.data(), text.size(), 0, 0, ids.data(), ids.size(), &count),
            ASSAY_OK);
  EXPECT_STREQ(assay_error(), "");
  std::string back(64, '\0');
  std::size_t bytes = 0;
  ASSERT_EQ(assay_detokenize(l.model, ids.data(), count, back.data(), back.size(), &bytes),
            ASSAY_OK);
  EXPECT_EQ(back.substr(0, bytes), text);
  std::size_t with_special = 0;
  assay_tokenize(l.model, text.data(), text.size(), 1, 1, nullptr, 0, &with_special);
  EXPECT_NE(with_special, count);
}

TEST(CInterface, MisuseIsAStatus) {
  EXPECT_EQ(assay_abi_version(), static_cast<uint32_t>(ASSAY_ABI_VERSION));
  EXPECT_NE(std::strlen(assay_build()), 0U);
  assay_model* model = nullptr;
  EXPECT_EQ(assay_model_load("/nowhere.gguf", nullptr, &model), ASSAY_REFUSED);
  EXPECT_NE(std::string(assay_error()).find("/nowhere.gguf"), std::string::npos);
  EXPECT_EQ(model, nullptr);
  EXPECT_EQ(assay_model_load(nullptr, nullptr, &model), ASSAY_USAGE);
  EXPECT_EQ(assay_model_load(kShippedModel.c_str(), nullptr, nullptr), ASSAY_USAGE);
  assay_model_options options{};
  EXPECT_EQ(assay_model_load(kShippedModel.c_str(), &options, &model), ASSAY_USAGE) << "no size";
  options = {sizeof options, 0, 0, 1 << 30};
  EXPECT_EQ(assay_model_load(kShippedModel.c_str(), &options, &model), ASSAY_USAGE);
  assay_model_free(nullptr);
  assay_session_free(nullptr);
  assay_session* session = nullptr;
  EXPECT_EQ(assay_session_new(nullptr, &session), ASSAY_USAGE);
  Loaded l;
  const int32_t bad[] = {2, -1};
  EXPECT_EQ(assay_session_feed(l.session, bad, 2, nullptr), ASSAY_USAGE);
  EXPECT_EQ(assay_session_feed(l.session, bad, 0, nullptr), ASSAY_USAGE);
  EXPECT_EQ(assay_session_generate(l.session, nullptr, 1, nullptr, nullptr, nullptr), ASSAY_USAGE)
      << "nothing fed";
  std::size_t n = 0;
  EXPECT_EQ(assay_detokenize(l.model, bad, 2, nullptr, 0, &n), ASSAY_REFUSED);
  EXPECT_EQ(assay_session_cut(l.session, 5), ASSAY_USAGE);
  ASSERT_EQ(assay_session_feed(l.session, bad, 1, nullptr), ASSAY_OK);
  assay_sampling sampling{sizeof sampling, -1, 1.0, 1.0, 0};
  EXPECT_EQ(assay_session_generate(l.session, &sampling, 1, nullptr, nullptr, nullptr),
            ASSAY_USAGE);
  EXPECT_EQ(assay_session_generate(l.session, nullptr, 0, nullptr, nullptr, nullptr), ASSAY_USAGE);
  assay_stop stop{};
  const auto enough = [](void*, int32_t, const char*, std::size_t) { return 1; };
  EXPECT_EQ(assay_session_generate(l.session, nullptr, 9, enough, nullptr, &stop), ASSAY_OK);
  EXPECT_EQ(stop, ASSAY_STOP_CALLER);
}

}  // namespace
}  // namespace assay
