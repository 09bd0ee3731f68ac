// FMHA decode for sm_90: the consumer warps, which attend to the items with mma.sync.
//
// A team of four warps shares a tile of 64 keys. For the scores, S^T = K Q^T, each warp takes 16 of the keys; for the
// output, O^T = V^T P^T, each takes a quarter of the value dimensions and all keys, so that O needs no merging. What they
// exchange, the scores' maxima, the weights and the weights' sums, goes through shared memory, skewed by a tile so that one
// barrier a tile is enough:
//
//   [scores of tile i, their maxima] barrier [weights of tile i; values of tile i - 1]
//
// Query rows of one KV head (GQA group x query tokens) are packed into the N side: a group of 8 wastes nothing.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_CONSUMER_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_CONSUMER_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_sm90_fragments.cuh"
#include "kernels/cuda/fmha/fmha_decode_sm90_traits.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace tessera::cuda {

// One consumer warp. In fragments of S^T, P^T and O^T a lane holds query rows 8 tile + 2 (lane % 4) + {0, 1} of its team's,
// and keys or dimensions lane / 4 and lane / 4 + 8 (of 16).
template <class Traits>
class FmhaConsumer {
 public:
  __device__ FmhaConsumer(const FmhaDecodeArgs& args, const FmhaShared<Traits>& shared, int32_t warp,
                          int32_t lane)
      : args_(args),
        shared_(shared),
        warp_(warp),
        lane_(lane),
        quarter_(warp % Traits::kTeamWarps),
        team_(warp / Traits::kTeamWarps) {}

  __device__ void Run() {
    RingCursor<kFmhaItemQueue> queue;
    while (const FmhaItem* item = shared_.items.Wait(queue)) {
      Attend(*item);
      if (item->splits.count == 1) {
        WriteRows(*item);
      } else {
        WritePart(*item);
        PublishSplit<Traits::kValueDim, Traits::kRows, Traits::kConsumerWarps>(args_, *item, shared_.flag,
                                                                               warp_, lane_);
      }
      shared_.items.Release(queue, lane_);
    }
  }

 private:
  static constexpr int kRowTiles = Traits::kRowTiles, kTeamRows = Traits::kTeamRows;
  using Scores = float[kRowTiles][4];

  __device__ __forceinline__ void Release(uint64_t* barrier) const {
    __syncwarp();
    if (lane_ == 0) ptx::MbarrierArrive(barrier);
  }

