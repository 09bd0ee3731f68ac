#include "server/rpc/rpc_server.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/grpc.h"
#include "grpcpp/ext/channelz_service_plugin.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "server/logging/logging.h"
#include "server/rpc/control_service.h"
#include "server/rpc/health_service.h"
#include "server/rpc/inference_service.h"
#include "server/rpc/listen_address.h"
#include "server/rpc/rpc_context.h"

namespace tessera {
namespace {

constexpr std::chrono::milliseconds kHealthPeriod(250);
// At shutdown, when no call to the engine is open: for answers of the control service. Connections, idle ones too, are closed at its end.
constexpr absl::Duration kCloseTime = absl::Milliseconds(100);
// Reflection and channelz are gRPC's synchronous services, a thread a call; no more of them than this.
constexpr int kMaxSyncThreads = 8;
constexpr int kKeepaliveMs = 60 * 1000;
constexpr int kKeepaliveTimeoutMs = 20 * 1000;
constexpr int kMinClientPingMs = 10 * 1000;

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(duration), 1, INT32_MAX));
}

void SetArguments(const RpcServerOptions& options, grpc::ServerBuilder* builder) {
  // Both directions are set, rather than left to defaults of 4 MiB in and unlimited out. Answers are as large as what
  // was asked for, which the checks of the request bound.
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.max_request_bytes));
  builder->SetMaxSendMessageSize(-1);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams);
  // Another server on the same port must be an error, not a second listener that takes half the calls.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Finds clients that vanished without closing, and lets clients look for a server that did.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinClientPingMs);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 5);
  if (options.max_connection_age != absl::InfiniteDuration()) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, Milliseconds(options.max_connection_age));
  }
  if (options.max_connection_age_grace != absl::InfiniteDuration()) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                                Milliseconds(options.max_connection_age_grace));
  }
  builder->SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  grpc::ResourceQuota quota("tessera");
  quota.SetMaxThreads(kMaxSyncThreads);
  builder->SetResourceQuota(quota);
}

// Plugins are the process's: added twice, their service is registered twice.
template <void (*Add)()>
void AddPluginOnce() {
  static const bool once = (Add(), true);
  (void)once;
}

// What protobuf has to say of a message that it cannot read (text that is not UTF-8, for one) would go to standard error
// as it is, once for each that a client cares to send; the client gets a status.
void QuietProtobuf() {
#if GOOGLE_PROTOBUF_VERSION < 4022000  // later ones log through Abseil, and not this
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel, const char*, int, const std::string& message) {
        Log(LogLevel::kDebug, "a message could not be read", {{"protobuf", message}});
      });
#endif
}

}  // namespace

class RpcServer::Impl {
 public:
  Impl(RpcServerOptions options, Metrics* metrics)
      : options_(std::move(options)),
        context_({options_.api_keys, options_.version, options_.max_request_bytes, options_.log_requests,
                  options_.tokenizer_threads, options_.writer_threads},
                 metrics),
        inference_(&context_),
        control_(&context_) {}

  ~Impl() {
    DrainAndShutdown(absl::Now());
    StopMonitor();
  }

