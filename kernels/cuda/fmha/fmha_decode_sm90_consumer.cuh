// FMHA decode for sm_90: the consumer warps, which attend to the items with mma.sync.
//
// A team of four warps shares a tile of 64 keys. For the scores, S^T = K Q^T, each warp takes 16 of the keys; for the
// output, O^T = V^T P^T, each takes a quarter of the value dimensions and all keys, so that O needs no merging. What they
// exchange, the scores' maxima, the weights and the weights' sums, goes through shared memory. Between two barriers lie
//
//   weights of tile i; scores of tile i + 1, their maxima; values of tile i - 1
//
// where scores and values are one chain of products each, of equal length, that hide each other's latency. Where slots are
// too large for that (kOverlaps), the tiles are taken one after the other.
//
// Query rows of one KV head (GQA group x query tokens) are packed into the N side: a group of 8 wastes nothing.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_CONSUMER_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_CONSUMER_CUH_

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_combine.cuh"
#include "kernels/cuda/fmha/fmha_decode_sm90_exchange.cuh"
#include "kernels/cuda/fmha/fmha_decode_sm90_fragments.cuh"
#include "kernels/cuda/fmha/fmha_decode_sm90_mask.cuh"
#include "kernels/cuda/fmha/fmha_decode_sm90_rows.cuh"
#include "kernels/cuda/fmha/fmha_decode_sm90_traits.cuh"
#include "kernels/cuda/fmha/fmha_decode_sm90_write.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace tessera::cuda {

// One consumer warp.
template <class Traits>
class FmhaConsumer {
 public:
  __device__ FmhaConsumer(const FmhaDecodeArgs& args, const FmhaShared<Traits>& shared, int32_t warp,
                          int32_t lane)
      : args_(args),
        shared_(shared),
        warp_(warp),
        place_{warp / Traits::kTeamWarps, warp % Traits::kTeamWarps, lane},
        exchange_{args, shared, place_} {}

  __device__ void Run() {
    RingCursor<kFmhaItemQueue> queue;
    while (const FmhaItem* item = shared_.items.Wait(queue)) {
      Attend(*item);
      float sums[kRowTiles][2];
      rows_.TotalSums(place_.lane, sums);
      if (item->whole) {
        if constexpr (Traits::kFolds) {
          if (item->splits.count > 1) rows_.TakeFolded(sums);
        }
        WriteRows<Traits>(args_, *item, place_, rows_, sums);
      } else {
        WritePart<Traits>(args_, *item, place_, rows_, sums);
        if (item->joins) {
          CombineTogether<Traits::kValueDim, Traits::kRows, Traits::kConsumerWarps>(args_, *item, warp_,
                                                                                    place_.lane);
        }
      }
      shared_.items.Release(queue, place_.lane);
    }
    CombineAll<Traits::kValueDim, Traits::kRows, Traits::kConsumerWarps>(args_, shared_.sequences, warp_,
                                                                         place_.lane);
  }

 private:
  static constexpr int kRowTiles = Traits::kRowTiles, kTeamRows = Traits::kTeamRows;
  using Scores = float[kRowTiles][4];

  __device__ __forceinline__ void Release(uint64_t* barrier) const {
    __syncwarp();
    if (place_.lane == 0) ptx::MbarrierArrive(barrier);
  }

  __device__ __forceinline__ void Attend(const FmhaItem& item) {
    Begin();
    const int32_t tiles = (item.end - item.begin + kFmhaTileKeys - 1) / kFmhaTileKeys;
    if constexpr (Traits::kOverlaps) {
      AttendOverlapped(item, tiles);
    } else {
      AttendInTurn(item, tiles);
    }
    if (EndsSplit(item, tiles)) CloseSplit();
    if constexpr (!Traits::kQueriesInRegisters) {
      Release(&shared_.query_empty[queries_.slot]);
      queries_.Next();
    }
  }

  // First key of the warp's in tile `i`.
  __device__ __forceinline__ int32_t FirstKey(const FmhaItem& item, int32_t i) const {
    return item.begin + i * kFmhaTileKeys + place_.quarter * 16;
  }

