#include "engine/daemon/tls_stream.h"

#include <utility>

#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <openssl/ssl.h>

#include "kernels/base/error.h"

namespace assay {
namespace {

namespace asio = boost::asio;
namespace ssl = boost::asio::ssl;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

class Stream : public TlsStream {
 public:
  Stream(tcp::socket& socket, ssl::context& context) : stream_(socket, context) {}
  void handshake(Done done) override {
    stream_.async_handshake(ssl::stream_base::server, std::move(done));
  }
  void read_some(asio::mutable_buffer to, Moved moved) override {
    stream_.async_read_some(to, [moved = std::move(moved)](ErrorCode error, std::size_t n) {
      moved(error == ssl::error::stream_truncated ? ErrorCode(asio::error::eof) : error, n);
    });
  }
  void write_some(const std::vector<asio::const_buffer>& from, Moved moved) override {
    stream_.async_write_some(from, std::move(moved));
  }
  void shutdown(Done done) override { stream_.async_shutdown(std::move(done)); }

 private:
  ssl::stream<tcp::socket&> stream_;
};

class Context : public TlsContext {
 public:
  Context(const std::string& cert, const std::string& key) {
    SSL_CTX_set_min_proto_version(context_.native_handle(), TLS1_2_VERSION);
    SSL_CTX_set_options(context_.native_handle(), SSL_OP_NO_RENEGOTIATION);
    // Idle connections keep no buffers.
    SSL_CTX_set_mode(context_.native_handle(), SSL_MODE_RELEASE_BUFFERS);
    ErrorCode error;
    // Without it OpenSSL would ask on the terminal.
    context_.set_password_callback([](std::size_t, ssl::context::password_purpose) { return ""; },
                                   error);
    context_.use_certificate_chain_file(cert, error);
    if (error) throw InputError("--tls-cert " + cert + ": " + error.message());
    context_.use_private_key_file(key, ssl::context::pem, error);
    if (error) throw InputError("--tls-key " + key + ": " + error.message());
  }
  std::unique_ptr<TlsStream> stream(tcp::socket& socket) override {
    return std::make_unique<Stream>(socket, context_);
  }

 private:
  ssl::context context_{ssl::context::tls_server};
};

}  // namespace

std::unique_ptr<TlsContext> make_tls(const std::string& cert, const std::string& key) {
  return std::make_unique<Context>(cert, key);
}

}  // namespace assay
