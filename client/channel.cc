#include "client/channel.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace tessera {
namespace {

absl::StatusOr<std::string> ReadFile(absl::string_view what, const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream content;
  if (in) content << in.rdbuf();
  if (!in) return absl::NotFoundError(absl::StrCat("cannot read the ", what, " file '", path, "'"));
  return content.str();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(const ClientOptions& options) {
  const bool tls = options.tls || !options.tls_ca_file.empty() || !options.tls_cert_file.empty() ||
                   !options.tls_key_file.empty() || !options.tls_server_name.empty();
  if (!tls) return grpc::InsecureChannelCredentials();
  if (options.tls_cert_file.empty() != options.tls_key_file.empty()) {
    return absl::InvalidArgumentError(
        "a client certificate takes both its certificate file and its key file");
  }
  grpc::SslCredentialsOptions ssl;
  const struct {
    absl::string_view what;
    const std::string& path;
    std::string& content;
  } files[] = {{"CA certificate", options.tls_ca_file, ssl.pem_root_certs},
               {"client certificate", options.tls_cert_file, ssl.pem_cert_chain},
               {"client key", options.tls_key_file, ssl.pem_private_key}};
  for (const auto& file : files) {
    if (file.path.empty()) continue;
    absl::StatusOr<std::string> content = ReadFile(file.what, file.path);
    if (!content.ok()) return content.status();
    file.content = *std::move(content);
  }
  return grpc::SslCredentials(ssl);
}

bool IsLoopback(absl::string_view address) {
  return absl::StartsWith(address, "127.") || absl::StartsWith(address, "localhost:") ||
         absl::StartsWith(address, "[::1]:") || absl::StartsWith(address, "unix:");
}

int Millis(absl::Duration duration) {
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(duration), 1, 1 << 30));
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ClientOptions& options) {
  if (options.address.empty()) return absl::InvalidArgumentError("the address is empty; expected HOST:PORT");
  // A metadata value of other bytes would abort inside gRPC.
  for (const char c : options.api_key) {
    if (c < 0x21 || c > 0x7e) {
      return absl::InvalidArgumentError(
          "the API key holds a space or a character that is not printable ASCII");
    }
  }
  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials = MakeCredentials(options);
  if (!credentials.ok()) return credentials.status();

  grpc::ChannelArguments arguments;
  arguments.SetUserAgentPrefix("tessera-client/" TESSERA_VERSION);
  arguments.SetMaxReceiveMessageSize(options.max_receive_bytes);
  arguments.SetMaxSendMessageSize(options.max_send_bytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Millis(options.keepalive_time));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Millis(options.keepalive_timeout));
  // A long prefill sends no data for many pings; the default of 2 would stop them and leave a dead peer
  // unnoticed.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Reconnecting keeps pace with the retries above it.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, Millis(options.retry.initial_backoff));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                   std::max(Millis(options.retry.max_backoff), Millis(options.retry.initial_backoff)));
  // One connection a client, not one shared by all clients of the process.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (options.round_robin) arguments.SetLoadBalancingPolicyName("round_robin");
  // A proxy from the environment cannot reach this machine's own loopback.
  if (IsLoopback(options.address)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (!options.tls_server_name.empty()) arguments.SetSslTargetNameOverride(options.tls_server_name);
  return grpc::CreateCustomChannel(options.address, *credentials, arguments);
}

}  // namespace tessera
