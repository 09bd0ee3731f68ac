#ifndef TESSERA_KERNELS_CUDA_SAMPLING_SAMPLING_H_
#define TESSERA_KERNELS_CUDA_SAMPLING_SAMPLING_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/logit_math.h"

// Draws tokens from rows of logits and finds log-probabilities. What is drawn is, to the bit, what server/sampling draws:
// the same order of tokens, the same weights, the same sums in the same order.
namespace tessera::cuda {

inline constexpr int32_t kMostSampledTopK = 256;    // larger ones are the host's
inline constexpr int32_t kMostTopLogprobs = 20;     // of one position
inline constexpr int32_t kSampledTopPTokens = 128;  // a top_p alone that keeps more tokens is the host's
inline constexpr int32_t kMostSampledVocab = 1 << 22;

// What is wanted of one row of logits.
struct SampleJob {
  int32_t row = 0;     // of the logits
  int32_t token = -1;  // nothing is drawn: log-probabilities of this token are wanted
  // How to draw, as SamplingParams has it; `uniform` in [0, 1).
  float temperature = 0.0f;
  int32_t top_k = 0;  // 0, at least the vocabulary's size, or at most kMostSampledTopK
  float top_p = 1.0f;
  float min_p = 0.0f;
  double uniform = 0.0;
  int32_t first_edit = 0, num_edits = 0;
  int32_t num_logprobs = -1;  // -1: none; else how many top tokens, at most kMostTopLogprobs
};

struct SampleResult {
  int32_t token = -1;  // drawn or given; -1 if needs_host or the key is that of no distribution
  // OrderKey of the largest logit: before the edits if that is NaN (kNanOrderKey) or infinite, else after them.
  int32_t key = 0;
  int32_t needs_host = 0;  // top_p keeps more than kSampledTopPTokens
  int32_t rank = 0;        // this and the rest: if log-probabilities are wanted, all before the edits
  float largest = 0.0f;
  float logit = 0.0f;  // of `token`
  double sum = 0.0;    // of the weights at temperature 1
};

struct TopLogit {
  int32_t token;
  float logit;
};

struct SampleParams {
  float* logits = nullptr;  // [.., vocab]; edited and restored
  int32_t vocab = 0;
  int32_t count = 0;                // jobs, each of another row
  const SampleJob* jobs = nullptr;  // device [count]
  const LogitEdit* edits = nullptr;
  int32_t num_edits = 0;            // of all jobs
  bool any_logprobs = false;        // whether a job wants log-probabilities,
  bool any_sums = false;            // draws without top_k (at a temperature)
  void* workspace = nullptr;        // SampleWorkspaceBytes
  SampleResult* results = nullptr;  // device [count]
  TopLogit* top = nullptr;          // device [count, kMostTopLogprobs], best first; with any_logprobs
};

size_t SampleWorkspaceBytes(int32_t count, int32_t vocab, int32_t num_edits);

// Launches on `stream`. Returns what is wrong, or null.
const char* SampleTokens(const SampleParams& params, cudaStream_t stream);

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_SAMPLING_SAMPLING_H_
