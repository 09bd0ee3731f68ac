#include "kernels/cuda/moe/routing.h"

#include <algorithm>
#include <cfloat>

#include "kernels/cuda/launch.h"

namespace tessera::cuda {
namespace {

constexpr int32_t kPerLane = kMostExperts / 32;
constexpr int32_t kSortThreads = 1024;

const char* Reason(cudaError_t status) {
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

__device__ __forceinline__ float WarpMax(float x) {
  for (int32_t distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, distance));
  return x;
}

__device__ __forceinline__ float WarpSum(float x) {
  for (int32_t distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
  return x;
}

// The largest value over the warp and where it is; ties to the lower place.
__device__ __forceinline__ void WarpBest(float* best, int32_t* at) {
  for (int32_t distance = 16; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(~0u, *best, distance);
    const int32_t other_at = __shfl_xor_sync(~0u, *at, distance);
    if (other > *best || (other == *best && other_at < *at)) {
      *best = other;
      *at = other_at;
    }
  }
}

// Floats in the order of these integers; zeros are equal. NaN has no place.
__device__ __forceinline__ int32_t OrderKey(float x) {
  const int32_t bits = __float_as_int(x + 0.0f);
  return bits ^ (bits >> 31 & 0x7FFFFFFF);
}

// The largest of a warp's keys that are `open`, a bit each: its expert, the lowest of equals. One of them must be.
template <int kEach>
__device__ __forceinline__ int32_t BestOpen(const int32_t (&keys)[kEach], uint32_t open, int32_t lane) {
  int32_t best = INT32_MIN, at = INT32_MAX;
#pragma unroll
  for (int32_t i = 0; i < kEach; ++i) {
    if ((open >> i & 1) && (at == INT32_MAX || keys[i] > best)) {
      best = keys[i];
      at = i * 32 + lane;
    }
  }
  const int32_t largest = __reduce_max_sync(~0u, best);
  return __reduce_min_sync(~0u, best == largest ? at : INT32_MAX);
}

// Sets the choice of experts outside the best groups to -infinity.
template <int kEach>
__device__ __forceinline__ void KeepBestGroups(const RouteParams& p, int32_t lane, float (&choice)[kEach]) {
  const int32_t size = p.num_experts / p.num_groups;
  float my_score = -INFINITY;  // lane g: of group g
  for (int32_t group = 0; group < p.num_groups; ++group) {
    float first = -INFINITY, second = -INFINITY;
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
      if ((i * 32 + lane) / size != group) continue;
      second = fmaxf(second, fminf(first, choice[i]));
      first = fmaxf(first, choice[i]);
    }
    for (int32_t distance = 16; distance > 0; distance /= 2) {
      const float other_first = __shfl_xor_sync(~0u, first, distance);
      const float other_second = __shfl_xor_sync(~0u, second, distance);
      second = fmaxf(fmaxf(second, other_second), fminf(first, other_first));
      first = fmaxf(first, other_first);
    }
    if (lane == group) my_score = size == 1 ? first : first + second;
  }
  uint32_t kept = 0;
  for (int32_t k = 0; k < p.topk_groups; ++k) {
    const bool open = lane < p.num_groups && !(kept >> lane & 1);
    float best = open ? my_score : -INFINITY;
    int32_t at = open ? lane : INT32_MAX;
    WarpBest(&best, &at);
    kept |= 1u << at;
  }
#pragma unroll
  for (int32_t i = 0; i < kEach; ++i) {
    const int32_t expert = i * 32 + lane;
    if (expert < p.num_experts && !(kept >> (expert / size) & 1)) choice[i] = -INFINITY;
  }
}

// By a warp; lane l holds the experts l, l + 32, ... kEach of them. Returns choice k in lane k.
template <int kEach>
__device__ __forceinline__ int32_t RouteToken(const RouteParams& p, int32_t token, int32_t lane) {
  static_assert(kEach <= 32);
  const float* logits = p.logits + int64_t{token} * p.num_experts;
  float score[kEach], choice[kEach];
  uint32_t open = 0;  // which of them exist and are not chosen yet
  bool nan = false;
  float maximum = -INFINITY;
#pragma unroll
  for (int32_t i = 0; i < kEach; ++i) {
    const int32_t expert = i * 32 + lane;
    const bool exists = expert < p.num_experts;
    if (exists) open |= 1u << i;
    score[i] = exists ? logits[expert] : -INFINITY;
    maximum = fmaxf(maximum, score[i]);
  }
  if (p.score == RoutingScore::kSoftmax) {
    maximum = WarpMax(maximum);
    float sum = 0.0f;
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
      score[i] = open >> i & 1 ? expf(score[i] - maximum) : 0.0f;
      sum += score[i];
    }
    sum = WarpSum(sum);
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) score[i] /= sum;
  } else if (p.score == RoutingScore::kSigmoid) {
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) score[i] = 1.0f / (1.0f + expf(-score[i]));
  }
