// assay probe: what this machine's memory gives, and how much of it the experts on the CPU take.
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/card_rows.h"
#include "bench/expert_stream.h"
#include "engine/main/command.h"
#include "engine/main/record_options.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/gpu_memory.h"
#include "kernels/base/program.h"
#include "kernels/base/record.h"

namespace assay {
namespace {

using nlohmann::json;

constexpr const char* kPeerNote =
    "the yardstick is the read-only loop beside each call; no outside program computes these "
    "experts bit for bit, so there is no peer to time";

json distribution(const json& d, const char* key) {
  return d.at(key).is_null() ? json("-")
                             : json(fmt::format("{:.2f}", d[key]["p50"].get<double>()) + " / " +
                                    fmt::format("{:.2f}", d[key]["p99"].get<double>()));
}

int probe_card(const RecordOptions& record_to) {
  json found;
  {
    Progress bar("probe", 1000);
    found = measure_card([&](int done, int total) {
      bar.update(static_cast<std::uint64_t>(done * 1000 / std::max(total, 1)));
    });
  }
  const json& m = found.at("machine");
  const json& h = found.at("handshake");
  if (!record_to.quiet()) {
    std::cout << fmt::format(
        "read {:.2f} TB/s, copy {:.2f} TB/s; launch {:.1f} us, launch and wait {:.1f} us, graph "
        "node {:.2f} us\n",
        m["read_bytes_per_s"].get<double>() * 1e-12,
        m["copy_bytes_per_s"].get<double>() * 1e-12,
        m["launch_us"].get<double>(),
        m["launch_sync_us"].get<double>(),
        m["graph_node_us"].get<double>());
    std::cout << "us, p50 / p99: round trip "
              << distribution(h, "kernel_round_trip_us").get<std::string>()
              << ", by the host's clock "
              << distribution(h, "host_round_trip_us").get<std::string>() << ", store to observe "
              << distribution(h, "store_to_observe_us").get<std::string>()
              << ", a layer of a graph " << distribution(h, "layer_us").get<std::string>() << '\n';
    for (const json& row : found.at("rows"))
      std::cout << fmt::format("{:<17} {:<13} {:<26} {:>9.2f} us  {:>5.1f} % of read\n",
                               row["op"].get<std::string>(),
                               row["variant"].get<std::string>(),
                               row["case"].get<std::string>(),
                               row["median_us"].get<double>(),
                               row["of_read"].get<double>() * 100.0);
  }
  json record = record_frame("assay-card-probe", gpu::device());
  record["scratch"] = record["scratch"].get<bool>() || gpu::simulated();
  record["card_probe"] = std::move(found);
  store_record(record_to, std::move(record), "card_probe.jsonl");
  return 0;
}

int run(int argc, char** argv) {
  StreamOptions o;
  std::string backend = "host";
  std::string type = "q4_0";
  RecordOptions record_to;
  CommandLine app(
      "Read bandwidth of this machine's memory, and the share of it that each variant of\n"
      "experts_host reaches on experts drawn at random from more memory than a cache holds.",
      "assay probe",
      "assay probe --gib 2 --threads 2");
  app.add_option("--backend", backend, "host, or cuda: the card, its handshake and its kernels")
      .show_default();
  app.add_option("--gib", o.gib, "memory the experts are drawn from")
      .range(0.01, 64.0)
      .show_default();
  app.add_option("--threads", o.threads, "threads").range(1, 256).show_default();
  app.add_option("--rounds", o.rounds, "rounds of probe and variants")
      .range(3, 1000)
      .show_default();
  app.add_option("--calls", o.calls, "calls a round and arm").range(1, 1000).show_default();
  app.add_option("--type", type, "block type of all matrices").show_default();
  app.add_option("--hidden", o.hidden, "hidden size").range(256, 65536).show_default();
  app.add_option("--width", o.width, "expert width").range(32, 65536).show_default();
  app.add_option("--top-k", o.top_k, "experts a call").range(1, 64).show_default();
  app.add_flag("!--small-pages", o.huge_pages, "4 KB pages");
  app.add_flag(
      "--cpu-time", o.cpu_time, "CPU time instead of wall clock: one thread on a busy machine");
  add_record_options(app, record_to);
  app.parse(argc, argv);
  check_record_options(record_to);
  if (backend != "host" && backend != "cuda")
    throw UserError("--backend '" + backend + "': valid are host, cuda");
  if (backend == "cuda") return probe_card(record_to);
  const auto parsed = parse_block_type(type);
  if (!parsed) throw UserError("--type " + type + ": no block type");
  o.type = *parsed;

  StreamResult r;
  {
    Progress bar("probe", static_cast<std::uint64_t>(o.rounds));
    r = measure_expert_stream(o, [&](int done) { bar.update(static_cast<std::uint64_t>(done)); });
  }

  json arms = json::array();
  for (const auto& arm : r.arms)
    arms.push_back({{"variant", arm.variant},
                    {"of_probe", quartiles(arm.of_probe)},
                    {"rounds", arm.of_probe},
                    {"source_digest", source_json("experts_host", arm.variant).at("digest")}});
  const json rate = quartiles(r.probe_bytes_per_s);
  if (!record_to.quiet()) {
    std::cout << fmt::format("{} experts of {:.3f} MB, {} a call, {} threads\n",
                             r.experts,
                             r.expert_bytes * 1e-6,
                             o.top_k,
                             o.threads)
              << fmt::format("probe        {:.1f} GB/s (quartiles {:.1f} to {:.1f})\n",
                             rate[1].get<double>() * 1e-9,
                             rate[0].get<double>() * 1e-9,
                             rate[2].get<double>() * 1e-9);
    for (const auto& arm : arms)
      std::cout << fmt::format("{:<12} {:.3f} of the probe (quartiles {:.3f} to {:.3f})\n",
                               arm["variant"].get<std::string>(),
                               arm["of_probe"][1].get<double>(),
                               arm["of_probe"][0].get<double>(),
                               arm["of_probe"][2].get<double>());
  }
  json record = record_frame("assay-probe", host_device());
  record["experts_host"] = {{"type", to_string(o.type)},
                            {"hidden", o.hidden},
                            {"width", o.width},
                            {"top_k", o.top_k},
                            {"experts", r.experts},
                            {"expert_bytes", r.expert_bytes},
                            {"threads", o.threads},
                            {"clock", o.cpu_time ? "cpu" : "wall"},
                            {"huge_pages", o.huge_pages},
                            {"probe_bytes_per_s", rate},
                            {"arms", arms}};
  record["peer_note"] = kPeerNote;
  store_record(record_to, std::move(record), "probe.jsonl");
  return 0;
}

}  // namespace

extern const Command command_probe;
const Command command_probe{
    "probe", "lab", "memory bandwidth, and what the experts take of it", run};

}  // namespace assay
