// One token from a row by one CTA: the walk of Sampler::Draw over the same weights in the same order.
#ifndef TESSERA_KERNELS_CUDA_SAMPLING_DRAW_CUH_
#define TESSERA_KERNELS_CUDA_SAMPLING_DRAW_CUH_

#include <cstdint>

#include "kernels/cuda/sampling/sampling.h"
#include "kernels/cuda/sampling/select.cuh"
#include "kernels/logit_math.h"

namespace tessera::cuda {

struct DrawShared {
  SelectShared select;
  float weights[kLogitBlock];
  int32_t tokens[kMostSampledTopK];
  int32_t result, last;
};

// A row and what is known of it.
struct DrawRow {
  const float* logits;
  int32_t vocab;
  float largest;
  const uint64_t* groups;  // best places
  int32_t num_groups;
  const double* block_sums;  // of the weights, where the job draws without top_k
};

__device__ __forceinline__ bool LimitsTopK(const SampleJob& job, int32_t vocab) {
  return job.top_k > 0 && job.top_k < vocab;
}

// The first i with sum + weights[0] + .. + weights[i] above the target, or the last with any weight. By one thread; some
// weights at a time, so that loads do not wait for comparisons.
__device__ inline int32_t WalkTo(double target, double sum, const float* weights, int32_t count) {
  constexpr int32_t kAtATime = 8;
  int32_t i = 0, last = 0;
  for (; i + kAtATime <= count; i += kAtATime) {
    double next = sum;
    int32_t next_last = last;
#pragma unroll
    for (int32_t j = 0; j < kAtATime; ++j) {
      const float weight = weights[i + j];
      next = __dadd_rn(next, double{weight});
      if (weight != 0.0f) next_last = i + j;
    }
    if (next > target) break;  // somewhere among these
    sum = next;
    last = next_last;
  }
  for (; i < count; ++i) {
    if (weights[i] == 0.0f) continue;
    last = i;
    sum = __dadd_rn(sum, double{weights[i]});
    if (sum > target) break;
  }
  return last;
}

// Copies a row's sums, one a block, to shared memory, where one thread can add them fast.
__device__ inline void LoadSums(const double* block_sums, int32_t blocks, double* sums) {
  for (int32_t i = threadIdx.x; i < blocks; i += blockDim.x) sums[i] = block_sums[i];
  __syncthreads();
}

__device__ inline double AddSums(const double* sums, int32_t blocks) {
  double total = 0.0;
  for (int32_t i = 0; i < blocks; ++i) total = __dadd_rn(total, sums[i]);
  return total;
}

// All tokens with a weight of min_p or more. `sums`: shared, one a block.
__device__ inline int32_t DrawFromAll(const DrawRow& row, const SampleJob& job, double* sums, DrawShared& s) {
  const int32_t blocks = (row.vocab + kLogitBlock - 1) / kLogitBlock;
  LoadSums(row.block_sums, blocks, sums);
  double target = 0.0, sum = 0.0;
  if (threadIdx.x == 0) {
    target = __dmul_rn(job.uniform, AddSums(sums, blocks));
    int32_t block = 0;
    while (block + 1 < blocks && __dadd_rn(sum, sums[block]) <= target) sum = __dadd_rn(sum, sums[block++]);
    // Rounding can put the target behind the last token that has any weight.
    while (block > 0 && sums[block] == 0.0) sum = __dadd_rn(sum, -sums[--block]);
    s.result = block;
  }
  __syncthreads();
  const int32_t begin = s.result * kLogitBlock, count = min(kLogitBlock, row.vocab - begin);
  for (int32_t i = threadIdx.x; i < count; i += blockDim.x) {
    const float weight = LogitWeight(row.logits[begin + i], row.largest, job.temperature);
    s.weights[i] = weight >= job.min_p ? weight : 0.0f;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    s.result = begin + WalkTo(target, sum, s.weights, count);
  }
  __syncthreads();
  return s.result;
}

// The few best tokens: top_k, top_p, or both. -1: top_p keeps more of them than are looked at.
__device__ inline int32_t DrawFromBest(const DrawRow& row, const SampleJob& job, double* sums,
                                       DrawShared& s) {
  const bool limits_k = LimitsTopK(job, row.vocab);
  const int32_t size = min(limits_k ? job.top_k : kSampledTopPTokens, row.vocab);
  const int32_t blocks = (row.vocab + kLogitBlock - 1) / kLogitBlock;
  if (!limits_k) LoadSums(row.block_sums, blocks, sums);
  SelectBest(row.logits, row.vocab, row.groups, row.num_groups, size, s.select);
  for (int32_t i = threadIdx.x; i < size; i += blockDim.x) {
    s.weights[i] = LogitWeight(row.logits[PlaceIndex(s.select.places[i])], row.largest, job.temperature);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t kept = size;
    if (!limits_k || job.top_p < 1.0f) {
      double total = 0.0;
      if (limits_k) {
        for (int32_t i = 0; i < size; ++i) total = __dadd_rn(total, double{s.weights[i]});
      } else {
        total = AddSums(sums, blocks);
      }
      const double target = __dmul_rn(double{job.top_p}, total);
      double sum = 0.0;
      kept = 0;
      while (kept < size && sum < target) sum = __dadd_rn(sum, double{s.weights[kept++]});
      if (!limits_k && sum < target && kept < row.vocab) kept = -1;
    }
    if (kept >= 0) {
      kept = max(kept, 1);
      while (kept > 1 && s.weights[kept - 1] < job.min_p) --kept;
    }
    s.result = kept;
  }
  __syncthreads();
  const int32_t kept = s.result;
  if (kept < 0) return -1;
  // By rising id. The weights move to the block's second half.
  constexpr int32_t kSorted = kLogitBlock / 2;
  for (int32_t i = threadIdx.x; i < kept; i += blockDim.x) {
    const int32_t token = PlaceIndex(s.select.places[i]);
    int32_t before = 0;
    for (int32_t j = 0; j < kept; ++j) before += PlaceIndex(s.select.places[j]) < token;
    s.tokens[before] = token;
    s.weights[kSorted + before] = s.weights[i];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0.0;
    for (int32_t i = 0; i < kept; ++i) total = __dadd_rn(total, double{s.weights[kSorted + i]});
    const double target = __dmul_rn(job.uniform, total);
    s.last = s.tokens[WalkTo(target, 0.0, s.weights + kSorted, kept)];
  }
  __syncthreads();
  return s.last;
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_SAMPLING_DRAW_CUH_