#pragma unroll
  for (int32_t i = 0; i < kEach; ++i) {
    choice[i] = score[i];
    if (p.selection_bias != nullptr && (open >> i & 1)) choice[i] += p.selection_bias[i * 32 + lane];
    nan |= isnan(choice[i]);
  }
  nan = __any_sync(~0u, nan);
  if (p.num_groups > 1) KeepBestGroups(p, lane, choice);

  int32_t keys[kEach];
#pragma unroll
  for (int32_t i = 0; i < kEach; ++i) keys[i] = OrderKey(choice[i]);
  int32_t my_expert = 0;  // lane k keeps choice k
  for (int32_t k = 0; k < p.top_k; ++k) {
    const int32_t at = nan ? k : BestOpen(keys, open, lane);
    if (at % 32 == lane) open &= ~(1u << (at / 32));
    if (lane == k) my_expert = at;
  }
  float my_weight = 0.0f;
#pragma unroll
  for (int32_t i = 0; i < kEach; ++i) {
    const float weight = __shfl_sync(~0u, score[i], my_expert % 32);
    if (i == my_expert / 32) my_weight = weight;
  }
  const bool chosen = lane < p.top_k;
  if (p.score == RoutingScore::kSoftmaxSelected) {
    const float largest = WarpMax(chosen ? my_weight : -INFINITY);
    my_weight = chosen ? expf(my_weight - largest) : 0.0f;
    my_weight /= WarpSum(my_weight);
  }
  if (p.renormalize) my_weight /= WarpSum(chosen ? my_weight : 0.0f) + FLT_MIN;
  if (chosen) {
    p.experts[int64_t{token} * p.top_k + lane] = my_expert;
    p.weights[int64_t{token} * p.top_k + lane] = nan ? NAN : my_weight * p.scale;
  }
  return my_expert;
}

// One warp a token.
template <int kEach>
__global__ void RouteKernel(const __grid_constant__ RouteParams p) {
  GridDependencyLaunch();
  GridDependencyWait();
  const int32_t token = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (token < p.tokens) RouteToken<kEach>(p, token, threadIdx.x % 32);
}

// Routes and sorts in one CTA: a warp a token, then a thread a pair. A pair's slot is the number of pairs that come before
// it, a tile's number the number of tiles that begin before it.
// More take longer so than in two kernels (on an H200: 64 pairs 5 us against 7, 512 pairs 29 against 7).
constexpr int32_t kFewPairs = 128;
constexpr int32_t kFewThreads = 512;

template <int kEach>
__global__ void __launch_bounds__(kFewThreads, 1)
    RouteAndSortKernel(const __grid_constant__ RouteParams p, int32_t tile_slots,
                       const __grid_constant__ SortedSlots out) {
  __shared__ __align__(16) int32_t experts[kFewPairs];
  __shared__ uint32_t begins[kFewPairs / 32];  // slots at which a tile begins, a bit each
  GridDependencyLaunch();
  GridDependencyWait();
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t pairs = p.tokens * p.top_k;
  for (int32_t token = warp; token < p.tokens; token += kFewThreads / 32) {
    const int32_t expert = RouteToken<kEach>(p, token, lane);
    if (lane < p.top_k) experts[token * p.top_k + lane] = expert;
  }
  if (threadIdx.x < kFewPairs / 32) begins[threadIdx.x] = 0;
  // Whole vectors are read below.
  if (threadIdx.x < 4 && pairs + static_cast<int32_t>(threadIdx.x) < kFewPairs) {
    experts[pairs + threadIdx.x] = INT32_MAX;
  }
  __syncthreads();
  const int32_t pair = threadIdx.x;
  const int32_t mine = pair < pairs ? experts[pair] : -1;
  int32_t slot = 0, in_expert = 0, count = 0;  // pairs before; of the same expert before, and in all
  if (pair < pairs) {
    for (int32_t first = 0; first < pairs; first += 4) {
      const int4 four = *reinterpret_cast<const int4*>(experts + first);
      const int32_t others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const bool same = others[i] == mine, earlier = first + i < pair;
        count += same;
        in_expert += same && earlier;
        slot += others[i] < mine || (same && earlier);
      }
    }
    out.slot_token[slot] = pair / p.top_k;
    out.token_slot[pair] = slot;
    if (in_expert % tile_slots == 0) atomicOr(&begins[slot / 32], 1u << (slot % 32));
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t tiles = 0;
    for (const uint32_t word : begins) tiles += __popc(word);
    *out.num_tiles = tiles;
  }
  if (pair >= pairs || in_expert % tile_slots != 0) return;
  int32_t tile = __popc(begins[slot / 32] & ((1u << (slot % 32)) - 1));
  for (int32_t word = 0; word < slot / 32; ++word) tile += __popc(begins[word]);
  out.tile_expert[tile] = mine;
  out.tile_slot_range[tile] = make_int2(slot, slot + min(tile_slots, count - in_expert));
}