  __device__ __forceinline__ void AttendOverlapped(const FmhaItem& item, int32_t tiles) {
    Scores scores;
    // Weights of tile t - 1, scores of tile t, values of tile t - 2.
#pragma unroll 1
    for (int32_t t = 0;; ++t) {
      float rescale[kRowTiles][2], closed[kRowTiles][2];
      const bool closes = t > 1 && t <= tiles && EndsSplit(item, t - 1);
      if (closes) rows_.TakeMaxima(closed);
      if (t > 0 && t <= tiles) {
        exchange_.RaiseMaxima((t - 1) % 2, rows_.maximum, rescale);
        exchange_.StoreWeights((t - 1) % 2, rows_.maximum, scores);
      }
      const int32_t first_key = FirstKey(item, t);
      if (t > 1 && first_key < item.end) {
        ScoreAndAdd(t % 2, scores);
      } else {
        if (t < tiles) Score(first_key < item.end, scores);
        if (t > 1) AddValues(t % 2, item.end - item.begin - (t - 2) * kFmhaTileKeys);
      }
      if (closes) rows_.Fold(place_.lane, closed);
      if (t > tiles) return;
      if (t > 0) Copy(rescale, rescale_);
      if (t < tiles) {
        MaskScores<Traits>(args_, item, place_, listed_, first_key, scores);
        exchange_.StoreMaxima(t % 2, scores);
      }
      TeamBarrier();
    }
  }

  __device__ __forceinline__ void AttendInTurn(const FmhaItem& item, int32_t tiles) {
#pragma unroll 1
    for (int32_t i = 0; i < tiles; ++i) {
      Scores scores;
      Score(FirstKey(item, i) < item.end, scores);
      MaskScores<Traits>(args_, item, place_, listed_, FirstKey(item, i), scores);
      exchange_.StoreMaxima(i % 2, scores);
      TeamBarrier();
      if (i > 0 && EndsSplit(item, i)) CloseSplit();
      exchange_.RaiseMaxima(i % 2, rows_.maximum, rescale_);
      exchange_.StoreWeights(i % 2, rows_.maximum, scores);
      TeamBarrier();
      AddValues(i % 2, item.end - item.begin - i * kFmhaTileKeys);
    }
  }

  __device__ __forceinline__ static void Copy(const float (&from)[kRowTiles][2], float (&to)[kRowTiles][2]) {
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
      to[tile][0] = from[tile][0];
      to[tile][1] = from[tile][1];
    }
  }

  __device__ __forceinline__ void CloseSplit() {
    float closed[kRowTiles][2];
    rows_.TakeMaxima(closed);
    rows_.Fold(place_.lane, closed);
  }

  // Whether a split of a whole sequence ends before tile `i`, or with the item.
  __device__ __forceinline__ bool EndsSplit(const FmhaItem& item, int32_t i) const {
    if (!Traits::kFolds || !item.whole || item.splits.count == 1) return false;
    const int32_t key = item.begin + i * kFmhaTileKeys;
    return key >= item.end || key % item.splits.size == 0;
  }

  __device__ __forceinline__ void TeamBarrier() const {
    ptx::NamedBarrierSync(Traits::kTeams == 1 ? 2 : 2 + place_.team, 32 * Traits::kTeamWarps);
  }

  // Starts an item: its queries, and an empty softmax.
  __device__ __forceinline__ void Begin() {
    ptx::MbarrierWait(&shared_.query_full[queries_.slot], queries_.phase);
    if constexpr (Traits::kQueriesInRegisters) {
#pragma unroll
      for (int32_t tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
        for (int32_t step = 0; step < Traits::kKeyDim / 16; step += 2) {
          LoadQueries(step / 4, tile, step % 4, queries_in_registers_[tile][step],
                      queries_in_registers_[tile][step + 1]);
        }
      }
      Release(&shared_.query_empty[queries_.slot]);
      queries_.Next();
    }
    rows_.Clear();
  }

  // B fragments of two steps of a box of dimensions.
  __device__ __forceinline__ void LoadQueries(int32_t box, int32_t tile, int32_t step, uint32_t (&b0)[2],
                                              uint32_t (&b1)[2]) const {
    const uint8_t* queries =
        shared_.queries + queries_.slot * Traits::kQueryBytes + box * Traits::kQueryBoxBytes;
    QueryFragments<Traits>(queries, place_.team * kTeamRows + tile * 8, step, place_.lane, b0, b1);
  }

  // B fragments of Q^T: two steps of a box of dimensions.
  __device__ __forceinline__ void GetQueries(int32_t box, int32_t step,
                                             uint32_t (&b)[2][kRowTiles][2]) const {
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
      if constexpr (Traits::kQueriesInRegisters) {
#pragma unroll
        for (int32_t j = 0; j < 2; ++j) {
          b[j][tile][0] = queries_in_registers_[tile][box * 4 + step + j][0];
          b[j][tile][1] = queries_in_registers_[tile][box * 4 + step + j][1];
        }
      } else {
        LoadQueries(box, tile, step, b[0][tile], b[1][tile]);
      }
    }
  }

  // With key slots: which of the warp's keys of the tile in the current slot exist.
  __device__ __forceinline__ void FindListed() {
    if (args_.p.key_slots == nullptr) return;
    const uint2 mask = shared_.masks[ring_.slot];
    listed_ = (place_.quarter < 2 ? mask.x : mask.y) >> (place_.quarter % 2 * 16);
  }

  // S^T of the warp's 16 keys of the next tile; where there are none, -inf.
  __device__ __forceinline__ void Score(bool any, Scores& scores) {
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
      for (float& value : scores[tile]) value = any ? 0.0f : -INFINITY;
    }
