#include "client/tessera_client.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cancellation.h"
#include "client/channel.h"
#include "client/retry.h"
#include "client/status.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "tessera/v1/control.grpc.pb.h"
#include "tessera/v1/inference.grpc.pb.h"

namespace tessera {
namespace {

// What all tries of one call share.
struct Call {
  Call(const ClientOptions& client_options, CallOptions call_options)
      : options(std::move(call_options)),
        deadline(absl::Now() + options.timeout),
        authorization(client_options.api_key.empty() ? "" : absl::StrCat("Bearer ", client_options.api_key)),
        retry(client_options.retry, deadline) {}

  std::unique_ptr<grpc::ClientContext> NewContext() const {
    auto context = std::make_unique<grpc::ClientContext>();
    if (deadline != absl::InfiniteFuture()) context->set_deadline(absl::ToChronoTime(deadline));
    if (!authorization.empty()) context->AddMetadata("authorization", authorization);
    return context;
  }

  // After a try ended with `status`: waits and returns true if another is due.
  bool WaitForRetry(const absl::Status& status, const grpc::ClientContext& context) {
    const std::optional<absl::Duration> wait = retry.Next(status, RetryPushback(context), absl::Now());
    if (!wait.has_value()) return false;
    if (options.on_retry) options.on_retry(status, *wait);
    return !options.cancellation.state()->WaitFor(*wait);
  }

  const CallOptions options;
  const absl::Time deadline;
  const std::string authorization;
  RetryState retry;
};

// What asking again cannot mend: the peer is no Tessera server, or does not let this caller in.
bool IsPermanent(const absl::Status& status) {
  return absl::IsUnimplemented(status) || absl::IsUnauthenticated(status) ||
         absl::IsPermissionDenied(status) || absl::IsInvalidArgument(status) || absl::IsNotFound(status);
}

absl::Status CancelledByCaller() { return absl::CancelledError("cancelled by the caller"); }

}  // namespace

Cancellation::Cancellation() : state_(std::make_shared<State>()) {}
void Cancellation::Cancel() { state_->Cancel(); }
bool Cancellation::cancelled() const { return state_->IsCancelled(); }

class Client::Impl {
 public:
  Impl(ClientOptions options, const std::shared_ptr<grpc::Channel>& channel)
      : options_(std::move(options)),
        inference_(v1::Inference::NewStub(channel)),
        control_(v1::Control::NewStub(channel)),
        health_(grpc::health::v1::Health::NewStub(channel)) {}

  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Unary(Stub& stub,
                                 grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                              Response*),
                                 const Request& request, const CallOptions& call_options) {
    Call call(options_, call_options);
    while (true) {
      std::unique_ptr<grpc::ClientContext> context = call.NewContext();
      Response response;
      absl::Status status;
      {
        ScopedContext scope(*call.options.cancellation.state(), *context);
        status = FromGrpc((stub.*method)(context.get(), request, &response));
      }
      if (status.ok()) return response;
      if (!call.WaitForRetry(status, *context)) {
        return call.options.cancellation.cancelled() ? CancelledByCaller() : status;
      }
    }
  }

  absl::Status CheckHealth(const std::string& service, const CallOptions& call_options) {
    Call call(options_, call_options);
    std::unique_ptr<grpc::ClientContext> context = call.NewContext();
    grpc::health::v1::HealthCheckRequest request;
    grpc::health::v1::HealthCheckResponse response;
    request.set_service(service);
    ScopedContext scope(*call.options.cancellation.state(), *context);
    const grpc::Status status = health_->Check(context.get(), request, &response);
    if (!status.ok()) return call.options.cancellation.cancelled() ? CancelledByCaller() : FromGrpc(status);
    if (response.status() == grpc::health::v1::HealthCheckResponse::SERVING) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(
        "the server is ", grpc::health::v1::HealthCheckResponse::ServingStatus_Name(response.status())));
  }

  const ClientOptions options_;
  const std::unique_ptr<v1::Inference::Stub> inference_;
  const std::unique_ptr<v1::Control::Stub> control_;
  const std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

class GenerateStream::Impl {
 public:
  Impl(const ClientOptions& client_options, const CallOptions& options, v1::Inference::Stub& stub,
       v1::GenerateRequest request)
      : call_(client_options, options), stub_(stub), request_(std::move(request)) {}

  bool Read(v1::GenerateResponse* event) {
    while (!status_.has_value()) {
      if (own_cancel_.load() && reader_ == nullptr) {
        status_ = CancelledByCaller();
        return false;
      }
      if (reader_ == nullptr) Start();
      if (reader_->Read(event)) {
        started_ = true;
        return true;
      }
      absl::Status status = FromGrpc(reader_->Finish());
      const bool again =
          !status.ok() && !started_ && !own_cancel_.load() && call_.WaitForRetry(status, *context_);
      if (!status.ok() && (own_cancel_.load() || call_.options.cancellation.cancelled()))
        status = CancelledByCaller();
      Release();
      if (!again) status_ = status;
    }
    return false;
  }

  absl::Status Finish() {
    if (status_.has_value()) return *status_;
    Cancel();
    v1::GenerateResponse unwanted;
    while (Read(&unwanted)) {
    }
    // A stream whose last message had arrived ends well even so.
    return status_->ok() ? absl::OkStatus() : CancelledByCaller();
  }

