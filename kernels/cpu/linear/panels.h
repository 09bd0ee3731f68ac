// How tokens are cut into panels, and one tile's product with one panel. Internal to kernels/cpu.
//
// Neither the cut nor the place of a token in a panel has any influence on the token's result.
#ifndef TESSERA_KERNELS_CPU_LINEAR_PANELS_H_
#define TESSERA_KERNELS_CPU_LINEAR_PANELS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/linear/packed_linear.h"

namespace tessera::cpu {

// The largest panel value: float.
inline constexpr int64_t kMaxPanelValueBytes = 4;

// tokens cut into the fewest panels the instruction set allows, of sizes that differ by one at most.
struct PanelCut {
  int64_t tokens;
  int64_t count;

  PanelCut(int64_t tokens, int max_panel_tokens)
      : tokens(tokens), count((tokens + max_panel_tokens - 1) / max_panel_tokens) {}
  int64_t begin(int64_t panel) const { return tokens * panel / count; }
  int size(int64_t panel) const { return static_cast<int>(begin(panel + 1) - begin(panel)); }
};

inline constexpr int64_t EvenColumns(int64_t k) { return (k + 1) / 2 * 2; }

// Bytes of panels for `tokens` tokens of k columns; a panel that begins with token i begins at PanelBytes(i,
// k).
inline constexpr int64_t PanelBytes(int64_t tokens, int64_t k) {
  return tokens * EvenColumns(k) * kMaxPanelValueBytes;
}

// Whether a panel of t tokens is nothing but the row of x itself.
inline bool PanelIsRow(const KernelTable& table, int t, int64_t k) {
  return t == 1 && k % 2 == 0 && table.panel_value_bytes(1) == static_cast<int>(sizeof(Bf16));
}

// out[i * 16 + r], tensor scale applied.
inline void MultiplyTile(const KernelTable& table, const PackedLinear& weights, int64_t tile,
                         const void* panel, int t, float* out) {
  const std::byte* data = weights.data + tile * weights.tile_bytes();
  const auto multiply = weights.format == WeightFormat::kBf16    ? table.bf16_tile
                        : weights.format == WeightFormat::kNvfp4 ? table.nvfp4_tile
                        : weights.format == WeightFormat::kMxfp4 ? table.mxfp4_tile
                                                                 : table.fp8_tile;
  multiply(data, weights.k, panel, t, out);
  if (weights.tensor_scale == 1.0f) return;
  for (int i = 0; i < 16 * t; ++i) out[i] *= weights.tensor_scale;
}

}  // namespace tessera::cpu

#endif  // TESSERA_KERNELS_CPU_LINEAR_PANELS_H_
