// TLS between a connection and its socket: tls_stream.cpp with OpenSSL, tls_absent.cpp in a build without. Only for files
// that know Boost.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>

namespace assay {

// One connection's. The socket outlives it; at most one read and one write are under way.
class TlsStream {
 public:
  using Done = std::function<void(boost::system::error_code)>;
  using Moved = std::function<void(boost::system::error_code, std::size_t)>;
  virtual ~TlsStream() = default;
  virtual void handshake(Done done) = 0;
  // asio::error::eof when the peer has ended its side, whether it said so or not.
  virtual void read_some(boost::asio::mutable_buffer to, Moved moved) = 0;
  virtual void write_some(const std::vector<boost::asio::const_buffer>& from, Moved moved) = 0;
  // Says that nothing follows, then waits for the peer to say so.
  virtual void shutdown(Done done) = 0;
};

class TlsContext {
 public:
  virtual ~TlsContext() = default;
  virtual std::unique_ptr<TlsStream> stream(boost::asio::ip::tcp::socket& socket) = 0;
};
// TLS 1.2 and later. cert, key: PEM files, the certificate with its chain. InputError naming the file and what is wrong;
// UserError in a build without TLS.
std::unique_ptr<TlsContext> make_tls(const std::string& cert, const std::string& key);

}  // namespace assay
