#ifndef TESSERA_SERVER_METRICS_METRICS_H_
#define TESSERA_SERVER_METRICS_METRICS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace prometheus {
class Collectable;
}

namespace tessera {

// Everything that is counted of one request, once, when it has ended.
struct RequestRecord {
  enum class Kind { kGenerate, kEmbed } kind = Kind::kGenerate;
  // One a finished output (or one for an embedding call): "stop", "length", "abort", "deadline", "error".
  std::vector<std::string> finish_reasons;
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  int32_t max_tokens = 0;
  int32_t n = 1;
  int32_t preemptions = 0;
  absl::Duration queue;                   // arrival to first step; total if it was never in one
  std::optional<absl::Duration> prefill;  // first step to first token
  std::optional<absl::Duration> decode;   // first token to last
  absl::Duration total;                   // arrival to end
};

// Counted of one engine step.
struct StepRecord {
  // Scheduler, backend, detokenise + push; their sum is the step, unless they overlap.
  absl::Duration plan, run, publish;
  int32_t prefill_tokens = 0;
  int32_t decode_tokens = 0;
  int32_t rows = 0;
  int32_t generated_tokens = 0;  // kept in this step, over all outputs, first tokens included
  int32_t preemptions = 0;
  int64_t cache_looked_up_tokens = 0;  // prefix cache
  int64_t cache_hit_tokens = 0;
  // The device waited for this step since the one before; 0 if there was no work.
  absl::Duration device_idle;
};

// Values read when Prometheus scrapes; must not wait for the engine.
struct GaugeValues {
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t kv_blocks_used = 0;
  int32_t kv_blocks_cached = 0;
  int32_t kv_blocks_total = 0;
  bool healthy = false;
  bool draining = false;
};

struct MetricsLabels {
  std::string model_name;
  std::string version;
  std::string device;
  std::string architecture;
  std::string weight_formats;
};

// Every metric of the server, defined once in one table (metrics_table.cc) with name, help, unit and buckets. All
// methods are thread-safe; those of the step loop are atomic additions without a lock, so a scrape cannot hold up the
// engine.
//
// Once all requests have ended: accepted = the sum of requests_total by kind, the prompt and generation token counters
// equal the sums of the request histograms, and the end-to-end histogram counts each accepted request once.
class Metrics {
 public:
  struct Options {
    MetricsLabels labels;
    // Bucket bounds in seconds of the latency histograms, strictly increasing; empty: the defaults, from 1 ms down.
    std::vector<double> latency_buckets;
  };
  // INVALID_ARGUMENT if the bounds are not finite, positive and strictly increasing.
  static absl::StatusOr<std::unique_ptr<Metrics>> Create(Options options);
  ~Metrics();

  // What build_info and model_info say; replaces Options::labels when the model is known.
  void SetLabels(MetricsLabels labels);
  // `source` is called on scrapes, from any thread, until it is replaced; null reads as all zero. When this returns,
  // the previous source is not running and will not be called again.
  void SetGaugeSource(std::function<GaugeValues()> source);

  // Once a request that was accepted.
  void OnRequestAccepted(RequestRecord::Kind kind, int32_t prompt_tokens);
  // Once for a first token, from the arrival of its request.
  void OnFirstToken(absl::Duration time_to_first_token);
  // For tokens after the first of an output: the time since the previous one. One call a step with all of them.
  void OnInterTokenLatencies(const std::vector<double>& seconds);
  void OnRequestFinished(const RequestRecord& record);
  // A request refused before acceptance; `code` is the gRPC status name, for example "RESOURCE_EXHAUSTED". The RPC
  // layer counts these, also those that the engine refused.
  void OnRequestRejected(const std::string& code);
  void OnStep(const StepRecord& record);
  // A sequence ended because its logits held NaN or no finite value.
  void OnInvalidLogits();
  void OnSlowReaderAbort();
  void OnBlockedCallsClosed(int calls);
  // Time of one phase of the start: "load", "kv_cache", "warmup", "total".
  void OnStartupPhase(const std::string& phase, absl::Duration time);

  // For an exposer; lives as long as this object.
  const prometheus::Collectable& collectable() const;
  // The text exposition (format 0.0.4).
  std::string Expose() const;

 private:
  class Impl;
  explicit Metrics(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_METRICS_METRICS_H_