  void Cancel() {
    own_cancel_.store(true);
    std::lock_guard<std::mutex> lock(mutex_);
    if (context_ != nullptr) context_->TryCancel();
  }

 private:
  void Start() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      context_ = call_.NewContext();
    }
    scope_.emplace(*call_.options.cancellation.state(), *context_);
    if (own_cancel_.load()) context_->TryCancel();
    reader_ = stub_.Generate(context_.get(), request_);
  }

  void Release() {
    reader_.reset();
    scope_.reset();
    std::lock_guard<std::mutex> lock(mutex_);
    context_.reset();
  }

  Call call_;
  v1::Inference::Stub& stub_;
  const v1::GenerateRequest request_;
  std::atomic<bool> own_cancel_{false};
  std::mutex mutex_;  // guards the pointer context_ against Cancel
  std::unique_ptr<grpc::ClientContext> context_;
  std::optional<ScopedContext> scope_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
  bool started_ = false;
  std::optional<absl::Status> status_;
};

GenerateStream::GenerateStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GenerateStream::~GenerateStream() { impl_->Finish().IgnoreError(); }
bool GenerateStream::Read(v1::GenerateResponse* event) { return impl_->Read(event); }
absl::Status GenerateStream::Finish() { return impl_->Finish(); }
void GenerateStream::Cancel() { impl_->Cancel(); }

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const ClientOptions& options) {
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = MakeChannel(options);
  if (!channel.ok()) return channel.status();
  return std::unique_ptr<Client>(new Client(std::make_unique<Impl>(options, *channel)));
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

std::unique_ptr<GenerateStream> Client::Generate(const v1::GenerateRequest& request,
                                                 const CallOptions& options) {
  return std::unique_ptr<GenerateStream>(new GenerateStream(
      std::make_unique<GenerateStream::Impl>(impl_->options_, options, *impl_->inference_, request)));
}

absl::Status Client::Generate(const v1::GenerateRequest& request,
                              const std::function<bool(const v1::GenerateResponse&)>& on_event,
                              const CallOptions& options) {
  std::unique_ptr<GenerateStream> stream = Generate(request, options);
  v1::GenerateResponse event;
  while (stream->Read(&event)) {
    if (!on_event(event)) break;
  }
  return stream->Finish();
}

absl::StatusOr<v1::GenerateOnceResponse> Client::GenerateOnce(const v1::GenerateRequest& request,
                                                              const CallOptions& options) {
  return impl_->Unary(*impl_->inference_, &v1::Inference::Stub::GenerateOnce, request, options);
}

absl::StatusOr<v1::EmbedResponse> Client::Embed(const v1::EmbedRequest& request, const CallOptions& options) {
  return impl_->Unary(*impl_->inference_, &v1::Inference::Stub::Embed, request, options);
}

absl::StatusOr<v1::TokenizeResponse> Client::Tokenize(const v1::TokenizeRequest& request,
                                                      const CallOptions& options) {
  return impl_->Unary(*impl_->inference_, &v1::Inference::Stub::Tokenize, request, options);
}

absl::StatusOr<v1::DetokenizeResponse> Client::Detokenize(const v1::DetokenizeRequest& request,
                                                          const CallOptions& options) {
  return impl_->Unary(*impl_->inference_, &v1::Inference::Stub::Detokenize, request, options);
}

absl::StatusOr<v1::ModelInfo> Client::GetModelInfo(const CallOptions& options) {
  return impl_->Unary(*impl_->control_, &v1::Control::Stub::GetModelInfo, v1::GetModelInfoRequest(), options);
}

absl::StatusOr<v1::ServerInfo> Client::GetServerInfo(const CallOptions& options) {
  return impl_->Unary(*impl_->control_, &v1::Control::Stub::GetServerInfo, v1::GetServerInfoRequest(),
                      options);
}

absl::StatusOr<v1::Load> Client::GetLoad(const CallOptions& options) {
  return impl_->Unary(*impl_->control_, &v1::Control::Stub::GetLoad, v1::GetLoadRequest(), options);
}

absl::StatusOr<v1::AbortResponse> Client::Abort(const v1::AbortRequest& request, const CallOptions& options) {
  return impl_->Unary(*impl_->control_, &v1::Control::Stub::Abort, request, options);
}

absl::Status Client::CheckHealth(const std::string& service, const CallOptions& options) {
  return impl_->CheckHealth(service, options);
}

absl::Status Client::WaitUntilServing(const CallOptions& options) {
  // A probe gets its own short timeout: a server that takes the connection and does not answer is asked
  // again.
  constexpr absl::Duration kProbeTimeout = absl::Seconds(2);
  constexpr absl::Duration kPause = absl::Milliseconds(50);
  const absl::Time deadline = absl::Now() + options.timeout;
  while (true) {
    CallOptions probe = options;
    probe.timeout = std::min(kProbeTimeout, deadline - absl::Now());
    const absl::Status status = impl_->CheckHealth("", probe);
    if (status.ok() || IsPermanent(status)) return status;
    if (options.cancellation.state()->WaitFor(kPause)) return CancelledByCaller();
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the server did not serve in time; last answer: ", absl::StatusCodeToString(status.code()), ": ",
          status.message()));
    }
  }
}

}  // namespace tessera
