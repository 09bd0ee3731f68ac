// How a token's keys are cut into splits: a function of its position and the window alone, shared by host and device.
#ifndef TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SPLIT_H_
#define TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SPLIT_H_

#include <cstdint>

#include "kernels/host_device.h"

namespace tessera::cuda {

inline constexpr int32_t kFmhaTileKeys = 64;
inline constexpr int32_t kFmhaMaxSplits = 32;  // one lane of a warp a split, when they are combined

// Query tokens in an aligned group of this many share the size of their splits, so that a token's result does not depend
// on which of them are computed together.
inline constexpr int32_t kFmhaSplitGroup = 32;

struct FmhaSplits {
  int32_t begin;  // first key that any query token sees, rounded down to a tile
  int32_t end;    // the sequence's length
  int32_t size;   // keys of a split, a power of two; splits end at its multiples, the first may begin later
  int32_t count;  // 1 to kFmhaMaxSplits

  TESSERA_HOST_DEVICE int32_t Begin(int32_t split) const {
    return split == 0 ? begin : (begin / size + split) * size;
  }
  TESSERA_HOST_DEVICE int32_t End(int32_t split) const {
    const int32_t next = (begin / size + split + 1) * size;
    return next < end ? next : end;
  }
};

// About 16 splits up to 8192 keys and 32 beyond, of 128 keys at least: enough that a sequence alone fills the device. That
// writing and reading many partial results costs batches nothing is up to the kernels, which fold the splits of a sequence
// where there are sequences enough. `length` counts the keys up to and including the last query token's own; the query
// tokens must lie in one aligned group.
TESSERA_HOST_DEVICE FmhaSplits MakeFmhaSplits(int32_t length, int32_t sliding_window) {
  const int32_t group_end = (length + kFmhaSplitGroup - 1) / kFmhaSplitGroup * kFmhaSplitGroup;
  FmhaSplits splits;
  int32_t first = sliding_window > 0 ? group_end - kFmhaSplitGroup + 1 - sliding_window : 0;
  if (first < 0) first = 0;
  splits.begin = first / kFmhaTileKeys * kFmhaTileKeys;
  splits.end = length;
  const int32_t span = group_end - splits.begin;
  const int32_t target = span <= 8192 ? 16 : kFmhaMaxSplits;
  splits.size = 128;
  while ((group_end + splits.size - 1) / splits.size - splits.begin / splits.size > target) splits.size *= 2;
  splits.count = (length + splits.size - 1) / splits.size - splits.begin / splits.size;
  return splits;
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_FMHA_FMHA_DECODE_SPLIT_H_
