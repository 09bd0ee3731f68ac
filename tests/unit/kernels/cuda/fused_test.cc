// The kernels that do for a decode step what others do one after the other for any step.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda/moe/combine_norm.h"
#include "kernels/cuda/moe/routing.h"
#include "tests/unit/kernels/cuda/gpu.h"

namespace tessera::cuda {
namespace {

template <class T>
bool SameBits(const DeviceBuffer<T>& a, const DeviceBuffer<T>& b) {
  const std::vector<T> x = a.Read(), y = b.Read();
  return std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
}

// Routed and sorted at once, or one after the other: the same bits.
TEST(CudaFused, RouteAndSortEqualsBoth) {
  TESSERA_REQUIRE_GPU();
  for (const int32_t experts : {3, 16, 100, 128, 256, 600}) {
    for (const int32_t tokens : {1, 2, 7, 33, 64, 70}) {
      for (const int32_t top_k : {1, 3, 8}) {
        if (top_k > experts) continue;
        SCOPED_TRACE(testing::Message() << experts << " experts, " << tokens << " tokens, " << top_k);
        const int32_t pairs = tokens * top_k, tile = tokens > 32 ? 16 : 8;
        std::vector<float> logits = Normal(tokens * experts, experts + tokens);
        for (float& x : logits) x = std::round(x * 8) / 8;  // ties
        if (tokens > 5) logits[5 * experts + 1] = NAN;
        // Experts that many tokens choose.
        for (int32_t t = 0; t < tokens; t += 2) logits[t * experts + experts / 2] += 4;
        const DeviceBuffer<float> d_logits(logits);
        const int32_t most = MostTiles(tokens, top_k, experts, tile);
        struct Outputs {
          DeviceBuffer<int32_t> chosen, slot_token, token_slot, tile_expert, num_tiles{1};
          DeviceBuffer<float> weights;
          DeviceBuffer<int2> ranges;
          Outputs(int32_t pairs, int32_t most)
              : chosen(pairs),
                slot_token(pairs),
                token_slot(pairs),
                tile_expert(most),
                weights(pairs),
                ranges(most) {}
          SortedSlots Sorted() const {
            return {slot_token.get(), token_slot.get(), tile_expert.get(), ranges.get(), num_tiles.get()};
          }
        };
        const Outputs want(pairs, most), got(pairs, most);
        RouteParams p;
        p.logits = d_logits.get();
        p.tokens = tokens;
        p.num_experts = experts;
        p.top_k = top_k;
        p.renormalize = true;
        p.scale = 1.5f;
        p.experts = want.chosen.get();
        p.weights = want.weights.get();
        ASSERT_EQ(RouteTokens(p, nullptr), nullptr);
        ASSERT_EQ(SortByExpert(p.experts, tokens, top_k, experts, tile, want.Sorted(), nullptr), nullptr);
        p.experts = got.chosen.get();
        p.weights = got.weights.get();
        ASSERT_EQ(RouteAndSort(p, tile, got.Sorted(), nullptr), nullptr);
        EXPECT_TRUE(SameBits(got.chosen, want.chosen));
        EXPECT_TRUE(SameBits(got.weights, want.weights));
        EXPECT_TRUE(SameBits(got.slot_token, want.slot_token));
        EXPECT_TRUE(SameBits(got.token_slot, want.token_slot));
        EXPECT_TRUE(SameBits(got.num_tiles, want.num_tiles));
        EXPECT_TRUE(SameBits(got.tile_expert, want.tile_expert));
        EXPECT_TRUE(SameBits(got.ranges, want.ranges));
      }
    }
  }
}

TEST(CudaFused, CombinesAndNormalises) {
  TESSERA_REQUIRE_GPU();
  for (const int32_t dim : {2, 50, 512, 700, 2048, 5120}) {
    const int32_t tokens = 3, top_k = dim % 8 == 0 ? 8 : 5, stride = (dim + 63) / 64 * 64;
    const std::vector<float> rows = Normal(tokens * top_k * dim, 1), residual = Normal(tokens * dim, 2);
    const std::vector<float> weights = Normal(tokens * top_k, 3), norm = Normal(dim, 4);
    std::vector<int32_t> slots(tokens * top_k);
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = (i * 7) % slots.size();
    const DeviceBuffer<float> d_rows(rows), d_residual(residual), d_weights(weights), d_norm(norm);
    const DeviceBuffer<int32_t> d_slots(slots);
    const DeviceBuffer<uint16_t> normed(tokens * stride);
    CombineNormParams p;
    p.rows = d_rows.get();
    p.token_slot = d_slots.get();
    p.weights = d_weights.get();
    p.tokens = tokens;
    p.top_k = top_k;
    p.dim = dim;
    p.residual = d_residual.get();
    p.norm_weight = d_norm.get();
    p.eps = 1e-6f;
    p.normed = normed.get();
    p.normed_stride = stride;
    ASSERT_EQ(CombineExpertsAndNorm(p, nullptr), nullptr);
    const std::vector<float> got = d_residual.Read();
    const std::vector<uint16_t> got_normed = normed.Read();
    for (int32_t t = 0; t < tokens; ++t) {
      std::vector<double> want(dim);
      double squares = 0;
      for (int32_t i = 0; i < dim; ++i) {
        want[i] = residual[t * dim + i];
        for (int32_t k = 0; k < top_k; ++k) {
          want[i] += double(weights[t * top_k + k]) * rows[slots[t * top_k + k] * dim + i];
        }
        squares += want[i] * want[i];
        ASSERT_NEAR(got[t * dim + i], want[i], 1e-5);
      }
      const double scale = 1 / std::sqrt(squares / dim + 1e-6);
      for (int32_t i = 0; i < stride; ++i) {
        const double x = i < dim ? want[i] * scale * norm[i] : 0;
        ASSERT_NEAR(FromBf16(got_normed[t * stride + i]), x, std::abs(x) * 0.005 + 1e-5) << t << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::cuda
