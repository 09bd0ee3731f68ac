// The kernels for AVX-512 F, BW, VL and DQ. Compiled with those flags; everything in it has internal linkage
// but the table's accessor, so that none of its code can stand in for another file's.
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/linear/packed_linear.h"
#include "kernels/nvfp4/nvfp4.h"

#define VEC_INLINE inline __attribute__((always_inline))
#define VEC_LAMBDA_INLINE __attribute__((always_inline))
// Loops over arrays that are to live in registers.
#define VEC_UNROLL _Pragma("GCC unroll 16")

namespace tessera::cpu {
namespace {

constexpr int kPrefetchBytes = 4096;
// Attention: query rows at a time and vectors of their values.
constexpr int kAttentionRows = 8;
constexpr int kValueVectors = 2;
// Score accumulators in flight: enough to cover the latency of an FMA, few enough for 32 registers.
constexpr int ScoreRunsAtOnce(int rows) { return rows <= 3 ? 4 : 2; }

#include "kernels/cpu/simd/vec_avx512.inc.h"
// After the vector type, in this order.
#include "kernels/cpu/simd/math.inc.h"
//
#include "kernels/cpu/fmha/tile.inc.h"
#include "kernels/cpu/linear/pack_panel.inc.h"
#include "kernels/cpu/linear/tile_avx512.inc.h"
#include "kernels/cpu/linear/tile_fp8.inc.h"
#include "kernels/cpu/ops/rows.inc.h"

int PanelValueBytes(int) { return 4; }
int QueryValueBytes() { return 4; }

constexpr KernelTable kTable = {
    .max_panel_tokens = kMaxTokens,
    .max_bf16_panel_tokens = kMaxBf16Tokens,
    .panel_value_bytes = PanelValueBytes,
    .pack_panel = PackPanel<float>,
    .nvfp4_tile = Fp4Tile<E4M3Scales, FmaDot>,
    .mxfp4_tile = Fp4Tile<E8M0Scales, FmaDot>,
    .fp8_tile = Fp8Tile<float>,
    .bf16_tile = Bf16Tile<FmaDot>,
    .rms_norm = RmsNormRow,
    .rms_norm_bf16 = RmsNormRowBf16,
    .rope_neox = RopeNeoxRow,
    .glu = GluRow,
    .to_bf16 = ToBf16Row,
    .to_float = ToFloatRow,
    .scale_add = ScaleAddRow,
    .merge = MergeRow,
    .exp_sum = ExpSumRow,
    .max_attention_rows = kAttentionRows,
    .query_value_bytes = QueryValueBytes,
    .attention_tile = AttentionTile<KeyFma>,
};

}  // namespace

const KernelTable& Avx512Kernels() { return kTable; }

}  // namespace tessera::cpu
