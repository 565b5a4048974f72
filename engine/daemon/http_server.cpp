#include "engine/daemon/http_server.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <functional>
#include <new>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/format.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include "engine/daemon/exchange.h"
#include "engine/daemon/header_guard.h"
#include "engine/daemon/scarce_memory.h"
#include "engine/daemon/service.h"
#include "engine/daemon/tls_stream.h"
#include "engine/daemon/wire_frames.h"
#include "kernels/base/error.h"
#include "kernels/base/log.h"

namespace assay {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using ErrorCode = boost::system::error_code;

constexpr std::size_t kReadBytes = 16 * 1024;
constexpr std::size_t kReadAhead = 64 * 1024;  // pipelined bytes kept while an answer is made
constexpr std::size_t kLingerBytes = std::size_t{16} << 20;
constexpr Milliseconds kLingerFor{1'000};
constexpr Milliseconds kTick{250};
constexpr Milliseconds kQuiet{15'000};
constexpr Milliseconds kHung{4'000};  // after the grace: a device that never answers
constexpr Milliseconds kAcceptPause{100};
constexpr std::size_t kGather = 32;
constexpr unsigned char kTlsHandshake =
    0x16;  // first byte of a TLS connection, and of no HTTP request

class Connection;

}  // namespace

struct HttpServer::State {
  State(Service& served, HttpSettings chosen) : service(served), settings(std::move(chosen)) {}

  void accept();
  void accept_later();
  void tick();
  void begin_stop();
  void close_stalled();
  void close_all();
  void closed(const std::shared_ptr<Connection>& connection);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Service& service;
  HttpSettings settings;
  std::unique_ptr<TlsContext> tls;                              // null: plain
  std::unordered_set<std::shared_ptr<Connection>> connections;  // open ones
  std::size_t arriving_bytes = 0;
  bool accept_paused = false;
  bool stopping = false;
  bool told_events = false;
  Clock::time_point stop_at;
  Clock::time_point drained_at;
  // Last: its end destroys the handlers, they the connections, and those use the rest.
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  asio::steady_timer ticker{io};
  asio::steady_timer accept_timer{io};
};

namespace {

// One client. The server owns it until close(); handlers that are under way then keep it until they have run.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer::State& server, tcp::socket socket)
      : server_(server), socket_(std::move(socket)), deadline_(server.io), probe_timer_(server.io) {
    if (server_.tls) tls_ = server_.tls->stream(socket_);
    server_.service.metrics().connections.fetch_add(1);
    server_.service.metrics().connections_total.fetch_add(1);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { forget_body(); }

  void start() {
    ErrorCode ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    arm(server_.settings.head_deadline);
    if (tls_) {
      greet();
    } else {
      read();
    }
  }
  // At a stop: nothing more is asked of this client.
  void close_if_idle() {
    if (state_ == State::kHead || state_ == State::kHandshake) close();
  }
  bool busy() const { return state_ == State::kBusy; }
  // Progress of any size starts the time anew: a slow reader is not a dead one, and the bound on what waits for it holds.
  // A write ends only when the kernel has room again, long after bytes of it have left: so the kernel is asked.
  bool stalled(Clock::time_point now) {
    if (!writing_) return false;
    int unacknowledged = 0;
    if (::ioctl(socket_.native_handle(), SIOCOUTQ, &unacknowledged) == 0 &&
        unacknowledged != unacknowledged_) {
      unacknowledged_ = unacknowledged;
      progress_at_ = now;
    }
    return now - progress_at_ > server_.settings.write_stall;
  }
  void close() {
    if (state_ == State::kClosed) return;
    state_ = State::kClosed;
    if (exchange_) exchange_->leave();
    exchange_.reset();
    forget_body();
    ErrorCode ignored;
    socket_.close(ignored);
    deadline_.cancel();
    probe_timer_.cancel();
    server_.service.metrics().connections.fetch_sub(1);
    server_.closed(shared_from_this());
  }

 private:
  enum class State { kHandshake, kHead, kBody, kBusy, kLinger, kClosed };

  // The first byte tells a client that takes this for a plain port: it gets a plain answer.
  void greet() {
    state_ = State::kHandshake;
    socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](ErrorCode error) {
      self->step([&] { self->greeted(error); });
    });
  }
  void greeted(ErrorCode error) {
    if (state_ == State::kClosed) return;
    unsigned char first = 0;
    if (!error) socket_.receive(asio::buffer(&first, 1), tcp::socket::message_peek, error);
    if (error) {
      close();
    } else if (first == kTlsHandshake) {
      tls_->handshake([self = shared_from_this()](ErrorCode failed) {
        self->step([&] { self->shook_hands(failed); });
      });
    } else {
      tls_.reset();
      server_.service.metrics().refused_heads.fetch_add(1);
      refuse({.code = TurnCode::kBadRequest, .message = "this port speaks TLS: use https://"});
    }
  }
  void shook_hands(ErrorCode error) {
    if (state_ == State::kClosed) return;
    if (error) {
      close();
      return;
    }
    state_ = State::kHead;
    arm(server_.settings.head_deadline);
    read();
  }

  // Every step of a connection: without memory for it this connection ends, and no other.
  template <class F>
  void step(F&& f) {
    try {
      try {
        f();
      } catch (const std::bad_alloc&) {
        if (state_ != State::kHead && state_ != State::kBody) throw;
        refuse({.code = TurnCode::kOutOfMemory, .message = "out of memory"});
      }
    } catch (const std::bad_alloc&) {
      ASSAY_LOG(error, "out of memory: a connection is closed");
      close();
    }
  }

  // Reading: one read at a time, whatever the state; while an answer is made it notices a client that leaves.
  void read() {
    if (reading_ || eof_ || state_ == State::kClosed) return;
    if (state_ == State::kBusy && buffer_.size() >= kReadAhead) return;
    surely([this] {
      auto moved = [self = shared_from_this()](ErrorCode error, std::size_t n) {
        self->on_read(error, n);
      };
      if (tls_) {
        tls_->read_some(asio::buffer(incoming_), std::move(moved));
      } else {
        socket_.async_read_some(asio::buffer(incoming_), std::move(moved));
      }
    });
    reading_ = true;
  }

  void on_read(ErrorCode error, std::size_t n) {
    reading_ = false;
    if (state_ == State::kClosed) return;
    if (error == asio::error::eof) {
      eof_ = true;
    } else if (error) {
      close();  // reset: gone
      return;
    }
    step([&] {
      buffer_.commit(asio::buffer_copy(buffer_.prepare(n), asio::buffer(incoming_, n)));
      on_bytes();
    });
  }

  void on_bytes() {
    switch (state_) {
      case State::kHandshake:  // reads for itself
        return;
      case State::kHead:
        on_head();
        return;
      case State::kBody:
        on_body();
        return;
      case State::kBusy:
        if (eof_) {
          probe();
        } else {
          read();
        }
        return;
      case State::kLinger:
        lingered_ += buffer_.size();
        buffer_.consume(buffer_.size());
        if (eof_ || lingered_ > kLingerBytes) {
          close();
        } else {
          read();
        }
        return;
      case State::kClosed:
        return;
    }
  }

  void on_head() {
    const std::string_view received(static_cast<const char*>(buffer_.data().data()),
                                    buffer_.size());
    if (idle_ && !received.empty()) {
      idle_ = false;
      arm(server_.settings.head_deadline);
    }
    const HeadCheck head = check_head(received);
    if (head.state == HeadCheck::kBad) {
      server_.service.metrics().refused_heads.fetch_add(1);
      refuse(head.error);
      return;
    }
    if (head.state == HeadCheck::kMore) {
      if (eof_) {
        close();
      } else {
        read();
      }
      return;
    }
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(kHeadBytes));
    parser_->body_limit(server_.settings.body_bytes);
    ErrorCode error;
    const std::size_t used = parser_->put(asio::buffer(received.data(), head.bytes), error);
    buffer_.consume(used);
    if (error == http::error::need_more) error = {};
    if (error == http::error::body_limit) {
      refuse({.code = TurnCode::kTooLarge, .message = "the body is over the limit"});
      return;
    }
    if (error || !parser_->is_header_done()) {
      server_.service.metrics().refused_heads.fetch_add(1);
      refuse({.code = TurnCode::kBadRequest, .message = "not a valid HTTP request header"});
      return;
    }
    const auto& request = parser_->get();
    const auto field = [&](http::field name) {
      const auto value = request[name];
      return std::string(value.data(), value.size());
    };
    const std::string target(request.target().data(), request.target().size());
    call_ = {.method = std::string(request.method_string().data(), request.method_string().size()),
             .path = target.substr(0, target.find('?')),
             .host = field(http::field::host),
             .origin = field(http::field::origin),
             .authorization = field(http::field::authorization),
             .body = {}};
    keep_alive_ = request.keep_alive();
    http_1_1_ = request.version() >= 11;
    if (auto answer = server_.service.refuse_head(call_)) {
      if (!parser_->is_done()) keep_alive_ = false;  // its body will not be read
      begin_answer();
      exchange_->answer(std::move(*answer));
      return;
    }
    if (parser_->content_length_remaining().value_or(0) > server_.settings.body_bytes) {
      refuse({.code = TurnCode::kTooLarge,
              .message =
                  "the body is over " + std::to_string(server_.settings.body_bytes) + " bytes"});
      return;
    }
    state_ = State::kBody;
    arm(server_.settings.body_deadline);
    if (!request[http::field::expect].empty() && !parser_->is_done())
      raw_write("HTTP/1.1 100 Continue\r\n\r\n");
    on_body();
  }

  void on_body() {
    while (!parser_->is_done() && buffer_.size() > 0) {
      ErrorCode error;
      const std::size_t used = parser_->put(buffer_.data(), error);
      buffer_.consume(used);
      if (used == 0 && !error) break;
      const std::size_t held = parser_->get().body().size();
      server_.arriving_bytes += held - body_held_;
      body_held_ = held;
      if (error == http::error::need_more) {
        // A chunk's head that never ends would be kept whole.
        if (buffer_.size() > kHeadBytes) {
          refuse({.code = TurnCode::kBadRequest, .message = "a chunk header is over the limit"});
          return;
        }
        if (used == 0) break;
        continue;
      }
      if (error == http::error::body_limit) {
        refuse({.code = TurnCode::kTooLarge,
                .message =
                    "the body is over " + std::to_string(server_.settings.body_bytes) + " bytes"});
        return;
      }
      if (error) {
        refuse({.code = TurnCode::kBadRequest, .message = "not a valid HTTP request body"});
        return;
      }
      if (server_.arriving_bytes > server_.settings.all_bodies_bytes) {
        refuse(
            {.code = TurnCode::kNotReady, .message = "too many large requests at once; try again"});
        return;
      }
    }
    if (!parser_->is_done()) {
      if (eof_) {
        refuse({.code = TurnCode::kBadRequest, .message = "the body ended early"});
      } else {
        read();
      }
      return;
    }
    call_.body = std::move(parser_->get().body());
    forget_body();
    begin_answer();
    try {
      server_.service.handle(std::move(call_), exchange_);
    } catch (const std::bad_alloc&) {
      exchange_->answer(error_answer({.code = TurnCode::kOutOfMemory, .message = "out of memory"}));
    }
    call_ = {};
  }

  void forget_body() {
    server_.arriving_bytes -= body_held_;
    body_held_ = 0;
    parser_.reset();
  }

  // Answering.
  void begin_answer() {
    head_only_ = call_.method == "HEAD";
    state_ = State::kBusy;
    deadline_.cancel();
    head_written_ = false;
    finished_ = false;
    exchange_ = std::make_shared<Exchange>([weak = weak_from_this(), &io = server_.io] {
      surely([&] {
        asio::post(io, [weak] {
          if (const auto self = weak.lock()) self->step([&] { self->pump(); });
        });
      });
    });
    if (eof_) {
      probe();
    } else {
      read();
    }
  }

  void refuse(const TurnError& error) {
    keep_alive_ = false;
    forget_body();
    call_ = {};
    begin_answer();
    exchange_->answer(error_answer(error));
  }

  void pump() {
    if (state_ != State::kBusy || !exchange_) return;
    Exchange::Taken taken = exchange_->take();
    finished_ = taken.finished;
    if (taken.head) write_head(taken);
    for (const SharedText& frame : taken.frames) surely([&] { out_.push_back({frame, true}); });
    write();
  }

  void write_head(Exchange::Taken& taken) {
    head_written_ = true;
    if (taken.stream) keep_alive_ = false;  // its end is the connection's
    if (server_.stopping) keep_alive_ = false;
    std::string head;
    surely([&] { head = head_text(taken); });
    raw_write(std::move(head));
    if (taken.stream && !eof_) probe_after(kQuiet);
    if (taken.stream && head_only_) {
      exchange_->leave();
      finished_ = true;
    }
  }

  std::string head_text(const Exchange::Taken& taken) const {
    const HttpAnswer& a = taken.answer;
    const auto status = static_cast<unsigned>(a.status);
    const auto reason = http::obsolete_reason(http::int_to_status(status));
    std::string head = fmt::format(
        "HTTP/1.1 {} {}\r\nServer: assay\r\nCache-Control: no-store\r\nX-Content-Type-Options: "
        "nosniff\r\n",
        status,
        std::string_view(reason.data(), reason.size()));
    if (a.status != 204) head += "Content-Type: " + a.type + "\r\n";
    if (taken.stream) {
      head += "X-Accel-Buffering: no\r\n";
    } else if (a.status != 204) {
      head += "Content-Length: " + std::to_string(a.body.size()) + "\r\n";
    }
    for (const auto& [name, value] : a.headers) head += name + ": " + value + "\r\n";
    head += keep_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
    if (!taken.stream && !head_only_) head += a.body;
    return head;
  }

  void raw_write(std::string text) {
    SharedText piece;
    surely([&] { piece = std::make_shared<const std::string>(std::move(text)); });
    surely([&] { out_.push_back({piece, false}); });
    write();
  }

  void write() {
    if (writing_ || state_ == State::kClosed) return;
    if (out_.empty()) {
      if (state_ == State::kBusy && finished_ && head_written_) end_answer();
      return;
    }
    surely([this] { start_write(); });
    writing_ = true;
  }

  void start_write() {
    std::vector<asio::const_buffer> buffers;
    for (std::size_t i = 0; i < out_.size() && i < kGather; ++i) {
      const std::string& text = *out_[i].text;
      const std::size_t from = i == 0 ? out_offset_ : 0;
      buffers.emplace_back(text.data() + from, text.size() - from);
    }
    progress_at_ = Clock::now();
    auto moved = [self = shared_from_this()](ErrorCode error, std::size_t n) {
      self->writing_ = false;
      if (self->state_ == State::kClosed) return;
      if (error) {
        self->close();
        return;
      }
      self->sent(n);
      self->step([&] { self->write(); });
    };
    if (tls_) {
      tls_->write_some(buffers, std::move(moved));
    } else {
      socket_.async_write_some(buffers, std::move(moved));
    }
  }

  void sent(std::size_t n) {
    std::size_t frames = 0;
    while (n > 0) {
      const Piece& first = out_.front();
      const std::size_t part = std::min(n, first.text->size() - out_offset_);
      if (first.counted) frames += part;
      n -= part;
      out_offset_ += part;
      if (out_offset_ == first.text->size()) {
        out_.pop_front();
        out_offset_ = 0;
      }
    }
    if (frames > 0 && exchange_) exchange_->written(frames);
  }

  void end_answer() {
    probe_timer_.cancel();
    exchange_.reset();
    if (!keep_alive_ || server_.stopping) {
      linger();
      return;
    }
    state_ = State::kHead;
    idle_ = buffer_.size() == 0;
    arm(idle_ ? server_.settings.idle_deadline : server_.settings.head_deadline);
    // Through the loop: a hundred pipelined requests must not nest.
    surely([this] {
      asio::post(server_.io, [self = shared_from_this()] {
        if (self->state_ == State::kHead) self->step([&] { self->on_head(); });
      });
    });
  }

  // Closing with bytes unread would reset the connection and may take the answer with it.
  void linger() {
    const auto end = [self = shared_from_this()](ErrorCode /*error*/) {
      ErrorCode ignored;
      self->socket_.shutdown(tcp::socket::shutdown_send, ignored);
    };
    state_ = State::kLinger;
    arm(kLingerFor);
    if (tls_) {
      tls_->shutdown(end);
    } else {
      end({});
    }
    on_bytes();
  }

  // The client closed its side. It may still read (half-close) or be gone; only writing tells, so something harmless is
  // written: an SSE comment, or before a document an interim response.
  // On a quiet stream the same comment keeps whoever stands between from closing it.
  void probe() {
    if (state_ != State::kBusy || finished_) return;
    if (exchange_ && out_.empty()) {
      if (head_written_) {
        raw_write(":\n\n");
      } else if (eof_ && http_1_1_) {
        raw_write("HTTP/1.1 100 Continue\r\n\r\n");
      }
    }
    if (!eof_) {
      probe_after(kQuiet);
      return;
    }
    probe_after(probe_delay_);
    probe_delay_ = std::min(probe_delay_ * 4, Milliseconds(1'000));
  }
  void probe_after(Milliseconds delay) {
    probe_timer_.expires_after(delay);
    surely([this] {
      probe_timer_.async_wait([weak = weak_from_this()](ErrorCode error) {
        const auto self = weak.lock();
        if (!error && self) self->step([&] { self->probe(); });
      });
    });
  }

  void arm(Milliseconds after) {
    deadline_.expires_after(after);
    surely([this] {
      deadline_.async_wait([weak = weak_from_this()](ErrorCode error) {
        const auto self = weak.lock();
        if (error || !self || self->deadline_.expiry() > Clock::now()) return;
        self->step([&] { self->on_deadline(); });
      });
    });
  }
  void on_deadline() {
    if (state_ == State::kBody || (state_ == State::kHead && buffer_.size() > 0)) {
      refuse({.code = TurnCode::kTimeout, .message = "the request did not arrive in time"});
    } else if (state_ != State::kBusy) {
      close();
    }
  }

  struct Piece {
    SharedText text;
    bool counted;  // against the exchange's bound
  };

  HttpServer::State& server_;
  tcp::socket socket_;
  std::unique_ptr<TlsStream> tls_;  // null: plain
  asio::steady_timer deadline_;
  asio::steady_timer probe_timer_;
  // A read is under way while requests that came before are taken out of buffer_, which moves what is in it: so the read
  // has a place of its own.
  std::array<char, kReadBytes> incoming_;
  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  HttpCall call_;
  std::shared_ptr<Exchange> exchange_;
  std::deque<Piece> out_;
  std::size_t out_offset_ = 0;     // into its first piece
  Clock::time_point progress_at_;  // of the write under way
  int unacknowledged_ = 0;         // bytes that the kernel holds
  std::size_t body_held_ = 0;
  std::size_t lingered_ = 0;
  Milliseconds probe_delay_{10};
  State state_ = State::kHead;
  bool idle_ = false;
  bool reading_ = false;
  bool writing_ = false;
  bool eof_ = false;
  bool keep_alive_ = false;
  bool http_1_1_ = true;
  bool head_only_ = false;
  bool head_written_ = false;
  bool finished_ = false;
};

std::string with_port(const std::string& host, int port) {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

// The process may have been started with few descriptors while more are allowed.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 65536);
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

void HttpServer::State::accept() {
  if (stopping) return;
  if (static_cast<int>(connections.size()) >= settings.max_connections) {
    if (!accept_paused) service.metrics().accept_pauses.fetch_add(1);
    accept_paused = true;
    return;
  }
  accept_paused = false;
  acceptor.async_accept([this](ErrorCode error, tcp::socket socket) {
    if (stopping) return;
    if (error) {
      // Out of descriptors: the kernel keeps the callers until some are free again.
      if (error != asio::error::connection_aborted)
        accept_later();
      else
        accept();
      return;
    }
    std::shared_ptr<Connection> connection;
    try {
      surely([&] { connection = std::make_shared<Connection>(*this, std::move(socket)); });
      connections.insert(connection);
      connection->start();
    } catch (const std::bad_alloc&) {
      ASSAY_LOG(error, "out of memory: a connection is refused");
      if (connection) connection->close();
    }
    surely([this] { accept(); });
  });
}

void HttpServer::State::accept_later() {
  service.metrics().accept_pauses.fetch_add(1);
  accept_timer.expires_after(kAcceptPause);
  accept_timer.async_wait([this](ErrorCode error) {
    if (!error) surely([this] { accept(); });
  });
}

void HttpServer::State::closed(const std::shared_ptr<Connection>& connection) {
  connections.erase(connection);
  if (accept_paused && !stopping) {
    accept_paused = false;
    surely([this] { asio::post(io, [this] { surely([this] { accept(); }); }); });
  }
}

void HttpServer::State::begin_stop() {
  if (stopping) {  // asked twice: now
    service.cancel_running();
    return;
  }
  stopping = true;
  stop_at = Clock::now();
  ErrorCode ignored;
  acceptor.close(ignored);
  accept_timer.cancel();
  service.stop();
  const std::vector<std::shared_ptr<Connection>> all(connections.begin(), connections.end());
  for (const auto& c : all) c->close_if_idle();
}

// At every tick instead of a timer a write: hundreds of readers get every event.
void HttpServer::State::close_stalled() {
  std::vector<std::shared_ptr<Connection>> stalled;
  const auto now = Clock::now();
  for (const auto& c : connections) {
    if (c->stalled(now)) stalled.push_back(c);
  }
  for (const auto& c : stalled) c->close();
}

void HttpServer::State::close_all() {
  const std::vector<std::shared_ptr<Connection>> all(connections.begin(), connections.end());
  for (const auto& c : all) c->close();
}

// While the loop still exists: sockets and timers belong to it.
HttpServer::State::~State() {
  stopping = true;
  close_all();
}

void HttpServer::State::tick() {
  hold_reserve();
  service.tick();
  close_stalled();
  if (service.broken() && !stopping) begin_stop();
  if (stopping) {
    const auto now = Clock::now();
    if (now - stop_at > settings.grace) service.cancel_running();
    if (service.busy() && now - stop_at > settings.grace + kHung) {
      ASSAY_LOG(critical, "the engine does not end its turn; leaving without it");
      std::_Exit(static_cast<int>(Exit::kCheckFailed));
    }
    if (!service.busy() && !told_events) {
      told_events = true;
      drained_at = now;
      service.events().close();
    }
    const bool all_told = told_events && std::none_of(connections.begin(),
                                                      connections.end(),
                                                      [](const auto& c) { return c->busy(); });
    // A reader that does not read its last frame holds nobody up.
    if (all_told || (told_events && now - drained_at > Milliseconds(2'000))) {
      close_all();
      io.stop();
      return;
    }
  }
  ticker.expires_after(stopping ? Milliseconds(20) : kTick);
  ticker.async_wait([this](ErrorCode error) {
    if (!error) surely([this] { tick(); });
  });
}

HttpServer::HttpServer(Service& service, HttpSettings settings, bool has_key)
    : state_(std::make_unique<State>(service, std::move(settings))) {
  const HttpSettings& s = state_->settings;
  ErrorCode error;
  const auto address = asio::ip::make_address(s.host == "localhost" ? "127.0.0.1" : s.host, error);
  if (error) throw UserError("--host " + s.host + ": an IP address is needed");
  if (!address.is_loopback() && !has_key) {
    throw UserError("--host " + s.host +
                    ": others can reach this address, so --api-key-file is needed");
  }
  if (s.tls_cert.empty() != s.tls_key.empty())
    throw UserError("--tls-cert and --tls-key belong together");
  if (!s.tls_cert.empty()) state_->tls = make_tls(s.tls_cert, s.tls_key);
  const tcp::endpoint endpoint(address, static_cast<std::uint16_t>(s.port));
  const auto step = [&](const char* what) {
    if (error)
      throw UserError(
          fmt::format("{}: cannot {}: {}", with_port(s.host, s.port), what, error.message()));
  };
  state_->acceptor.open(endpoint.protocol(), error);
  step("open");
  state_->acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  step("set options");
  state_->acceptor.bind(endpoint, error);
  step("bind");
  state_->acceptor.listen(1024, error);
  step("listen");
  raise_file_limit();
}

HttpServer::~HttpServer() = default;

std::string HttpServer::address() const { return with_port(state_->settings.host, port()); }

int HttpServer::port() const { return state_->acceptor.local_endpoint().port(); }

bool HttpServer::run() {
  State& s = *state_;
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is a disk that is full, not the end
  asio::signal_set signals(s.io, SIGINT, SIGTERM);
  std::function<void()> wait = [&] {
    signals.async_wait([&](ErrorCode error, int /*signal*/) {
      if (error) return;
      ASSAY_LOG(info, "stopping: the running turn has {} ms", s.settings.grace.count());
      s.begin_stop();
      s.tick();
      wait();
    });
  };
  wait();
  s.accept();
  s.tick();
  for (bool ran = false; !ran;) {
    try {
      s.io.run();
      ran = true;
    } catch (const std::bad_alloc&) {
      ASSAY_LOG(error, "out of memory: one event of a socket is lost");
    }
  }
  return !s.service.broken();
}

}  // namespace assay
