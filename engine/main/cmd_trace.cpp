// assay trace: what a routing trace holds, and traces made from traces.
#include <cmath>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/main/command.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"
#include "replay/facts.h"
#include "replay/report.h"
#include "traces/convert.h"
#include "traces/edit.h"
#include "traces/flat.h"
#include "traces/trace.h"

namespace assay {
namespace {

using nlohmann::json;

json info_json(const std::string& path, const TraceInfo& info) {
  const TraceFormat& f = info.format;
  json conversations = json::array();
  std::uint64_t held_out = 0;
  for (const auto& c : info.conversations) {
    conversations.push_back(
        {{"id", c.id}, {"first", c.first}, {"steps", c.steps}, {"split", to_string(c.split)}});
    held_out += c.split == Split::kHeldOut ? c.steps : 0;
  }
  return {{"path", path},
          {"label", f.label},
          {"layers", f.geometry.layers},
          {"experts", f.geometry.experts},
          {"top_k", f.geometry.top_k},
          {"shared_experts", f.shared_experts},
          {"id_bytes", f.id_bytes},
          {"weights",
           f.weights == WeightKind::kNone  ? "none"
           : f.weights == WeightKind::kF16 ? "f16"
                                           : "f32"},
          {"flags", f.flags},
          {"expert_bytes", f.expert_bytes},
          {"record_bytes", f.record_bytes()},
          {"steps", info.steps},
          {"held_out_steps", held_out},
          {"sealed", info.sealed},
          {"conversations", conversations}};
}

void print_document(const std::string& path, const char* schema, json body) {
  body["schema"] = schema;
  body["schema_version"] = 1;
  write_json(path, body.dump(-1, ' ', false, json::error_handler_t::replace));
}

void show_info(const std::string& in, bool facts, const std::string& json_path) {
  const TraceInfo info = TraceReader(in).info();
  json body = info_json(in, info);
  std::optional<replay::RoutingFacts> f;
  if (facts) {
    replay::Sequence sequence({in}, {});
    Progress bar("reading", sequence.steps());
    f = replay::routing_facts(sequence,
                              [&](std::uint64_t done, std::uint64_t) { bar.update(done); });
    body["facts"] = json::parse(replay::facts_json(*f));
  }
  if (json_path == "-") {
    print_document(json_path, "assay-trace-info", std::move(body));
    return;
  }
  print_document(json_path, "assay-trace-info", body);
  std::size_t held_out = 0;
  for (const auto& c : info.conversations) held_out += c.split == Split::kHeldOut ? 1 : 0;
  std::cout << fmt::format(
      "{}: {}\n  label          {}\n  steps          {} of {} bytes\n  conversations  {} ({} held "
      "out)\n  weights        {}\n  expert bytes   {}\n  sealed         {}\n",
      in,
      info.format.geometry.describe(),
      body["label"].dump(-1, ' ', false, json::error_handler_t::replace),
      info.steps,
      info.format.record_bytes(),
      info.conversations.size(),
      held_out,
      body["weights"].get<std::string>(),
      info.format.expert_bytes == 0 ? "unknown" : std::to_string(info.format.expert_bytes),
      info.sealed ? "yes" : "no: an interrupted capture");
  if (!f) return;
  std::cout << fmt::format("  shared with the step before  {:.1f} %\n", 100.0 * f->adjacent_share);
  for (const auto& [top, share] : f->skew)
    std::cout << fmt::format(
        "  top {:>4.0f} % of experts take {:>5.1f} % of uses\n", 100 * top, 100 * share);
  for (const auto& [share, steps] : f->reuse_steps)
    std::cout << fmt::format("  {:>4.0f} % of uses return within {} steps\n", 100 * share, steps);
  for (const auto& [window, share] : f->working_set)
    std::cout << fmt::format("  {:>5} steps use {:>5.1f} % of the experts\n", window, 100 * share);
}

void check(const std::string& in, const std::string& json_path) {
  TraceReader reader(in);
  const TraceInfo& info = reader.info();
  {
    Progress bar("checking", info.steps);
    TraceStep step;
    std::size_t entry = 0;
    const std::size_t window = window_records(info.format);
    std::uint64_t bad_weights = 0;
    for (std::uint64_t first = 0; first < info.steps;) {
      const RecordBlock b = reader.read(first, window);
      for (std::size_t i = 0; i < b.count; ++i) {
        while (first + i >= info.conversations[entry].first + info.conversations[entry].steps)
          ++entry;
        if (b.conversation(i) != info.conversations[entry].id) {
          throw CheckError(
              fmt::format("{}: step {}: the record says conversation {}, the table says {}",
                          in,
                          first + i,
                          b.conversation(i),
                          info.conversations[entry].id));
        }
        if (info.format.weights == WeightKind::kNone) continue;
        b.decode(i, step);
        for (const float w : step.weights) bad_weights += std::isfinite(w) ? 0 : 1;
      }
      first += b.count;
      bar.update(first);
    }
    if (bad_weights != 0)
      throw CheckError(fmt::format("{}: {} weights are not finite", in, bad_weights));
  }
  reader.verify_crc();
  print_document(json_path,
                 "assay-trace-check",
                 {{"path", in}, {"steps", info.steps}, {"sealed", info.sealed}, {"good", true}});
  if (json_path != "-") {
    std::cout << fmt::format("{}: {} steps, every id in range, {}\n",
                             in,
                             info.steps,
                             info.sealed ? "checksums good" : "unsealed (no checksum to compare)");
  }
}

void export_flat(const std::string& in, const std::string& out, TraceKind kind) {
  replay::Sequence sequence({in}, {});
  FlatWriter writer(out, kind == TraceKind::kIds ? FlatKind::kIds : FlatKind::kOracleGeneral);
  std::optional<replay::NextUse> next;
  if (kind == TraceKind::kOracleGeneral) next.emplace(sequence);
  Progress bar("converting", sequence.steps());
  replay::Block b;
  const auto k = static_cast<std::uint64_t>(sequence.geometry().top_k);
  std::uint64_t index = 0;  // of the access; equals the place while no member is padding
  for (std::uint64_t first = 0; first < sequence.steps(); first += b.steps) {
    sequence.decode(first, sequence.block_steps(), false, b);
    if (next) next->fill(b);
    if (next && b.objects.size() != b.groups() * k) {
      throw InputError(in +
                       ": has padding ids; oracleGeneral counts accesses and cannot skip them");
    }
    for (std::size_t i = 0; i < b.objects.size(); ++i, ++index) {
      const std::int64_t again = !next || b.next[i] == replay::kNeverAgain
                                     ? -1
                                     : static_cast<std::int64_t>(index + b.next[i]);
      writer.append(b.objects[i], static_cast<std::uint32_t>(index), again);
    }
    bar.update(first + b.steps);
  }
  writer.close();
}

void convert(const std::string& in, const std::string& out) {
  const TraceKind from = kind_of_input(in);
  const TraceKind to = kind_of_output(out);
  if (to == TraceKind::kIds || to == TraceKind::kOracleGeneral) {
    export_flat(in, out, to);
  } else if (from == TraceKind::kMrt && to == TraceKind::kJsonl) {
    mrt_to_jsonl(in, out);
  } else if (from == TraceKind::kJsonl && to == TraceKind::kMrt) {
    jsonl_to_mrt(in, out);
  } else if (from == TraceKind::kCsv && to == TraceKind::kMrt) {
    csv_to_mrt(in, out);
  } else {
    throw UserError(
        fmt::format("no conversion from {} to {}: valid are mrt <-> jsonl, csv -> mrt, and "
                    "anything -> ids or oracleGeneral",
                    to_string(from),
                    to_string(to)));
  }
}

int run(int argc, char** argv) {
  std::string in;
  std::vector<std::string> ins;
  std::string out;
  std::string json_path;
  std::string split;
  bool facts = false;
  CutOptions cut;
  ComposeOptions compose;
  CommandLine app("Routing traces (.mrt): look, check, convert, cut, merge, compose",
                  "assay trace",
                  "assay trace info traces/tiny-capture.mrt --facts");
  CommandLine& info =
      app.add_command("info", "geometry, steps, conversations", "assay trace info T.mrt --json -");
  info.add_option("trace", in, "a .mrt file").required().type_name("T");
  info.add_flag("--facts", facts, "also read it all: sharing, skew, reuse, working set");
  info.add_option("--json", json_path, "JSON to a file, - is stdout").type_name("PATH");
  CommandLine& chk = app.add_command(
      "check", "read every record, compare counts and checksums", "assay trace check T.mrt");
  chk.add_option("trace", in, "a .mrt file").required().type_name("T");
  chk.add_option("--json", json_path, "JSON to a file, - is stdout").type_name("PATH");
  CommandLine& conv =
      app.add_command("convert",
                      "between .mrt and .jsonl; from .csv; to .ids and .oracleGeneral",
                      "assay trace convert T.mrt T.jsonl");
  conv.add_option("in", in, "the input; its kind is seen from magic and suffix")
      .required()
      .type_name("IN");
  conv.add_option("out", out, "the output; its suffix names the kind").required().type_name("OUT");
  CommandLine& cutter =
      app.add_command("cut",
                      "keep some steps, conversations or one split",
                      "assay trace cut T.mrt --first-step 100 --steps 50 --out U.mrt");
  cutter.add_option("trace", in, "a .mrt file").required().type_name("T");
  cutter.add_option("--first-step", cut.first_step, "first step to keep").type_name("N");
  cutter.add_option("--steps", cut.steps, "how many; default: to the end").type_name("N");
  cutter.add_option("--conversations", cut.conversations, "ids to keep")
      .delimiter(',')
      .type_name("LIST");
  cutter.add_option("--split", split, "keep one split: train, held-out").type_name("S");
  cutter.add_option("--out", out, "the result").required().type_name("FILE");
  CommandLine& merger = app.add_command(
      "merge", "append traces of one geometry", "assay trace merge A.mrt B.mrt --out C.mrt");
  merger.add_option("traces", ins, ".mrt files").required().type_name("T..");
  merger.add_option("--out", out, "the result").required().type_name("FILE");
  CommandLine& composer =
      app.add_command("compose",
                      "a larger geometry from pairs of conversations, labelled composed",
                      "assay trace compose T.mrt --layers 30 --experts 128 --top-k 8 --out C.mrt");
  composer.add_option("trace", in, "a .mrt file").required().type_name("T");
  composer.add_option("--layers", compose.geometry.layers, "layers").type_name("N").show_default();
  composer.add_option("--experts", compose.geometry.experts, "experts, twice the source's")
      .type_name("N")
      .show_default();
  composer.add_option("--top-k", compose.geometry.top_k, "members a group")
      .type_name("N")
      .show_default();
  composer.add_flag(
      "--uniform", compose.uniform, "the control arm: uniform routing of the same shape");
  composer.add_option("--rng-seed", compose.seed, "seed of the pairing")
      .type_name("N")
      .show_default();
  composer.add_option("--out", out, "the result").required().type_name("FILE");
  app.parse(argc, argv);

  // Every command that writes reads while it writes.
  std::error_code ignored;
  ins.push_back(in);
  for (const auto& path : ins) {
    if (!out.empty() && !path.empty() && std::filesystem::equivalent(path, out, ignored)) {
      throw UserError(out + " is an input as well: choose another output");
    }
  }
  ins.pop_back();
  if (info.given()) {
    show_info(in, facts, json_path);
    return 0;
  }
  if (chk.given()) {
    check(in, json_path);
    return 0;
  }
  if (conv.given()) {
    convert(in, out);
  } else if (cutter.given()) {
    if (split == "train") {
      cut.split = Split::kTrain;
    } else if (split == "held-out") {
      cut.split = Split::kHeldOut;
    } else if (!split.empty()) {
      throw UserError("--split '" + split + "': valid are train, held-out");
    }
    cut_trace(in, out, cut);
  } else if (merger.given()) {
    merge_traces(ins, out);
  } else {
    compose_trace(in, out, compose);
  }
  std::cout << out << '\n';
  return 0;
}

}  // namespace

extern const Command command_trace;
const Command command_trace{
    "trace", "traces", "look at, check, convert, cut, merge and compose traces", run};

}  // namespace assay