  __device__ __forceinline__ void Attend(const FmhaItem& item) {
    Begin();
    const int32_t tiles = (item.end - item.begin + kFmhaTileKeys - 1) / kFmhaTileKeys;
#pragma unroll 1
    for (int32_t i = 0;; ++i) {
      Scores scores;
      if (i < tiles) {
        const int32_t first_key = item.begin + i * kFmhaTileKeys + quarter_ * 16;
        Score(first_key < item.end, scores);
        Mask(item, first_key, scores);
        StoreMaxima(i % 2, scores);
      }
      ptx::NamedBarrierSync(Traits::kTeams == 1 ? 2 : 2 + team_, 32 * Traits::kTeamWarps);
      float rescale[kRowTiles][2];
      if (i < tiles) {
        RaiseMaxima(i % 2, rescale);
        StoreWeights(i % 2, scores);
      }
      if (i > 0) AddValues((i - 1) % 2, item.end - item.begin - (i - 1) * kFmhaTileKeys);
      if (i == tiles) break;
#pragma unroll
      for (int32_t tile = 0; tile < kRowTiles; ++tile) {
        rescale_[tile][0] = rescale[tile][0];
        rescale_[tile][1] = rescale[tile][1];
      }
    }
    if constexpr (!Traits::kQueriesInRegisters) {
      Release(&shared_.query_empty[queries_.slot]);
      queries_.Next();
    }
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
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int32_t box = 0; box < Traits::kValueBoxes; ++box) {
        for (float& value : out_[box][tile]) value = 0.0f;
      }
      maximum_[tile][0] = maximum_[tile][1] = -INFINITY;
      sum_[tile] = 0.0f;
    }
  }

  // B fragments of two steps of a box of dimensions.
  __device__ __forceinline__ void LoadQueries(int32_t box, int32_t tile, int32_t step, uint32_t (&b0)[2],
                                              uint32_t (&b1)[2]) const {
    const uint8_t* queries =
        shared_.queries + queries_.slot * Traits::kQueryBytes + box * Traits::kQueryBoxBytes;
    QueryFragments<Traits>(queries, team_ * kTeamRows + tile * 8, step, lane_, b0, b1);
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
      if (slot == 0 && args_.p.key_slots != nullptr) {
        const uint2 mask = shared_.masks[ring_.slot];
        listed_ = (quarter_ < 2 ? mask.x : mask.y) >> (quarter_ % 2 * 16);
      }
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
        KeyFragments<Traits>(address + i * Traits::kBoxBytes, quarter_ * 16, step, lane_, a);
        if constexpr (Traits::kQueriesInRegisters) {
#pragma unroll
          for (int32_t tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
            for (int32_t j = 0; j < 2; ++j) {
              b[j][tile][0] = queries_in_registers_[tile][box * 4 + step + j][0];
              b[j][tile][1] = queries_in_registers_[tile][box * 4 + step + j][1];
            }
          }
        } else {
#pragma unroll
          for (int32_t tile = 0; tile < kRowTiles; ++tile)
            LoadQueries(box, tile, step, b[0][tile], b[1][tile]);
        }
#pragma unroll
        for (int32_t j = 0; j < 2; ++j) {
#pragma unroll
          for (int32_t tile = 0; tile < kRowTiles; ++tile) ptx::MmaM16N8K16(scores[tile], a[j], b[j][tile]);
        }
      }
    }
  }

  // Keys that a query row must not see; `first_key` is the position of the warp's first.
  __device__ __forceinline__ void Mask(const FmhaItem& item, int32_t first_key, Scores& scores) const {
    if (args_.p.key_slots != nullptr) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const bool exists = listed_ >> (lane_ / 4 + i / 2 * 8) & 1;
#pragma unroll
        for (int32_t tile = 0; tile < kRowTiles; ++tile) {
          if (!exists) scores[tile][i] = -INFINITY;
        }
      }
      return;
    }
    const int32_t length = item.splits.end, window = args_.p.sliding_window;
    // Keys that every query token sees need no mask.
    if (first_key + 16 <= length - args_.p.q_len + 1 && (window <= 0 || first_key >= length - window)) return;
    const int32_t group = args_.p.num_query_heads / args_.p.num_kv_heads;
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int32_t column = 0; column < 2; ++column) {
        const int32_t row = team_ * kTeamRows + tile * 8 + lane_ % 4 * 2 + column;
        const int32_t position = length - args_.p.q_len + min(row / group, args_.p.q_len - 1);
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {
          const int32_t key = first_key + lane_ / 4 + i * 8;
          if (key > position || (window > 0 && key <= position - window))
            scores[tile][i * 2 + column] = -INFINITY;
        }
      }
    }
  }

  // A pair of values that belong to the lane's two rows, one of which the lane keeps: that of row lane / 4 % 2. The other
  // goes to the lane that has the neighbouring key, whose value for the kept row comes back.
  struct Pair {
    float own, other;
  };
  __device__ __forceinline__ Pair Exchange(float first, float second) const {
    const bool odd = lane_ / 4 % 2;
    return {odd ? second : first, __shfl_xor_sync(~0u, odd ? first : second, 4)};
  }

  __device__ __forceinline__ float* Maxima(int32_t parity) const {
    return shared_.maxima + (team_ * 2 + parity) * (Traits::kTeamWarps * kTeamRows);
  }

  __device__ __forceinline__ void StoreMaxima(int32_t parity, const Scores& scores) const {
    float* maxima = Maxima(parity) + quarter_ * kTeamRows;
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
      const Pair pair =
          Exchange(fmaxf(scores[tile][0], scores[tile][2]), fmaxf(scores[tile][1], scores[tile][3]));
      float maximum = fmaxf(pair.own, pair.other);
      maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 8));
      maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 16));
      if (lane_ < 8) maxima[tile * 8 + lane_ % 4 * 2 + lane_ / 4] = maximum;
    }
  }

  // A row moves for its own scores alone: its result must not depend on the rows beside it.
  __device__ __forceinline__ void RaiseMaxima(int32_t parity, float (&rescale)[kRowTiles][2]) {
    const float* maxima = Maxima(parity) + lane_ % 4 * 2;
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
      float2 largest = *reinterpret_cast<const float2*>(maxima + tile * 8);
#pragma unroll
      for (int32_t warp = 1; warp < Traits::kTeamWarps; ++warp) {
        const float2 other = *reinterpret_cast<const float2*>(maxima + warp * kTeamRows + tile * 8);
        largest.x = fmaxf(largest.x, other.x);
        largest.y = fmaxf(largest.y, other.y);
      }
      rescale[tile][0] = FmhaRaiseMaximum(__fmul_rn(largest.x, args_.scale_log2), &maximum_[tile][0]);
      rescale[tile][1] = FmhaRaiseMaximum(__fmul_rn(largest.y, args_.scale_log2), &maximum_[tile][1]);
    }
  }

  __device__ __forceinline__ uint8_t* Weights(int32_t parity) const {
    return shared_.weights + (team_ * 2 + parity) * (kTeamRows * 128);
  }
  __device__ __forceinline__ float* Sums(int32_t parity) const {
    return shared_.sums + (team_ * 2 + parity) * (Traits::kTeamWarps * kRowTiles * 32) + lane_;
  }

  // Weights of the warp's 16 keys, and their sums by residue: lane l stores those of residue l / 8 in row
  // 2 (l % 4) + l / 4 % 2.
  __device__ __forceinline__ void StoreWeights(int32_t parity, const Scores& scores) const {
    uint8_t* weights = Weights(parity);
    float* sums = Sums(parity) + quarter_ * kRowTiles * 32;
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
      float p[4];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        p[i] = FmhaWeight(scores[tile][i], args_.scale_log2, FmhaBase(maximum_[tile][i % 2]));
      }
      const Pair low = Exchange(p[0], p[1]), high = Exchange(p[2], p[3]);
      sums[tile * 32] = FmhaStepSum(low.own, low.other, high.own, high.other);
