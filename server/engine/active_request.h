#ifndef TESSERA_SERVER_ENGINE_ACTIVE_REQUEST_H_
#define TESSERA_SERVER_ENGINE_ACTIVE_REQUEST_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/engine/request.h"
#include "server/engine/request_progress.h"
#include "server/engine/request_stream.h"
#include "server/engine/sequence_output.h"
#include "server/metrics/metrics.h"
#include "server/sampling/pooler.h"
#include "server/sampling/sampler.h"
#include "server/scheduler/scheduler.h"
#include "server/tokenizer/tokenizer.h"

namespace tessera {

struct ActiveRequest;

// The engine's record of one output of a generation, or of one input of an embedding call.
struct ActiveSequence {
  ActiveRequest* request = nullptr;
  SequenceId id = 0;
  int32_t index = 0;
  int32_t prompt_tokens = 0;
  SequenceSpec spec;  // moved to the scheduler when the engine takes the request up

  bool started = false;  // was in a step: no longer counts as queued
  bool ended = false;
  absl::Time last_token;

  // Of a generation.
  std::optional<Sampler> sampler;
  std::optional<SequenceOutput> output;
  std::optional<PromptScorer> prompt_scorer;  // until its result went out with the first delta
  // Of an embedding.
  std::optional<Pooler> pooler;
};

// The engine's record of a request, built by the calling thread and owned by the engine thread from then on.
struct ActiveRequest {
  ActiveRequest(RequestRecord::Kind kind, absl::Time arrival) : kind(kind), progress(arrival) {}

  const RequestRecord::Kind kind;
  uint64_t serial = 0;  // names it inside the engine; ids may be used again, serials are not
  std::shared_ptr<RequestStream> stream;
  RequestProgress progress;
  std::vector<int32_t> prompt;  // where the prompt scorer needs it
  bool normalize = true;
  std::vector<ActiveSequence> sequences;
  int32_t live_sequences = 0;
  bool reader_too_slow = false;

  int64_t queued_tokens() const {
    int64_t tokens = 0;
    for (const ActiveSequence& sequence : sequences) tokens += sequence.prompt_tokens;
    return tokens;
  }
};

// Both take `first_id` and the ids after it, one a sequence. The stream is set by the caller.
std::unique_ptr<ActiveRequest> MakeGeneration(GenerateSpec spec, SequenceId first_id,
                                              const std::shared_ptr<const Tokenizer>& tokenizer,
                                              const std::vector<int32_t>& eos_token_ids);
std::unique_ptr<ActiveRequest> MakeEmbedding(EmbedSpec spec, SequenceId first_id, int32_t hidden_size);

}  // namespace tessera

#endif  // TESSERA_SERVER_ENGINE_ACTIVE_REQUEST_H_
