// FMHA decode for sm_100: the warps that weigh the keys, rescale the output and write it.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_SOFTMAX_CUH_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_SOFTMAX_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/fmha/fmha_decode_combine.cuh"
#include "kernels/cuda/fmha/fmha_decode_sm100_traits.cuh"
#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/ptx/sync.cuh"
#include "kernels/cuda/ptx/tcgen05.cuh"

namespace tessera::cuda {

// Loads the columns of this thread's lane that belong to a tile of query rows.
template <class Traits, class Use>
__device__ __forceinline__ void ForEachRowChunk(uint32_t address, Use use) {
#pragma unroll
  for (int32_t first = 0; first < Traits::kRows; first += Traits::kChunk) {
    uint32_t values[Traits::kChunk];
    ptx::Tcgen05Ld32x32b(values, address + first);
    ptx::Tcgen05WaitLd(values);
    use(first, values);
  }
}

// The softmax of warps 0 to 3, one key a thread, all query rows of the item.
template <class Traits>
class FmhaSoftmax {
 public:
  __device__ FmhaSoftmax(const FmhaDecodeArgs& args, const FmhaSm100Shared<Traits>& shared, uint32_t tmem,
                         int32_t warp)
      : args_(args), shared_(shared), tmem_(ptx::TmemLane(tmem, warp * 32)), warp_(warp) {
    if (Thread() < Traits::kRows) {
      const int32_t group = args.p.num_query_heads / args.p.num_kv_heads;
      shared.maximum[Thread()] = -INFINITY;
      shared.offset[Thread()] = Thread() / group * args.p.num_query_heads + Thread() % group;
    }
    Sync();
  }

  __device__ void Begin() {
#pragma unroll
    for (float& sum : sums_) sum = 0.0f;
  }

  // Weighs tile `tile` (of all items), whose first key is `key`, of an item.
  __device__ void WeighTile(const FmhaItem& item, int32_t key, uint32_t tile) {
    if (args_.p.key_slots != nullptr) NoteListedKey(item, key + Thread());
    ptx::MbarrierWait(&shared_.s_full[tile % 2], tile / 2 % 2);
    ptx::Tcgen05FenceAfterThreadSync();
    float scores[Traits::kRows];
    ForEachRowChunk<Traits>(tmem_ + tile % 2 * Traits::kColumns, [&](int32_t first, const auto& values) {
#pragma unroll
      for (int32_t i = 0; i < Traits::kChunk; ++i)
        scores[first + i] = __uint_as_float(values[i]) * args_.scale_log2;
    });
    // Keys of this item that every query token sees need no mask.
    const int32_t length = item.splits.end;
    if (args_.p.key_slots != nullptr || key + Traits::kTileKeys > min(item.end, length - args_.p.q_len + 1) ||
        (args_.p.sliding_window > 0 && key < length - args_.p.sliding_window)) {
      MaskScores(item, key + Thread(), scores);
    }
    bool exceeds = false;
#pragma unroll
    for (int32_t row = 0; row < Traits::kRows; ++row) {
      exceeds |= scores[row] > shared_.maximum[row] + kFmhaMaximumSlack;
    }
    const uint32_t values_added = (tile + 1) % 2;  // phase of p_empty: the tile before is done
    if (ptx::NamedBarrierRedOr(1, kThreads, exceeds)) {
      RaiseMaxima(scores);
      ptx::MbarrierWait(shared_.p_empty, values_added);
      if (key > item.begin) RescaleOutput();
    }
    ptx::MbarrierWait(shared_.p_empty, values_added);
    StoreWeights(scores);
    ptx::FenceProxyAsyncShared();
    ptx::Tcgen05FenceBeforeThreadSync();
    __syncwarp();
    if (Lane() == 0) ptx::MbarrierArrive(shared_.p_full);
  }

