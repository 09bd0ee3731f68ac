#include "kernels/cuda/fmha/fmha_decode.h"

#include <cuda.h>

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/fmha/fmha_decode_common.cuh"
#include "kernels/cuda/fmha/fmha_decode_launch.h"
#include "kernels/cuda/fmha/fmha_decode_split.h"
#include "kernels/cuda/tensor_map.h"

namespace tessera::cuda {
namespace {

size_t AlignUp(size_t bytes) { return (bytes + 255) / 256 * 256; }

bool IsHopper() { return ThisDevice().major == 9; }

// Query rows of one item at most: registers and shared memory hold no more.
int32_t MostRows(int32_t v_head_dim, FmhaKvFormat format) {
  if (IsHopper()) return v_head_dim >= 256 || format == FmhaKvFormat::kE4m3 ? 32 : 64;
  return v_head_dim == 512 ? 64 : v_head_dim == 256 ? 16 : 32;
}

int32_t MostQueryTokens(int32_t v_head_dim) { return v_head_dim == 256 ? 16 : 32; }

// How the query rows of a KV head are divided into items.
struct RowGroups {
  int32_t repeat;  // parts of a KV head's query heads
  int32_t rows;    // of a part
  int32_t
      padded;  // that the kernel computes: 8, 16, 32 or 64; not 8 for 512 value dimensions, on sm_100 nor 32

