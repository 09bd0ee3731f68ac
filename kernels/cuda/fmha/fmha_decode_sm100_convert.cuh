// FMHA decode for sm_100: the warps that turn e4m3 keys and values into bf16.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_CONVERT_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_CONVERT_CUH_

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_sm100_traits.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/ptx/sync.cuh"

namespace tessera::cuda {

__device__ __forceinline__ uint32_t Bf16x2FromE4m3x2(uint32_t pair) {
  const float2 values = __half22float2(ptx::CvtF16x2E4m3x2(static_cast<uint16_t>(pair)));
  return ptx::PackBf16(values.x, values.y);
}

__device__ __forceinline__ uint4 Bf16x8FromE4m3x8(uint32_t low, uint32_t high) {
  return make_uint4(Bf16x2FromE4m3x2(low), Bf16x2FromE4m3x2(low >> 16), Bf16x2FromE4m3x2(high),
                    Bf16x2FromE4m3x2(high >> 16));
}

// `boxes` boxes of a slot: codes [box][key][64 columns] to the same in bf16, both swizzled.
template <class Traits>
__device__ __forceinline__ void ConvertSlot(const uint8_t* codes, uint8_t* slot, int32_t boxes,
                                            int32_t thread) {
#pragma unroll 4
  for (int32_t i = thread; i < boxes * Traits::kTileKeys * 4; i += 32 * Traits::kConvertWarps) {
    const int32_t row = i / 4, column = i % 4;  // a row of a box, 16 codes of it
    const uint4 piece = reinterpret_cast<const uint4*>(codes)[row * 4 + (column ^ row / 2 % 4)];
    uint4* target = reinterpret_cast<uint4*>(slot) + row * 8;
    target[(2 * column) ^ row % 8] = Bf16x8FromE4m3x8(piece.x, piece.y);
    target[(2 * column + 1) ^ row % 8] = Bf16x8FromE4m3x8(piece.z, piece.w);
  }
}

// The converters' role: slots in the order in which they are loaded. `thread` counts these warps' threads.
template <class Traits>
__device__ void ConvertTiles(const FmhaSm100Shared<Traits>& shared, int32_t thread) {
  const int32_t lane = thread % 32;
  RingCursor<Traits::kSlots> ring;
  const auto convert = [&](int32_t columns) {
#pragma unroll 1
    for (int32_t column = 0; column < columns; column += Traits::kSlotColumns) {
      ptx::MbarrierWait(&shared.load_full[ring.slot], ring.phase);
      ptx::MbarrierWait(&shared.empty[ring.slot], ring.phase ^ 1);
      ConvertSlot<Traits>(shared.loads + ring.slot * Traits::kLoadBytes,
                          shared.slots + ring.slot * Traits::kSlotBytes,
                          min(Traits::kSlotBoxes, (columns - column) / 64), thread);
      ptx::FenceProxyAsyncShared();
      __syncwarp();
      if (lane == 0) {
        ptx::MbarrierArrive(&shared.full[ring.slot]);
        ptx::MbarrierArrive(&shared.load_empty[ring.slot]);
      }
      ring.Next();
    }
  };
  RingCursor<kFmhaItemQueue> queue;
  while (const FmhaItem* item = shared.items.Wait(queue)) {
    const int32_t begin = item->begin, end = item->end;
    shared.items.Release(queue, lane);
    convert(Traits::kKeyDim);
    for (int32_t key = begin; key < end; key += Traits::kTileKeys) {
      if (key + Traits::kTileKeys < end) convert(Traits::kKeyDim);
      convert(Traits::kValueDim);
    }
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_CONVERT_CUH_
