// FMHA decode for sm_100: the warp that issues the matrix products.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_PRODUCTS_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_PRODUCTS_CUH_

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_sm100_traits.cuh"
#include "kernels/cuda/ptx/instruction_descriptor.h"
#include "kernels/cuda/ptx/smem_descriptor.h"
#include "kernels/cuda/ptx/sync.cuh"
#include "kernels/cuda/ptx/tcgen05.cuh"

namespace tessera::cuda {

// The issuer of matrix products; its warp waits as a whole, one lane issues.
template <class Traits>
class FmhaProducts {
 public:
  __device__ FmhaProducts(const FmhaSm100Shared<Traits>& shared, uint32_t tmem, int32_t lane)
      : shared_(shared), tmem_(tmem), lane_(lane), leads_(ptx::ElectSync()) {
    queries_ = ptx::MakeSmemDescriptor(ptx::SharedAddress(shared.queries), 0, 1024, ptx::SmemSwizzle::k128);
    // 8 keys of 8 rows are 128 bytes; the next 8 keys follow, the next 8 rows come after all keys.
    weights_ = ptx::MakeSmemDescriptor(ptx::SharedAddress(shared.weights), 128, Traits::kTileKeys * 16,
                                       ptx::SmemSwizzle::kNone);
  }

  // S^T of a tile into score buffer `buffer`.
  __device__ void Score(int32_t buffer) {
    constexpr uint32_t kInstruction = ptx::MakeBf16InstructionDescriptor(Traits::kTileKeys, Traits::kColumns,
                                                                         ptx::Major::kK, ptx::Major::kK);
#pragma unroll 1
    for (int32_t box = 0; box < Traits::kKeyBoxes; box += Traits::kSlotBoxes) {
      ptx::MbarrierWait(&shared_.full[ring_.slot], ring_.phase);
      if (leads_) {
        const uint64_t keys = ptx::MakeSmemDescriptor(SlotAddress(), 0, 1024, ptx::SmemSwizzle::k128);
        const uint64_t queries = ptx::AdvanceSmemDescriptor(queries_, box * Traits::kQueryBoxBytes);
#pragma unroll
        for (int32_t i = 0; i < Traits::kSlotBoxes; ++i) {
          if (box + i >= Traits::kKeyBoxes) break;
#pragma unroll
          for (int32_t step = 0; step < 4; ++step) {
            ptx::Tcgen05MmaF16(tmem_ + buffer * Traits::kColumns,
                               ptx::AdvanceSmemDescriptor(keys, i * Traits::kBoxBytes + step * 32),
                               ptx::AdvanceSmemDescriptor(queries, i * Traits::kQueryBoxBytes + step * 32),
                               kInstruction, box + i + step > 0);
          }
        }
      }
      ReleaseSlot();
    }
    Commit(&shared_.s_full[buffer]);
  }

  // O^T = V^T P^T, or += if `accumulate`, over a tile's first `valid` keys.
  __device__ void AddValues(int32_t valid, bool accumulate) {
    constexpr uint32_t kInstruction =
        ptx::MakeBf16InstructionDescriptor(128, Traits::kColumns, ptx::Major::kMn, ptx::Major::kMn);
    // With 64 value dimensions the second half of M repeats the first: it costs nothing, a product of 64 rows takes as
    // long, and O keeps one layout.
    constexpr uint32_t kNextBox = Traits::kSlotBoxes == 1 ? 0 : Traits::kBoxBytes;
    const int32_t steps = valid >= Traits::kTileKeys ? Traits::kTileKeys / 16 : (valid + 15) / 16;
#pragma unroll 1
    for (int32_t slot = 0; slot < Traits::kValueSlots; ++slot) {
      ptx::MbarrierWait(&shared_.full[ring_.slot], ring_.phase);
      if (valid < steps * 16) ClearKeys(valid, steps * 16);
      if (leads_) {
        const uint64_t values =
            ptx::MakeSmemDescriptor(SlotAddress(), kNextBox, 1024, ptx::SmemSwizzle::k128);
        for (int32_t step = 0; step < steps; ++step) {
          ptx::Tcgen05MmaF16(tmem_ + Traits::kOutColumn + slot * Traits::kColumns,
                             ptx::AdvanceSmemDescriptor(values, step * 16 * 128),
                             ptx::AdvanceSmemDescriptor(weights_, step * 256), kInstruction,
                             accumulate || step > 0);
        }
      }
      ReleaseSlot();
    }
    Commit(shared_.p_empty);
  }

  __device__ void Commit(uint64_t* barrier) const {
    if (leads_) ptx::Tcgen05Commit(barrier);
    __syncwarp();
  }

 private:
  __device__ uint32_t SlotAddress() const {
    return ptx::SharedAddress(shared_.slots + ring_.slot * Traits::kSlotBytes);
  }

  __device__ void ReleaseSlot() {
    Commit(&shared_.empty[ring_.slot]);
    ring_.Next();
  }

  // Zeroes the values of the keys first .. end - 1: garbage past the sequence's end must not meet a weight of 0.
  __device__ void ClearKeys(int32_t first, int32_t end) const {
    uint4* slot = reinterpret_cast<uint4*>(shared_.slots + ring_.slot * Traits::kSlotBytes);
    for (int32_t box = 0; box < Traits::kSlotBoxes; ++box) {
      for (int32_t i = first * 8 + lane_; i < end * 8; i += 32)
        slot[box * Traits::kBoxBytes / 16 + i] = make_uint4(0, 0, 0, 0);
    }
    ptx::FenceProxyAsyncShared();
    __syncwarp();
  }

  const FmhaSm100Shared<Traits>& shared_;
  uint32_t tmem_;
  int32_t lane_;
  bool leads_;
  uint64_t queries_, weights_;
  RingCursor<Traits::kSlots> ring_;
};

// The role of the warp that issues matrix products.
template <class Traits>
__device__ void MultiplyTiles(const FmhaDecodeArgs& args, const FmhaSm100Shared<Traits>& shared,
                              uint32_t tmem, int32_t lane) {
  FmhaProducts<Traits> products(shared, tmem, lane);
  RingCursor<kFmhaItemQueue> queue;
  uint32_t tile = 0, item_phase = 0;  // tiles of all items
  while (const FmhaItem* item = shared.items.Wait(queue)) {
    const int32_t begin = item->begin, end = item->end;
    shared.items.Release(queue, lane);
    ptx::MbarrierWait(shared.q_full, item_phase);
    item_phase ^= 1;
    products.Score(tile % 2);
    for (int32_t key = begin; key < end; key += Traits::kTileKeys, ++tile) {
      if (key + Traits::kTileKeys < end) {
        products.Score((tile + 1) % 2);
      } else {
        products.Commit(shared.q_empty);
      }
      ptx::MbarrierWait(shared.p_full, tile % 2);
      ptx::Tcgen05FenceAfterThreadSync();
      products.AddValues(end - key, key > begin);
    }
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_PRODUCTS_CUH_