#pragma unroll(Traits::kQueriesInRegisters ? Traits::kKeySlots : 1)
    for (int32_t slot = 0; slot < Traits::kKeySlots; ++slot) {
      ptx::MbarrierWait(&shared_.full[ring_.slot], ring_.phase);
      if (slot == 0) FindListed();
      if (any) ScoreSlot(shared_.SlotAddress(ring_.slot), slot, scores);
      if constexpr (!Traits::kValuesAreKeys) Release(&shared_.empty[ring_.slot]);
      ring_.Next();
    }
  }

  __device__ __forceinline__ void ScoreSlot(uint32_t address, int32_t slot, Scores& scores) {
    // Unrolled further, fragments from shared memory are fetched so far ahead that registers run out.
#pragma unroll(Traits::kQueriesInRegisters ? Traits::kSlotBoxes : 1)
    for (int32_t i = 0; i < Traits::kSlotBoxes; ++i) {
      const int32_t box = slot * Traits::kSlotBoxes + i;
#pragma unroll
      for (int32_t step = 0; step < 4; step += 2) {
        uint32_t a[2][4], b[2][kRowTiles][2];
        KeyFragments<Traits>(address + i * Traits::kBoxBytes, place_.quarter * 16, step, place_.lane, a);
        GetQueries(box, step, b);
#pragma unroll
        for (int32_t j = 0; j < 2; ++j) {
#pragma unroll
          for (int32_t tile = 0; tile < kRowTiles; ++tile) ptx::MmaM16N8K16(scores[tile], a[j], b[j][tile]);
        }
      }
    }
  }

  // Makes the sums and the output ready for a tile's values.
  __device__ __forceinline__ void Rescale(int32_t parity) {
    const float* sums = exchange_.Sums(parity);
    bool moves = false;
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
      const float* a = sums + tile * 32;
      constexpr int32_t kWarp = kRowTiles * 32;
      const float rescale = place_.lane / 4 % 2 ? rescale_[tile][1] : rescale_[tile][0];
      rows_.sum[tile] = FmhaAddToSum(rows_.sum[tile], rescale, a[0], a[kWarp], a[2 * kWarp], a[3 * kWarp]);
      moves |= rescale_[tile][0] != 1.0f || rescale_[tile][1] != 1.0f;
    }
    if (!__any_sync(~0u, moves)) return;
#pragma unroll
    for (int32_t box = 0; box < Traits::kValueBoxes; ++box) {
#pragma unroll
      for (int32_t tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) rows_.out[box][tile][i] *= rescale_[tile][i % 2];
      }
    }
  }

  // S^T of the warp's 16 keys of the next tile, and O^T += V^T P^T of the second tile before it, whose weights have this
  // parity and whose keys all exist. The two chains of products hide each other's latency.
  __device__ __forceinline__ void ScoreAndAdd(int32_t parity, Scores& scores) {
    constexpr int32_t kPairs = Traits::kKeyDim / 32, kSlotPairs = 2 * Traits::kSlotBoxes;
    static_assert(!Traits::kOverlaps || kPairs == 2 * Traits::kValueBoxes, "as many products of either kind");
    RingCursor<Traits::kSlots> values = ring_;
#pragma unroll
    for (int32_t slot = 0; slot < Traits::kKeySlots; ++slot) values.Next();
    uint32_t value_slots[Traits::kValueSlots];
    RingCursor<Traits::kSlots> next = values;
#pragma unroll
    for (uint32_t& slot : value_slots) {
      ptx::MbarrierWait(&shared_.full[next.slot], next.phase);
      slot = shared_.SlotAddress(next.slot);
      next.Next();
    }
    Rescale(parity);
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
      for (float& value : scores[tile]) value = 0.0f;
    }
    uint32_t weights[2][kRowTiles][2];