  // Finishes an item whose last tile was `tile`. What the next item writes to the statistics it writes after a barrier of
  // its own, but for the maxima: theirs are reset here, before this item's last barrier.
  __device__ void WriteItem(const FmhaItem& item, uint32_t tile) {
#pragma unroll
    for (int32_t row = 0; row < Traits::kRows; ++row) {
      float sum = sums_[row];
#pragma unroll
      for (int32_t distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
      if (Lane() == 0) shared_.by_warp[warp_ * Traits::kRows + row] = sum;
    }
    Sync();
    const bool whole = item.splits.count == 1;
    const int64_t first_part = (int64_t{item.part} * args_.p.num_kv_heads + item.kv_head) * Traits::kRows;
    if (const int32_t row = Thread(); row < args_.group_rows) {
      float sum = 0.0f;
      for (int32_t w = 0; w < Traits::kSoftmaxWarps; ++w) sum += shared_.by_warp[w * Traits::kRows + row];
      const int32_t group = args_.p.num_query_heads / args_.p.num_kv_heads;
      const float maximum = shared_.maximum[row];
      if (whole) {
        shared_.factor[row] =
            args_.p.v_scale * FmhaInverseSum(args_.p.sinks, item.kv_head * group + row % group, maximum, sum);
      } else {
        args_.split_stats[first_part + row] = make_float2(maximum, sum);
      }
    }
    if (Thread() < Traits::kRows) shared_.maximum[Thread()] = -INFINITY;
    Sync();
    ptx::MbarrierWait(shared_.p_empty, tile % 2);
    ptx::Tcgen05FenceAfterThreadSync();
    if (whole) {
      const int64_t head = FirstToken(args_, item.sequence) * args_.p.num_query_heads +
                           item.kv_head * (args_.p.num_query_heads / args_.p.num_kv_heads);
      __nv_bfloat16* out = static_cast<__nv_bfloat16*>(args_.p.out) + head * Traits::kValueDim;
      ForEachOutput([&](int32_t row, int32_t dim, float value) {
        out[int64_t{shared_.offset[row]} * Traits::kValueDim + dim] =
            __float2bfloat16(value * shared_.factor[row]);
      });
    } else {
      float* out = args_.split_out + first_part * Traits::kValueDim;
      ForEachOutput(
          [&](int32_t row, int32_t dim, float value) { out[row * Traits::kValueDim + dim] = value; });
      if (item.joins) {
        CombineTogether<Traits::kValueDim, Traits::kRows, Traits::kSoftmaxWarps>(args_, item, warp_, Lane());
      }
    }
  }

 private:
  static constexpr int kThreads = 32 * Traits::kSoftmaxWarps;

  // Of the four warps, which are the CTA's first. Not members: registers are dear.
  static __device__ int32_t Thread() { return threadIdx.x; }
  static __device__ int32_t Lane() { return threadIdx.x % 32; }
  __device__ void Sync() const { ptx::NamedBarrierSync(1, kThreads); }

  // Keeps which key this thread has, its place in the list, or one that no query row sees. Before the scores are loaded, and
  // in shared memory: with them registers are dear.
  __device__ __forceinline__ void NoteListedKey(const FmhaItem& item, int32_t key) const {
    const bool exists = key < item.end && ListedSlot(args_, item.sequence, key) >= 0;
    shared_.listed_key[Thread()] = exists ? key : item.splits.end;
  }

  // This thread's key is not for every query row, or for none: past the item's end, or an empty place of a list.
  __device__ __forceinline__ void MaskScores(const FmhaItem& item, int32_t key,
                                             float (&scores)[Traits::kRows]) const {
    const int32_t length = item.splits.end;
    if (args_.p.key_slots != nullptr) key = shared_.listed_key[Thread()];
    if (key >= item.end) key = length;
    const int32_t group = args_.p.num_query_heads / args_.p.num_kv_heads;
    const int32_t window = args_.p.sliding_window > 0 ? args_.p.sliding_window : length;
    int32_t position = length - args_.p.q_len, left = group;  // rows left of this query token
#pragma unroll
    for (int32_t row = 0; row < Traits::kRows; ++row) {
      if (key > position || key <= position - window) scores[row] = -INFINITY;
      if (--left == 0) {
        left = group;
        position = min(position + 1, length - 1);
      }
    }
  }

  // Lets the maxima of the rows whose scores exceed them by more than the slack follow. A row moves for its own scores
  // alone: its result must not depend on the rows beside it.
  __device__ __forceinline__ void RaiseMaxima(const float (&scores)[Traits::kRows]) {
#pragma unroll
    for (int32_t row = 0; row < Traits::kRows; ++row) {
      float maximum = scores[row];
#pragma unroll
      for (int32_t distance = 16; distance > 0; distance /= 2) {
        maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, distance));
      }
      if (Lane() == 0) shared_.by_warp[warp_ * Traits::kRows + row] = maximum;
    }
    Sync();
    if (const int32_t row = Thread(); row < Traits::kRows) {
      float grown = shared_.by_warp[row];
      for (int32_t w = 1; w < Traits::kSoftmaxWarps; ++w)
        grown = fmaxf(grown, shared_.by_warp[w * Traits::kRows + row]);
      const float maximum = shared_.maximum[row];
      const bool moves = grown > maximum + kFmhaMaximumSlack;
      shared_.factor[row] = moves ? ptx::Exp2(maximum - grown) : 1.0f;
      if (moves) shared_.maximum[row] = grown;
    }
    Sync();
#pragma unroll
    for (int32_t row = 0; row < Traits::kRows; ++row) sums_[row] *= shared_.factor[row];
  }

