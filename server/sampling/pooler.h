#ifndef TESSERA_SERVER_SAMPLING_POOLER_H_
#define TESSERA_SERVER_SAMPLING_POOLER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace tessera {

enum class PoolingKind { kLast, kMean, kCls };

// Turns the final hidden states of one input into one vector, chunk by chunk. Sums run in position order in double, so
// the result does not depend on how the prompt was cut into chunks. A preempted input starts over: position 0 resets.
class Pooler {
 public:
  Pooler(PoolingKind kind, int32_t hidden_size, int32_t num_tokens);

  // `hidden` are the hidden_size floats after the model's final norm for the token at `position`; positions in order.
  void Add(int32_t position, absl::Span<const float> hidden);

  // True once every token was added.
  bool complete() const { return next_position_ == num_tokens_; }

  // The vector, of Euclidean length 1 if `normalize` (a zero vector stays zero).
  std::vector<float> Result(bool normalize) const;

 private:
  PoolingKind kind_;
  int32_t num_tokens_;
  int32_t next_position_ = 0;
  std::vector<double> state_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_SAMPLING_POOLER_H_