  absl::Status Listen() {
    absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> credentials =
        MakeServerCredentials(options_.tls);
    if (!credentials.ok()) return credentials.status();
    if (absl::Status status = CheckCanListen(options_.listen); !status.ok()) return status;
    if (options_.reflection) AddPluginOnce<&grpc::reflection::InitProtoReflectionServerBuilderPlugin>();
    if (options_.channelz) AddPluginOnce<&grpc::channelz::experimental::InitChannelzService>();
    QuietProtobuf();
    grpc::ServerBuilder builder;
    SetArguments(options_, &builder);
    builder.AddListeningPort(options_.listen, *credentials, &port_);
    builder.RegisterService(&inference_);
    builder.RegisterService(&control_);
    builder.RegisterService(&health_);
    server_ = builder.BuildAndStart();
    const bool unix_socket = absl::StartsWith(options_.listen, "unix:");
    if (server_ == nullptr || (port_ == 0 && !unix_socket)) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", options_.listen));
    }
    return absl::OkStatus();
  }

  void Serve(ServedModel model, Engine* engine) {
    engine_ = engine;
    context_.Serve({std::move(model), engine});
    health_.SetState(ServerState::kServing);
    monitor_ = std::thread([this] { Monitor(); });
  }

  void Drain() {
    std::lock_guard<std::mutex> lock(mu_);
    if (draining_) return;
    draining_ = true;
    context_.SetState(ServerState::kDraining);
    health_.SetState(ServerState::kDraining);
    if (engine_ != nullptr) engine_->Drain();
  }

  bool DrainAndShutdown(absl::Time deadline) {
    if (server_ == nullptr) return true;
    Drain();
    const bool all = engine_ == nullptr || engine_->WaitDrained(deadline);
    StopMonitor();
    health_.Shutdown();
    context_.open_calls().WaitUntilNone(absl::Now() + options_.flush_timeout);
    server_->Shutdown(absl::ToChronoTime(absl::Now() + kCloseTime));
    server_->Wait();
    server_.reset();
    return all;
  }

  int port() const { return port_; }
  std::string address() const {
    if (absl::StartsWith(options_.listen, "unix:")) return options_.listen;
    return absl::StrCat(options_.listen.substr(0, options_.listen.rfind(':')), ":", port_);
  }
  ServerState state() const { return context_.state(); }

 private:
  // Polls the engine, so that health never waits for it.
  void Monitor() {
    std::unique_lock<std::mutex> lock(mu_);
    while (!stop_monitor_) {
      if (!draining_) {
        const ServerState state = engine_->Healthy() ? ServerState::kServing : ServerState::kFailed;
        if (state != context_.state()) {
          if (state == ServerState::kFailed) {
            LogError("the engine has failed or does not answer; health is NOT_SERVING");
          } else {
            LogWarning("the engine answers again; health is SERVING");
          }
          context_.SetState(state);
          health_.SetState(state);
        }
      }
      lock.unlock();
      CloseBlockedCalls();
      lock.lock();
      stopping_.wait_for(lock, kHealthPeriod, [this] { return stop_monitor_; });
    }
  }

  void CloseBlockedCalls() {
    const int closed = context_.open_calls().CloseBlockedSince(absl::Now() - options_.slow_reader_timeout);
    if (closed > 0) {
      context_.metrics()->OnBlockedCallsClosed(closed);
      LogWarning("calls closed: their callers did not read",
                 {{"calls", closed}, {"slow_reader_timeout_seconds", options_.slow_reader_timeout}});
    }
  }

  void StopMonitor() {
    {
      std::lock_guard<std::mutex> lock(mu_);
      stop_monitor_ = true;
    }
    stopping_.notify_all();
    if (monitor_.joinable()) monitor_.join();
  }

  const RpcServerOptions options_;
  RpcContext context_;
  InferenceService inference_;
  ControlService control_;
  HealthService health_;
  Engine* engine_ = nullptr;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::thread monitor_;
  std::mutex mu_;  // guards what follows
  std::condition_variable stopping_;
  bool draining_ = false;
  bool stop_monitor_ = false;
};

RpcServer::RpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RpcServer::~RpcServer() = default;

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(RpcServerOptions options, Metrics* metrics) {
  auto impl = std::make_unique<Impl>(std::move(options), metrics);
  if (absl::Status status = impl->Listen(); !status.ok()) return status;
  return std::unique_ptr<RpcServer>(new RpcServer(std::move(impl)));
}

int RpcServer::port() const { return impl_->port(); }
std::string RpcServer::address() const { return impl_->address(); }
void RpcServer::Serve(ServedModel model, Engine* engine) { impl_->Serve(std::move(model), engine); }
void RpcServer::Drain() { impl_->Drain(); }
bool RpcServer::DrainAndShutdown(absl::Time deadline) { return impl_->DrainAndShutdown(deadline); }
bool RpcServer::ready() const { return impl_->state() == ServerState::kServing; }
bool RpcServer::alive() const { return impl_->state() != ServerState::kFailed; }

}  // namespace tessera
