// Softmax of the FMHA prefill kernel: what a thread keeps of its two query rows, and the sums of finished splits.
//
// A quad of lanes shares the rows l / 4 and l / 4 + 8 of a warp's 16; of a tile's 64 keys lane q = l % 4 holds, in the
// fragments s[j] of the scores, the keys 8 j + 2 q + {0, 1}: elements 0, 1 of the first row, 2, 3 of the second.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_SOFTMAX_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_SOFTMAX_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/fmha/fmha_numerics.cuh"
#include "kernels/cuda/fmha/fmha_prefill_items.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace tessera::cuda {

// Where the totals of finished splits are kept: 64 x head_dim floats a warp group.
enum class FmhaTotals { kRegisters, kShared, kGlobal };

// A thread's share of the totals.
template <int kHeadDim, FmhaTotals kWhere>
class FmhaTotalsOut {
 public:
  static constexpr int32_t kFragments = kHeadDim / 8;

  // `memory` has float4s for all threads of the warp group, at a stride of 128.
  __device__ explicit FmhaTotalsOut(float4* memory) : memory_(memory) {}

  // Starts an item.
  __device__ void Clear() {
    any_ = false;
    if constexpr (kWhere == FmhaTotals::kRegisters) {
#pragma unroll
      for (int32_t j = 0; j < kFragments; ++j)
        values_[j][0] = values_[j][1] = values_[j][2] = values_[j][3] = 0;
    }
  }

  // Whether a row of this warp has any.
  __device__ bool any() const { return any_; }

  // The totals with a split's `out` added, for each of the two rows.
  __device__ float4 Sum(int32_t j, const float (&out)[4], const FmhaCombination (&with)[2]) const {
    const float4 total = Get(j);
    return make_float4(with[0].Add(total.x, out[0]), with[0].Add(total.y, out[1]),
                       with[1].Add(total.z, out[2]), with[1].Add(total.w, out[3]));
  }

  // Adds `out` of those rows that `adds` names, and zeroes it there. Warps as a whole.
  __device__ void Add(float (&out)[kFragments][4], const bool (&adds)[2], const FmhaCombination (&with)[2]) {
#pragma unroll
    for (int32_t j = 0; j < kFragments; ++j) {
      const float4 sum = Sum(j, out[j], with);
      float4 total = Get(j);
      if (adds[0]) {
        total.x = sum.x;
        total.y = sum.y;
        out[j][0] = out[j][1] = 0;
      }
      if (adds[1]) {
        total.z = sum.z;
        total.w = sum.w;
        out[j][2] = out[j][3] = 0;
      }
      Set(j, total);
    }
    any_ = true;
  }

 private:
  __device__ float4 Get(int32_t j) const {
    if constexpr (kWhere == FmhaTotals::kRegisters) {
      return make_float4(values_[j][0], values_[j][1], values_[j][2], values_[j][3]);
    } else {
      return any_ ? memory_[j * 128] : make_float4(0, 0, 0, 0);
    }
  }
  __device__ void Set(int32_t j, float4 total) {
    if constexpr (kWhere == FmhaTotals::kRegisters) {
      values_[j][0] = total.x;
      values_[j][1] = total.y;
      values_[j][2] = total.z;
      values_[j][3] = total.w;
    } else {
      memory_[j * 128] = total;
    }
  }

  float4* const memory_;
  float values_[kWhere == FmhaTotals::kRegisters ? kFragments : 1][4];
  bool any_ = false;
};

// The running softmax of a thread's two rows.
struct FmhaPrefillRows {
  int32_t position[2];                   // of the row's token
  int32_t split_mask[2];                 // keys of a split, less 1
  float maximum[2], sum[2];              // of the split under way; sum: this lane's keys
  float total_maximum[2], total_sum[2];  // of those before

  // `row` is the warp's first.
  __device__ void Begin(const FmhaPrefillArgs& args, const FmhaPrefillItem& item, int32_t row, int32_t lane) {
#pragma unroll
    for (int32_t r = 0; r < 2; ++r) {
      const int32_t token = min((row + lane / 4 + 8 * r) / args.group, item.chunk.num_tokens - 1);
      position[r] = item.chunk.length - item.chunk.num_tokens + token;
      split_mask[r] = MakeFmhaSplits(position[r] + 1, args.p.sliding_window).size - 1;
      maximum[r] = total_maximum[r] = -INFINITY;
      sum[r] = total_sum[r] = 0;
    }
  }

