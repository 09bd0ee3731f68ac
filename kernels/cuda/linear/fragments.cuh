// A fragments of packed weights: from memory to bf16 registers.
#ifndef TESSERA_KERNELS_CUDA_LINEAR_FRAGMENTS_CUH_
#define TESSERA_KERNELS_CUDA_LINEAR_FRAGMENTS_CUH_

#include <cstdint>
#include <utility>

#include "kernels/cuda/linear/packed_weights.h"

namespace tessera::cuda {

__device__ __forceinline__ uint32_t MulBf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Weights are read once a step: not to be kept in L1.
__device__ __forceinline__ uint4 LoadStream(const uint4* address) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}

// Eight E2M1 codes, placed as PackNvfp4 does, times a scale (in both halves): pairs in the order of k. A code's bits in
// bf16's sign, low exponent and high fraction bits are its value times 2^-126; the scale carries 2^118; so what comes
// out is the weight times 2^-8, exactly.
__device__ __forceinline__ void DecodeE2m1(uint32_t word, uint32_t scale, uint32_t (&pairs)[4]) {
  constexpr uint32_t kMask = 0x81C081C0u;
  pairs[0] = MulBf16x2(word & kMask, scale);
  pairs[1] = MulBf16x2((word << 6) & kMask, scale);
  pairs[2] = MulBf16x2(__funnelshift_l(word, word, 12) & kMask, scale);
  pairs[3] = MulBf16x2(((word << 2) & 0x80C080C0u) | ((word >> 6) & 0x01000100u), scale);
}

// Byte `index` of `word`, a scale as PackNvfp4 stores it, as bf16 in both halves.
template <int kIndex>
__device__ __forceinline__ uint32_t DecodeScale(uint32_t word) {
  const uint32_t bytes = __byte_perm(word, 0, kIndex | (4 << 4) | (kIndex << 8) | (4 << 12));
  return (bytes << 4) + 0x75807580u;  // exponent field + 235
}

// The A fragments of one group: four steps of m16k16.
struct GroupFragments {
  uint32_t a[4][4];
};

// A lane's 16 bytes of codes of a group; `low` and `high` are the scales of its two features, in both halves.
__device__ __forceinline__ GroupFragments DecodeNvfp4Group(uint4 codes, uint32_t low, uint32_t high) {
  GroupFragments f;
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int32_t i = 0; i < 2; ++i) {
    uint32_t pairs[4];
    DecodeE2m1(words[i], low, pairs);
    f.a[2 * i][0] = pairs[0];
    f.a[2 * i][2] = pairs[1];
    f.a[2 * i + 1][0] = pairs[2];
    f.a[2 * i + 1][2] = pairs[3];
    DecodeE2m1(words[2 + i], high, pairs);
    f.a[2 * i][1] = pairs[0];
    f.a[2 * i][3] = pairs[1];
    f.a[2 * i + 1][1] = pairs[2];
    f.a[2 * i + 1][3] = pairs[3];
  }
  return f;
}

// A lane's four quarters of a BF16 group.
__device__ __forceinline__ GroupFragments ArrangeBf16Group(const uint4 (&quarters)[4]) {
  GroupFragments f;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {  // k 0-7 and 8-15 of the lane's sixteen
    const uint4 low = quarters[half], high = quarters[2 + half];
    f.a[2 * half][0] = low.x;
    f.a[2 * half][2] = low.y;
    f.a[2 * half + 1][0] = low.z;
    f.a[2 * half + 1][2] = low.w;
    f.a[2 * half][1] = high.x;
    f.a[2 * half][3] = high.y;
    f.a[2 * half + 1][1] = high.z;
    f.a[2 * half + 1][3] = high.w;
  }
  return f;
}

template <WeightFormat kFormat>
struct Chunk;

// A lane's share of a chunk, as loaded.
template <>
struct Chunk<WeightFormat::kNvfp4> {
  static constexpr bool kIsHeld = true;  // in registers
  uint4 codes[kChunkGroups];
  uint4 scales;

  __device__ __forceinline__ void Load(const uint8_t* chunk, int32_t groups, int32_t lane) {
    scales = LoadScales(chunk, groups, lane);
    [&]<int... kGroups>(std::integer_sequence<int, kGroups...>) {
      (LoadGroup<kGroups>(chunk, groups, lane), ...);
    }
    (std::make_integer_sequence<int, kChunkGroups>());
  }
  template <int kGroup>
  __device__ __forceinline__ void LoadGroup(const uint8_t* chunk, int32_t groups, int32_t lane) {
    if (kGroup < groups) codes[kGroup] = LoadStream(reinterpret_cast<const uint4*>(chunk) + lane + kGroup * 32);
  }
  // Those of a chunk, if it is not null.
  __device__ __forceinline__ static uint4 LoadScales(const uint8_t* chunk, int32_t groups, int32_t lane) {
    if (chunk == nullptr) return make_uint4(0, 0, 0, 0);
    return LoadStream(reinterpret_cast<const uint4*>(chunk) + lane + groups * 32);
  }

  template <int kGroup>
  __device__ __forceinline__ GroupFragments Decode() const {
    const uint32_t word = kGroup / 2 == 0   ? scales.x
                          : kGroup / 2 == 1 ? scales.y
                          : kGroup / 2 == 2 ? scales.z
                                            : scales.w;
    return DecodeNvfp4Group(codes[kGroup], DecodeScale<kGroup % 2 * 2>(word),
                            DecodeScale<kGroup % 2 * 2 + 1>(word));
  }
};

// BF16 weights are too many registers to hold a chunk: each group is loaded when it is needed, and the loads of several
// groups overlap through unrolling.
template <>
struct Chunk<WeightFormat::kBf16> {
  static constexpr bool kIsHeld = false;
  const uint4* source;

  __device__ __forceinline__ void Load(const uint8_t* chunk, int32_t, int32_t lane) {
    source = reinterpret_cast<const uint4*>(chunk) + lane;
  }
  template <int kGroup>
  __device__ __forceinline__ void LoadGroup(const uint8_t*, int32_t, int32_t) {}
  template <int kGroup>
  __device__ __forceinline__ GroupFragments Decode() const {
    uint4 quarters[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) quarters[i] = LoadStream(source + (kGroup * 4 + i) * 32);
    return ArrangeBf16Group(quarters);
  }
};

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LINEAR_FRAGMENTS_CUH_
