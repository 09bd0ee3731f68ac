#ifndef TESSERA_CLIENT_TESSERA_CLIENT_H_
#define TESSERA_CLIENT_TESSERA_CLIENT_H_

// A C++ client for a Tessera server.
//
//   absl::StatusOr<std::unique_ptr<tessera::Client>> client =
//       tessera::Client::Create({.address = "localhost:50051"});
//   if (!client.ok()) return client.status();
//   tessera::v1::GenerateRequest request;
//   request.mutable_prompt()->set_text("Define: lantern");
//   std::unique_ptr<tessera::GenerateStream> stream =
//       (*client)->Generate(request, {.timeout = absl::Seconds(30)});
//   tessera::v1::GenerateResponse event;
//   while (stream->Read(&event)) std::cout << event.delta().text() << std::flush;
//   return stream->Finish();
//
// Messages are those of proto/tessera/v1; what their fields mean is written there.
//
// Errors: every call gives an absl::Status whose code is the gRPC code. When the server names the fields it
// refuses, they are part of the message, one a line, and FieldViolations() returns them.
//
// Retries: a call that fails with UNAVAILABLE or RESOURCE_EXHAUSTED before its first message arrived is tried
// again (RetryPolicy), within the call's timeout. A server's `grpc-retry-pushback-ms` takes the place of the
// backoff, and forbids the retry when negative. After the first message of a stream nothing is retried, so no
// text is lost or doubled.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tessera/v1/control.pb.h"
#include "tessera/v1/inference.pb.h"

namespace tessera {

struct RetryPolicy {
  // Tries in all; 1 never retries.
  int max_attempts = 5;
  // The wait before try i + 1 is initial_backoff * multiplier^(i - 1), at most max_backoff, times a random
  // factor between 1 - jitter and 1 + jitter.
  absl::Duration initial_backoff = absl::Milliseconds(100);
  absl::Duration max_backoff = absl::Seconds(5);
  double multiplier = 2.0;
  double jitter = 0.2;
  // Also retry RESOURCE_EXHAUSTED (the server's queue is full).
  bool retry_when_full = true;
};

struct ClientOptions {
  // HOST:PORT, or any gRPC target such as "dns:///tessera.default.svc:50051" or "unix:/run/tessera.sock".
  std::string address = "127.0.0.1:50051";

  // TLS is used when any of these is set. `tls_ca_file`: PEM certificates to trust (default: the system's).
  // `tls_cert_file` and `tls_key_file`: this client's own certificate, both or none. `tls_server_name`: the
  // name to check the server's certificate against, if it differs from the address.
  bool tls = false;
  std::string tls_ca_file;
  std::string tls_cert_file;
  std::string tls_key_file;
  std::string tls_server_name;

  // Sent as `authorization: Bearer KEY` if not empty. Without TLS the key crosses the network readable.
  std::string api_key;

  // A ping when nothing was heard for `keepalive_time` while a call is open; the connection counts as broken
  // when the answer takes longer than `keepalive_timeout`.
  absl::Duration keepalive_time = absl::Seconds(30);
  absl::Duration keepalive_timeout = absl::Seconds(10);

  // Largest messages, bytes. Log-probabilities of long prompts take megabytes.
  int max_receive_bytes = 256 << 20;
  int max_send_bytes = 64 << 20;

  // Spread calls over all addresses that the name resolves to.
  bool round_robin = true;

  RetryPolicy retry;
};

// Ends calls from another thread. A handle: copies share one state, and it may be given to several calls.
// Thread-safe. Cancelling is final: a call started with a cancelled handle fails at once.
class Cancellation {
 public:
  Cancellation();
  void Cancel();
  bool cancelled() const;

  // For the library: the state that calls register with.
  struct State;
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

struct CallOptions {
  // For the whole call, retries included; DEADLINE_EXCEEDED after it. What a stream had not delivered by then
  // is lost; GenerateRequest.timeout is the gentle kind.
  absl::Duration timeout = absl::InfiniteDuration();
  Cancellation cancellation;
  // Called before the wait for another try: the status of the try that failed, and the wait.
  std::function<void(const absl::Status&, absl::Duration)> on_retry;
};

// The events of one Generate call. One thread reads; any thread may cancel.
class GenerateStream {
 public:
  // Cancels the call if it has not ended.
  ~GenerateStream();
  GenerateStream(const GenerateStream&) = delete;
  GenerateStream& operator=(const GenerateStream&) = delete;

  // Waits for the next event. False when the stream has ended, well or not.
  bool Read(v1::GenerateResponse* event);
  // How the call ended. Before Read returned false, it cancels the call.
  absl::Status Finish();
  // Read returns false soon after, and Finish CANCELLED.
  void Cancel();

 private:
  friend class Client;
  class Impl;
  explicit GenerateStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Thread-safe; one connection for all its calls. Connecting happens with the first call.
class Client {
 public:
  // INVALID_ARGUMENT for options that contradict each other, NOT_FOUND for a file that cannot be read.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const ClientOptions& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Never null; errors come with GenerateStream::Finish. The stream must not outlive the client.
  std::unique_ptr<GenerateStream> Generate(const v1::GenerateRequest& request,
                                           const CallOptions& options = {});
  // Calls `on_event` for each event, on this thread, until the stream ends or it returns false (then
  // CANCELLED).
  absl::Status Generate(const v1::GenerateRequest& request,
                        const std::function<bool(const v1::GenerateResponse&)>& on_event,
                        const CallOptions& options = {});
  absl::StatusOr<v1::GenerateOnceResponse> GenerateOnce(const v1::GenerateRequest& request,
                                                        const CallOptions& options = {});
  absl::StatusOr<v1::EmbedResponse> Embed(const v1::EmbedRequest& request, const CallOptions& options = {});
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request,
                                                const CallOptions& options = {});
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request,
                                                    const CallOptions& options = {});
  absl::StatusOr<v1::ModelInfo> GetModelInfo(const CallOptions& options = {});
  absl::StatusOr<v1::ServerInfo> GetServerInfo(const CallOptions& options = {});
  absl::StatusOr<v1::Load> GetLoad(const CallOptions& options = {});
  absl::StatusOr<v1::AbortResponse> Abort(const v1::AbortRequest& request, const CallOptions& options = {});

  // OK when the server answers SERVING for `service` (empty: the whole server); UNAVAILABLE with the state
  // otherwise. Never retried.
  absl::Status CheckHealth(const std::string& service = "", const CallOptions& options = {});
  // Waits until the server serves, or until the call's timeout or cancellation. An answer that waiting cannot
  // change (UNIMPLEMENTED, UNAUTHENTICATED, ...) is returned at once.
  absl::Status WaitUntilServing(const CallOptions& options);

 private:
  class Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct FieldViolation {
  std::string field;        // path, for example "sampling.top_p"
  std::string description;  // what was found and what was expected
};

// The fields that the server refused; empty if the status carries none.
std::vector<FieldViolation> FieldViolations(const absl::Status& status);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TESSERA_CLIENT_H_