  // Closes row r's split under way, if `ends`, and takes it into the totals. Whole warps.
  __device__ FmhaCombination CloseSplit(int32_t r, bool ends) {
    // Lanes 0 and 1 of a quad, and 2 and 3, find the same pair sum; both pairs the same whole.
    const float pair = __fadd_rn(sum[r], __shfl_xor_sync(~0u, sum[r], 1));
    const float all = __fadd_rn(pair, __shfl_xor_sync(~0u, pair, 2));
    const FmhaCombination with(total_maximum[r], maximum[r]);
    if (ends) {
      total_sum[r] = with.Add(total_sum[r], all);
      total_maximum[r] = fmaxf(total_maximum[r], maximum[r]);
      maximum[r] = -INFINITY;
      sum[r] = 0;
    }
    return with;
  }
};

// What has to happen to the output before the weights of a tile are applied.
struct FmhaPrefillStep {
  bool ends, ends_row[2];   // a split of one of the warp's rows ends before the tile; which of this thread's
  FmhaCombination with[2];  // how it is added to the totals
  bool moves;               // the output of one of the warp's rows is rescaled
  float rescale[2];
};

// Masks the keys of the tile from `key` that a row must not see.
__device__ __forceinline__ void FmhaMaskTile(const FmhaPrefillArgs& args, const FmhaPrefillRows& rows,
                                             int32_t key, int32_t lane, float (&s)[8][4]) {
  const int32_t window = args.p.sliding_window;
  const bool hides =
      key + kFmhaTileKeys - 1 > rows.position[0] ||
      (window > 0 && key <= rows.position[1] - window);  // the second row is not before the first
  if (!__any_sync(~0u, hides)) return;
  const int32_t first = key + lane % 4 * 2;
#pragma unroll
  for (int32_t r = 0; r < 2; ++r) {
    const int32_t last_seen = rows.position[r] - first;
    const int32_t first_seen = window > 0 ? last_seen - window + 1 : -1;
#pragma unroll
    for (int32_t j = 0; j < 8; ++j) {
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const int32_t column = 8 * j + i;
        if (column > last_seen || column < first_seen) s[j][2 * r + i] = -INFINITY;
      }
    }
  }
}

// Folds the scores of the tile from `key` into the softmax; they become weights, not rounded.
__device__ __forceinline__ FmhaPrefillStep FmhaPrefillSoftmax(float scale_log2, int32_t key,
                                                              FmhaPrefillRows& rows, float (&s)[8][4]) {
  FmhaPrefillStep step = {.with = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}}};
#pragma unroll
  for (int32_t r = 0; r < 2; ++r) {
    step.ends_row[r] = (key & rows.split_mask[r]) == 0 && rows.maximum[r] != -INFINITY;
  }
  step.ends = __any_sync(~0u, step.ends_row[0] || step.ends_row[1]);
  if (step.ends) {
#pragma unroll
    for (int32_t r = 0; r < 2; ++r) step.with[r] = rows.CloseSplit(r, step.ends_row[r]);
  }
#pragma unroll
  for (int32_t r = 0; r < 2; ++r) {
    float largest = fmaxf(s[0][2 * r], s[0][2 * r + 1]);
#pragma unroll
    for (int32_t j = 1; j < 8; ++j) largest = fmaxf(largest, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    step.rescale[r] = FmhaRaiseMaximum(__fmul_rn(largest, scale_log2), &rows.maximum[r]);
    const float base = FmhaBase(rows.maximum[r]);
    float part[4];
#pragma unroll
    for (int32_t w = 0; w < 4; ++w) {
      float* low = &s[2 * w][2 * r];
      float* high = &s[2 * w + 1][2 * r];
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        low[i] = FmhaWeight(low[i], scale_log2, base);
        high[i] = FmhaWeight(high[i], scale_log2, base);
      }
      part[w] = FmhaStepSum(low[0], low[1], high[0], high[1]);
    }
    rows.sum[r] = FmhaAddToSum(rows.sum[r], step.rescale[r], part[0], part[1], part[2], part[3]);
  }
  step.moves = __any_sync(~0u, step.rescale[0] != 1.0f || step.rescale[1] != 1.0f);
  return step;
}

