#include "kernels/base/env.h"

#include <string>

#include <gtest/gtest.h>

#include "kernels/base/error.h"
#include "kernels/base/op_info.h"

namespace assay {
namespace {

std::string refusal(const std::map<std::string, std::string>& variables) {
  try {
    Env::from(variables);
  } catch (const UserError& e) {
    EXPECT_EQ(e.code(), Exit::kUsage);
    return e.what();
  }
  return "accepted";
}

TEST(Env, VariablesOfOthersAreNoBusinessOfOurs) {
  EXPECT_EQ(
      refusal({{"PATH", "/bin"}, {"ASSAYER", "x"}, {"MY_ASSAY_X", "1"}, {"assay_strict", "7"}}),
      "accepted");
}

TEST(Env, AnUnknownNameIsRefusedAndTheValidOnesAreListed) {
  const std::string why = refusal({{"ASSAY_GEMV_QUNAT", "avx2"}});
  EXPECT_NE(why.find("unknown variable ASSAY_GEMV_QUNAT"), std::string::npos) << why;
  for (const char* name : {"ASSAY_STRICT", "ASSAY_SYNC", "ASSAY_LOG_LEVEL"})
    EXPECT_NE(why.find(name), std::string::npos);
  for (const OpInfo* op : all_ops())
    EXPECT_NE(why.find(op->switch_name), std::string::npos) << op->name;
  EXPECT_NE(refusal({{"ASSAY_", ""}}), "accepted");
}

TEST(Env, AnUnknownValueIsRefusedAndTheValidOnesAreListed) {
  for (const char* value :
       {"avx3", "", "AVX2", "parity:", "parity:stock", "parity:avx3", "avx2 "}) {
    const std::string why = refusal({{"ASSAY_GEMV_QUANT", value}});
    EXPECT_NE(
        why.find(std::string("ASSAY_GEMV_QUANT=") + value + ": gemv_quant has no such variant"),
        std::string::npos)
        << why;
    for (const auto& v : find_op("gemv_quant").variants)
      EXPECT_NE(why.find(v.name), std::string::npos) << why;
    EXPECT_NE(why.find("parity:<variant>"), std::string::npos) << why;
  }
}

TEST(Env, EveryOpsSwitchTakesEveryVariantOfIt) {
  for (const OpInfo* op : all_ops()) {
    for (const auto& v : op->variants) {
      const Env env = Env::from({{op->switch_name, v.name}});
      EXPECT_EQ(env.switch_for(op->name).variant, v.name);
      EXPECT_FALSE(env.switch_for(op->name).parity);
      EXPECT_TRUE(env.has_switch(op->name));
    }
  }
}

TEST(Env, SwitchNamesAreTheOpsNamesInUpperCase) {
  for (const OpInfo* op : all_ops()) {
    std::string name = "ASSAY_";
    for (const char c : op->name) name += static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
    EXPECT_EQ(op->switch_name, name);
  }
}

TEST(Env, FlagsAreZeroOrOne) {
  EXPECT_FALSE(Env::from({}).strict());
  EXPECT_TRUE(Env::from({{"ASSAY_STRICT", "1"}}).strict());
  EXPECT_FALSE(Env::from({{"ASSAY_STRICT", "0"}}).strict());
  EXPECT_NE(refusal({{"ASSAY_STRICT", "yes"}}).find("valid values are 0 and 1"), std::string::npos);
  EXPECT_NE(refusal({{"ASSAY_SYNC", ""}}).find("valid values are 0 and 1"), std::string::npos);
}

TEST(Env, AnEmptyEnvironmentHasNoSwitch) {
  const Env env = Env::from({});
  for (const OpInfo* op : all_ops()) {
    EXPECT_FALSE(env.has_switch(op->name));
    EXPECT_EQ(env.switch_for(op->name).variant, "stock");
  }
  EXPECT_THROW(env.switch_for("no_such_op"), UserError);
}

}  // namespace
}  // namespace assay
