// FMHA prefill for sm_90: the warp groups that multiply.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_SM90_CONSUMER_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_SM90_CONSUMER_CUH_

#include <cstdint>

#include "kernels/cuda/fmha/fmha_prefill_sm90_traits.cuh"
#include "kernels/cuda/fmha/fmha_prefill_softmax.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/ptx/wgmma_tiles.cuh"

namespace tessera::cuda {

// A warp group's queries as the A operand.
template <class Traits>
struct FmhaPrefillQueries {
  uint32_t fragments[Traits::kQueriesInRegisters ? Traits::kHeadDim / 16 : 1][4];
  uint32_t address;  // of the warp group's tile

  __device__ void Load(int32_t warp, int32_t lane) {
    if constexpr (Traits::kQueriesInRegisters) {
      const int32_t row = warp % 4 * 16 + lane % 16;
#pragma unroll
      for (int32_t step = 0; step < Traits::kHeadDim / 16; ++step) {
        const int32_t chunk = 2 * step + lane / 16;
        ptx::LdmatrixX4(fragments[step],
                        address + chunk / 8 * Traits::kBoxBytes + row * 128 + ((chunk ^ row) & 7) * 16);
      }
    }
  }

  // Starts s = Q K^T for the keys of a slot.
  __device__ void Score(uint32_t slot, float (&s)[8][4]) const {
    const uint64_t keys = ptx::WgmmaSwizzledDescriptor(slot);
    uint32_t mine = address;
    asm volatile("" : "+r"(mine));  // else the compiler keeps a descriptor a step in registers
    const uint64_t rows = ptx::WgmmaSwizzledDescriptor(mine);
#pragma unroll
    for (int32_t step = 0; step < Traits::kHeadDim / 16; ++step) {
      const uint32_t at = step / 4 * Traits::kBoxBytes + step % 4 * 32;
      if constexpr (Traits::kQueriesInRegisters) {
        ptx::WgmmaRegistersShared<false>(s, fragments[step], ptx::WgmmaAdvance(keys, at), step > 0);
      } else {
        ptx::WgmmaSharedShared(s, ptx::WgmmaAdvance(rows, at), ptx::WgmmaAdvance(keys, at), step > 0);
      }
    }
    ptx::WgmmaCommitGroup();
  }
};

// Starts out += weights V for the values of a slot.
template <class Traits>
__device__ __forceinline__ void FmhaPrefillAddValues(uint32_t slot, const uint32_t (&weights)[4][4],
                                                     float (&out)[Traits::kHeadDim / 8][4]) {
  const uint64_t values = ptx::WgmmaSwizzledDescriptor(slot, Traits::kBoxBytes);
#pragma unroll
  for (int32_t step = 0; step < 4; ++step) {
    ptx::WgmmaRegistersShared<true>(out, weights[step], ptx::WgmmaAdvance(values, step * 16 * 128), true);
  }
  ptx::WgmmaCommitGroup();
}

// The A fragments of the weights, rounded.
__device__ __forceinline__ void FmhaPackWeights(const float (&s)[8][4], uint32_t (&weights)[4][4]) {
#pragma unroll
  for (int32_t step = 0; step < 4; ++step) {
    weights[step][0] = ptx::PackBf16(s[2 * step][0], s[2 * step][1]);
    weights[step][1] = ptx::PackBf16(s[2 * step][2], s[2 * step][3]);
    weights[step][2] = ptx::PackBf16(s[2 * step + 1][0], s[2 * step + 1][1]);
    weights[step][3] = ptx::PackBf16(s[2 * step + 1][2], s[2 * step + 1][3]);
  }
}

// The consumers' role.
template <class Traits>
__device__ void FmhaPrefillConsume(const FmhaPrefillArgs& args, const FmhaPrefillShared<Traits>& shared,
                                   int32_t warp, int32_t lane) {
  const int32_t group = warp / 4;
  const uint32_t slots = ptx::SharedAddress(shared.slots);
  FmhaRing<FmhaPrefillQueue::kSlots> queue;
  FmhaRing<Traits::kSlots> keys, values;
  values.Advance();
  FmhaPrefillQueries<Traits> queries;
  queries.address = ptx::SharedAddress(shared.queries) + group * Traits::kSlotBytes;
  float4* totals_memory = nullptr;
  if constexpr (Traits::kTotals == FmhaTotals::kShared) totals_memory = shared.totals;
  if constexpr (Traits::kTotals == FmhaTotals::kGlobal) {
    totals_memory = args.totals + int64_t{blockIdx.x} * (Traits::kWarpGroups * 16 * Traits::kHeadDim);
  }
  FmhaTotalsOut<Traits::kHeadDim, Traits::kTotals> totals(totals_memory + group * (16 * Traits::kHeadDim) +
                                                          threadIdx.x % 128);
  float out[Traits::kHeadDim / 8][4], s[8][4];
  uint32_t weights[4][4];
  FmhaPrefillRows rows;
  uint32_t phase = 0;
  const auto release = [&](FmhaRing<Traits::kSlots>& ring) {
    if (lane == 0) ptx::MbarrierArrive(&shared.empty[ring.slot]);
    ring.Advance(2);
  };
  while (true) {
    const FmhaPrefillItem& item = shared.queue.Take(queue);
    if (item.IsNone()) break;
    const int32_t begin = item.begin, end = item.end;
    rows.Begin(args, item, item.first_row + warp * 16, lane);
    totals.Clear();
#pragma unroll
    for (int32_t j = 0; j < Traits::kHeadDim / 8; ++j) out[j][0] = out[j][1] = out[j][2] = out[j][3] = 0;
    ptx::MbarrierWait(&shared.queries_full[group], phase);
    phase ^= 1;
    queries.Load(warp, lane);
    if (Traits::kQueriesInRegisters) {
      __syncwarp();
      if (lane == 0) ptx::MbarrierArrive(&shared.queries_empty[group]);
    }

    ptx::MbarrierWait(&shared.full[keys.slot], keys.phase);
    ptx::WgmmaFence();
    queries.Score(slots + keys.slot * Traits::kSlotBytes, s);
    ptx::WgmmaWaitGroup<0>();
    ptx::WgmmaPin(s);
    release(keys);
    FmhaMaskTile(args, rows, begin, lane, s);
    FmhaPrefillSoftmax(args.scale_log2, begin, rows, s);
    FmhaPackWeights(s, weights);

    for (int32_t key = begin + kFmhaTileKeys; key < end; key += kFmhaTileKeys) {
      ptx::MbarrierWait(&shared.full[keys.slot], keys.phase);
      ptx::WgmmaFence();
      queries.Score(slots + keys.slot * Traits::kSlotBytes, s);
      ptx::MbarrierWait(&shared.full[values.slot], values.phase);
      ptx::WgmmaFence();
      FmhaPrefillAddValues<Traits>(slots + values.slot * Traits::kSlotBytes, weights, out);
      ptx::WgmmaWaitGroup<1>();
      ptx::WgmmaPin(s);
      release(keys);
      FmhaMaskTile(args, rows, key, lane, s);
      const FmhaPrefillStep step = FmhaPrefillSoftmax(args.scale_log2, key, rows, s);
      ptx::WgmmaWaitGroup<0>();
      ptx::WgmmaPin(out);
      release(values);
      FmhaPrefillAdjust(step, totals, out);
      FmhaPackWeights(s, weights);
    }
    if (!Traits::kQueriesInRegisters && lane == 0) ptx::MbarrierArrive(&shared.queries_empty[group]);

    ptx::MbarrierWait(&shared.full[values.slot], values.phase);
    ptx::WgmmaFence();
    FmhaPrefillAddValues<Traits>(slots + values.slot * Traits::kSlotBytes, weights, out);
    ptx::WgmmaWaitGroup<0>();
    ptx::WgmmaPin(out);
    release(values);
    FmhaPrefillWrite(args, item, item.first_row + warp * 16, lane, rows, totals, out);
    shared.queue.Release(queue, lane);
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_SM90_CONSUMER_CUH_
