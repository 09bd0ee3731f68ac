// What one instruction set provides: the inner kernels behind the public operations. Internal to
// kernels/cpu; the operations check shapes, split work and call these.
//
// One isa_*.cc file for each set includes a sixteen-lane vector type (simd/vec_*.inc.h), the kernels written
// once over it (attention, rows) and that set's own matrix tiles. Not Highway: the tiles are different
// algorithms for each set (a 16-bit table lookup here, byte shuffles with one horizontal addition there), the
// guarantee of equal bits needs every operation and its order in plain sight, and what is left over, a vector
// type of thirty operations, is smaller than the dependency. Sixteen lanes everywhere keep sums in one order
// on all sets.
#ifndef TESSERA_KERNELS_CPU_KERNEL_TABLE_H_
#define TESSERA_KERNELS_CPU_KERNEL_TABLE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/ops/glu.h"
#include "kernels/nvfp4/bf16.h"

namespace tessera::cpu {

// Upper bounds over all instruction sets; sizes of stack buffers.
inline constexpr int kMaxPanelTokens = 24;
inline constexpr int kMaxAttentionRows = 8;

// One tile of keys for a few query rows of the same KV head; see fmha/tile.inc.h.
struct AttentionTileArgs {
  const Bf16* k_runs[4];       // runs of 16 tokens: [k_dim / 2][16][2]
  const Bf16* v_runs[4];       // runs of 16 tokens: [16][value_dim]
  const Bf16* next_k_runs[4];  // of the tile that follows, to be prefetched; never null
  const Bf16* next_v_runs[4];
  int64_t k_dim;               // elements of a key in k_runs
  int64_t value_dim;
  int rows;              // 1 .. max_attention_rows
  const void* q_panel;  // [k_dim / 2][rows][2], float or BF16: query_value_bytes() each
  const float*
      q_shared;  // [rows][value_dim]: for keys whose other elements are the value; null: they have none
  const int32_t* begin;  // [rows]: a row sees keys begin[r] .. end[r]-1 of the tile; may be none
  const int32_t* end;
  float scale;
  float* max;  // [rows] running maximum
  float* sum;  // [rows] running sum of exp(score - maximum)
  float* out;  // [rows, value_dim] running weighted values
};

struct KernelTable {
  // Matrix tiles. Tokens are handled in panels of t tokens (1 .. max_panel_tokens, or max_bf16_panel_tokens where all
  // weights are BF16); a panel holds, for each pair of columns and each token, the two values: [ceil(k/2)][t][2], as
  // BF16 or float, panel_value_bytes(t) each. An odd k has a zero in its last place.
  int max_panel_tokens;
  int max_bf16_panel_tokens;  // at least max_panel_tokens
  int (*panel_value_bytes)(int t);
  void (*pack_panel)(const Bf16* const* rows, int t, int64_t k, void* panel);
  // out[i * 16 + r] = sum over k of x[i] * w[r], tensor scale not applied, for the tile's 16 rows.
  void (*nvfp4_tile)(const std::byte* tile, int64_t k, const void* panel, int t, float* out);
  void (*mxfp4_tile)(const std::byte* tile, int64_t k, const void* panel, int t, float* out);
  void (*fp8_tile)(const std::byte* tile, int64_t k, const void* panel, int t, float* out);
  void (*bf16_tile)(const std::byte* tile, int64_t k, const void* panel, int t, float* out);

  // Rows.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* out);
  void (*rms_norm_bf16)(const float* x, const float* weight, float eps, int64_t n, Bf16* out);
  void (*rope_neox)(float* x, const float* cos, const float* sin, int64_t half);
  void (*glu)(const Glu& glu, const float* gate, const float* up, int64_t n, Bf16* out);
  void (*to_bf16)(const float* x, int64_t n, Bf16* out);
  void (*to_float)(const Bf16* x, int64_t n, float* out);
  void (*scale_add)(float a, const float* x, int64_t n, float* y);       // y += a * x
  void (*merge)(float a, float* y, float b, const float* x, int64_t n);  // y = a * y + b * x
  float (*exp_sum)(const float* x, float shift, int64_t n, float* out);  // out = exp(x - shift)

  // Attention.
  int max_attention_rows;
  int (*query_value_bytes)();
  void (*attention_tile)(const AttentionTileArgs& args);
};

// The table of the active instruction set.
const KernelTable& Kernels();

const KernelTable& PortableKernels();
#if defined(__x86_64__)
const KernelTable& Avx2Kernels();
const KernelTable& Avx512Kernels();
const KernelTable& Avx512Bf16Kernels();
#endif

}  // namespace tessera::cpu

#endif  // TESSERA_KERNELS_CPU_KERNEL_TABLE_H_
