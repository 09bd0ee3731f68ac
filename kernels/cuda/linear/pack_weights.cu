#include <cstdint>

#include "kernels/cuda/linear/packed_weights.h"

namespace tessera::cuda {
namespace {

struct Source {
  const uint8_t* first;   // codes or bf16
  const uint8_t* second;  // of `up`, or null
  const uint8_t* first_scales;
  const uint8_t* second_scales;
  int32_t n, k;
};

// The feature of a source that stands in row `row` of tile `tile`; null past the end (a zero row).
__device__ const uint8_t* FindRow(const Source& s, const uint8_t* first, const uint8_t* second, int32_t tile, int32_t row,
                                  size_t row_bytes) {
  const uint8_t* base = first;
  int32_t feature = tile * kRowTile + row;
  if (second != nullptr) {
    base = row < 8 ? first : second;
    feature = tile * 8 + row % 8;
  }
  return feature < s.n ? base + size_t(feature) * row_bytes : nullptr;
}

// E4M3 (positive) to five exponent and three fraction bits, exponent bias 10, subnormals normalised: it becomes bf16 by
// a shift and an addition. Zero has no such form: the codes of its block are zeroed instead.
__device__ uint8_t RebiasScale(uint8_t e4m3) {
  int32_t exponent = (e4m3 >> 3) & 15, fraction = e4m3 & 7;
  if (exponent > 0) return static_cast<uint8_t>(((exponent - 7 + 10) << 3) | fraction);
  if (fraction == 0) return 8;
  exponent = -6 + 10;
  while ((fraction & 8) == 0) {
    fraction <<= 1;
    --exponent;
  }
  return static_cast<uint8_t>((exponent << 3) | (fraction & 7));
}

// Eight consecutive codes to a word: pair p becomes the sign, the two low exponent and the high fraction bits of both
// bf16 halves, its even code in the low one, when the word is rotated left by 0, 6 or 12; pair 3 fills the gaps: its high
// exponent bit stands 6 above its place, the rest 2 below (DecodeE2m1).
__device__ uint32_t PlaceCodes(const uint8_t* codes) {
  uint32_t word = 0;
  for (int32_t pair = 0; pair < 4; ++pair) {
    uint32_t halves = 0;
    for (int32_t half = 0; half < 2; ++half) {
      const uint32_t code = codes[pair] >> (4 * half) & 15;
      halves |= ((code >> 3 << 15) | ((code & 7) << 6)) << (16 * half);
    }
    if (pair < 3) {
      word |= __funnelshift_r(halves, halves, 6 * pair);
    } else {
      word |= ((halves & 0x01000100u) << 6) | ((halves & 0x80C080C0u) >> 2);
    }
  }
  return word;
}

// One thread a (tile, group, lane).
__global__ void PackNvfp4Kernel(Source s, uint8_t* target, size_t tile_bytes) {
  const int32_t groups = s.k / kGroupK;
  const int32_t lane = threadIdx.x % 32, group = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, tile = blockIdx.y;
  if (group >= groups) return;
  const int32_t chunk = group / kChunkGroups;
  const int32_t chunk_groups = min(kChunkGroups, groups - chunk * kChunkGroups);
  uint8_t* chunk_base = target + tile * tile_bytes + size_t(chunk) * (kChunkGroups + 1) * 512;
  uint32_t words[4] = {};
  uint8_t scales[2];
  for (int32_t half = 0; half < 2; ++half) {
    const int32_t row = lane / 4 + 8 * half, block = group * 4 + lane % 4;
    const uint8_t* codes = FindRow(s, s.first, s.second, tile, row, s.k / 2);
    const uint8_t* row_scales = FindRow(s, s.first_scales, s.second_scales, tile, row, s.k / 16);
    const uint8_t scale = codes ? row_scales[block] : 0;
    scales[half] = RebiasScale(scale);
    if (scale != 0) {
      words[2 * half] = PlaceCodes(codes + block * 8);
      words[2 * half + 1] = PlaceCodes(codes + block * 8 + 4);
    }
  }
  reinterpret_cast<uint4*>(chunk_base)[(group % kChunkGroups) * 32 + lane] =
      make_uint4(words[0], words[1], words[2], words[3]);
  uint8_t* scale_base = chunk_base + chunk_groups * 512 + lane * 16 + (group % kChunkGroups) * 2;
  scale_base[0] = scales[0];
  scale_base[1] = scales[1];
  // A lane's 16 bytes of scales are loaded whole, in a chunk of fewer groups too.
  if (group % kChunkGroups == chunk_groups - 1) {
    for (int32_t unused = 2; unused < 16 - (chunk_groups - 1) * 2; ++unused) scale_base[unused] = 0;
  }
}

__global__ void PackBf16Kernel(Source s, uint8_t* target, size_t tile_bytes) {
  const int32_t groups = s.k / kGroupK;
  const int32_t lane = threadIdx.x % 32, group = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, tile = blockIdx.y;
  if (group >= groups) return;
  uint4* out = reinterpret_cast<uint4*>(target + tile * tile_bytes + size_t(group) * 2048);
  for (int32_t quarter = 0; quarter < 4; ++quarter) {
    const uint8_t* row = FindRow(s, s.first, s.second, tile, lane / 4 + quarter / 2 * 8, size_t(s.k) * 2);
    const uint4* source = reinterpret_cast<const uint4*>(row) + group * 8 + lane % 4 * 2 + quarter % 2;
    out[quarter * 32 + lane] = row ? *source : make_uint4(0, 0, 0, 0);
  }
}

const char* Launch(void (*kernel)(Source, uint8_t*, size_t), WeightFormat format, const Source& source, RowOrder order,
                   uint8_t* target, cudaStream_t stream) {
  if (source.n < 1 || source.k < kGroupK || source.k % kGroupK != 0) {
    return "pack weights: n must be positive and k a positive multiple of 64";
  }
  if ((order == RowOrder::kGateUp) != (source.second != nullptr)) {
    return "pack weights: the up matrix goes with the gate-up order";
  }
  const int32_t rows_a_tile = order == RowOrder::kGateUp ? 8 : kRowTile;
  const dim3 grid((source.k / kGroupK + 7) / 8, (source.n + rows_a_tile - 1) / rows_a_tile);
  kernel<<<grid, 256, 0, stream>>>(source, target, PackedTileBytes(format, source.k));
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace

const char* PackNvfp4(const uint8_t* codes, const uint8_t* scales, const uint8_t* up_codes, const uint8_t* up_scales,
                      int32_t n, int32_t k, RowOrder order, uint8_t* target, cudaStream_t stream) {
  return Launch(PackNvfp4Kernel, WeightFormat::kNvfp4, {codes, up_codes, scales, up_scales, n, k}, order, target, stream);
}

const char* PackBf16(const void* weights, const void* up_weights, int32_t n, int32_t k, RowOrder order, uint8_t* target,
                     cudaStream_t stream) {
  const Source source = {static_cast<const uint8_t*>(weights), static_cast<const uint8_t*>(up_weights), nullptr, nullptr,
                         n, k};
  return Launch(PackBf16Kernel, WeightFormat::kBf16, source, order, target, stream);
}

}  // namespace tessera::cuda
