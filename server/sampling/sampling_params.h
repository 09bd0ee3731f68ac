#ifndef TESSERA_SERVER_SAMPLING_SAMPLING_PARAMS_H_
#define TESSERA_SERVER_SAMPLING_SAMPLING_PARAMS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

// How the next token is drawn; meaning, ranges and order of application as in proto/tessera/v1/types.proto. Every
// field here is resolved: no "default" is left. Plain data, checked before it gets here.
struct SamplingParams {
  float temperature = 1.0f;  // 0 is greedy
  int32_t top_k = 0;         // 0 keeps all
  float top_p = 1.0f;
  float min_p = 0.0f;
  uint64_t seed = 0;  // of this output: request seed + output index
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  std::vector<std::pair<int32_t, float>> logit_bias;  // sorted by token id, unique

  bool HasPenalties() const {
    return presence_penalty != 0.0f || frequency_penalty != 0.0f || repetition_penalty != 1.0f;
  }
};

// When an output ends; as in types.proto.
struct StoppingParams {
  int32_t max_tokens = 256;  // at least 1
  int32_t min_tokens = 0;
  std::vector<std::string> stop_strings;
  std::vector<int32_t> stop_token_ids;
  bool include_stop = false;
  bool ignore_eos = false;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_SAMPLING_SAMPLING_PARAMS_H_
