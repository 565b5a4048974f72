// assayd: the engine behind HTTP and SSE.
#include <chrono>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "engine/daemon/daemon_log.h"
#include "engine/daemon/http_server.h"
#include "engine/daemon/service.h"
#include "engine/main/model_options.h"
#include "engine/model_backend.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/log.h"
#include "kernels/base/program.h"
#include "kernels/base/proven.h"

namespace assay {
namespace {

struct Options {
  ModelOptions model;
  HttpSettings http;
  ServiceSettings service;
  std::string api_key_file;
  std::string snapshot_dir;
  double queue_timeout_s = 60.0;
  double stall_s = 60.0;
  double grace_s = 5.0;
  double cache_gib = 1.0;
  bool warm_gate = false;
};

std::chrono::milliseconds milliseconds(double seconds, const char* flag) {
  if (!(seconds >= 0.0 && seconds <= 86'400.0))
    throw UserError(std::string(flag) + ": 0..86400 seconds are valid");
  return std::chrono::milliseconds(std::llround(seconds * 1000.0));
}
void check(int value, int low, int high, const char* flag) {
  if (value < low || value > high) {
    throw UserError(std::string(flag) + " " + std::to_string(value) + ": must be " +
                    std::to_string(low) + ".." + std::to_string(high));
  }
}

// One line, the newline at its end is not part of it.
std::string read_key(const std::string& path) {
  std::string key = read_file(path, 4096);
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
  if (key.size() < 8)
    throw InputError("--api-key-file " + path + ": a key of at least 8 characters is needed");
  for (const char c : key) {
    if (c <= 0x20 || c >= 0x7F)
      throw InputError("--api-key-file " + path + ": printable ASCII without spaces is needed");
  }
  return key;
}

Options parse(int argc, char** argv) {
  Options o;
  CommandLine app("Serves a model over HTTP and SSE, on this machine alone unless a key is given",
                  "assayd",
                  "assayd --model engine/models/tiny-gemma4-moe-q4_0.gguf --port 3000");
  add_model_options(app, o.model);
  app.add_option("--host", o.http.host, "address to listen on").type_name("IP").show_default();
  app.add_option("--port", o.http.port, "0: any free one").type_name("N").show_default();
  app.add_option("--api-key-file", o.api_key_file, "clients must send its line as a Bearer key")
      .type_name("FILE");
  app.add_option("--tls-cert", o.http.tls_cert, "speak TLS: PEM certificate with its chain")
      .type_name("FILE");
  app.add_option("--tls-key", o.http.tls_key, "and its PEM key").type_name("FILE");
  app.add_option("--queue", o.service.queue, "requests that may wait; more get 429")
      .type_name("N")
      .show_default();
  app.add_option("--queue-timeout-s", o.queue_timeout_s, "longest wait for the engine")
      .type_name("S")
      .show_default();
  app.add_option("--max-connections", o.http.max_connections, "more wait to be accepted")
      .type_name("N")
      .show_default();
  app.add_option("--grace-s", o.grace_s, "for the running turn at SIGTERM")
      .type_name("S")
      .show_default();
  app.add_option("--stall-s", o.stall_s, "a busy engine silent for this long is not healthy")
      .type_name("S")
      .show_default();
  app.add_option("--eot-threshold", o.service.eot_threshold, "a margin below it means severed")
      .type_name("X")
      .show_default();
  app.add_option("--cache-gib", o.cache_gib, "memory for sequences between turns")
      .type_name("GIB")
      .show_default();
  app.add_option(
         "--snapshot-dir", o.snapshot_dir, "named sessions and prefixes survive a restart here")
      .type_name("DIR");
  app.add_flag("--warm-gate", o.warm_gate, "refuse turns whose prefix was not captured yet");
  app.parse(argc, argv);
  check(o.http.port, 0, 65535, "--port");
  check(o.service.queue, 1, 4096, "--queue");
  check(o.http.max_connections, 1, 60'000, "--max-connections");
  if (!std::isfinite(o.service.eot_threshold))
    throw UserError("--eot-threshold: a finite number is needed");
  if (!(o.cache_gib >= 0.0 && o.cache_gib <= 1024.0))
    throw UserError("--cache-gib: 0..1024 is valid");
  o.service.queue_timeout = milliseconds(o.queue_timeout_s, "--queue-timeout-s");
  o.service.stall = milliseconds(o.stall_s, "--stall-s");
  o.http.grace = milliseconds(o.grace_s, "--grace-s");
  if (!o.api_key_file.empty()) o.service.api_key = read_key(o.api_key_file);
  return o;
}

// What /v1/proofs says: the entries of the proven set by which ops are armed, as `assay prove` wrote them.
std::string proofs_document(const Arming& armed) {
  nlohmann::json ops = nlohmann::json::object();
  for (const auto& [op, e] : armed.proofs) {
    ops[op] = {{"variant", e.variant},
               {"ab_record", e.ab_record},
               {"parity_record", e.parity_record},
               {"speedup", e.speedup},
               {"source_digest", e.source_digest},
               {"files", e.files}};
  }
  return nlohmann::json{{"set", armed.file}, {"ops", ops}}.dump(1) + "\n";
}

int run(int argc, char** argv) {
  Options o = parse(argc, argv);
  use_dropping_log();
  Arming armed;
  const ModelSettings settings = resolve(o.model, &armed);
  const auto model = open_model(o.model.model, settings);
  std::map<std::string, std::string> proofs;
  for (const auto& [op, e] : armed.proofs) {
    proofs[op] = "record " + e.ab_record.substr(0, 16) + ", parity " +
                 e.parity_record.substr(0, 16) + ", in " + armed.file;
  }
  if (!proofs.empty()) o.service.proofs = proofs_document(armed);
  ModelBackend backend(
      *model,
      {.prefix = {.budget_bytes = static_cast<std::size_t>(o.cache_gib * 1024.0 * 1024.0 * 1024.0),
                  .folder = o.snapshot_dir},
       .warm_gate = o.warm_gate,
       .proofs = std::move(proofs)});
  Service service(backend, o.service);
  HttpServer server(service, o.http, !o.service.api_key.empty());
  ASSAY_LOG(
      info, "listening on {}://{}", o.http.tls_cert.empty() ? "http" : "https", server.address());
  const bool good = server.run();
  log_armed(*model);
  return static_cast<int>(good ? Exit::kGood : Exit::kCheckFailed);
}

}  // namespace
}  // namespace assay

int main(int argc, char** argv) { return assay::run_program("assayd", argc, argv, assay::run); }