#pragma unroll
      for (int32_t half = 0; half < 2; ++half) {
        const uint32_t pair = ptx::MovmatrixTrans(ptx::PackBf16(p[2 * half], p[2 * half + 1]));
        uint8_t* chunk = weights + Row128Offset(tile * 8 + lane_ / 4, quarter_ * 2 + half);
        reinterpret_cast<uint32_t*>(chunk)[lane_ % 4] = pair;
      }
    }
  }

  // O^T += V^T P^T for the warp's quarter of the value dimensions, 16 of each box of 64. The first `valid` keys of the tile
  // are the item's.
  __device__ __forceinline__ void AddValues(int32_t parity, int32_t valid) {
    const float* sums = Sums(parity);
    bool moves = false;
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
      const float* a = sums + tile * 32;
      constexpr int32_t kWarp = kRowTiles * 32;
      const float rescale = lane_ / 4 % 2 ? rescale_[tile][1] : rescale_[tile][0];
      sum_[tile] = FmhaAddToSum(sum_[tile], rescale, a[0], a[kWarp], a[2 * kWarp], a[3 * kWarp]);
      moves |= rescale_[tile][0] != 1.0f || rescale_[tile][1] != 1.0f;
    }
    if (__any_sync(~0u, moves)) {
#pragma unroll
      for (int32_t box = 0; box < Traits::kValueBoxes; ++box) {
#pragma unroll
        for (int32_t tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) out_[box][tile][i] *= rescale_[tile][i % 2];
        }
      }
    }
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
      if (lane_ == 0) ptx::MbarrierArrive(&shared_.empty[ring.slot]);
      ring.Next();
    }
  }

  // The same of the keys 16 step .. + 31.
  __device__ __forceinline__ void AddSteps(int32_t parity, int32_t step, int32_t valid,
                                           const uint32_t (&slots)[Traits::kValueSlots]) {
    const uint32_t stored = ptx::SharedAddress(Weights(parity));
    uint32_t weights[2][kRowTiles][2];
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
      uint32_t r[4];
      ptx::LdmatrixX4(r, stored + Row128Offset(tile * 8 + lane_ % 8, step * 2 + lane_ / 8));
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) weights[i / 2][tile][i % 2] = r[i];
    }
