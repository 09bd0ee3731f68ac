#ifndef TESSERA_SERVER_BACKEND_BACKEND_H_
#define TESSERA_SERVER_BACKEND_BACKEND_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/sampling/pooler.h"
#include "server/sampling/sampler.h"

namespace tessera {

// One sequence's part of a step: compute the tokens at positions start .. start + tokens.size() - 1, with the keys and
// values of positions 0 .. start - 1 already in the cache. A decode row has one token, a prefill chunk any number.
struct BatchRow {
  absl::Span<const int32_t> tokens;       // at least one
  // In a step started ahead: the row's only token is the one that this row of the step before draws, and `tokens` holds
  // one that is not to be looked at. -1: all are there.
  int32_t token_of = -1;
  int32_t start = 0;                      // tokens of this sequence already in the cache
  absl::Span<const int32_t> block_table;  // cache blocks in order; covers start + tokens.size() tokens

  // What is wanted of the row; any may be null. The backend calls them, possibly rows in parallel, each row's from one
  // thread at a time.
  const Sampler* sampler = nullptr;       // draw a token from the last position's logits
  PromptScorer* prompt_scorer = nullptr;  // gets every position's logits
  Pooler* pooler = nullptr;               // gets every position's final hidden state
};

// What came out of one row.
struct RowResult {
  absl::Status status;   // an error ends this sequence and no other
  SampledToken sampled;  // if the row had a sampler and status is OK
  // The token was drawn too late for a step started ahead: a row there that was to take it has taken another.
  bool late = false;
};

struct KvCacheConfig {
  int32_t num_blocks = 0;
  int32_t block_size = 16;  // tokens; a power of two
};

// What a backend serves, for admission and for GetModelInfo / GetServerInfo.
struct BackendInfo {
  std::string device;              // "cpu", "cuda", "null"
  std::string device_description;  // for example "AVX-512 BF16, 2 threads"
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t max_context = 0;  // tokens, prompt and output
  int64_t weight_bytes = 0;
  int64_t kv_bytes_per_token = 0;
};

// Runs batches of one model on one device. Used by the engine thread alone.
//
// The result of a row depends on that row alone, bit for bit: not on the other rows, nor on how the prompt was cut
// into chunks, nor on which blocks it was given.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const BackendInfo& info() const = 0;

  // Allocates the cache; once, before the first Run. RESOURCE_EXHAUSTED names the bytes needed and free.
  virtual absl::Status AllocateKvCache(const KvCacheConfig& config) = 0;

  // Computes one step. `results` gets one entry a row. A status other than OK means that the device failed and every
  // row of the batch with it. Block contents beyond a sequence's length are never read.
  virtual absl::Status Run(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) = 0;

  // Run in three parts, for a device that works while its host does something else; where overlaps() is false there is
  // Run alone. Start takes the tokens and block tables of the rows and has them computed, Draw has their samplers,
  // scorers and poolers served, Finish waits for the step and completes `results`. One step can be started ahead, between
  // Draw and Finish of the one before:
  //
  //   Start(1) Draw(1) | Start(2) Finish(1) Draw(2) | Start(3) Finish(2) Draw(3) | ...
  //
  // Steps run on the device in the order of Start, so a block that one step uses can be another sequence's in the next.
  // The rows and `results` stay where they are until Finish. What the spans of a row point to is read in Start alone. Its
  // sampler, scorer and pooler are looked at from Draw to Finish and stay as they are meanwhile; before Draw they may be
  // set to null, if nobody wants the row any more. After an error of any part the device has failed: no more calls.
  virtual bool overlaps() const { return false; }
  virtual absl::Status Start(absl::Span<const BatchRow>, std::vector<RowResult>*) {
    return absl::UnimplementedError("the backend does not overlap");
  }
  virtual absl::Status Draw() { return absl::OkStatus(); }
  virtual absl::Status Finish() { return absl::OkStatus(); }

  // Whether what this sampler draws is on the device in time for a row of a step started ahead. A rare draw may still
  // come late (RowResult::late).
  virtual bool DrawsOnDevice(const Sampler&) const { return false; }
  // How long the device waited for its host in the step that was finished last, and before it since the one before.
  virtual absl::Duration device_idle() const { return absl::ZeroDuration(); }
};

}  // namespace tessera

#endif  // TESSERA_SERVER_BACKEND_BACKEND_H_