  RowGroups(int32_t q_len, int32_t group, int32_t v_head_dim, FmhaKvFormat format) : repeat(1) {
    const int32_t most = MostRows(v_head_dim, format);
    while (repeat < group && (group % repeat != 0 || q_len * (group / repeat) > most)) ++repeat;
    rows = q_len * (group / repeat);
    const bool wide = v_head_dim == 512;
    padded = wide ? 16 : 8;
    while (padded < rows) padded *= wide && !IsHopper() ? 4 : 2;
  }
};

constexpr int32_t kMostKvHeads = 256;  // parts of a KV head counted singly

struct Workspace {
  size_t arrivals, stats, out, total;  // byte offsets
};

Workspace LayOutWorkspace(int32_t num_sequences, int32_t kv_heads, const RowGroups& groups,
                          int32_t v_head_dim) {
  const size_t rows = size_t(num_sequences) * kFmhaMaxSplits * kv_heads * groups.repeat * groups.padded;
  Workspace w;
  w.arrivals = 256;  // the scheduling counters come first
  // Sized for the largest call, so that it stays where it is, and zero, whatever the size of the call.
  w.stats = w.arrivals + size_t(kFmhaMaxSequences) * kMostKvHeads * sizeof(int32_t);
  w.out = w.stats + AlignUp(rows * sizeof(float2));
  w.total = w.out + AlignUp(rows * v_head_dim * sizeof(float));
  return w;
}

int32_t ValueDim(const FmhaDecodeParams& p) { return p.v_head_dim == 0 ? p.head_dim : p.v_head_dim; }

bool IsMla(const FmhaDecodeParams& p) { return p.head_dim == 576 && p.v_head_dim == 512; }

FmhaDecodeLauncher* FindE4m3Launcher(const FmhaDecodeParams& p) {
  if (IsMla(p)) return LaunchFmhaDecodeSm90E4m3Mla;
  switch (p.head_dim) {
    case 64:
      return LaunchFmhaDecodeSm90E4m3D64;
    case 128:
      return LaunchFmhaDecodeSm90E4m3D128;
    case 256:
      return LaunchFmhaDecodeSm90E4m3D256;
    default:
      return LaunchFmhaDecodeSm90E4m3D512;
  }
}

// The kernel for the shape, which CheckShapes takes, on a device of compute capability `major`.
FmhaDecodeLauncher* FindLauncher(const FmhaDecodeParams& p, int32_t major) {
  const bool hopper = major == 9;
  if (hopper && p.kv_format == FmhaKvFormat::kE4m3) return FindE4m3Launcher(p);
  if (IsMla(p)) return hopper ? LaunchFmhaDecodeSm90Mla : LaunchFmhaDecodeSm100Mla;
  switch (p.head_dim) {
    case 64:
      return hopper ? LaunchFmhaDecodeSm90D64 : LaunchFmhaDecodeSm100D64;
    case 128:
      return hopper ? LaunchFmhaDecodeSm90D128 : LaunchFmhaDecodeSm100D128;
    case 256:
      return hopper ? LaunchFmhaDecodeSm90D256 : LaunchFmhaDecodeSm100D256;
    default:
      return hopper ? LaunchFmhaDecodeSm90D512 : LaunchFmhaDecodeSm100D512;
  }
}

const char* CheckShapes(const FmhaDecodeParams& p) {
  if (!p.q || !p.out || !p.k_cache || (!p.block_table && !p.key_slots) || !p.lengths || !p.workspace) {
    return "fmha decode: a required pointer is null";
  }
  if ((p.v_cache == nullptr) != IsMla(p))
    return "fmha decode: v_cache must be null for MLA (576/512), and only there";
  if (p.num_sequences < 1 || p.num_sequences > kFmhaMaxSequences)
    return "fmha decode: num_sequences must be 1 to 512";
  if (p.num_kv_heads < 1 || p.num_query_heads < 1 || p.num_query_heads % p.num_kv_heads != 0) {
    return "fmha decode: num_query_heads must be a multiple of num_kv_heads";
  }
  const bool known = p.head_dim == 64 || p.head_dim == 128 || p.head_dim == 256 || p.head_dim == 512;
  if (!IsMla(p) && (!known || ValueDim(p) != p.head_dim)) {
    return "fmha decode: head_dim must be 64, 128, 256 or 512, or 576 with v_head_dim 512";
  }
  if (p.q_len < 1 || p.q_len > MostQueryTokens(ValueDim(p))) {
    return "fmha decode: q_len must be 1 to 32, or 16 for head_dim 256";
  }
  if (p.block_size < 16 || p.block_size > 256 || (p.block_size & (p.block_size - 1)) != 0) {
    return "fmha decode: block_size must be a power of two from 16 to 256";
  }
  if (p.num_blocks < 1 || (p.key_slots ? p.key_slots_stride : p.block_table_stride) < 1)
    return "fmha decode: num_blocks and block_table_stride (or key_slots_stride) must be positive";
  if (p.key_slots && (p.q_len != 1 || p.sliding_window != 0))
    return "fmha decode: with key_slots q_len must be 1 and sliding_window 0";
  if (int64_t{p.num_blocks} * p.num_kv_heads * p.block_size > INT32_MAX) {
    return "fmha decode: num_blocks * num_kv_heads * block_size must fit 31 bits";
  }
  const RowGroups groups(p.q_len, p.num_query_heads / p.num_kv_heads, ValueDim(p), p.kv_format);
  if (p.num_kv_heads * groups.repeat > kMostKvHeads) {
    return "fmha decode: num_kv_heads, or the parts that many query heads of one are cut into, must not "
           "exceed 256";
  }
  if (p.sliding_window < 0) return "fmha decode: sliding_window must not be negative";
  return nullptr;
}

const char* EncodeMaps(const FmhaDecodeParams& p, const RowGroups& groups, FmhaTensorMaps* maps) {
  // A cache is a matrix of one row a (block, KV head, slot).
  TmaTensor keys;
  keys.data = p.k_cache;
  keys.element_bytes = p.kv_format == FmhaKvFormat::kE4m3 ? 1 : 2;
  keys.sizes[0] = keys.row = p.head_dim;
  keys.sizes[1] = uint64_t(p.num_blocks) * p.num_kv_heads * p.block_size;
  // Listed keys are gathered row by row.
  keys.box[0] = p.key_slots ? 1 : std::min(p.block_size, kFmhaTileKeys);
  TmaTensor values = keys;
  values.sizes[0] = ValueDim(p);
  if (p.v_cache != nullptr) {
    values.data = p.v_cache;
    values.row = ValueDim(p);
  }
  TmaTensor queries;
  queries.data = p.q;
  queries.rank = 3;
  queries.sizes[0] = queries.row = p.head_dim;
  queries.sizes[1] = p.num_query_heads;
  // How many tokens q holds is not known where sequences say which are theirs; none lies past their words.
  queries.sizes[2] = p.first_tokens ? 1 << 24 : uint64_t(p.num_sequences) * p.q_len;
  queries.box[0] = groups.rows / p.q_len;
  queries.box[1] = p.q_len;
  if (const char* error = EncodeTensorMap(keys, &maps->k)) return error;
  if (const char* error = EncodeTensorMap(values, &maps->v)) return error;
  return EncodeTensorMap(queries, &maps->q);
}

}  // namespace

size_t FmhaDecodeWorkspaceBytes(int32_t num_sequences, int32_t q_len, int32_t num_query_heads,
                                int32_t num_kv_heads, int32_t v_head_dim) {
  const auto bytes = [&](FmhaKvFormat format) {
    const RowGroups groups(q_len, num_query_heads / num_kv_heads, v_head_dim, format);
    return LayOutWorkspace(num_sequences, num_kv_heads, groups, v_head_dim).total;
  };
  return std::max(bytes(FmhaKvFormat::kBf16), bytes(FmhaKvFormat::kE4m3));
}

const char* FmhaDecode(const FmhaDecodeParams& params, cudaStream_t stream) {
  if (const char* error = CheckShapes(params)) return error;
  const DeviceTraits& device = ThisDevice();
  if (device.major != 9 && device.major != 10) return "fmha decode: the device is neither sm_90 nor sm_100";
  FmhaDecodeLauncher* launch = FindLauncher(params, device.major);
  const RowGroups groups(params.q_len, params.num_query_heads / params.num_kv_heads, ValueDim(params),
                         params.kv_format);
  FmhaTensorMaps maps;
  if (const char* error = EncodeMaps(params, groups, &maps)) return error;
  FmhaDecodeArgs args;
  args.p = params;
  args.p.num_kv_heads *= groups.repeat;
  if (params.kv_format == FmhaKvFormat::kBf16) args.p.k_scale = args.p.v_scale = 1.0f;
  args.kv_head_repeat = groups.repeat;
  args.group_rows = groups.rows;
  args.scale_log2 = params.softmax_scale * args.p.k_scale * 1.44269504088896340736f;
  const Workspace layout =
      LayOutWorkspace(params.num_sequences, params.num_kv_heads, groups, ValueDim(params));
  uint8_t* workspace = static_cast<uint8_t*>(params.workspace);
  args.next_item = reinterpret_cast<int32_t*>(workspace);
  args.done_ctas = args.next_item + 1;
  args.finished_ctas = args.next_item + 2;
  args.arrivals = reinterpret_cast<int32_t*>(workspace + layout.arrivals);
  args.split_stats = reinterpret_cast<float2*>(workspace + layout.stats);
  args.split_out = reinterpret_cast<float*>(workspace + layout.out);
  const cudaError_t status = launch(args, groups.padded, maps, device.sms, stream);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace tessera::cuda
