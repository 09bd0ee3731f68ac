#include "kernels/cuda/fmha/fmha_decode.h"

#include <cuda.h>

#include <algorithm>

#include "kernels/cuda/fmha/fmha_decode_launch.h"
#include "kernels/cuda/fmha/fmha_decode_sm90.cuh"

namespace tessera::cuda {
namespace {

size_t AlignUp(size_t bytes) { return (bytes + 255) / 256 * 256; }

int32_t RowTiles(int32_t group_rows) { return group_rows <= 8 ? 1 : group_rows <= 16 ? 2 : 4; }

struct Workspace {
  size_t arrivals, stats, out, total;  // byte offsets
};

Workspace LayOutWorkspace(int32_t num_sequences, int32_t kv_heads, int32_t group_rows, int32_t head_dim) {
  const size_t rows = size_t(num_sequences) * kFmhaMaxSplits * kv_heads * 8 * RowTiles(group_rows);
  Workspace w;
  w.arrivals = 256;  // the scheduling counters come first
  // Sized for the most sequences, so that it stays where it is, and zero, whatever the size of the call.
  w.stats = w.arrivals + AlignUp(size_t(kFmhaMaxSequences) * kv_heads * sizeof(int32_t));
  w.out = w.stats + AlignUp(rows * sizeof(float2));
  w.total = w.out + AlignUp(rows * head_dim * sizeof(float));
  return w;
}

const char* CheckShapes(const FmhaDecodeParams& p) {
  if (!p.q || !p.out || !p.k_cache || !p.v_cache || !p.block_table || !p.lengths || !p.workspace) {
    return "fmha decode: a required pointer is null";
  }
  if (p.num_sequences < 1 || p.num_sequences > kFmhaMaxSequences) return "fmha decode: num_sequences must be 1 to 512";
  if (p.num_kv_heads < 1 || p.num_query_heads < 1 || p.num_query_heads % p.num_kv_heads != 0) {
    return "fmha decode: num_query_heads must be a multiple of num_kv_heads";
  }
  if (p.head_dim != 64 && p.head_dim != 128 && p.head_dim != 256) return "fmha decode: head_dim must be 64, 128 or 256";
  const int32_t rows = p.q_len * (p.num_query_heads / p.num_kv_heads);
  const int32_t most = p.head_dim == 256 ? 16 : 32;
  if (p.q_len < 1 || rows > most) {
    return "fmha decode: q_len * num_query_heads / num_kv_heads must be 1 to 32 (16 for head_dim 256)";
  }
  if (p.block_size < 16 || p.block_size > 256 || (p.block_size & (p.block_size - 1)) != 0) {
    return "fmha decode: block_size must be a power of two from 16 to 256";
  }
  if (p.num_blocks < 1 || p.block_table_stride < 1) return "fmha decode: num_blocks and block_table_stride must be positive";
  if (int64_t{p.num_blocks} * p.num_kv_heads * p.block_size > INT32_MAX) {
    return "fmha decode: num_blocks * num_kv_heads * block_size must fit 31 bits";
  }
  if (p.sliding_window < 0) return "fmha decode: sliding_window must not be negative";
  return nullptr;
}

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled FindEncoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found) !=
          cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    return nullptr;
  }
  return reinterpret_cast<EncodeTiled>(function);
}

// A cache seen as a matrix: one row a (block, KV head, slot), head_dim columns; boxes of 64 columns, 128-byte swizzle.
bool EncodeCacheMap(EncodeTiled encode, const FmhaDecodeParams& p, const void* cache, CUtensorMap* map) {
  const cuuint64_t sizes[2] = {cuuint64_t(p.head_dim), cuuint64_t(p.num_blocks) * p.num_kv_heads * p.block_size};
  const cuuint64_t strides[1] = {cuuint64_t(p.head_dim) * 2};
  const cuuint32_t box[2] = {64, cuuint32_t(std::min(p.block_size, kFmhaTileKeys))};
  const cuuint32_t steps[2] = {1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(cache), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

int32_t NumSms() {
  static const int32_t count = [] {
    int device = 0, sms = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    return sms;
  }();
  return count;
}

}  // namespace

size_t FmhaDecodeWorkspaceBytes(int32_t num_sequences, int32_t q_len, int32_t num_query_heads, int32_t num_kv_heads,
                                int32_t head_dim) {
  return LayOutWorkspace(num_sequences, num_kv_heads, q_len * (num_query_heads / num_kv_heads), head_dim).total;
}

const char* FmhaDecode(const FmhaDecodeParams& params, cudaStream_t stream) {
  if (const char* error = CheckShapes(params)) return error;
  static const EncodeTiled encode = FindEncoder();
  if (encode == nullptr) return "fmha decode: the driver has no cuTensorMapEncodeTiled";
  CUtensorMap k_map, v_map;
  if (!EncodeCacheMap(encode, params, params.k_cache, &k_map) ||
      !EncodeCacheMap(encode, params, params.v_cache, &v_map)) {
    return "fmha decode: the caches cannot be described to TMA (16-byte aligned device memory is needed)";
  }
  FmhaDecodeArgs args;
  args.p = params;
  args.group_rows = params.q_len * (params.num_query_heads / params.num_kv_heads);
  args.scale_log2 = params.softmax_scale * 1.44269504088896340736f;
  const Workspace layout =
      LayOutWorkspace(params.num_sequences, params.num_kv_heads, args.group_rows, params.head_dim);
  uint8_t* workspace = static_cast<uint8_t*>(params.workspace);
  args.next_item = reinterpret_cast<int32_t*>(workspace);
  args.done_ctas = args.next_item + 1;
  args.arrivals = reinterpret_cast<int32_t*>(workspace + layout.arrivals);
  args.split_stats = reinterpret_cast<float2*>(workspace + layout.stats);
  args.split_out = reinterpret_cast<float*>(workspace + layout.out);

  const int32_t row_tiles = RowTiles(args.group_rows);
  const auto launch = params.head_dim == 64    ? LaunchFmhaDecodeSm90D64
                      : params.head_dim == 128 ? LaunchFmhaDecodeSm90D128
                                               : LaunchFmhaDecodeSm90D256;
  const cudaError_t status = launch(args, row_tiles, k_map, v_map, NumSms(), stream);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace tessera::cuda
