#include "server/rpc/tls.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <fstream>
#include <memory>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "test_server.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

struct Deleter {
  void operator()(X509* x) const { X509_free(x); }
  void operator()(EVP_PKEY* k) const { EVP_PKEY_free(k); }
  void operator()(X509_EXTENSION* e) const { X509_EXTENSION_free(e); }
};

// A key and a certificate for it, signed by `issuer` (or by itself).
struct Identity {
  std::unique_ptr<EVP_PKEY, Deleter> key;
  std::unique_ptr<X509, Deleter> certificate;
  std::string key_path, certificate_path;
};

std::string Path(const std::string& name) { return ::testing::TempDir() + "/tls_test_" + name; }

Identity MakeIdentity(const std::string& name, const Identity* issuer, long days = 1) {
  Identity out;
  out.key.reset(EVP_EC_gen("P-256"));
  out.certificate.reset(X509_new());
  X509* certificate = out.certificate.get();
  X509_set_version(certificate, 2);
  static long serial = 1;
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial++);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -2 * 86400);
  X509_gmtime_adj(X509_getm_notAfter(certificate), days * 86400);
  X509_set_pubkey(certificate, out.key.get());
  X509_NAME* subject = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(certificate,
                       issuer == nullptr ? subject : X509_get_subject_name(issuer->certificate.get()));
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, Deleter> extension(
      issuer == nullptr
          ? X509V3_EXT_conf_nid(nullptr, &context, NID_basic_constraints, "critical,CA:TRUE")
          : X509V3_EXT_conf_nid(nullptr, &context, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1"));
  X509_add_ext(certificate, extension.get(), -1);
  X509_sign(certificate, (issuer == nullptr ? out.key : issuer->key).get(), EVP_sha256());

  out.key_path = Path(name + ".key");
  out.certificate_path = Path(name + ".crt");
  FILE* file = fopen(out.key_path.c_str(), "w");
  PEM_write_PrivateKey(file, out.key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  fclose(file);
  file = fopen(out.certificate_path.c_str(), "w");
  PEM_write_X509(file, certificate);
  fclose(file);
  return out;
}

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

grpc::Status CallWith(TestServer& server, const grpc::SslCredentialsOptions& options) {
  auto stub =
      v1::Control::NewStub(grpc::CreateChannel(server.rpc().address(), grpc::SslCredentials(options)));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::ServerInfo info;
  return stub->GetServerInfo(&context, {}, &info);
}

TEST(Tls, ServesWithACertificate) {
  const Identity ca = MakeIdentity("ca", nullptr);
  const Identity host = MakeIdentity("host", &ca);
  TestServerOptions options;
  options.rpc.tls = {host.certificate_path, host.key_path, ""};
  TestServer server(options);
  EXPECT_TRUE(CallWith(server, {Read(ca.certificate_path), "", ""}).ok());
  const Identity stranger = MakeIdentity("stranger", nullptr);
  EXPECT_EQ(CallWith(server, {Read(stranger.certificate_path), "", ""}).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  // A caller without TLS gets nothing.
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
  v1::ServerInfo info;
  EXPECT_FALSE(server.control().GetServerInfo(&context, {}, &info).ok());
}

TEST(Tls, AsksForTheCallersCertificate) {
  const Identity ca = MakeIdentity("ca", nullptr);
  const Identity host = MakeIdentity("host", &ca);
  const Identity caller = MakeIdentity("caller", &ca);
  const Identity other_ca = MakeIdentity("other-ca", nullptr);
  const Identity intruder = MakeIdentity("intruder", &other_ca);
  TestServerOptions options;
  options.rpc.tls = {host.certificate_path, host.key_path, ca.certificate_path};
  TestServer server(options);
  const std::string root = Read(ca.certificate_path);
  const grpc::Status good = CallWith(server, {root, Read(caller.key_path), Read(caller.certificate_path)});
  EXPECT_TRUE(good.ok()) << good.error_message();
  EXPECT_FALSE(CallWith(server, {root, "", ""}).ok());
  EXPECT_FALSE(CallWith(server, {root, Read(intruder.key_path), Read(intruder.certificate_path)}).ok());
}

TEST(Tls, ErrorsNameTheFile) {
  const Identity ca = MakeIdentity("ca", nullptr);
  const Identity host = MakeIdentity("host", &ca);
  const Identity old = MakeIdentity("old", &ca, -1);
  const std::string garbage = Path("garbage");
  std::ofstream(garbage) << "hello";
  auto error = [](const TlsOptions& options) {
    return std::string(MakeServerCredentials(options).status().message());
  };
  EXPECT_THAT(error({"/no/such.crt", host.key_path, ""}),
              HasSubstr("--tls-cert: /no/such.crt: No such file"));
  EXPECT_THAT(error({host.certificate_path, "/no/such.key", ""}),
              HasSubstr("--tls-key: /no/such.key: No such file"));
  EXPECT_THAT(error({garbage, host.key_path, ""}),
              HasSubstr("--tls-cert: " + garbage + ": holds no PEM certificate"));
  EXPECT_THAT(error({host.certificate_path, garbage, ""}),
              HasSubstr("--tls-key: " + garbage + ": holds no PEM private"));
  EXPECT_THAT(error({host.certificate_path, ca.key_path, ""}),
              HasSubstr("does not belong to the certificate"));
  EXPECT_THAT(error({old.certificate_path, old.key_path, ""}), HasSubstr("has expired"));
  EXPECT_THAT(error({host.certificate_path, host.key_path, garbage}),
              HasSubstr("--tls-client-ca: " + garbage));
  EXPECT_THAT(error({host.certificate_path, "", ""}), HasSubstr("--tls-key: required"));
}

}  // namespace
}  // namespace tessera
