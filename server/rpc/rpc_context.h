#ifndef TESSERA_SERVER_RPC_RPC_CONTEXT_H_
#define TESSERA_SERVER_RPC_RPC_CONTEXT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "server/engine/engine.h"
#include "server/metrics/metrics.h"
#include "server/rpc/api_keys.h"
#include "server/rpc/open_calls.h"
#include "server/rpc/served_model.h"
#include "server/rpc/validation.h"
#include "server/rpc/worker_pool.h"

namespace tessera {

enum class ServerState { kStarting, kServing, kDraining, kFailed };
const char* ServerStateName(ServerState state);

// What requests are served with, once there is a model.
struct Serving {
  ServedModel model;
  Engine* engine = nullptr;
};

// Ids of requests that have arrived but are not yet the engine's: so that Abort finds a request at any point of its
// life, and a second request of the same id is refused however early it comes. Thread-safe.
class ArrivingRequests {
 public:
  // False if the id is there already.
  bool Add(const std::string& id);
  // Marks the request to be ended as soon as the engine has it. False if the id is not here.
  bool Abort(const std::string& id);
  std::vector<std::string> AbortAll();
  // Takes the id out; true if it was marked.
  bool Remove(const std::string& id);

 private:
  absl::Mutex mu_;
  std::unordered_map<std::string, bool> aborted_ ABSL_GUARDED_BY(mu_);
};

// What the services share. Outlives all calls.
class RpcContext {
 public:
  struct Options {
    ApiKeys api_keys;
    std::string version;
    int64_t max_request_bytes = 0;
    bool log_requests = false;  // ids, counts and durations; never text
    int tokenizer_threads = 1;
    int writer_threads = 1;
  };
  RpcContext(Options options, Metrics* metrics);

  // From now on requests are served. `serving.engine` outlives this context's calls.
  void Serve(Serving serving);
  void SetState(ServerState state) { state_.store(state, std::memory_order_release); }
  ServerState state() const { return state_.load(std::memory_order_acquire); }

  // Null until Serve.
  const Serving* serving() const { return serving_.load(std::memory_order_acquire); }
  // The same, or UNAVAILABLE.
  absl::StatusOr<const Serving*> Loaded() const;

  // Whether this caller may call: UNAUTHENTICATED if not.
  absl::Status Authenticate(const grpc::CallbackServerContext& context) const;
  // Whether a new request may come in: UNAVAILABLE while starting or draining, or when the engine has failed.
  absl::StatusOr<const Serving*> Admit() const;

  const Options& options() const { return options_; }
  Metrics* metrics() const { return metrics_; }
  absl::Time start_time() const { return start_time_; }
  ArrivingRequests& arriving() { return arriving_; }
  OpenCalls& open_calls() { return open_calls_; }
  WorkerPool& tokenizers() { return tokenizers_; }
  WorkerPool& writers() { return writers_; }

 private:
  const Options options_;
  Metrics* const metrics_;
  const absl::Time start_time_ = absl::Now();
  std::atomic<ServerState> state_{ServerState::kStarting};
  std::unique_ptr<const Serving> owned_serving_;
  std::atomic<const Serving*> serving_{nullptr};
  ArrivingRequests arriving_;
  OpenCalls open_calls_;
  // Turns the engine's events into messages and starts writes, off the engine's thread. Holds at most one task a call.
  WorkerPool writers_;
  // Checks and tokenises requests, short ones first. Bounded: a call that finds it full is RESOURCE_EXHAUSTED.
  // Stops first: its tasks hand calls to the writers.
  WorkerPool tokenizers_;
};

// RESOURCE_EXHAUSTED errors tell when to come back: about a second, spread so that callers do not return all at once.
absl::Status WithPushback(absl::Status status);

// The id of a request: the field, else the metadata x-request-id, else a new one.
RequestId ResolveRequestId(const std::string& field, const grpc::CallbackServerContext& context);

// The value of a metadata key; empty if absent. `count`, if not null, gets how often it was sent.
std::string Metadata(const grpc::CallbackServerContext& context, const std::string& key,
                     int* count = nullptr);

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_RPC_CONTEXT_H_
