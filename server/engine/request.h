#ifndef TESSERA_SERVER_ENGINE_REQUEST_H_
#define TESSERA_SERVER_ENGINE_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/sampling/logprobs.h"
#include "server/sampling/pooler.h"
#include "server/sampling/sampling_params.h"
#include "server/sampling/stop_checker.h"

namespace tessera {

// A generation, every field checked and resolved (proto/tessera/v1/inference.proto has the meanings).
struct GenerateSpec {
  std::string request_id;       // not empty
  std::vector<int32_t> prompt;  // not empty, all in the vocabulary
  SamplingParams sampling;      // seed of output 0; output i draws with seed + i
  StoppingParams stopping;
  int32_t n = 1;
  int32_t priority = 0;
  absl::Time arrival;                                 // when the RPC came in
  absl::Duration timeout = absl::InfiniteDuration();  // from arrival; ends with FinishReason::kDeadline
  int32_t logprobs = -1;                              // -1: none
  int32_t prompt_logprobs = -1;                       // -1: none
  bool skip_special_tokens = true;
  std::string cache_salt;
  bool bypass_prefix_cache = false;
};

// An embedding call.
struct EmbedSpec {
  std::string request_id;
  std::vector<std::vector<int32_t>> inputs;  // none empty, all fit the context
  PoolingKind pooling = PoolingKind::kLast;
  bool normalize = true;
  int32_t priority = 0;
  absl::Time arrival;
};

enum class FinishReason { kStop, kLength, kAbort, kDeadline, kError };

// New tokens and text of one output. Text is valid UTF-8.
struct OutputDelta {
  int32_t index = 0;
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<PositionLogprobs> logprobs;         // one a token, if asked for
  std::vector<PositionLogprobs> prompt_logprobs;  // in the first delta of output 0, if asked for
};

struct RequestUsage {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  int32_t cached_tokens = 0;
};

struct RequestTimings {
  absl::Duration queue, prefill, decode, total;
  std::optional<absl::Duration> time_to_first_token;
};

// The end of one output.
struct OutputFinished {
  int32_t index = 0;
  FinishReason reason = FinishReason::kStop;
  StoppedBy stopped_by;
  absl::Status error;  // with kError or kAbort, what happened
  // In the last one of the request:
  std::optional<RequestUsage> usage;
  std::optional<RequestTimings> timings;
};

// One input's embedding, or its error.
struct EmbeddingResult {
  int32_t index = 0;
  absl::Status status;
  std::vector<float> values;
  int32_t num_tokens = 0;
};

// What a request's stream carries. A generation: deltas of its outputs interleaved, and after an output's last delta its
// OutputFinished, while others go on. An embedding call: one EmbeddingResult an input, in any order.
using RequestEvent = std::variant<OutputDelta, OutputFinished, EmbeddingResult>;

}  // namespace tessera

#endif  // TESSERA_SERVER_ENGINE_REQUEST_H_
