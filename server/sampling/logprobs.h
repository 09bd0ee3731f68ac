#ifndef TESSERA_SERVER_SAMPLING_LOGPROBS_H_
#define TESSERA_SERVER_SAMPLING_LOGPROBS_H_

#include <cstdint>
#include <vector>

namespace tessera {

// Natural-log probability of one token under the raw distribution (softmax of the logits before bias, penalties and
// temperature), and its rank among all tokens (1 is the most likely; ties rank by lower id).
struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0.0f;
  int32_t rank = 0;
};

// One position: the token that stands there and the most likely ones, best first.
struct PositionLogprobs {
  TokenLogprob token;
  std::vector<TokenLogprob> top;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_SAMPLING_LOGPROBS_H_
