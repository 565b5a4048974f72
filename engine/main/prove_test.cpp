// assay prove and what rests on it, as a user runs them: the campaign, its resumption, bad surroundings, arming, stale proofs.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/base/build_id.h"
#include "kernels/base/device_info.h"
#include "kernels/base/gpu_memory.h"
#include "kernels/base/program.h"
#include "kernels/base/proven.h"
#include "kernels/base/record.h"

namespace assay {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

const std::string kModel = std::string(ASSAY_SOURCE_DIR "/engine/models/tiny-gemma4-moe-q4_0.gguf");
const std::string kGenerate =
    "generate --model " + kModel + " --ids 2,5,7 --n 4 --greedy --json - ";
// A short campaign: one variant of one op confirmed, two blocks a start, a bar that noise cannot hide.
const std::string kProve =
    "prove --scratch --ops attention_decode --confirm 1 --pairs 8 --blocks 2 --screen-blocks 2 "
    "--bar 3 --stack-rounds 0 --json - --out ";

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

class Prove : public testing::Test {
 protected:
  Prove()
      : folder_(fs::path(testing::TempDir()) /
                ("assay_prove_" + std::to_string(::getpid()) + "_" +
                 testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::create_directory(folder_);
  }
  ~Prove() override { fs::remove_all(folder_); }

  Outcome run(const std::string& arguments, const std::string& program = ASSAY_PROGRAM) const {
    const std::string errors = path("stderr");
    Outcome o;
    FILE* pipe = ::popen((program + " " + arguments + " 2> " + errors).c_str(), "r");
    char buffer[4096];
    for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;)
      o.out.append(buffer, n);
    o.code = WEXITSTATUS(::pclose(pipe));
    o.err = read_file(errors);
    return o;
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // A copy of the program beside a results folder of its own, which `--profile proven` then finds.
  std::string program_with_results() const {
    fs::create_directories(folder_ / "bin");
    fs::create_directories(folder_ / "results" / "schema");
    fs::copy_file(ASSAY_PROGRAM, folder_ / "bin" / "assay");
    return path("bin/assay");
  }
  void store(const ProvenSet& set) const {
    const std::string folder = path("results/" + card_slug(set.card) + "/2026-01-02_0123");
    fs::create_directories(folder);
    write_file_atomic(folder + "/proven_host.json", proven_text(set) + "\n");
  }

  fs::path folder_;
};

// A set of this machine and these sources; its records are named but nobody looks for them when arming.
ProvenSet set_of(const std::string& op, const std::string& lane, const std::string& variant) {
  ProvenSet set{"2026-01-02T03:04:05Z", host_device().name, "host", "none", "0123", false, {}, {}};
  const json source = source_json(op, variant);
  set.ops[op][lane] = {variant,
                       std::string(64, 'a'),
                       std::string(64, 'b'),
                       source.at("digest"),
                       source.at("files").get<std::map<std::string, std::string>>(),
                       2.5};
  return set;
}

bool says(const Outcome& o, const std::string& text) {
  return o.err.find(text) != std::string::npos;
}

std::string armed_of(const Outcome& o) {
  std::string text;
  const json document = json::parse(o.out);
  for (const json& entry : document.at("armed")) {
    text += entry.at("op").get<std::string>() + "=" + entry.at("variant").get<std::string>() +
            (entry.at("selected").get<int>() > 0 ? " ran;" : " idle;");
  }
  return text;
}

std::vector<std::string> lines_of(const std::string& file) {
  std::vector<std::string> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST_F(Prove, RunsResumesAndArms) {
  if (!host_device().avx2) GTEST_SKIP() << "no variant runs on this machine";
  const Outcome first = run(kProve + path("r"));
  ASSERT_EQ(first.code, 0) << first.err;
  const json answer = json::parse(first.out);
  EXPECT_TRUE(answer.at("complete"));
  EXPECT_EQ(answer.at("reused_records"), 0);
  std::string winner;
  for (const json& m : answer.at("members")) {
    EXPECT_EQ(m.at("parity").at("outcome"), "pass");
    EXPECT_FALSE(m.at("screening").is_null());
    if (m.at("in_set")) winner = m.at("variant");
  }
  ASSERT_FALSE(winner.empty()) << first.out;
  const std::string set_path = answer.at("proven_set");
  const std::string records = path("r/scratch/ab_attention_decode_" + winner + ".jsonl");
  const Outcome verified = run("verify " + path("r"));
  EXPECT_EQ(verified.code, 0) << verified.err;
  EXPECT_NE(verified.out.find("1 proven sets"), std::string::npos) << verified.out;

  for (const std::string& line : lines_of(records)) {
    // What the harness took beside its arms' work; the bounds of bench.md are for an idle machine and for stored records.
    const json harness = json::parse(line).at("harness");
    EXPECT_GT(harness.at("timed_s").get<double>(), 0.0);
    EXPECT_LE(harness.at("timed_s").get<double>(), harness.at("work_s").get<double>());
    EXPECT_LT(harness.at("orchestration_share").get<double>(), 0.5) << harness;
    EXPECT_LE(harness.at("clock_us_a_block").get<double>(), 2.0) << harness;
  }

  // Nothing is measured again; what is missing is, by the same plan.
  const auto lines = lines_of(records);
  ASSERT_EQ(lines.size(), 2U);  // screening, confirmation
  const json again = json::parse(run(kProve + path("r")).out);
  EXPECT_EQ(again.at("members"), answer.at("members"));
  EXPECT_EQ(lines_of(records), lines);
  write_file_atomic(records, lines[0] + "\n");
  const json resumed = json::parse(run(kProve + path("r")).out);
  EXPECT_EQ(resumed.at("reused_records"), again.at("reused_records").get<int>() - 1);
  const auto after = lines_of(records);
  ASSERT_EQ(after.size(), 2U);
  EXPECT_EQ(after[0], lines[0]);
  EXPECT_EQ(json::parse(after[1]).at("plan"), json::parse(lines[1]).at("plan"));

  // The set arms by name, and the words are the same.
  const Outcome stock = run(kGenerate);
  const Outcome armed = run(kGenerate + "--profile " + set_path);
  ASSERT_EQ(armed.code, 0) << armed.err;
  EXPECT_TRUE(says(armed, "attention_decode=" + winner + " armed: x")) << armed.err;
  EXPECT_EQ(armed_of(armed), "attention_decode=" + winner + " ran;");
  EXPECT_EQ(json::parse(armed.out).at("ids"), json::parse(stock.out).at("ids"));

  // A set that says more than its records, and a record that says more than its samples.
  std::string set = read_file(set_path);
  const auto at = set.find("\"speedup\":") + 10;
  write_file_atomic(set_path, set.insert(at, "9"));
  const Outcome praised = run("verify " + path("r"));
  EXPECT_EQ(praised.code, 1);
  EXPECT_TRUE(says(praised, "ops/attention_decode/any/speedup")) << praised.err;
  json edited = json::parse(after[0]);
  json& samples = edited["runs"][4]["samples"];
  const std::string tier = samples.begin().key();
  samples[tier]["wall"][1] = samples[tier]["wall"][1].get<double>() * 0.99;
  seal_record(edited);
  write_file_atomic(records, canonical_json(edited) + "\n");
  const Outcome altered = run("verify " + records);
  EXPECT_EQ(altered.code, 1);
  EXPECT_TRUE(says(altered, "runs/4/samples/" + tier)) << altered.err;

  // Half a line, as a full disk leaves it.
  write_file_atomic(records, lines[0].substr(0, 1000));
  const Outcome cut = run(kProve + path("r"));
  EXPECT_EQ(cut.code, 3);
  EXPECT_TRUE(says(cut, records + ": line 1")) << cut.err;
}

TEST_F(Prove, StopsWithinItsBudgetAndSaysSo) {
  if (!host_device().avx2) GTEST_SKIP() << "no variant runs on this machine";
  // A file that is no record does not stop a campaign that has no need to write to it.
  fs::create_directories(path("r/scratch/earlier"));
  std::ofstream(path("r/scratch/earlier/ab.jsonl")) << "no record\n";
  // Nor does a record of another kind, which says its build in words.
  fs::copy_file(ASSAY_SOURCE_DIR "/results/amd-epyc/2026-11-30_b060acca857b/nightly.jsonl",
                path("r/scratch/earlier/nightly.jsonl"));
  const Outcome o = run(kProve + path("r") + " --budget-s 0.001");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(says(o, "passed over " + path("r/scratch/earlier/ab.jsonl") + ": line 1")) << o.err;
  const json answer = json::parse(o.out);
  EXPECT_FALSE(answer.at("complete"));
  for (const json& m : answer.at("members")) EXPECT_TRUE(m.at("screening").is_null());
  EXPECT_FALSE(fs::exists(answer.at("proven_set").get<std::string>()));
}

TEST_F(Prove, RefusesASecondCampaignInTheSameFolder) {
  if (!host_device().avx2) GTEST_SKIP() << "no variant runs on this machine";
  fs::create_directories(path("r/scratch"));
  const int fd = ::open(path("r/scratch").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  const Outcome o = run(kProve + path("r"));
  ::close(fd);
  EXPECT_EQ(o.code, 1);
  EXPECT_TRUE(says(o, "another campaign is running")) << o.err;
}

TEST_F(Prove, RefusesBadUseBeforeItRuns) {
  std::ofstream(path("file")) << "x";
  for (const auto& [arguments, code, part] :
       {std::tuple<std::string, int, std::string>{"--ops gemv_quant,nonesuch", 2, "gemv_quant"},
        {"--pairs 7", 2, "--pairs 7"},
        {"--confirm 4", 2, "--confirm 4"},
        {"--budget-s -1", 2, "--budget-s"},
        {"--blocks 3", 2, "blocks"},
        {"--screen-blocks 3", 2, "blocks"},
        {"--backend tpu", 2, "host, cuda"},
        {"--backend cuda", 77, "--backend cuda"},
        {"--ops router_topk", 77, "router_topk"},
        {"--out " + path("file") + "/below", 1, path("file") + "/below"},
        {"--out /proc/nowhere", 1, "/proc/nowhere"}}) {
    if (arguments == "--backend cuda" && gpu::unavailable() == nullptr) continue;  // proves there
    std::string rest;
    if (!arguments.starts_with("--out")) rest += " --out " + path("r");
    if (!arguments.starts_with("--ops")) rest += " --ops attention_decode";
    const Outcome o = run("prove --scratch " + arguments + rest);
    EXPECT_EQ(o.code, code) << arguments << ": " << o.err;
    EXPECT_TRUE(says(o, part)) << arguments << ": " << o.err;
    EXPECT_EQ(o.out, "");
  }
}

TEST_F(Prove, ProvenArmsWhatIsTrueOfThisMachineAndSaysWhyNotOtherwise) {
  if (!host_device().avx2) GTEST_SKIP() << "no variant runs on this machine";
  const std::string program = program_with_results();
  const std::string proven = kGenerate + "--profile proven";
  Outcome o = run(proven, program);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(says(o, "no proven set is recorded for '" + host_device().name + "'")) << o.err;
  EXPECT_EQ(armed_of(o), "");

  ProvenSet elsewhere = set_of("gemv_quant", "fast", "avx2");
  elsewhere.card = "Another CPU";
  store(elsewhere);
  o = run(proven, program);
  EXPECT_TRUE(says(o, "only for 'Another CPU'")) << o.err;
  EXPECT_EQ(armed_of(o), "");
  o = run(kGenerate + "--profile " + path("results/another-cpu/2026-01-02_0123/proven_host.json"),
          program);
  EXPECT_TRUE(says(o, "it is of card 'Another CPU'")) << o.err;

  ProvenSet set = set_of("gemv_quant", "fast", "avx2");
  store(set);
  o = run(proven, program);
  EXPECT_TRUE(says(o, "gemv_quant=avx2 armed: x2.500")) << o.err;
  EXPECT_EQ(armed_of(o), "gemv_quant=avx2 ran;");
  o = run(proven + " --numerics exact", program);
  EXPECT_TRUE(says(o, "no winner for the exact lane")) << o.err;
  EXPECT_EQ(armed_of(o), "");
  o = run(proven, "ASSAY_GEMV_QUANT=stock " + program);
  EXPECT_EQ(armed_of(o), "") << "a switch overrides a profile";

  // One edited source: its digest moves and with it the set's.
  ProvenEntry& entry = set.ops["gemv_quant"]["fast"];
  entry.files["variants/gemv_quant/avx2.cpp"] = std::string(16, '0');
  entry.source_digest = std::string(64, '0');
  store(set);
  o = run(proven, program);
  EXPECT_EQ(o.code, 0);
  EXPECT_TRUE(
      says(o, "gemv_quant=avx2 not armed, its proof is stale: variants/gemv_quant/avx2.cpp"))
      << o.err;
  EXPECT_EQ(armed_of(o), "");

  set = set_of("gemv_quant", "fast", "avx2");
  set.scratch = true;
  store(set);
  o = run(proven, program);
  EXPECT_TRUE(says(o, "a scratch set")) << o.err;
  EXPECT_EQ(armed_of(o), "");

  write_file_atomic(path("results/" + card_slug(set.card) + "/2026-01-02_0123/proven_host.json"),
                    "{\"schema\":");
  o = run(proven, program);
  EXPECT_EQ(o.code, 0);
  EXPECT_TRUE(says(o, "proven_host.json: byte")) << o.err;
  EXPECT_EQ(armed_of(o), "");
}

TEST_F(Prove, EveryProgramWithAModelArmsTheSameSet) {
  if (!host_device().avx2) GTEST_SKIP() << "no variant runs on this machine";
  const std::string set = path("proven_host.json");
  write_file_atomic(set, proven_text(set_of("gemv_quant", "fast", "avx2")) + "\n");
  const std::string logits = "logits --model " + kModel + " --ids 2,5,7 --step --raw ";
  EXPECT_EQ(run(logits + path("stock.f32")).code, 0);
  const Outcome o = run(logits + path("armed.f32") + " --profile " + set);
  EXPECT_EQ(o.code, 0);
  EXPECT_TRUE(says(o, "gemv_quant=avx2 armed")) << o.err;
  EXPECT_EQ(read_file(path("stock.f32")), read_file(path("armed.f32")));
  const Outcome bench =
      run("bench-model --model " + kModel +
          " --prompt-tokens 4 --gen-tokens 2 --depth 0 --repeat 1 --profile " + set);
  EXPECT_EQ(bench.code, 0) << bench.err;
  EXPECT_TRUE(says(bench, "gemv_quant=avx2 armed")) << bench.err;
}

TEST_F(Prove, CatalogNamesAStaleProofAndWhatMoved) {
  if (!host_device().avx2) GTEST_SKIP() << "no variant runs on this machine";
  const std::string records = path("r/card/2026-01-02_0123/parity_gemv_quant.jsonl");
  ASSERT_EQ(run("ab-parity --op gemv_quant --variant avx2 --record " + records).code, 0);
  json record = json::parse(lines_of(records).at(0));
  record["build"]["dirty"] = false;
  const auto catalog = [&] {
    seal_record(record);
    write_file_atomic(records, canonical_json(record) + "\n");
    const Outcome o = run("catalog --json - --results " + path("r"));
    const json document = json::parse(o.out);
    for (const json& op : document.at("ops")) {
      if (op.at("op") != "gemv_quant") continue;
      for (const json& v : op.at("variants")) {
        if (v.at("name") == "avx2") return v;
      }
    }
    return json();
  };
  json row = catalog();
  EXPECT_EQ(row.at("proof"), record_id(record));
  EXPECT_TRUE(row.at("stale_proof").is_null());
  record["source"]["digest"] = std::string(64, '0');
  record["source"]["files"]["variants/gemv_quant/avx2.cpp"] = std::string(16, '0');
  row = catalog();
  EXPECT_TRUE(row.at("proof").is_null());
  EXPECT_EQ(row.at("stale_proof").at("record"), record_id(record));
  EXPECT_EQ(row.at("stale_proof").at("moved"), "variants/gemv_quant/avx2.cpp");
}

// Every record in the tree: schema, seal, analysis and verdict from the samples, sets against their records.
TEST_F(Prove, StoredResultsAreWhatTheyClaim) {
  const std::string results = std::string(ASSAY_SOURCE_DIR "/results");
  std::string folders;
  for (const auto& entry : fs::directory_iterator(results)) {
    const std::string name = entry.path().filename().string();
    // Scratch is no part of the tree.
    if (entry.is_directory() && name != "schema" && name != "scratch")
      folders += " " + entry.path().string();
  }
  std::map<std::string, int> count;
  if (!folders.empty()) {
    const Outcome o = run("verify --json -" + folders);
    ASSERT_EQ(o.code, 0) << o.err;
    const json document = json::parse(o.out);
    for (const json& r : document.at("records")) {
      EXPECT_TRUE(r.at("faults").empty()) << r.dump();
      EXPECT_FALSE(r.at("scratch").get<bool>()) << "a scratch record is stored: " << r.dump();
      const std::string sources = r.at("sources").is_null() ? "" : r.at("sources");
      ++count[sources.substr(0, sources.find(':'))];
    }
    for (const std::string& file : record_files(results)) {
      if (file.find("/scratch/") != std::string::npos) continue;
      for (const json& r : read_records(file)) {
        const json build = r.value("build", json());
        // A program's whole record names its parts; a script's holds the line that --version prints.
        const bool dirty =
            build.is_string()
                ? build.get_ref<const std::string&>().find(" clean ") == std::string::npos
                : build.is_object() && build.at("dirty").get<bool>();
        EXPECT_FALSE(dirty) << file << ": of a dirty tree";
      }
    }
  }
  std::printf(
      "%d current, %d stale, %d of no variant\n", count["current"], count["stale"], count[""]);
}

}  // namespace
}  // namespace assay