// Prepares the output for the tile's values.
template <int kHeadDim, FmhaTotals kWhere>
__device__ __forceinline__ void FmhaPrefillAdjust(const FmhaPrefillStep& step,
                                                  FmhaTotalsOut<kHeadDim, kWhere>& totals,
                                                  float (&out)[kHeadDim / 8][4]) {
  if (step.ends) totals.Add(out, step.ends_row, step.with);
  if (step.moves) {
#pragma unroll
    for (int32_t j = 0; j < kHeadDim / 8; ++j) {
      out[j][0] *= step.rescale[0];
      out[j][1] *= step.rescale[0];
      out[j][2] *= step.rescale[1];
      out[j][3] *= step.rescale[1];
    }
  }
}

// Four words of each lane of a quad, word k of lane q becoming word q of lane k.
__device__ __forceinline__ void FmhaTransposeQuad(uint32_t (&w)[4], int32_t lane) {
  const bool odd = lane & 1, upper = lane & 2;
  const uint32_t x = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1),
                 y = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
  w[0] = odd ? x : w[0];
  w[1] = odd ? w[1] : x;
  w[2] = odd ? y : w[2];
  w[3] = odd ? w[3] : y;
  const uint32_t z = __shfl_xor_sync(~0u, upper ? w[0] : w[2], 2),
                 t = __shfl_xor_sync(~0u, upper ? w[1] : w[3], 2);
  w[0] = upper ? z : w[0];
  w[1] = upper ? t : w[1];
  w[2] = upper ? w[2] : z;
  w[3] = upper ? w[3] : t;
}

// Writes the warp's finished rows, the first of which is `first_row`.
template <int kHeadDim, FmhaTotals kWhere>
__device__ __forceinline__ void FmhaPrefillWrite(const FmhaPrefillArgs& args, const FmhaPrefillItem& item,
                                                 int32_t first_row, int32_t lane, FmhaPrefillRows& rows,
                                                 const FmhaTotalsOut<kHeadDim, kWhere>& totals,
                                                 const float (&out)[kHeadDim / 8][4]) {
  const FmhaCombination with[2] = {rows.CloseSplit(0, true), rows.CloseSplit(1, true)};
  float inverse[2];
  __nv_bfloat16* target[2];
#pragma unroll
  for (int32_t r = 0; r < 2; ++r) {
    const int32_t row = first_row + lane / 4 + 8 * r, token = row / args.group;
    const int32_t head = item.kv_head * args.group + row % args.group;
    inverse[r] = FmhaInverseSum(args.p.sinks, head, rows.total_maximum[r], rows.total_sum[r]);
    target[r] = token < item.chunk.num_tokens
                    ? static_cast<__nv_bfloat16*>(args.p.out) +
                          (int64_t{item.chunk.first_token + token} * args.p.num_query_heads + head) * kHeadDim
                    : nullptr;
  }
#pragma unroll
  for (int32_t j = 0; j < kHeadDim / 8; j += 4) {
    uint32_t words[2][4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const float(&part)[4] = out[j + i];
      const float4 value =
          totals.any() ? totals.Sum(j + i, part, with) : make_float4(part[0], part[1], part[2], part[3]);
      words[0][i] = ptx::PackBf16(value.x * inverse[0], value.y * inverse[0]);
      words[1][i] = ptx::PackBf16(value.z * inverse[1], value.w * inverse[1]);
    }
#pragma unroll
    for (int32_t r = 0; r < 2; ++r) {
      FmhaTransposeQuad(words[r], lane);
      if (target[r] != nullptr) {
        reinterpret_cast<uint4*>(target[r] + 8 * j)[lane % 4] =
            make_uint4(words[r][0], words[r][1], words[r][2], words[r][3]);
      }
    }
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_SOFTMAX_CUH_
