#include "kernels/cuda/fmha/fmha_prefill.h"

#include <cuda.h>

#include <algorithm>
#include <bit>

#include "kernels/cuda/device.h"
#include "kernels/cuda/fmha/fmha_prefill_items.cuh"
#include "kernels/cuda/fmha/fmha_prefill_launch.h"
#include "kernels/cuda/tensor_map.h"

namespace tessera::cuda {
namespace {

constexpr size_t kCounterBytes = 256;  // at the workspace's begin
constexpr int32_t kTotalsRows = 128;   // of a CTA for head dimension 256
// Of keys and values that items of different heads may use at the same time; L2 has 50 MB.
constexpr int64_t kL2Bytes = 24 << 20;

FmhaPrefillLauncher* FindLauncher(int32_t head_dim) {
  switch (head_dim) {
    case 64:
      return LaunchFmhaPrefillSm90D64;
    case 128:
      return LaunchFmhaPrefillSm90D128;
    case 256:
      return LaunchFmhaPrefillSm90D256;
    default:
      return nullptr;
  }
}

const char* CheckShapes(const FmhaPrefillParams& p) {
  if (!p.q || !p.out || !p.k_cache || !p.v_cache || !p.block_table || !p.chunks || !p.workspace) {
    return "fmha prefill: a required pointer is null";
  }
  if (p.num_chunks < 1 || p.num_tokens < p.num_chunks) {
    return "fmha prefill: num_chunks must be positive and not exceed num_tokens";
  }
  if (p.num_kv_heads < 1 || p.num_query_heads < 1 || p.num_query_heads % p.num_kv_heads != 0) {
    return "fmha prefill: num_query_heads must be a multiple of num_kv_heads";
  }
  if (int64_t{p.num_tokens} * p.num_query_heads > INT32_MAX) {
    return "fmha prefill: num_tokens * num_query_heads must fit 31 bits";
  }
  if (FindLauncher(p.head_dim) == nullptr) return "fmha prefill: head_dim must be 64, 128 or 256";
  if (p.block_size < 16 || p.block_size > 256 || (p.block_size & (p.block_size - 1)) != 0) {
    return "fmha prefill: block_size must be a power of two from 16 to 256";
  }
  if (p.num_blocks < 1 || p.block_table_stride < 1)
    return "fmha prefill: num_blocks and block_table_stride must be positive";
  if (int64_t{p.num_blocks} * p.num_kv_heads * p.block_size > INT32_MAX) {
    return "fmha prefill: num_blocks * num_kv_heads * block_size must fit 31 bits";
  }
  if (p.sliding_window < 0) return "fmha prefill: sliding_window must not be negative";
  return nullptr;
}

const char* EncodeCache(const FmhaPrefillParams& p, const void* cache, CUtensorMap* map) {
  TmaTensor rows;
  rows.data = cache;
  rows.sizes[0] = rows.row = p.head_dim;
  rows.sizes[1] = uint64_t(p.num_blocks) * p.num_kv_heads * p.block_size;
  rows.box[0] = std::min(p.block_size, kFmhaTileKeys);
  return EncodeTensorMap(rows, map);
}

// Checks the shapes and fills in the arguments of a launch. Returns as FmhaPrefill does.
const char* Prepare(const FmhaPrefillParams& params, FmhaPrefillArgs* args, FmhaPrefillMaps* maps) {
  if (const char* error = CheckShapes(params)) return error;
  if (const char* error = EncodeCache(params, params.k_cache, &maps->k)) return error;
  if (const char* error = EncodeCache(params, params.v_cache, &maps->v)) return error;
  args->p = params;
  args->group = params.num_query_heads / params.num_kv_heads;
  args->block_shift = std::countr_zero(static_cast<uint32_t>(params.block_size));
  args->scale_log2 = params.softmax_scale * 1.44269504088896340736f;
  const int64_t head_bytes = int64_t{params.block_table_stride} * params.block_size * params.head_dim * 4;
  args->heads_at_a_time =
      static_cast<int32_t>(std::clamp<int64_t>(kL2Bytes / head_bytes, 1, params.num_kv_heads));
  args->next_item = static_cast<int32_t*>(params.workspace);
  args->done_ctas = args->next_item + 1;
  args->totals = reinterpret_cast<float4*>(static_cast<uint8_t*>(params.workspace) + kCounterBytes);
  return nullptr;
}

}  // namespace

bool HasFmhaPrefill(int32_t head_dim) { return ThisDevice().major == 9 && FindLauncher(head_dim) != nullptr; }

size_t FmhaPrefillWorkspaceBytes(int32_t head_dim) {
  return kCounterBytes +
         (head_dim == 256 ? size_t(ThisDevice().sms) * kTotalsRows * head_dim * sizeof(float) : 0);
}

const char* FmhaPrefill(const FmhaPrefillParams& params, cudaStream_t stream) {
  FmhaPrefillArgs args;
  FmhaPrefillMaps maps;
  if (const char* error = Prepare(params, &args, &maps)) return error;
  const DeviceTraits& device = ThisDevice();
  if (device.major != 9) return "fmha prefill: the device is not sm_90";
  const cudaError_t status = FindLauncher(params.head_dim)(args, maps, device.sms, stream);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace tessera::cuda
