// FMHA prefill for sm_90: constants of an instantiation, and its shared memory.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_SM90_TRAITS_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_SM90_TRAITS_CUH_

#include <cstdint>

#include "kernels/cuda/fmha/fmha_prefill_items.cuh"
#include "kernels/cuda/fmha/fmha_prefill_softmax.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"

namespace tessera::cuda {

template <int kHeadDimension, int kNumWarpGroups, bool kQueriesHeld, FmhaTotals kTotalsWhere>
struct FmhaPrefillTraits {
  static constexpr int kHeadDim = kHeadDimension;
  static constexpr int kWarpGroups = kNumWarpGroups;  // consumers
  static constexpr int kConsumerWarps = 4 * kWarpGroups;
  static constexpr int kThreads = 128 * (kWarpGroups + 1);
  static constexpr int kRows = 64 * kWarpGroups;
  static constexpr bool kQueriesInRegisters = kQueriesHeld;
  static constexpr FmhaTotals kTotals = kTotalsWhere;
  static constexpr int kProducerRegisters = 56;
  static constexpr int kConsumerRegisters = kWarpGroups == 2 ? 224 : 152;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;  // of each thread until they are moved
  static_assert(kWarpGroups == 2 || kWarpGroups == 3);
  static_assert(kProducerRegisters + kWarpGroups * kConsumerRegisters <= (kWarpGroups + 1) * kLaunchRegisters,
                "taking more registers than were given back would wait for ever");

  static constexpr int kBoxColumns = 64;  // 128 bytes, the width of the swizzle
  static constexpr int kBoxes = kHeadDim / kBoxColumns;
  static constexpr int kBoxBytes = kFmhaTileKeys * 128;  // a box of 64 rows
  static constexpr int kSlotBytes = kBoxes * kBoxBytes;
  static constexpr int kQueryBytes = kWarpGroups * kSlotBytes;
  static constexpr int kTotalsBytes = kTotals == FmhaTotals::kShared ? kWarpGroups * 64 * kHeadDim * 4 : 0;
  static constexpr int kMostSlots = 16;
  static constexpr int kSmallBytes = 640;
  static constexpr int kSlotsThatFit =
      (232448 - 1024 - kQueryBytes - kTotalsBytes - kSmallBytes) / kSlotBytes;
  static constexpr int kSlots = kSlotsThatFit < kMostSlots ? kSlotsThatFit : kMostSlots;
  static constexpr int kSharedBytes = 1024 + kSlots * kSlotBytes + kQueryBytes + kTotalsBytes + kSmallBytes;
  static_assert(kSlots >= 4, "two tiles must fit");
  static_assert((2 * kMostSlots + 2 * kWarpGroups + 1 + 2 * FmhaPrefillQueue::kSlots) * 8 +
                        FmhaPrefillQueue::kSlots * int(sizeof(FmhaPrefillItem)) <=
                    kSmallBytes,
                "barriers and items");
};

template <class Traits>
struct FmhaPrefillShared {
  uint8_t* slots;
  uint8_t* queries;  // [warp group][box][row]
  float4* totals;    // [warp group][fragment][thread]
  uint64_t* full;
  uint64_t* empty;
  uint64_t* queries_full;   // [warp group]
  uint64_t* queries_empty;  // [warp group]
  uint64_t* landed;         // values that the producer has to mend
  FmhaPrefillQueue queue;

  __device__ explicit FmhaPrefillShared(uint8_t* base) {
    slots = base + (1024 - ptx::SharedAddress(base) % 1024) % 1024;
    queries = slots + Traits::kSlots * Traits::kSlotBytes;
    totals = reinterpret_cast<float4*>(queries + Traits::kQueryBytes);
    full = reinterpret_cast<uint64_t*>(queries + Traits::kQueryBytes + Traits::kTotalsBytes);
    empty = full + Traits::kSlots;
    queries_full = empty + Traits::kSlots;
    queries_empty = queries_full + Traits::kWarpGroups;
    landed = queries_empty + Traits::kWarpGroups;
    queue.full = landed + 1;
    queue.empty = queue.full + FmhaPrefillQueue::kSlots;
    queue.items = reinterpret_cast<FmhaPrefillItem*>(queue.empty + FmhaPrefillQueue::kSlots);
  }

  __device__ void Init() const {
    for (int32_t slot = 0; slot < Traits::kSlots; ++slot) {
      ptx::MbarrierInit(&full[slot], 1);
      ptx::MbarrierInit(&empty[slot], Traits::kConsumerWarps);
    }
    for (int32_t group = 0; group < Traits::kWarpGroups; ++group) {
      ptx::MbarrierInit(&queries_full[group], 1);
      ptx::MbarrierInit(&queries_empty[group], 4);
    }
    ptx::MbarrierInit(landed, 1);
    queue.Init(Traits::kConsumerWarps + Traits::kWarpGroups);
    ptx::FenceBarrierInit();
  }
};

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_PREFILL_SM90_TRAITS_CUH_
