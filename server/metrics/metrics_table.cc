#include "server/metrics/metrics_table.h"

namespace tessera {
namespace {

const LabelDimension kKind = {"kind", {"generate", "embed"}};
const LabelDimension kFinishReason = {"finish_reason", {"stop", "length", "abort", "deadline", "error"}};
// The status codes of calls that are refused before they are accepted; "OTHER" takes any code that is not listed.
const LabelDimension kCode = {
    "code",
    {"INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED",
     "UNAVAILABLE", "UNAUTHENTICATED", "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL", "OTHER"}};

std::vector<MetricDefinition> MakeTable() {
  using Id = MetricId;
  using Kind = MetricKind;
  return {
      {Id::kTimeToFirstToken, Kind::kHistogram, "tessera_time_to_first_token_seconds", "seconds",
       "From the arrival of a generation request to its first token.", BucketSet::kLatency},
      {Id::kInterTokenLatency, Kind::kHistogram, "tessera_inter_token_latency_seconds", "seconds",
       "Between consecutive tokens of one output, one observation a token after the first; a preemption "
       "counts.",
       BucketSet::kLatency},
      {Id::kRequestE2e,
       Kind::kHistogram,
       "tessera_request_e2e_seconds",
       "seconds",
       "From the arrival of an accepted request to its end, however it ended.",
       BucketSet::kLatency,
       {kKind}},
      {Id::kRequestQueue,
       Kind::kHistogram,
       "tessera_request_queue_seconds",
       "seconds",
       "From the arrival of an accepted request to the first step that worked on it.",
       BucketSet::kLatency,
       {kKind}},
      {Id::kRequestPrefill,
       Kind::kHistogram,
       "tessera_request_prefill_seconds",
       "seconds",
       "From the first step of a request to its first token (an embedding call: to its result).",
       BucketSet::kLatency,
       {kKind}},
      {Id::kRequestDecode, Kind::kHistogram, "tessera_request_decode_seconds", "seconds",
       "From the first token of a request to its last.", BucketSet::kLatency},
      {Id::kStep,
       Kind::kHistogram,
       "tessera_step_seconds",
       "seconds",
       "Time of one engine step by phase: plan (scheduler), run (model), publish (text and output queues; "
       "may "
       "overlap the next run).",
       BucketSet::kLatency,
       {{"phase", {"plan", "run", "publish"}}}},
      {Id::kStepDeviceIdle, Kind::kHistogram, "tessera_step_device_idle_seconds", "seconds",
       "Time that the device waited for an engine step since the one before, while there was work.",
       BucketSet::kLatency},
      {Id::kStepTokens, Kind::kHistogram, "tessera_step_tokens", "tokens",
       "Tokens computed in one engine step, prefill and decode together.", BucketSet::kTokens},
      {Id::kStepRows, Kind::kHistogram, "tessera_step_rows", "", "Sequences in one engine step.",
       BucketSet::kSmall},
      {Id::kRequestPromptTokens,
       Kind::kHistogram,
       "tessera_request_prompt_tokens",
       "tokens",
       "Prompt tokens of an accepted request, observed when it ends.",
       BucketSet::kTokens,
       {kKind}},
      {Id::kRequestGenerationTokens, Kind::kHistogram, "tessera_request_generation_tokens", "tokens",
       "Tokens generated for a generation request over all its outputs, observed when it ends.",
       BucketSet::kTokens},
      {Id::kRequestMaxTokens, Kind::kHistogram, "tessera_request_max_tokens", "tokens",
       "max_tokens of a generation request after defaults and limits.", BucketSet::kTokens},
      {Id::kRequestOutputs, Kind::kHistogram, "tessera_request_outputs", "",
       "Outputs (n) of a generation request.", BucketSet::kSmall},
      {Id::kRequestsAccepted,
       Kind::kCounter,
       "tessera_requests_accepted_total",
       "",
       "Requests accepted.",
       BucketSet::kNone,
       {kKind}},
      {Id::kRequests,
       Kind::kCounter,
       "tessera_requests_total",
       "",
       "Accepted requests that ended, by how; of several outputs the worst counts "
       "(from the worst: error, abort, deadline, length, stop).",
       BucketSet::kNone,
       {kKind, kFinishReason}},
      {Id::kRequestsRejected,
       Kind::kCounter,
       "tessera_requests_rejected_total",
       "",
       "Requests refused before they were accepted, by gRPC status.",
       BucketSet::kNone,
       {kCode}},
      {Id::kOutputs,
       Kind::kCounter,
       "tessera_outputs_total",
       "",
       "Outputs of generation requests that ended.",
       BucketSet::kNone,
       {kFinishReason}},
      {Id::kPromptTokens, Kind::kCounter, "tessera_prompt_tokens_total", "tokens",
       "Prompt tokens of accepted requests."},
      {Id::kGenerationTokens, Kind::kCounter, "tessera_generation_tokens_total", "tokens",
       "Tokens generated."},
      {Id::kComputedTokens,
       Kind::kCounter,
       "tessera_computed_tokens_total",
       "tokens",
       "Tokens that went through the model; prefill includes what is computed again after a preemption.",
       BucketSet::kNone,
       {{"phase", {"prefill", "decode"}}}},
      {Id::kPrefixCacheQueriesTokens, Kind::kCounter, "tessera_prefix_cache_queries_tokens_total", "tokens",
       "Prompt tokens looked up in the prefix cache."},
      {Id::kPrefixCacheHitsTokens, Kind::kCounter, "tessera_prefix_cache_hits_tokens_total", "tokens",
       "Prompt tokens found in the prefix cache."},
      {Id::kPreemptions, Kind::kCounter, "tessera_preemptions_total", "",
       "Sequences put back to wait because key-value blocks ran out."},
      {Id::kInvalidLogits, Kind::kCounter, "tessera_invalid_logits_total", "",
       "Outputs that ended with an error because their logits held NaN or no finite value."},
      {Id::kSlowReaderAborts, Kind::kCounter, "tessera_slow_reader_aborts_total", "",
       "Requests aborted because their caller did not read."},
      {Id::kBlockedCallsClosed, Kind::kCounter, "tessera_blocked_calls_closed_total", "",
       "Calls closed because their caller did not read an answer that was waiting."},
      {Id::kRunning, Kind::kGauge, "tessera_running", "", "Sequences in the batch."},
      {Id::kWaiting, Kind::kGauge, "tessera_waiting", "",
       "Sequences waiting for a first step, or to be taken up again."},
      {Id::kKvCacheUsage, Kind::kGauge, "tessera_kv_cache_usage_ratio", "ratio",
       "Key-value blocks held by sequences over all blocks, 0 to 1."},
      {Id::kKvCacheBlocks,
       Kind::kGauge,
       "tessera_kv_cache_blocks",
       "blocks",
       "Key-value blocks by state: used (held by sequences), cached (prefixes alone, free when needed), "
       "free.",
       BucketSet::kNone,
       {{"state", {"used", "cached", "free"}}}},
      {Id::kHealthy, Kind::kGauge, "tessera_healthy", "",
       "1 while the engine works, 0 when it has failed or hangs."},
      {Id::kDraining, Kind::kGauge, "tessera_draining", "",
       "1 while the server refuses new requests to shut down."},
      {Id::kStartup,
       Kind::kGauge,
       "tessera_startup_seconds",
       "seconds",
       "Time that each phase of the start took; total is from the start of the process to serving.",
       BucketSet::kNone,
       {{"phase", {"load", "kv_cache", "warmup", "total"}}}},
      {Id::kBuildInfo, Kind::kGauge, "tessera_build_info", "", "1; the labels say what was built."},
      {Id::kModelInfo, Kind::kGauge, "tessera_model_info", "", "1; the labels say what is served."},
  };
}

}  // namespace

absl::Span<const MetricDefinition> MetricsTable() {
  static const auto* table = new std::vector<MetricDefinition>(MakeTable());
  return *table;
}

std::vector<double> BucketBounds(BucketSet set) {
  switch (set) {
    case BucketSet::kNone:
      return {};
    case BucketSet::kLatency:
      return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2,
              0.25,   0.5,     0.75,   1,     2.5,    5,     7.5,  10,   20,   40,   80,   160, 320,  640};
    case BucketSet::kTokens:
      return {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
              2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
    case BucketSet::kSmall:
      return {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
  }
  return {};
}

}  // namespace tessera
