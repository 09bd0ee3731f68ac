// C entry points of the CUDA kernels for the Python benchmarks, which time them beside torch's in one process.
#include <cstring>

#include "kernels/cuda/fmha/fmha_decode.h"
#include "kernels/cuda/fmha/fmha_prefill.h"
#include "kernels/cuda/linear/grouped_gemm.h"
#include "kernels/cuda/moe/combine_norm.h"
#include "kernels/cuda/moe/routing.h"
#include "kernels/cuda/ops/ops.h"
#include "kernels/cuda/sampling/sampling.h"

extern "C" {

size_t tessera_fmha_decode_workspace(int32_t sequences, int32_t q_len, int32_t query_heads, int32_t kv_heads,
                                     int32_t head_dim) {
  return tessera::cuda::FmhaDecodeWorkspaceBytes(sequences, q_len, query_heads, kv_heads, head_dim);
}

const char* tessera_fmha_decode(const void* q, void* out, const void* k, const void* v, const int32_t* table,
                                const int32_t* lengths, int32_t sequences, int32_t q_len, int32_t query_heads,
                                int32_t kv_heads, int32_t head_dim, int32_t v_head_dim, int32_t e4m3,
                                int32_t num_blocks, int32_t block_size, int32_t stride,
                                const int32_t* key_slots, int32_t key_slots_stride, float scale,
                                void* workspace, cudaStream_t stream) {
  tessera::cuda::FmhaDecodeParams p;
  p.q = q;
  p.out = out;
  p.k_cache = k;
  p.v_cache = v;
  p.block_table = table;
  p.lengths = lengths;
  p.num_sequences = sequences;
  p.q_len = q_len;
  p.num_query_heads = query_heads;
  p.num_kv_heads = kv_heads;
  p.head_dim = head_dim;
  p.v_head_dim = v_head_dim;
  p.kv_format = e4m3 ? tessera::cuda::FmhaKvFormat::kE4m3 : tessera::cuda::FmhaKvFormat::kBf16;
  p.num_blocks = num_blocks;
  p.block_size = block_size;
  p.block_table_stride = stride;
  p.key_slots = key_slots;
  p.key_slots_stride = key_slots_stride;
  p.softmax_scale = scale;
  p.workspace = workspace;
  return tessera::cuda::FmhaDecode(p, stream);
}

// `count` runs of `run` consecutive query tokens of one sequence.
const char* tessera_fmha_runs(const void* q, void* out, const void* k, const void* v, const int32_t* table,
                              const int32_t* table_rows, const int32_t* first_tokens, const int32_t* lengths,
                              int32_t count, int32_t run, int32_t query_heads, int32_t kv_heads,
                              int32_t head_dim, int32_t num_blocks, int32_t block_size, int32_t stride,
                              float scale, void* workspace, cudaStream_t stream) {
  tessera::cuda::FmhaDecodeParams p;
  p.q = q;
  p.out = out;
  p.k_cache = k;
  p.v_cache = v;
  p.block_table = table;
  p.table_rows = table_rows;
  p.first_tokens = first_tokens;
  p.lengths = lengths;
  p.num_sequences = count;
  p.q_len = run;
  p.num_query_heads = query_heads;
  p.num_kv_heads = kv_heads;
  p.head_dim = head_dim;
  p.num_blocks = num_blocks;
  p.block_size = block_size;
  p.block_table_stride = stride;
  p.softmax_scale = scale;
  p.workspace = workspace;
  return tessera::cuda::FmhaDecode(p, stream);
}

size_t tessera_packed_bytes(int32_t nvfp4, int32_t n, int32_t k) {
  using namespace tessera::cuda;
  return PackedMatrixBytes(nvfp4 ? WeightFormat::kNvfp4 : WeightFormat::kBf16, n, k);
}

const char* tessera_pack_nvfp4(const uint8_t* codes, const uint8_t* scales, const uint8_t* up_codes,
                               const uint8_t* up_scales, int32_t n, int32_t k, uint8_t* target,
                               cudaStream_t stream) {
  using namespace tessera::cuda;
  return PackNvfp4(codes, scales, up_codes, up_scales, n, k, up_codes ? RowOrder::kGateUp : RowOrder::kPlain,
                   target, stream);
}

// `n` is of the packed matrices; `epilogue` 0 store, 1 add, 2 SwiGLU; `order` of x, and of SwiGLU's result: 0 plain, 1 of the
// steps.
const char* tessera_grouped_gemm(int32_t nvfp4, const uint8_t* weights, const float* sum_scales, int32_t n,
                                 int32_t k, int32_t matrices, const void* x, const int32_t* rows, void* out,
                                 int32_t epilogue, int32_t slots, int32_t tile_slots,
                                 const int32_t* tile_expert, const void* tile_ranges,
                                 const int32_t* num_tiles, int32_t max_tiles, int32_t order,
                                 cudaStream_t stream) {
  using namespace tessera::cuda;
  GroupedGemmParams p;
  p.weights.format = nvfp4 ? WeightFormat::kNvfp4 : WeightFormat::kBf16;
  p.weights.n = n;
  p.weights.k = k;
  p.weights.num_matrices = matrices;
  p.weights.data = weights;
  p.weights.sum_scales = sum_scales;
  p.x = x;
  p.input_rows = rows;
  p.out = out;
  p.epilogue = static_cast<GemmEpilogue>(epilogue);
  p.out_features = p.epilogue == GemmEpilogue::kSwiglu ? n / 2 : n;
  p.num_slots = slots;
  p.tile_slots = tile_slots;
  p.tile_expert = tile_expert;
  p.tile_slot_range = static_cast<const int2*>(tile_ranges);
  p.num_tiles = num_tiles;
  p.max_tiles = max_tiles;
  p.x_order = static_cast<ActivationOrder>(order);
  if (p.epilogue == GemmEpilogue::kSwiglu) p.out_order = p.x_order;
  return GroupedGemm(p, stream);
}

size_t tessera_fmha_prefill_workspace(int32_t head_dim) {
  return tessera::cuda::FmhaPrefillWorkspaceBytes(head_dim);
}

// `chunks` are on the device.
const char* tessera_fmha_prefill(const void* q, void* out, const void* k, const void* v, const int32_t* table,
                                 const void* chunks, int32_t num_chunks, int32_t num_tokens,
                                 int32_t query_heads, int32_t kv_heads, int32_t head_dim, int32_t num_blocks,
                                 int32_t block_size, int32_t stride, int32_t window, float scale,
                                 void* workspace, cudaStream_t stream) {
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
  return FmhaPrefill(p, stream);
}

int32_t tessera_choose_tile_slots(int64_t slots, int32_t n, int32_t k, int32_t matrices, int32_t order) {
  using namespace tessera::cuda;
  PackedWeights weights;
  weights.format = WeightFormat::kNvfp4;
  weights.n = n;
  weights.k = k;
  weights.num_matrices = matrices;
  return ChooseTileSlots(slots, weights, static_cast<ActivationOrder>(order));
}

int32_t tessera_step_order_pays(int64_t tokens) { return tessera::cuda::StepOrderPays(tokens); }

const char* tessera_gather_rows(const void* x, const int32_t* rows, int64_t count, int32_t k, void* out,
                                cudaStream_t stream) {
  return tessera::cuda::GatherRows(x, rows, count, k, out, stream);
}

const char* tessera_order_by_steps(void* x, int64_t rows, int32_t k, cudaStream_t stream) {
  return tessera::cuda::OrderBySteps(x, rows, k, stream);
}

// Fills `jobs` (host memory, or null to learn the bytes needed) with `count` draws of these parameters, row by row.
size_t tessera_sample_jobs(void* jobs, int32_t count, float temperature, int32_t top_k, float top_p,
                           float min_p, int32_t num_logprobs) {
  tessera::cuda::SampleJob* out = static_cast<tessera::cuda::SampleJob*>(jobs);
  for (int32_t i = 0; out != nullptr && i < count; ++i) {
    out[i] = {.row = i,
              .temperature = temperature,
              .top_k = top_k,
              .top_p = top_p,
              .min_p = min_p,
              .uniform = (i + 0.5) / count,
              .num_logprobs = num_logprobs};
  }
  return count * sizeof(tessera::cuda::SampleJob);
}

size_t tessera_sample_workspace(int32_t count, int32_t vocab) {
  return tessera::cuda::SampleWorkspaceBytes(count, vocab, 0);
}

// `results` has room for count * 256 bytes.
const char* tessera_sample(float* logits, int32_t vocab, int32_t count, const void* jobs,
                           int32_t any_logprobs, int32_t any_sums, void* workspace, void* results,
                           cudaStream_t stream) {
  tessera::cuda::SampleParams p;
  p.logits = logits;
  p.vocab = vocab;
  p.count = count;
  p.jobs = static_cast<const tessera::cuda::SampleJob*>(jobs);
  p.any_logprobs = any_logprobs != 0;
  p.any_sums = any_sums != 0;
  p.workspace = workspace;
  p.results = static_cast<tessera::cuda::SampleResult*>(results);
  p.top = reinterpret_cast<tessera::cuda::TopLogit*>(p.results + count);
  return tessera::cuda::SampleTokens(p, stream);
}

// Routing and sorting in one kernel where that is done, else in two.
const char* tessera_route(const float* logits, int32_t tokens, int32_t experts, int32_t top_k,
                          int32_t tile_slots, int32_t at_once, int32_t* chosen, float* weights,
                          int32_t* slot_token, int32_t* token_slot, int32_t* tile_expert, void* ranges,
                          int32_t* num_tiles, cudaStream_t stream) {
  using namespace tessera::cuda;
  RouteParams p;
  p.logits = logits;
  p.tokens = tokens;
  p.num_experts = experts;
  p.top_k = top_k;
  p.renormalize = true;
  p.experts = chosen;
  p.weights = weights;
  const SortedSlots sorted = {slot_token, token_slot, tile_expert, static_cast<int2*>(ranges), num_tiles};
  if (at_once) return RouteAndSort(p, tile_slots, sorted, stream);
  if (const char* error = RouteTokens(p, stream)) return error;
  return SortByExpert(chosen, tokens, top_k, experts, tile_slots, sorted, stream);
}

const char* tessera_combine(const float* rows, const int32_t* token_slot, const float* weights,
                            int32_t tokens, int32_t top_k, int32_t dim, int32_t at_once, float* residual,
                            const float* norm, void* normed, cudaStream_t stream) {
  using namespace tessera::cuda;
  if (at_once) {
    return CombineExpertsAndNorm(
        {rows, token_slot, weights, tokens, top_k, dim, residual, norm, 1e-6f, normed, dim}, stream);
  }
  if (const char* error = CombineExperts(rows, token_slot, weights, tokens, top_k, dim, residual, stream)) {
    return error;
  }
  return RmsNorm({residual, dim, nullptr, tokens, dim, norm, 1e-6f}, normed, dim, stream);
}

const char* tessera_rms_norm(const float* x, const float* weight, int32_t tokens, int32_t dim, void* out,
                             cudaStream_t stream) {
  return tessera::cuda::RmsNorm({x, dim, nullptr, tokens, dim, weight, 1e-6f}, out, dim, stream);
}

// Heads of q and k normalised and rotated as Qwen3's are; the cache holds the tokens one after the other.
const char* tessera_finish_qkv(const float* qkv, const float* norm, const void* rope, const int32_t* positions,
                               const int64_t* slots, int32_t tokens, int32_t query_heads, int32_t kv_heads,
                               int32_t head_dim, int32_t block_size, void* q, void* k_cache, void* v_cache,
                               cudaStream_t stream) {
  tessera::cuda::QkvParams p;
  p.qkv = qkv;
  p.row_stride = (query_heads + 2 * kv_heads) * head_dim;
  p.k_offset = query_heads * head_dim;
  p.v_offset = p.k_offset + kv_heads * head_dim;
  p.q_norm = p.k_norm = norm;
  p.eps = 1e-6f;
  p.rope = static_cast<const float2*>(rope);
  p.rotary_dim = head_dim;
  p.positions = positions;
  p.slots = slots;
  p.tokens = tokens;
  p.num_query_heads = query_heads;
  p.num_kv_heads = kv_heads;
  p.head_dim = p.out_dim = head_dim;
  p.block_size = block_size;
  p.q = q;
  p.k_cache = k_cache;
  p.v_cache = v_cache;
  return tessera::cuda::FinishQkv(p, stream);
}
}
