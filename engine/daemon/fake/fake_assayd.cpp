// assayd with the scripted backend: what the tests of the daemon talk to. Prints "PORT n" on stdout when it listens.
#include <cstdio>

#include <CLI/CLI.hpp>

#include "engine/daemon/fake/fake_backend.h"
#include "engine/daemon/http_server.h"
#include "engine/daemon/service.h"
#include "kernels/base/program.h"

namespace assay {
namespace {

int run(int argc, char** argv) {
  ServiceSettings service_settings;
  HttpSettings http{.port = 0};
  int context = 4096;
  int queue_timeout_ms = 60'000;
  int head_ms = 5'000;
  int body_ms = 30'000;
  int stall_ms = 30'000;
  int grace_ms = 5'000;
  CLI::App app{"assayd with a scripted backend, for tests", "fake_assayd"};
  house_style(app, "fake_assayd --port 0");
  app.add_option("--host", http.host);
  app.add_option("--port", http.port);
  app.add_option("--ctx", context);
  app.add_option("--queue", service_settings.queue);
  app.add_option("--api-key", service_settings.api_key);
  app.add_option("--max-connections", http.max_connections);
  app.add_option("--queue-timeout-ms", queue_timeout_ms);
  app.add_option("--head-deadline-ms", head_ms);
  app.add_option("--body-deadline-ms", body_ms);
  app.add_option("--write-stall-ms", stall_ms);
  app.add_option("--grace-ms", grace_ms);
  parse_command_line(app, argc, argv);
  service_settings.queue_timeout = std::chrono::milliseconds(queue_timeout_ms);
  http.head_deadline = std::chrono::milliseconds(head_ms);
  http.body_deadline = std::chrono::milliseconds(body_ms);
  http.write_stall = std::chrono::milliseconds(stall_ms);
  http.grace = std::chrono::milliseconds(grace_ms);

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
