#include "engine/daemon/metrics.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "engine/daemon/wire_frames.h"

namespace assay {
namespace {

// One family: HELP and TYPE once, then its samples.
class Page {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help) {
    family_ = name;
    fmt::format_to(std::back_inserter(text),
                   "# HELP assay_{} {}\n# TYPE assay_{} {}\n",
                   name,
                   help,
                   name,
                   type);
  }
  bool has(std::string_view name) const {
    return text.find("# TYPE assay_" + std::string(name) + " ") != std::string::npos;
  }
  void sample(std::string_view labels, double value) {
    // A value that is no number would poison every sum a monitor makes of it.
    if (!std::isfinite(value)) value = 0.0;
    fmt::format_to(std::back_inserter(text), "assay_{}{} {}\n", family_, labels, value);
  }
  void one(std::string_view name, std::string_view type, std::string_view help, double value) {
    family(name, type, help);
    sample("", value);
  }
  static std::string label(std::string_view name, std::string_view value) {
    std::string out(name);
    out += "=\"";
    for (const char c : value) {
      if (c == '"' || c == '\\') out += '\\';
      out += c == '\n' ? ' ' : c;
    }
    return out + '"';
  }
  std::string text;

 private:
  std::string family_;
};

struct ProcessUse {
  double resident_bytes = 0.0;
  double files = 0.0;
  double threads = 0.0;
};
ProcessUse process_use() {
  ProcessUse use;
  std::ifstream statm("/proc/self/statm");
  double pages = 0.0;
  if (statm >> pages >> pages)
    use.resident_bytes = pages * static_cast<double>(sysconf(_SC_PAGESIZE));
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error)) {
    use.files += 1.0;
  }
  for (std::filesystem::directory_iterator it("/proc/self/task", error), end; !error && it != end;
       it.increment(error)) {
    use.threads += 1.0;
  }
  return use;
}

}  // namespace

void Metrics::answered(std::string_view route, int status) {
  const std::lock_guard lock(mutex_);
  ++answers_[{std::string(route), status}];
}

void Metrics::turn_ended(std::string_view outcome, const TurnDone& t) {
  const std::lock_guard lock(mutex_);
  ++turns_[std::string(outcome)];
  prompt_tokens_ += t.prompt_tokens;
  reused_tokens_ += t.reused_tokens;
  completion_tokens_ += t.completion_tokens;
  sum_.prefill_ms += t.phases.prefill_ms;
  sum_.recall_ms += t.phases.recall_ms;
  sum_.decode_ms += t.phases.decode_ms;
  sum_.post_ms += t.phases.post_ms;
  if (t.prompt_tokens == 0) return;  // never began
  if (t.cold_reason.empty()) {
    ++hits_;
  } else {
    ++cold_[t.cold_reason];
  }
  if (t.phases.decode_ms > 0.0) last_tokens_per_s_ = tokens_per_second(t);
}

std::string Metrics::text(const Gauges& g,
                          std::span<const ArmedOp> armed,
                          std::span<const BackendMetric> backend) const {
  Page page;
  const std::lock_guard lock(mutex_);
  page.one("up", "gauge", "1 while the engine may take turns", g.healthy ? 1.0 : 0.0);
  page.one("engine_heartbeat_ms",
           "gauge",
           "Age of the engine thread's last sign of life",
           static_cast<double>(g.heartbeat_ms));
  page.one("in_flight", "gauge", "Requests from admission to their terminal frame", g.in_flight);
  page.one("queue_depth", "gauge", "Requests that wait for the engine", g.waiting);
  page.one("connections", "gauge", "Open connections", connections.load());
  page.one("connections_total",
           "counter",
           "Connections accepted",
           static_cast<double>(connections_total.load()));
  page.one("accept_pauses_total",
           "counter",
           "Times accepting waited for descriptors or the connection limit",
           static_cast<double>(accept_pauses.load()));
  page.one("refused_heads_total",
           "counter",
           "Requests refused by their header alone",
           static_cast<double>(refused_heads.load()));
  page.one("event_subscribers", "gauge", "Readers of /v1/events", g.subscribers);

  page.family("answers_total", "counter", "HTTP answers by route and status");
  for (const auto& [key, n] : answers_) {
    page.sample(
        "{" + Page::label("route", key.first) + ",status=\"" + std::to_string(key.second) + "\"}",
        static_cast<double>(n));
  }
  page.family("turns_total", "counter", "Turns by outcome");
  for (const auto& [outcome, n] : turns_)
    page.sample("{" + Page::label("outcome", outcome) + "}", static_cast<double>(n));
  page.one("prompt_tokens_total",
           "counter",
           "Prompt tokens of turns that began",
           static_cast<double>(prompt_tokens_));
  page.one("reused_tokens_total",
           "counter",
           "Of them, found in a cache",
           static_cast<double>(reused_tokens_));
  page.one("completion_tokens_total",
           "counter",
           "Tokens generated",
           static_cast<double>(completion_tokens_));
  page.family("phase_seconds_total", "counter", "Time by phase");
  page.sample("{phase=\"prefill\"}", sum_.prefill_ms / 1000.0);
  page.sample("{phase=\"recall\"}", sum_.recall_ms / 1000.0);
  page.sample("{phase=\"decode\"}", sum_.decode_ms / 1000.0);
  page.sample("{phase=\"post\"}", sum_.post_ms / 1000.0);
  page.one("tokens_per_second", "gauge", "Decode speed of the last turn", last_tokens_per_s_);
  page.one(
      "prefix_hits_total", "counter", "Turns whose prefix was found", static_cast<double>(hits_));
  page.family("prefix_cold_total", "counter", "Turns that began cold, by reason");
  for (const auto& [reason, n] : cold_)
    page.sample("{" + Page::label("reason", reason) + "}", static_cast<double>(n));
  page.family("armed", "gauge", "Which variant of an op serves");
  for (const ArmedOp& a : armed) {
    page.sample("{" + Page::label("op", a.op) + "," + Page::label("variant", a.variant) + "}", 1.0);
  }
  // A family's samples stand together, and one name means one thing: where the backend counts what is counted here, ours stays.
  std::map<std::string_view, std::vector<const BackendMetric*>> families;
  for (const BackendMetric& m : backend) families[m.name].push_back(&m);
  for (const auto& [name, samples] : families) {
    if (page.has(name)) continue;
    page.family(name, samples[0]->counter ? "counter" : "gauge", samples[0]->help);
    for (const BackendMetric* m : samples) {
      page.sample(m->label.empty() ? "" : "{" + Page::label(m->label, m->label_value) + "}",
                  m->value);
    }
  }
  const ProcessUse use = process_use();
  page.one("process_resident_bytes", "gauge", "Resident memory", use.resident_bytes);
  page.one("process_open_files", "gauge", "Open descriptors", use.files);
  page.one("process_threads", "gauge", "Threads", use.threads);
  return page.text;
}

}  // namespace assay
