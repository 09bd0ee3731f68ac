// The best tokens of a row by one CTA. A token's place is one number: its logit's order key above, its index, complemented,
// below. All places of a row differ, and a higher one comes first: lower ids win ties.
#ifndef TESSERA_KERNELS_CUDA_SAMPLING_SELECT_CUH_
#define TESSERA_KERNELS_CUDA_SAMPLING_SELECT_CUH_

#include <cstdint>

#include "kernels/logit_math.h"

namespace tessera::cuda {

inline constexpr int32_t kSelectThreads = 1024;
inline constexpr int32_t kSelectRoom = 1024;  // places that are sorted at last
inline constexpr int32_t kPlaceGroup =
    256;  // tokens whose best place is kept, by the first pass over the logits

__device__ __forceinline__ uint64_t PlaceOf(float logit, int32_t index) {
  const int32_t key = logit != logit ? kNanOrderKey : OrderKey(logit);
  return uint64_t{static_cast<uint32_t>(key) ^ 0x80000000u} << 32 | static_cast<uint32_t>(~index);
}
__device__ __forceinline__ int32_t PlaceKey(uint64_t place) {
  return static_cast<int32_t>(static_cast<uint32_t>(place >> 32) ^ 0x80000000u);
}
__device__ __forceinline__ int32_t PlaceIndex(uint64_t place) { return ~static_cast<int32_t>(place); }

__device__ __forceinline__ uint64_t WarpMaxPlace(uint64_t place) {
#pragma unroll
  for (int32_t distance = 16; distance > 0; distance /= 2) {
    const uint64_t other = __shfl_xor_sync(~0u, place, distance);
    place = other > place ? other : place;
  }
  return place;
}

struct SelectShared {
  uint64_t places[kSelectRoom];
  uint32_t bins[256];
  uint64_t warp_best[32];
  uint64_t prefix;
  int32_t wanted, at_least, count;
};

// The best of groups[0 .. num_groups). In all threads.
__device__ inline uint64_t BestPlace(const uint64_t* groups, int32_t num_groups, uint64_t (&warp_best)[32]) {
  uint64_t best = 0;
  for (int32_t i = threadIdx.x; i < num_groups; i += blockDim.x) best = max(best, groups[i]);
  best = WarpMaxPlace(best);
  __syncthreads();  // warp_best may still be read
  if (threadIdx.x % 32 == 0) warp_best[threadIdx.x / 32] = best;
  __syncthreads();
  best = threadIdx.x % 32 < blockDim.x / 32 ? warp_best[threadIdx.x % 32] : 0;
  return WarpMaxPlace(best);
}

// A bound that at least `k` of place(0 .. size) reach, and at most `room`: the k-th best itself if that is `k`. Eight bits
// at a time, until few enough are left. 1 <= k <= size, k <= room.
template <class Place>
__device__ uint64_t BoundOfBest(Place place, int32_t size, int32_t k, int32_t room, SelectShared& s) {
  uint64_t prefix = 0;
  int32_t wanted = k;  // of the places that begin with the prefix
  for (int32_t shift = 56; shift >= 0; shift -= 8) {
    for (int32_t i = threadIdx.x; i < 256; i += blockDim.x) s.bins[i] = 0;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < size; i += blockDim.x) {
      const uint64_t p = place(i);
      if (shift == 56 || (p ^ prefix) >> (shift + 8) == 0) atomicAdd(&s.bins[p >> shift & 255], 1u);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      // Lane l holds the bins 255 - 8 l and the seven below.
      int32_t mine = 0;
      for (int32_t i = 0; i < 8; ++i) mine += s.bins[255 - 8 * threadIdx.x - i];
      int32_t sum = mine;
      for (int32_t distance = 1; distance < 32; distance *= 2) {
        const int32_t other = __shfl_up_sync(~0u, sum, distance);
        if (threadIdx.x >= distance) sum += other;
      }
      int32_t above = sum - mine;
      if (above < wanted && sum >= wanted) {
        int32_t bin = 255 - 8 * threadIdx.x;
        while (above + static_cast<int32_t>(s.bins[bin]) < wanted) above += s.bins[bin--];
        s.prefix = prefix | uint64_t(bin) << shift;
        s.wanted = wanted - above;
        s.at_least = k - (wanted - above) + s.bins[bin];  // places that reach the bin
      }
    }
    __syncthreads();
    prefix = s.prefix;
    wanted = s.wanted;
    if (s.at_least <= room) break;
  }
  __syncthreads();
  return prefix;
}

// The best `k` tokens of a row, best first, into s.places; k at most kSelectRoom / 2, no more than `vocab`. `groups`: the
// best place of each kPlaceGroup tokens.
__device__ inline void SelectBest(const float* logits, int32_t vocab, const uint64_t* groups,
                                  int32_t num_groups, int32_t k, SelectShared& s) {
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  uint64_t bound = 0;
  if (k <= num_groups) {
    bound = BoundOfBest([&](int32_t i) { return groups[i]; }, num_groups, k, k, s);
  }
  for (;;) {
    if (threadIdx.x == 0) s.count = 0;
    __syncthreads();
    for (int32_t group = warp; group < num_groups; group += warps) {
      if (groups[group] < bound) continue;
      const int32_t end = min((group + 1) * kPlaceGroup, vocab);
      for (int32_t i = group * kPlaceGroup + lane; i < end; i += 32) {
        const uint64_t place = PlaceOf(logits[i], i);
        if (place < bound) continue;
        const int32_t at = atomicAdd(&s.count, 1);
        if (at < kSelectRoom) s.places[at] = place;
      }
    }
    __syncthreads();
    if (s.count <= kSelectRoom) break;
    // The best tokens lie close together.
    bound = BoundOfBest([&](int32_t i) { return PlaceOf(logits[i], i); }, vocab, k, kSelectRoom, s);
  }
  const int32_t count = s.count;
  int32_t size = 2;
  while (size < count) size *= 2;
  for (int32_t i = count + threadIdx.x; i < size; i += blockDim.x) s.places[i] = 0;
  __syncthreads();
  // Bitonic sort, descending.
  for (int32_t length = 2; length <= size; length *= 2) {
    for (int32_t distance = length / 2; distance > 0; distance /= 2) {
      for (int32_t i = threadIdx.x; i < size / 2; i += blockDim.x) {
        const int32_t low = i / distance * 2 * distance + i % distance, high = low + distance;
        const uint64_t a = s.places[low], b = s.places[high];
        if ((a < b) == ((low & length) == 0)) {
          s.places[low] = b;
          s.places[high] = a;
        }
      }
      __syncthreads();
    }
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_SAMPLING_SELECT_CUH_
