// The FMHA prefill kernel tuned otherwise, to be timed beside the one in use. (Not that one once more: a kernel may be
// instantiated in one file alone.)
#include "kernels/cuda/device.h"
#include "kernels/cuda/fmha/fmha_prefill_launch_sm90.cuh"

namespace tessera::cuda {
namespace {

struct Variant {
  int32_t head_dim;
  const char* name;
  FmhaPrefillLauncher* launch;
};

// Warp groups; queries held in registers or read from shared memory; where totals are; how warp groups take turns.
template <int kHeadDim, int kWarpGroups, bool kHeld, FmhaTotals kTotals, FmhaTurns kTurns>
constexpr FmhaPrefillLauncher* kLaunch =
    LaunchFmhaPrefillSm90<FmhaPrefillTraits<kHeadDim, kWarpGroups, kHeld, kTotals, kTurns>>;

using enum FmhaTotals;
using enum FmhaTurns;
constexpr Variant kVariants[] = {
    {128, "2 groups, totals held, turns after start", kLaunch<128, 2, false, kRegisters, kAfterStart>},
    {128, "2 groups, totals held, turns after scores", kLaunch<128, 2, false, kRegisters, kAfterScores>},
    {128, "2 groups, Q held, totals shared, turns after scores",
     kLaunch<128, 2, true, kShared, kAfterScores>},
    {128, "3 groups, totals shared", kLaunch<128, 3, false, kShared, kNone>},
    {64, "3 groups, totals held", kLaunch<64, 3, false, kRegisters, kNone>},
    {64, "2 groups, Q held, totals held", kLaunch<64, 2, true, kRegisters, kNone>},
    {64, "2 groups, Q held, totals held, turns after scores", kLaunch<64, 2, true, kRegisters, kAfterScores>},
    {256, "2 groups, totals global", kLaunch<256, 2, false, kGlobal, kNone>},
    {256, "2 groups, totals global, turns after scores", kLaunch<256, 2, false, kGlobal, kAfterScores>},
};

}  // namespace
}  // namespace tessera::cuda

extern "C" {

// Name of a variant for the head dimension, or null past the last.
const char* tessera_fmha_prefill_variant(int32_t head_dim, int32_t index) {
  for (const auto& variant : tessera::cuda::kVariants) {
    if (variant.head_dim == head_dim && index-- == 0) return variant.name;
  }
  return nullptr;
}

size_t tessera_fmha_prefill_workspace(int32_t head_dim) {
  return tessera::cuda::FmhaPrefillWorkspaceBytes(head_dim);
}

// `variant`: an index, or -1 for FmhaPrefill. `chunks` are on the device.
const char* tessera_fmha_prefill(int32_t variant, const void* q, void* out, const void* k, const void* v,
                                 const int32_t* table, const void* chunks, int32_t num_chunks,
                                 int32_t num_tokens, int32_t query_heads, int32_t kv_heads, int32_t head_dim,
                                 int32_t num_blocks, int32_t block_size, int32_t stride, int32_t window,
                                 float scale, void* workspace, cudaStream_t stream) {
  using namespace tessera::cuda;
  FmhaPrefillParams p;
  p.q = q;
  p.out = out;
  p.k_cache = k;
  p.v_cache = v;
  p.block_table = table;
  p.chunks = static_cast<const FmhaPrefillChunk*>(chunks);
  p.num_chunks = num_chunks;
  p.num_tokens = num_tokens;
  p.num_query_heads = query_heads;
  p.num_kv_heads = kv_heads;
  p.head_dim = head_dim;
  p.num_blocks = num_blocks;
  p.block_size = block_size;
  p.block_table_stride = stride;
  p.sliding_window = window;
  p.softmax_scale = scale;
  p.workspace = workspace;
  if (variant < 0) return FmhaPrefill(p, stream);
  FmhaPrefillArgs args;
  FmhaPrefillMaps maps;
  if (const char* error = PrepareFmhaPrefill(p, &args, &maps)) return error;
  for (const auto& candidate : kVariants) {
    if (candidate.head_dim != head_dim || variant-- != 0) continue;
    const cudaError_t status = candidate.launch(args, maps, ThisDevice().sms, stream);
    return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
  }
  return "no such variant";
}
}
