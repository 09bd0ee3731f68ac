#include "server/rpc/health_service.h"

#include <optional>
#include <vector>

#include "server/rpc/status.h"

namespace tessera {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// One watch. Statuses that change faster than they can be written are merged into the latest.
class HealthService::WatchReactor final : public grpc::ServerWriteReactor<HealthCheckResponse>,
                                          public std::enable_shared_from_this<WatchReactor> {
 public:
  WatchReactor(HealthService* service, std::string name) : service_(service), name_(std::move(name)) {}

  const std::string& name() const { return name_; }

  void Send(Status status) {
    absl::MutexLock lock(&mu_);
    if (done_ || (last_ && *last_ == status && !next_)) return;
    next_ = status;
    if (!writing_) WriteNext();
  }

  void End() {
    {
      absl::MutexLock lock(&mu_);
      ending_ = true;
      if (done_ || writing_) return;
      done_ = true;
    }
    Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
  }

  void OnWriteDone(bool ok) override {
    bool finish = false;
    {
      absl::MutexLock lock(&mu_);
      writing_ = false;
      if (!ok) {
        ending_ = true;
        next_.reset();
      }
      if (next_) {
        WriteNext();
      } else if (ending_ && !done_) {
        done_ = true;
        finish = true;
      }
    }
    if (finish) Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
  }

  void OnCancel() override {
    {
      absl::MutexLock lock(&mu_);
      ending_ = true;
      next_.reset();
      if (done_ || writing_) return;  // OnWriteDone will finish
      done_ = true;
    }
    Finish(grpc::Status::CANCELLED);
  }

  void OnDone() override {
    std::shared_ptr<WatchReactor> self = shared_from_this();
    absl::MutexLock lock(&service_->mu_);
    service_->watchers_.erase(self);
  }

 private:
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    last_ = *next_;
    response_.set_status(*next_);
    next_.reset();
    writing_ = true;
    StartWrite(&response_);  // its completion comes through gRPC's queue, never on this stack
  }

  HealthService* const service_;
  const std::string name_;
  absl::Mutex mu_;
  std::optional<Status> last_ ABSL_GUARDED_BY(mu_);  // written, or being written
  std::optional<Status> next_ ABSL_GUARDED_BY(mu_);  // to be written after that
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  HealthCheckResponse response_;  // owned by the pending write
};

HealthService::HealthService() = default;
HealthService::~HealthService() {
  absl::MutexLock lock(&mu_);  // the last OnDone may just have left it
  watchers_.clear();
}

HealthService::Status HealthService::StatusOf(const std::string& service, ServerState state) {
  if (service.empty() || service == "tessera.v1.Inference") {
    return state == ServerState::kServing ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
  }
  if (service == "tessera.v1.Control") {
    return state == ServerState::kFailed ? HealthCheckResponse::NOT_SERVING : HealthCheckResponse::SERVING;
  }
  return HealthCheckResponse::SERVICE_UNKNOWN;
}

void HealthService::SetState(ServerState state) {
  absl::MutexLock lock(&mu_);
  if (state_ == state) return;
  state_ = state;
  // Under the lock, so that two changes reach each watcher in order. StartWrite does not call back on this thread.
  for (const std::shared_ptr<WatchReactor>& watcher : watchers_)
    watcher->Send(StatusOf(watcher->name(), state));
}

void HealthService::Shutdown() {
  std::vector<std::shared_ptr<WatchReactor>> watchers;
  {
    absl::MutexLock lock(&mu_);
    shut_down_ = true;
    watchers.assign(watchers_.begin(), watchers_.end());
  }
  for (const std::shared_ptr<WatchReactor>& watcher : watchers) watcher->End();
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::MutexLock lock(&mu_);
  const Status status = StatusOf(request->service(), state_);
  if (status == HealthCheckResponse::SERVICE_UNKNOWN) {
    reactor->Finish(ToGrpcStatus(absl::NotFoundError("no service " + Quoted(request->service()))));
  } else {
    response->set_status(status);
    reactor->Finish(grpc::Status::OK);
  }
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(grpc::CallbackServerContext*,
                                                                    const HealthCheckRequest* request) {
  auto watcher = std::make_shared<WatchReactor>(this, request->service());
  absl::MutexLock lock(&mu_);
  watchers_.insert(watcher);
  if (shut_down_) {
    watcher->End();
  } else {
    watcher->Send(StatusOf(watcher->name(), state_));
  }
  return watcher.get();
}

}  // namespace tessera
