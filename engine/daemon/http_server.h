// HTTP/1.1 and SSE for a Service, on one thread. Only http_server.cpp and tls_*.cpp know Boost.
#pragma once
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

namespace assay {

class Service;

struct HttpSettings {
  std::string host = "127.0.0.1";
  int port = 3000;  // 0: any free one
  int max_connections = 2048;
  std::size_t body_bytes = std::size_t{8} << 20;
  std::size_t all_bodies_bytes = std::size_t{128} << 20;  // of requests still arriving
  // PEM files; both or none. With them TLS alone is spoken.
  std::string tls_cert = {};
  std::string tls_key = {};
  std::chrono::milliseconds head_deadline{5'000};  // also of a handshake
  std::chrono::milliseconds body_deadline{30'000};
  std::chrono::milliseconds idle_deadline{60'000};  // between two requests of a connection
  std::chrono::milliseconds write_stall{30'000};    // without a byte that reaches the reader
  std::chrono::milliseconds grace{5'000};           // for the running turn at a stop
};

class HttpServer {
 public:
  // Binds. UserError for a host that is no address or cannot be bound, and for one that others reach while there is no
  // key, TLS or not; errors of make_tls.
  HttpServer(Service& service, HttpSettings settings, bool has_key);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // "127.0.0.1:3000", "[::1]:3000"
  std::string address() const;
  int port() const;
  // Serves until SIGTERM or SIGINT and until every turn has had its terminal frame. False: the engine failed.
  bool run();

  struct State;  // of http_server.cpp

 private:
  std::unique_ptr<State> state_;
};

}  // namespace assay
