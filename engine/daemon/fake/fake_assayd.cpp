// assayd with the scripted backend: what the tests of the daemon talk to. Prints "PORT n" on stdout when it listens.
#include <chrono>
#include <cstdio>
#include <map>
#include <string>

#include "engine/daemon/daemon_log.h"
#include "engine/daemon/fake/fake_backend.h"
#include "engine/daemon/http_server.h"
#include "engine/daemon/service.h"
#include "kernels/base/build_id.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"

namespace assay {
namespace {

int run(int argc, char** argv) {
  std::map<std::string, int> numbers{{"--port", 0},
                                     {"--ctx", 4096},
                                     {"--queue", 64},
                                     {"--max-connections", 2048},
                                     {"--queue-timeout-ms", 60'000},
                                     {"--head-deadline-ms", 5'000},
                                     {"--body-deadline-ms", 30'000},
                                     {"--write-stall-ms", 30'000},
                                     {"--grace-ms", 5'000},
                                     {"--stall-ms", 60'000}};
  std::map<std::string, std::string> texts{
      {"--host", "127.0.0.1"}, {"--api-key", ""}, {"--tls-cert", ""}, {"--tls-key", ""}};
  if (argc == 2 && std::string(argv[1]) == "--version") {
    std::printf("assay %s\n", build_line().c_str());
    return 0;
  }
  for (int i = 1; i + 1 < argc; i += 2) {
    if (const auto n = numbers.find(argv[i]); n != numbers.end()) {
      n->second = std::stoi(argv[i + 1]);
    } else if (const auto t = texts.find(argv[i]); t != texts.end()) {
      t->second = argv[i + 1];
    } else {
      throw UserError(std::string("no such flag: ") + argv[i]);
    }
  }
  const auto ms = [&](const char* flag) { return std::chrono::milliseconds(numbers.at(flag)); };
  const int context = numbers.at("--ctx");
  const ServiceSettings service_settings{.queue = numbers.at("--queue"),
                                         .queue_timeout = ms("--queue-timeout-ms"),
                                         .stall = ms("--stall-ms"),
                                         .api_key = texts.at("--api-key")};
  const HttpSettings http{.host = texts.at("--host"),
                          .port = numbers.at("--port"),
                          .max_connections = numbers.at("--max-connections"),
                          .tls_cert = texts.at("--tls-cert"),
                          .tls_key = texts.at("--tls-key"),
                          .head_deadline = ms("--head-deadline-ms"),
                          .body_deadline = ms("--body-deadline-ms"),
                          .write_stall = ms("--write-stall-ms"),
                          .grace = ms("--grace-ms")};

  use_dropping_log();
  FakeBackend backend(context);
  Service service(backend, service_settings);
  HttpServer server(service, http, !service_settings.api_key.empty());
  std::printf("PORT %d\n", server.port());
  std::fflush(stdout);
  return server.run() ? 0 : 1;
}

}  // namespace
}  // namespace assay

int main(int argc, char** argv) {
  return assay::run_program("fake_assayd", argc, argv, assay::run);
}
