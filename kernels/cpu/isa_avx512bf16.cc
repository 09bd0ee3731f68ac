// The kernels for AVX-512 with BF16 dot products. Compiled with those flags; everything in it has internal
// linkage but the table's accessor, so that none of its code can stand in for another file's.
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
constexpr int kDotTokens = 1;
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

struct Bf16Dot {
  using Value = Bf16;
  using Weights = __m512bh;
  static VEC_INLINE Weights Split(__m512i pairs) { return reinterpret_cast<__m512bh>(pairs); }
  static VEC_INLINE __m512 Dot(Weights w, const Bf16* x, __m512 sum) {
    // By hand: GCC takes a second instruction and a register for the broadcast.
    typedef int32_t __attribute__((may_alias)) Pair;
    asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const Pair*>(x)));
    return sum;
  }
};

// Flushes subnormals to zero while it lives, as vdpbf16ps does by definition.
class FlushSubnormals {
 public:
  VEC_INLINE FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }
  VEC_INLINE ~FlushSubnormals() { _mm_setcsr(saved_); }

 private:
  const uint32_t saved_;
};

// Whether vdpbf16ps on this machine is two FMAs, odd element first, bit for bit. Intel's is; the architecture
// leaves the rounding between the two products open. 4096 random lanes of wide and of cancelling magnitudes:
// another order or a different rounding shows in a good part of them.
static bool DotIsTwoFmas() {
  const FlushSubnormals flush;
  uint32_t state = 1;
  alignas(64) uint32_t weights[16], activations[16];
  alignas(64) float sums[16], by_dot[16], by_fma[16];
  for (int round = 0; round < 256; ++round) {
    for (int i = 0; i < 16; ++i) {
      const auto next = [&](int exponent_bits) {
        state = state * 1664525u + 1013904223u;
        const uint32_t exponent = 127u - 4u + ((state >> 8) & ((1u << exponent_bits) - 1u));
        return ((state >> 31) << 15) | (exponent << 7) | ((state >> 16) & 0x7fu);
      };
      weights[i] = next(3) | (next(3) << 16);
      activations[i] = next(4) | (next(4) << 16);
      sums[i] = __builtin_bit_cast(float, (next(5) << 16) | (state >> 16));
    }
    const __m512i w = _mm512_load_si512(weights);
    const __m512i x = _mm512_load_si512(activations);
    const __m512 sum = _mm512_load_ps(sums);
    _mm512_store_ps(by_dot,
                    _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x)));
    const FmaDot::Weights ws = FmaDot::Split(w);
    const FmaDot::Weights xs = FmaDot::Split(x);
    _mm512_store_ps(by_fma, _mm512_fmadd_ps(ws.even, xs.even, _mm512_fmadd_ps(ws.odd, xs.odd, sum)));
    if (__builtin_memcmp(by_dot, by_fma, sizeof(by_dot)) != 0) return false;
  }
  return true;
}

// Panels up to this many tokens take the dot product instruction; larger ones two FMAs. All, where the two
// differ, for one token and many must give the same bits; and all on AMD's processors, where the instruction
// runs at the rate of an FMA.
static int MaxDotTokens() {
  static const int max_tokens = DotIsTwoFmas() && !__builtin_cpu_is("amd") ? kDotTokens : kMaxBf16Tokens;
  return max_tokens;
}

int PanelValueBytes(int t) { return t <= MaxDotTokens() ? 2 : 4; }

void PackAnyPanel(const Bf16* const* rows, int t, int64_t k, void* panel) {
  return t <= MaxDotTokens() ? PackPanel<Bf16>(rows, t, k, panel) : PackPanel<float>(rows, t, k, panel);
}

template <typename Scales>
void Fp4AnyTile(const std::byte* tile, int64_t k, const void* panel, int t, float* out) {
  const FlushSubnormals flush;
  return t <= MaxDotTokens() ? Fp4Tile<Scales, Bf16Dot>(tile, k, panel, t, out)
                             : Fp4Tile<Scales, FmaDot>(tile, k, panel, t, out);
}

// E4M3 codes have no short way to BF16 pairs: always two FMAs.
void Fp8AnyTile(const std::byte* tile, int64_t k, const void* panel, int t, float* out) {
  return t <= MaxDotTokens() ? Fp8Tile<Bf16>(tile, k, panel, t, out) : Fp8Tile<float>(tile, k, panel, t, out);
}

void Bf16AnyTile(const std::byte* tile, int64_t k, const void* panel, int t, float* out) {
  const FlushSubnormals flush;
  return t <= MaxDotTokens() ? Bf16Tile<Bf16Dot>(tile, k, panel, t, out)
                             : Bf16Tile<FmaDot>(tile, k, panel, t, out);
}

// Keys by pairs that meet BF16 pairs of queries.
struct KeyDot {
  using Value = Bf16;
  using Keys = __m512bh;
  using Query = __m512bh;
  static VEC_INLINE Keys LoadKeys(const Bf16* p) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p));
  }
  static VEC_INLINE Query SetQuery(const Bf16* q) {
    int32_t pair;
    __builtin_memcpy(&pair, q, 4);
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
  }
  static VEC_INLINE F16 Dot(Keys keys, Query q, F16 sum) { return {_mm512_dpbf16_ps(sum.v, keys, q)}; }
};

// The same choice for all numbers of rows, so that it need not be the same to the bit.
bool DotQueries() {
  static const bool dot = __builtin_cpu_is("amd");
  return dot;
}
int QueryValueBytes() { return DotQueries() ? 2 : 4; }
void AttentionAnyTile(const AttentionTileArgs& args) {
  return DotQueries() ? AttentionTile<KeyDot>(args) : AttentionTile<KeyFma>(args);
}

constexpr KernelTable kTable = {
    .max_panel_tokens = kMaxTokens,
    .max_bf16_panel_tokens = kMaxBf16Tokens,
    .panel_value_bytes = PanelValueBytes,
    .pack_panel = PackAnyPanel,
    .nvfp4_tile = Fp4AnyTile<E4M3Scales>,
    .mxfp4_tile = Fp4AnyTile<E8M0Scales>,
    .fp8_tile = Fp8AnyTile,
    .bf16_tile = Bf16AnyTile,
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
    .attention_tile = AttentionAnyTile,
};

}  // namespace

const KernelTable& Avx512Bf16Kernels() { return kTable; }

}  // namespace tessera::cpu