#pragma unroll
    for (int32_t box = 0; box < Traits::kValueBoxes; ++box) {
      uint32_t a[2][4];
      ValueFragments<Traits>(slots[box / Traits::kSlotBoxes] + box % Traits::kSlotBoxes * Traits::kBoxBytes,
                             quarter_, step, valid, lane_, a);
#pragma unroll
      for (int32_t j = 0; j < 2; ++j) {
        if ((step + j) * 16 >= valid) break;
#pragma unroll
        for (int32_t tile = 0; tile < kRowTiles; ++tile)
          ptx::MmaM16N8K16(out_[box][tile], a[j], weights[j][tile]);
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

  // The sums of the lane's two rows, over all residues.
  __device__ __forceinline__ void TotalSums(float (&total)[kRowTiles][2]) const {
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
      // FmhaCloseSum, the residues in lanes that differ by 8 and 16.
      float sum = sum_[tile];
      sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 8));
      sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 16));
      const float other = __shfl_xor_sync(~0u, sum, 4);
      total[tile][0] = lane_ / 4 % 2 ? other : sum;
      total[tile][1] = lane_ / 4 % 2 ? sum : other;
    }
  }

  // The result of an item that is its sequence's only split.
  __device__ __forceinline__ void WriteRows(const FmhaItem& item) const {
    const int32_t group = args_.p.num_query_heads / args_.p.num_kv_heads;
    float total[kRowTiles][2];
    TotalSums(total);
    __nv_bfloat16* first =
        static_cast<__nv_bfloat16*>(args_.p.out) +
        (FirstToken(args_, item.sequence) * args_.p.num_query_heads + item.kv_head * group) *
            Traits::kValueDim +
        quarter_ * 16;
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
      const int32_t first_row = team_ * kTeamRows + tile * 8;
      float inverse[2];
#pragma unroll
      for (int32_t column = 0; column < 2; ++column) {
        const int32_t row = first_row + lane_ % 4 * 2 + column;
        inverse[column] = args_.p.v_scale * FmhaInverseSum(args_.p.sinks, item.kv_head * group + row % group,
                                                           maximum_[tile][column], total[tile][column]);
      }
      const auto store = [&](int32_t row, int32_t dim, uint32_t pair) {
        if (row >= args_.group_rows) return;
        const int64_t head = row / group * args_.p.num_query_heads + row % group;
        *reinterpret_cast<uint32_t*>(first + head * Traits::kValueDim + dim) = pair;
      };
#pragma unroll
      for (int32_t box = 0; box < Traits::kValueBoxes; ++box) {
        const float(&out)[4] = out_[box][tile];
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {
          if constexpr (Traits::kIsE4m3) {
            store(first_row + lane_ % 4 * 2 + i, box * 64 + lane_ / 4 * 2,
                  ptx::PackBf16(out[i] * inverse[i], out[i + 2] * inverse[i]));
          } else {
            store(first_row + lane_ / 4, box * 64 + i * 8 + lane_ % 4 * 2,
                  ptx::MovmatrixTrans(ptx::PackBf16(out[2 * i] * inverse[0], out[2 * i + 1] * inverse[1])));
          }
        }
      }
    }
  }

  // The result of one of several splits, to the workspace.
  __device__ __forceinline__ void WritePart(const FmhaItem& item) const {
    const int64_t first = (int64_t{item.global_split} * args_.p.num_kv_heads + item.kv_head) * Traits::kRows;
    float total[kRowTiles][2];
    TotalSums(total);
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int32_t column = 0; column < 2; ++column) {
        const int32_t row = team_ * kTeamRows + tile * 8 + lane_ % 4 * 2 + column;
        if (row >= args_.group_rows) continue;
        if (quarter_ == 0 && lane_ < 4) {
          args_.split_stats[first + row] = make_float2(maximum_[tile][column], total[tile][column]);
        }
        float* target = args_.split_out + (first + row) * Traits::kValueDim + quarter_ * 16;
#pragma unroll
        for (int32_t box = 0; box < Traits::kValueBoxes; ++box) {
          const float low = out_[box][tile][column], high = out_[box][tile][column + 2];
          if constexpr (Traits::kIsE4m3) {
            *reinterpret_cast<float2*>(target + box * 64 + lane_ / 4 * 2) = make_float2(low, high);
          } else {
            target[box * 64 + lane_ / 4] = low;
            target[box * 64 + lane_ / 4 + 8] = high;
          }
        }
      }
    }
  }

  const FmhaDecodeArgs& args_;
  const FmhaShared<Traits>& shared_;
  int32_t warp_, lane_, quarter_, team_;
  RingCursor<Traits::kSlots> ring_, value_ring_;
  RingCursor<Traits::kQueryBuffers> queries_;
  uint32_t listed_ = 0;  // with key slots: which of the warp's keys exist

  uint32_t queries_in_registers_[Traits::kQueriesInRegisters ? kRowTiles : 1]
                                [Traits::kQueriesInRegisters ? Traits::kKeyDim / 16 : 1][2];
  float out_[Traits::kValueBoxes][kRowTiles][4];  // O^T: dimensions 64 box + 16 quarter + ..
  float maximum_[kRowTiles][2];
  float sum_[kRowTiles];         // of residue lane / 8 in row 8 tile + 2 (lane % 4) + lane / 4 % 2
  float rescale_[kRowTiles][2];  // of the tile whose values come next
};

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM90_CONSUMER_CUH_