#pragma unroll
    for (int32_t pair = 0; pair < kPairs; ++pair) {
      const int32_t key_box = pair / 2, key_step = pair % 2 * 2;
      const int32_t value_box = pair % Traits::kValueBoxes, value_step = pair / Traits::kValueBoxes * 2;
      if (pair % kSlotPairs == 0) {
        ptx::MbarrierWait(&shared_.full[ring_.slot], ring_.phase);
        if (pair == 0) FindListed();
      }
      if (value_box == 0) exchange_.LoadWeights(parity, value_step, weights);
      uint32_t keys[2][4], queries[2][kRowTiles][2], a[2][4];
      KeyFragments<Traits>(shared_.SlotAddress(ring_.slot) + key_box % Traits::kSlotBoxes * Traits::kBoxBytes,
                           place_.quarter * 16, key_step, place_.lane, keys);
      GetQueries(key_box, key_step, queries);
      ValueFragments<Traits>(
          value_slots[value_box / Traits::kSlotBoxes] + value_box % Traits::kSlotBoxes * Traits::kBoxBytes,
          place_.quarter, value_step, kFmhaTileKeys, place_.lane, a);
#pragma unroll
      for (int32_t j = 0; j < 2; ++j) {
#pragma unroll
        for (int32_t tile = 0; tile < kRowTiles; ++tile)
          ptx::MmaM16N8K16(scores[tile], keys[j], queries[j][tile]);
#pragma unroll
        for (int32_t tile = 0; tile < kRowTiles; ++tile)
          ptx::MmaM16N8K16(rows_.out[value_box][tile], a[j], weights[j][tile]);
      }
      if (pair % kSlotPairs == kSlotPairs - 1) {
        Release(&shared_.empty[ring_.slot]);
        ring_.Next();
      }
    }
    __syncwarp();
#pragma unroll
    for (int32_t slot = 0; slot < Traits::kValueSlots; ++slot) {
      if (place_.lane == 0) ptx::MbarrierArrive(&shared_.empty[ring_.slot]);
      ring_.Next();
    }
  }

  // O^T += V^T P^T for the warp's quarter of the value dimensions, 16 of each box of 64. The first `valid` keys of the tile
  // are the item's.
  __device__ __forceinline__ void AddValues(int32_t parity, int32_t valid) {
    Rescale(parity);
    RingCursor<Traits::kSlots>& ring = ValueRing();
    uint32_t slots[Traits::kValueSlots];
    RingCursor<Traits::kSlots> next = ring;
#pragma unroll
    for (uint32_t& slot : slots) {
      if constexpr (!Traits::kValuesAreKeys) ptx::MbarrierWait(&shared_.full[next.slot], next.phase);
      slot = shared_.SlotAddress(next.slot);
      next.Next();
    }
#pragma unroll
    for (int32_t step = 0; step < 4; step += 2) {
      if (step * 16 < valid) AddSteps(parity, step, valid, slots);
    }
    __syncwarp();
#pragma unroll
    for (int32_t slot = 0; slot < Traits::kValueSlots; ++slot) {
      if (place_.lane == 0) ptx::MbarrierArrive(&shared_.empty[ring.slot]);
      ring.Next();
    }
  }

  // AddValues of the keys 16 step .. + 31.
  __device__ __forceinline__ void AddSteps(int32_t parity, int32_t step, int32_t valid,
                                           const uint32_t (&slots)[Traits::kValueSlots]) {
    uint32_t weights[2][kRowTiles][2];
    exchange_.LoadWeights(parity, step, weights);
#pragma unroll
    for (int32_t box = 0; box < Traits::kValueBoxes; ++box) {
      uint32_t a[2][4];
      ValueFragments<Traits>(slots[box / Traits::kSlotBoxes] + box % Traits::kSlotBoxes * Traits::kBoxBytes,
                             place_.quarter, step, valid, place_.lane, a);
#pragma unroll
      for (int32_t j = 0; j < 2; ++j) {
        if ((step + j) * 16 >= valid) break;
#pragma unroll
        for (int32_t tile = 0; tile < kRowTiles; ++tile)
          ptx::MmaM16N8K16(rows_.out[box][tile], a[j], weights[j][tile]);
      }
    }
  }

  __device__ __forceinline__ RingCursor<Traits::kSlots>& ValueRing() {
    if constexpr (Traits::kValuesAreKeys) {
      return value_ring_;
    } else {
      return ring_;
    }
  }

  const FmhaDecodeArgs& args_;
  const FmhaShared<Traits>& shared_;
  const int32_t warp_;
  const FmhaWarpPlace place_;
  const FmhaExchange<Traits> exchange_;
  RingCursor<Traits::kSlots> ring_, value_ring_;
  RingCursor<Traits::kQueryBuffers> queries_;
  uint32_t listed_ = 0;  // with key slots: which of the warp's keys exist

  uint32_t queries_in_registers_[Traits::kQueriesInRegisters ? kRowTiles : 1]
                                [Traits::kQueriesInRegisters ? Traits::kKeyDim / 16 : 1][2];
  FmhaRows<Traits> rows_;
  float rescale_[kRowTiles][2];  // of the tile whose values come next
};

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_CONSUMER_CUH_
