#include "kernels/base/record.h"

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kernels/base/build_id.h"
#include "kernels/base/error.h"
#include "kernels/base/json_schema.h"
#include "kernels/base/sha256.h"

namespace assay {
namespace {

using nlohmann::json;

json parity_record() {
  const std::string hash(64, 'a');
  return {
      {"schema", "assay-parity"},
      {"schema_version", "1.0.0"},
      {"recorded_utc", "2026-01-31T12:34:56Z"},
      {"op", "gemv_quant"},
      {"variant", "stock"},
      {"backend", "host"},
      {"class", "bounded"},
      {"bitwise_to", nullptr},
      {"deterministic", true},
      {"batch_invariant", true},
      {"outcome", "pass"},
      {"rng_seed", 0},
      {"threads", {1, 2, 4}},
      {"graph", false},
      {"cases",
       {{{"name", "one"},
         {"shape", "rows=1"},
         {"pass", true},
         {"bytes", 4},
         {"values", 1},
         {"mismatched_bytes", 0},
         {"max_ulp", 0},
         {"rel_l2", 1.25e-7},
         {"stock_rel_l2", 1.25e-7},
         {"error_bound", 1e-6}}}},
      {"skipped", json::array()},
      {"totals", {{"cases", 1}, {"compared", 1}, {"skipped", 0}, {"failed", 0}}},
      {"worst", {{"rel_l2", 1.25e-7}, {"max_ulp", 0}, {"mismatched_bytes", 0}}},
      {"source", {{"digest", hash}, {"files", {{"kernels/base/blocks.h", "0123456789abcdef"}}}}},
      {"exe_sha256", hash},
      {"build",
       {{"version", "0.1.0"},
        {"commit", "unknown"},
        {"dirty", false},
        {"tree_sha256", hash},
        {"compiler", "g++ 12"},
        {"cuda", "none"},
        {"build_type", "Release"}}},
      {"machine",
       {{"card", "a CPU"},
        {"backend", "host"},
        {"cpu", "a CPU"},
        {"threads", 2},
        {"cuda", "none"}}}};
}

std::string sealed_line() {
  json r = parity_record();
  seal_record(r);
  return canonical_json(r) + "\n";
}

std::string refusal(const std::string& text) {
  try {
    parse_records(text, "x.jsonl");
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(CanonicalJson, SortsKeysAndKeepsDoublesExact) {
  const json v = {{"b", 0.1},
                  {"a", {1, 2.5, -0.0}},
                  {"c", "\u00e9"},
                  {"d", std::numeric_limits<double>::infinity()}};
  EXPECT_EQ(canonical_json(v), R"({"a":[1,2.5,-0.0],"b":0.1,"c":"\u00e9","d":null})");
}

TEST(CanonicalJson, ReadsBackToTheSameBytes) {
  const json v = {
      {"tiny", 5e-324}, {"third", 1.0 / 3.0}, {"big", 1.7976931348623157e308}, {"max", UINT64_MAX}};
  const std::string text = canonical_json(v);
  EXPECT_EQ(canonical_json(json::parse(text)), text);
}

TEST(Record, DigestIsTheHashOfTheTextWithoutTheSeal) {
  json r = parity_record();
  const std::string open = canonical_json(r);
  seal_record(r);
  EXPECT_EQ(r.at("record_sha256"), sha256_hex(open));
  EXPECT_EQ(record_id(r), sha256_hex(open).substr(0, 16));
}

TEST(Record, AppendedRecordsReadBackInOrder) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "assay_record_test";
  std::filesystem::remove_all(folder);
  const std::string path = (folder / "deep" / "parity.jsonl").string();
  json first = parity_record();
  json second = parity_record();
  second["variant"] = "other";
  append_record(path, first);
  append_record(path, second);
  const auto back = read_records(path);
  ASSERT_EQ(back.size(), 2U);
  EXPECT_EQ(back[0], first);
  EXPECT_EQ(back[1], second);
  EXPECT_EQ(record_files(folder.string()), std::vector<std::string>{path});
  EXPECT_TRUE(record_files((folder / "absent").string()).empty());
  std::filesystem::remove_all(folder);
}

TEST(Record, ARecordOutsideItsSchemaIsNeverWritten) {
  json r = parity_record();
  r["host_name"] = "x";
  EXPECT_THROW(append_record(testing::TempDir() + "/never.jsonl", r), std::logic_error);
  EXPECT_FALSE(std::filesystem::exists(testing::TempDir() + "/never.jsonl"));
}

TEST(Record, AnEditedRecordIsRefusedWithLineAndOffset) {
  const std::string good = sealed_line();
  std::string edited = good;
  edited.replace(edited.find("1.25e-07"), 8, "1.25e-09");
  const std::string why = refusal(good + edited);
  EXPECT_NE(why.find("x.jsonl: line 2, byte " + std::to_string(good.size())), std::string::npos)
      << why;
  EXPECT_NE(why.find("edited"), std::string::npos) << why;
}

TEST(Record, BrokenTextIsRefused) {
  const std::string good = sealed_line();
  EXPECT_NE(refusal("{oops\n").find("line 1, byte 1: not JSON"), std::string::npos)
      << refusal("{oops\n");
  EXPECT_NE(refusal("[1]\n").find("not a JSON object"), std::string::npos);
  EXPECT_NE(refusal("{\"schema\":\"no-such\"}\n").find("known are"), std::string::npos);
  EXPECT_NE(refusal(good.substr(0, good.size() - 1)).find("cut short"), std::string::npos);
  EXPECT_EQ(refusal(good), "accepted");
  EXPECT_EQ(refusal(""), "accepted");
}

TEST(Record, UnknownAndMissingKeysAreRefusedByName) {
  json r = parity_record();
  r["extra"] = 1;
  seal_record(r);
  EXPECT_NE(refusal(canonical_json(r) + "\n").find("/extra: unknown key"), std::string::npos);
  r = parity_record();
  r["cases"][0].erase("rel_l2");
  seal_record(r);
  EXPECT_NE(refusal(canonical_json(r) + "\n").find("/cases/0: lacks the key \"rel_l2\""),
            std::string::npos);
}

TEST(JsonSchema, NamesTheFaultAndWhereItIs) {
  const json schema =
      json::parse(R"({"type":"object","additionalProperties":false,"required":["n"],"properties":{
    "n":{"type":"integer","minimum":1},"k":{"enum":["a","b"]},"s":{"type":"string","pattern":"^x"},
    "l":{"type":"array","minItems":2,"items":{"$ref":"#/$defs/t"}}},"$defs":{"t":{"type":["number","null"]}}})");
  const auto faults = [&](const char* text) { return schema_faults(schema, json::parse(text)); };
  EXPECT_TRUE(faults(R"({"n":1,"k":"b","s":"xy","l":[1,null]})").empty());
  EXPECT_EQ(faults(R"({})"), std::vector<std::string>{"/: lacks the key \"n\""});
  EXPECT_EQ(faults(R"({"n":0})"), std::vector<std::string>{"/n: 0 is below 1"});
  EXPECT_EQ(faults(R"({"n":1.5})"), std::vector<std::string>{"/n: expected integer, got number"});
  EXPECT_EQ(faults(R"({"n":1,"k":"c"})"),
            std::vector<std::string>{"/k: \"c\" is not one of [\"a\",\"b\"]"});
  EXPECT_EQ(faults(R"({"n":1,"s":"y"})"), std::vector<std::string>{"/s: \"y\" does not match ^x"});
  EXPECT_EQ(faults(R"({"n":1,"l":[1,"t"]})"),
            std::vector<std::string>{"/l/1: expected number or null, got string"});
  EXPECT_EQ(faults(R"({"n":1,"l":[1]})"), std::vector<std::string>{"/l: fewer than 2 items"});
  EXPECT_EQ(faults(R"({"n":1,"z~/":1})"), std::vector<std::string>{"/z~0~1: unknown key"});
}

TEST(JsonSchema, AKeywordThatNobodyChecksIsOurMistake) {
  EXPECT_THROW(schema_faults(json::parse(R"({"maxLength":3})"), json("x")), std::logic_error);
}

TEST(BuildId, EveryDigestIsTheHashOfTheFilesItNames) {
  ASSERT_FALSE(source_digests().empty());
  for (const auto& d : source_digests()) {
    std::string lines;
    for (const auto& f : source_files(d.op, d.variant))
      lines += std::string(f.sha256) + "  " + f.path + "\n";
    EXPECT_EQ(sha256_hex(lines), d.sha256) << d.op << ' ' << d.variant;
    EXPECT_EQ(source_digest(d.op, d.variant), d.sha256);
  }
}

}  // namespace
}  // namespace assay
