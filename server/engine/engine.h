#ifndef TESSERA_SERVER_ENGINE_ENGINE_H_
#define TESSERA_SERVER_ENGINE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/backend/backend.h"
#include "server/engine/request.h"
#include "server/engine/request_stream.h"
#include "server/metrics/metrics.h"
#include "server/scheduler/scheduler.h"
#include "server/tokenizer/tokenizer.h"

namespace tessera {

struct EngineConfig {
  SchedulerConfig scheduler;
  int32_t max_queued_sequences = 1024;  // waiting for a first step; more is RESOURCE_EXHAUSTED
  int64_t max_queued_tokens = 1 << 22;  // prompt tokens waiting; likewise
  absl::Duration slow_reader_timeout = absl::Seconds(30);
  int32_t slow_reader_tokens = 65536;
  absl::Duration watchdog_timeout = absl::Seconds(60);  // a step that takes longer turns Healthy() false
  std::vector<int32_t> eos_token_ids;
  // On a device that works beside its host, a step is planned and started while the one before is at work, unless that
  // has many prompt tokens. What is generated is the same without.
  bool run_ahead = true;
};

struct EngineLoad {
  SchedulerStats scheduler;
  double generation_tokens_per_second = 0;  // over the last 10 seconds
  double prompt_tokens_per_second = 0;
  double prefix_cache_hit_rate = 0;  // since the start
};

// The loop that joins scheduler, backend, sampling, detokenisation and outputs. One thread owns all running state; every
// method here is thread-safe and returns without waiting for a step.
class Engine {
 public:
  // `tokenizer` may be null (token ids only: no text, no stop strings). `backend`'s cache must be allocated.
  // `metrics` outlives the engine, which is the source of its gauges and counts everything but refusals
  // (OnRequestRejected is the caller's, who also refuses for reasons of its own). `clock` gives the time (absl::Now if
  // empty) and must be thread-safe.
  Engine(EngineConfig config, std::unique_ptr<Backend> backend, std::shared_ptr<const Tokenizer> tokenizer,
         Metrics* metrics, std::function<absl::Time()> clock = nullptr);
  // Ends every request (kAbort) and joins the thread.
  ~Engine();

  void Start();

  // Queues a request. Errors, all before anything is queued: INVALID_ARGUMENT (can never fit, stop strings without a
  // tokenizer), ALREADY_EXISTS (request id in use), RESOURCE_EXHAUSTED (queue full), UNAVAILABLE (draining or failed).
  // A request of any size may enter an empty queue. An id is free again when the last event of its request arrives.
  // `on_ready` is the stream's (request_stream.h); the engine may call it before this returns.
  absl::StatusOr<std::shared_ptr<RequestStream>> Generate(GenerateSpec spec, std::function<void()> on_ready);
  absl::StatusOr<std::shared_ptr<RequestStream>> Embed(EmbedSpec spec, std::function<void()> on_ready);

  // Ends a request at the next step, with kAbort and `why`. True if the id names a live request.
  bool Abort(const std::string& request_id, absl::Status why);
  // Ends all; returns their ids.
  std::vector<std::string> AbortAll(absl::Status why);

  // Makes the engine look at its inbox, its deadlines and its clock. Not needed after RequestStream::Cancel, which wakes
  // the engine itself; for a clock that jumps.
  void Wake();

  // Refuses new requests from now on (UNAVAILABLE); running ones go on.
  void Drain();
  // Waits until every request has ended, or until `deadline`, then ends the rest with kAbort. True if none was cut.
  bool WaitDrained(absl::Time deadline);

  // Answered from counters, without waiting for the engine thread.
  EngineLoad Load() const;
  // False when the device failed, the thread died, or a step takes longer than watchdog_timeout.
  bool Healthy() const;

  const BackendInfo& backend_info() const;
  const EngineConfig& config() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_ENGINE_ENGINE_H_