// Exclusive prefix sum over kSortThreads values, one a thread.
__device__ int32_t ExclusiveScan(int32_t value, int32_t* warp_sums, int32_t* total) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int32_t sum = value;
  for (int32_t distance = 1; distance < 32; distance *= 2) {
    const int32_t other = __shfl_up_sync(~0u, sum, distance);
    if (lane >= distance) sum += other;
  }
  __syncthreads();  // warp_sums may still be read from the scan before
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  int32_t before = 0, all = 0;
  for (int32_t w = 0; w < kSortThreads / 32; ++w) {
    if (w < warp) before += warp_sums[w];
    all += warp_sums[w];
  }
  *total = all;
  return before + sum - value;
}

// A stable counting sort by one CTA. Thread e looks after expert e; pairs are placed kSortThreads at a time, a pair's place
// being the expert's next one, plus the expert's pairs in earlier warps, plus those in earlier lanes.
__global__ void __launch_bounds__(kSortThreads, 1)
    SortKernel(const int32_t* experts, int32_t pairs, int32_t top_k, int32_t num_experts, int32_t tile_slots,
               const __grid_constant__ SortedSlots out) {
  constexpr int32_t kWarps = kSortThreads / 32;
  // [warp][expert, to an even number]: first the warp's pairs of the expert, then those of the warps before it.
  extern __shared__ uint32_t warp_table[];
  __shared__ int32_t counts[kMostExperts], begins[kMostExperts], warp_sums[kWarps];
  const int32_t stride = (num_experts + 1) / 2 * 2;
  uint16_t* in_warp = reinterpret_cast<uint16_t*>(warp_table);
  const int32_t expert = threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  counts[expert] = 0;
  GridDependencyLaunch();
  GridDependencyWait();
  __syncthreads();
  for (int32_t i = threadIdx.x; i < pairs; i += kSortThreads) {
    atomicAdd(&counts[experts[i]], 1);  // integers: any order
  }
  __syncthreads();
  const int32_t count = counts[expert];
  int32_t total;
  const int32_t first = ExclusiveScan(count, warp_sums, &total);
  const int32_t tiles = (count + tile_slots - 1) / tile_slots;
  const int32_t first_tile = ExclusiveScan(tiles, warp_sums, &total);
  if (threadIdx.x == 0) *out.num_tiles = total;
  for (int32_t i = 0; i < tiles; ++i) {
    out.tile_expert[first_tile + i] = expert;
    out.tile_slot_range[first_tile + i] =
        make_int2(first + i * tile_slots, min(first + (i + 1) * tile_slots, first + count));
  }
  int32_t next = first;
  for (int32_t base = 0; base < pairs; base += kSortThreads) {
    const int32_t pair = base + threadIdx.x;
    const int32_t mine = pair < pairs ? experts[pair] : -1;
    for (int32_t i = threadIdx.x; i < kWarps * stride / 2; i += kSortThreads) warp_table[i] = 0;
    __syncthreads();
    const uint32_t same = __match_any_sync(~0u, mine);
    const int32_t rank = __popc(same & ((1u << lane) - 1));
    if (mine >= 0 && rank == 0) in_warp[warp * stride + mine] = static_cast<uint16_t>(__popc(same));
    __syncthreads();
    if (expert < num_experts) {
      int32_t before = 0;
      for (int32_t w = 0; w < kWarps; ++w) {
        const int32_t here = in_warp[w * stride + expert];
        in_warp[w * stride + expert] = static_cast<uint16_t>(before);
        before += here;
      }
      begins[expert] = next;
      next += before;
    }
    __syncthreads();
    if (mine >= 0) {
      const int32_t slot = begins[mine] + in_warp[warp * stride + mine] + rank;
      out.slot_token[slot] = pair / top_k;
      out.token_slot[pair] = slot;
    }
    __syncthreads();  // before the table is cleared
  }
}

