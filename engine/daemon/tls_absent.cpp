#include "engine/daemon/tls_stream.h"
#include "kernels/base/error.h"

namespace assay {

std::unique_ptr<TlsContext> make_tls(const std::string& /*cert*/, const std::string& /*key*/) {
  throw UserError("--tls-cert: this build has no TLS, OpenSSL 3 was not found (libssl-dev)");
}

}  // namespace assay