  // This thread's dimension of O^T, 128 dimensions after 128. With 64 dimensions two warps hold a copy.
  static constexpr int kOutWarps = Traits::kValueDim < 128 ? 2 : 4;

  __device__ __forceinline__ void RescaleOutput() const {
    if (warp_ >= kOutWarps) return;
    ptx::Tcgen05FenceAfterThreadSync();
#pragma unroll 1
    for (int32_t slot = 0; slot < Traits::kValueSlots; ++slot) {
      const uint32_t address = tmem_ + Traits::kOutColumn + slot * Traits::kColumns;
      ForEachRowChunk<Traits>(address, [&](int32_t first, auto& values) {
#pragma unroll
        for (int32_t i = 0; i < Traits::kChunk; ++i) {
          values[i] = __float_as_uint(__uint_as_float(values[i]) * shared_.factor[first + i]);
        }
        ptx::Tcgen05St32x32b(address + first, values);
      });
    }
    ptx::Tcgen05WaitSt();
  }

  // Weights of this thread's key to shared memory, eight rows at a time, and to the sums.
  __device__ __forceinline__ void StoreWeights(const float (&scores)[Traits::kRows]) {
#pragma unroll
    for (int32_t first = 0; first < Traits::kRows; first += 8) {
      uint32_t pairs[4];
#pragma unroll
      for (int32_t i = 0; i < 8; i += 2) {
        float weight[2];
#pragma unroll
        for (int32_t j = 0; j < 2; ++j) {
          const float base = shared_.maximum[first + i + j];
          weight[j] = ptx::Exp2(scores[first + i + j] - (base == -INFINITY ? 0.0f : base));
          sums_[first + i + j] += weight[j];
        }
        pairs[i / 2] = ptx::PackBf16(weight[0], weight[1]);
      }
      reinterpret_cast<uint4*>(shared_.weights)[first / 8 * Traits::kTileKeys + Thread()] =
          make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }

  template <class Use>
  __device__ __forceinline__ void ForEachOutput(Use use) const {
    if (warp_ >= kOutWarps) return;
#pragma unroll 1
    for (int32_t slot = 0; slot < Traits::kValueSlots; ++slot) {
      ForEachRowChunk<Traits>(tmem_ + Traits::kOutColumn + slot * Traits::kColumns,
                              [&](int32_t first, const auto& values) {
#pragma unroll
                                for (int32_t i = 0; i < Traits::kChunk; ++i) {
                                  if (first + i < args_.group_rows) {
                                    use(first + i, slot * 128 + Thread(), __uint_as_float(values[i]));
                                  }
                                }
                              });
    }
  }

  const FmhaDecodeArgs& args_;
  const FmhaSm100Shared<Traits>& shared_;
  uint32_t tmem_;
  int32_t warp_;
  float sums_[Traits::kRows];  // of this thread's keys
};

// The role of warps 0 to 3.
template <class Traits>
__device__ void AttendTiles(const FmhaDecodeArgs& args, const FmhaSm100Shared<Traits>& shared, uint32_t tmem,
                            int32_t warp) {
  FmhaSoftmax<Traits> softmax(args, shared, tmem, warp);
  uint32_t tile = 0;  // of all items
  // The place in the queue is found from one count: registers are dear.
  for (uint32_t taken = 0;; ++taken) {
    RingCursor<kFmhaItemQueue> queue = {static_cast<int32_t>(taken % kFmhaItemQueue),
                                        taken / kFmhaItemQueue % 2};
    const FmhaItem* item = shared.items.Wait(queue);
    if (item == nullptr) break;
    softmax.Begin();
    for (int32_t key = item->begin; key < item->end; key += Traits::kTileKeys)
      softmax.WeighTile(*item, key, tile++);
    softmax.WriteItem(*item, tile - 1);
    shared.items.Release(queue, threadIdx.x % 32);
  }
  CombineAll<Traits::kValueDim, Traits::kRows, Traits::kSoftmaxWarps>(args, shared.sequences, warp,
                                                                      threadIdx.x % 32);
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SM100_SOFTMAX_CUH_
