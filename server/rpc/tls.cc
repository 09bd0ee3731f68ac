#include "server/rpc/tls.h"

#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace tessera {
namespace {

constexpr unsigned int kReloadSeconds = 60;

struct X509Deleter {
  void operator()(X509* x) const { X509_free(x); }
};
struct KeyDeleter {
  void operator()(EVP_PKEY* k) const { EVP_PKEY_free(k); }
};
struct BioDeleter {
  void operator()(BIO* b) const { BIO_free(b); }
};
using X509Ptr = std::unique_ptr<X509, X509Deleter>;
using KeyPtr = std::unique_ptr<EVP_PKEY, KeyDeleter>;

absl::StatusOr<std::string> ReadPem(const char* flag, const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError(absl::StrCat(flag, ": required for TLS"));
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(flag, ": ", path, ": ", std::strerror(errno)));
  if (std::error_code error; !std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, ": not a regular file"));
  }
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::unique_ptr<BIO, BioDeleter> Buffer(const std::string& text) {
  return std::unique_ptr<BIO, BioDeleter>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// The first certificate of a PEM file, checked to be one and to be valid now.
absl::StatusOr<X509Ptr> ReadCertificate(const char* flag, const std::string& path) {
  absl::StatusOr<std::string> pem = ReadPem(flag, path);
  if (!pem.ok()) return pem.status();
  X509Ptr certificate(PEM_read_bio_X509(Buffer(*pem).get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, ": holds no PEM certificate"));
  }
  if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) < 0) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, ": the certificate has expired"));
  }
  return certificate;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const TlsOptions& options) {
  if (!options.enabled()) return grpc::InsecureServerCredentials();
  absl::StatusOr<X509Ptr> certificate = ReadCertificate("--tls-cert", options.cert);
  if (!certificate.ok()) return certificate.status();
  absl::StatusOr<std::string> key_pem = ReadPem("--tls-key", options.key);
  if (!key_pem.ok()) return key_pem.status();
  // A callback that gives no passphrase, where the default would ask on the terminal.
  auto no_passphrase = [](char*, int, int, void*) { return -1; };
  const KeyPtr key(PEM_read_bio_PrivateKey(Buffer(*key_pem).get(), nullptr, no_passphrase, nullptr));
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-key: ", options.key, ": holds no PEM private key (or one with a passphrase)"));
  }
  if (X509_check_private_key(certificate->get(), key.get()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-key: ", options.key, ": does not belong to the certificate in ", options.cert));
  }
  if (!options.client_ca.empty()) {
    absl::StatusOr<X509Ptr> ca = ReadCertificate("--tls-client-ca", options.client_ca);
    if (!ca.ok()) return ca.status();
  }

  auto provider = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      options.key, options.cert, options.client_ca, kReloadSeconds);
  grpc::experimental::TlsServerCredentialsOptions credentials(provider);
  credentials.watch_identity_key_cert_pairs();
  if (!options.client_ca.empty()) {
    credentials.watch_root_certs();
    credentials.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(credentials);
}

}  // namespace tessera