__global__ void CombineKernel(const float* rows, const int32_t* token_slot, const float* weights,
                              int32_t top_k, int32_t dim, float* residual) {
  GridDependencyLaunch();
  GridDependencyWait();
  const int64_t token = blockIdx.x;
  for (int32_t i = threadIdx.x; i < dim; i += blockDim.x) {
    float sum = 0.0f;
    for (int32_t k = 0; k < top_k; ++k) {
      sum += weights[token * top_k + k] * rows[int64_t{token_slot[token * top_k + k]} * dim + i];
    }
    residual[token * dim + i] += sum;
  }
}

const char* CheckRouting(const RouteParams& p) {
  if (p.tokens < 1) return "route tokens: tokens must be positive";
  if (p.num_experts < 1 || p.num_experts > kMostExperts) return "route tokens: num_experts must be 1 to 1024";
  if (p.top_k < 1 || p.top_k > std::min(kMostTopK, p.num_experts)) {
    return "route tokens: top_k must be 1 to the number of experts, at most 32";
  }
  if (p.num_groups < 1 || p.num_groups > 32 || p.num_experts % p.num_groups != 0 || p.topk_groups < 1 ||
      p.topk_groups > p.num_groups || p.num_experts / p.num_groups * p.topk_groups < p.top_k) {
    return "route tokens: num_groups must be 1 to 32 and divide num_experts, topk_groups of them hold top_k "
           "experts";
  }
  return nullptr;
}

}  // namespace

const char* RouteTokens(const RouteParams& p, cudaStream_t stream) {
  if (const char* error = CheckRouting(p)) return error;
  auto* kernel = p.num_experts <= 32    ? RouteKernel<1>
                 : p.num_experts <= 128 ? RouteKernel<4>
                 : p.num_experts <= 256 ? RouteKernel<8>
                                        : RouteKernel<kPerLane>;
  return Reason(LaunchDependent(kernel, (p.tokens + 3) / 4, 128, 0, stream, p));
}

const char* RouteAndSort(const RouteParams& p, int32_t tile_slots, const SortedSlots& out,
                         cudaStream_t stream) {
  if (p.tokens > kFewPairs / std::max(p.top_k, 1) || p.num_experts > 256) {
    if (const char* error = RouteTokens(p, stream)) return error;
    return SortByExpert(p.experts, p.tokens, p.top_k, p.num_experts, tile_slots, out, stream);
  }
  if (const char* error = CheckRouting(p)) return error;
  if (tile_slots < 1) return "route and sort: tile_slots must be positive";
  auto* kernel = p.num_experts <= 32    ? RouteAndSortKernel<1>
                 : p.num_experts <= 128 ? RouteAndSortKernel<4>
                                        : RouteAndSortKernel<8>;
  return Reason(LaunchDependent(kernel, 1, kFewThreads, 0, stream, p, tile_slots, out));
}

int32_t MostTiles(int32_t tokens, int32_t top_k, int32_t num_experts, int32_t tile_slots) {
  const int64_t pairs = int64_t{tokens} * top_k;
  return static_cast<int32_t>(std::min(pairs, pairs / tile_slots + num_experts));
}

const char* SortByExpert(const int32_t* experts, int32_t tokens, int32_t top_k, int32_t num_experts,
                         int32_t tile_slots, const SortedSlots& out, cudaStream_t stream) {
  if (tokens < 1 || top_k < 1 || tile_slots < 1) return "sort by expert: sizes must be positive";
  if (num_experts < 1 || num_experts > kMostExperts) return "sort by expert: num_experts must be 1 to 1024";
  constexpr int32_t kMostShared = kSortThreads / 32 * kMostExperts * 2;
  static const cudaError_t configured =
      cudaFuncSetAttribute(SortKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared);
  if (configured != cudaSuccess) return cudaGetErrorString(configured);
  const int32_t shared = kSortThreads / 32 * ((num_experts + 1) / 2 * 2) * 2;
  return Reason(LaunchDependent(SortKernel, 1, kSortThreads, shared, stream, experts, tokens * top_k, top_k,
                                num_experts, tile_slots, out));
}

const char* CombineExperts(const float* rows, const int32_t* token_slot, const float* weights, int32_t tokens,
                           int32_t top_k, int32_t dim, float* residual, cudaStream_t stream) {
  if (tokens < 1 || top_k < 1 || dim < 1) return "combine experts: sizes must be positive";
  return Reason(LaunchDependent(CombineKernel, tokens, 256, 0, stream, rows, token_slot, weights, top_k, dim,
                                residual));
}

}  // namespace tessera::cuda
