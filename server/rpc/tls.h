#ifndef TESSERA_SERVER_RPC_TLS_H_
#define TESSERA_SERVER_RPC_TLS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/security/server_credentials.h"

namespace tessera {

// PEM files. All empty: no TLS. With `client_ca`, callers must present a certificate that it signed (mTLS).
struct TlsOptions {
  std::string cert;
  std::string key;
  std::string client_ca;

  bool enabled() const { return !cert.empty() || !key.empty() || !client_ca.empty(); }
};

// Checks the files (errors name the file: missing, not PEM, key that does not belong to the certificate, expired) and
// returns credentials that read them again every minute, so that renewed certificates need no restart.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const TlsOptions& options);

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_TLS_H_
