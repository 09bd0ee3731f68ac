#include "kernels/cuda/ops/ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/moe/routing.h"
#include "tests/unit/kernels/cuda/gpu.h"

namespace tessera::cuda {
namespace {

std::vector<float> Normal(size_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(rng);
  return values;
}

TEST(CudaOps, RmsNormGathersRows) {
  TESSERA_REQUIRE_GPU();
  const int32_t dim = 700;
  const std::vector<float> x = Normal(5 * dim, 1), weight = Normal(dim, 2);
  const std::vector<int32_t> rows = {4, 0, 4};
  const DeviceBuffer<float> d_x(x), d_weight(weight), out(rows.size() * dim);
  const DeviceBuffer<int32_t> d_rows(rows);
  ASSERT_EQ(RmsNormFloat(d_x.get(), d_rows.get(), rows.size(), dim, d_weight.get(), 1e-6f, out.get(), nullptr), nullptr);
  const std::vector<float> got = out.Read();
  for (size_t r = 0; r < rows.size(); ++r) {
    double sum = 0;
    for (int32_t i = 0; i < dim; ++i) sum += double(x[rows[r] * dim + i]) * x[rows[r] * dim + i];
    const double scale = 1 / std::sqrt(sum / dim + 1e-6);
    for (int32_t i = 0; i < dim; ++i) {
      const double want = x[rows[r] * dim + i] * scale * weight[i];
      ASSERT_NEAR(got[r * dim + i], want, 2e-6 * (1 + std::abs(want)));
    }
  }
}

TEST(CudaOps, FinishQkvNormalisesRotatesAndWrites) {
  TESSERA_REQUIRE_GPU();
  const int32_t tokens = 3, heads = 4, kv_heads = 2, d = 64, block_size = 16, rotary = 32;
  for (const bool interleaved : {false, true}) {
    const std::vector<float> qkv = Normal(tokens * (heads + 2 * kv_heads) * d, 3);
    const std::vector<float> q_norm = Normal(d, 4), k_norm = Normal(d, 5);
    const std::vector<int32_t> positions = {0, 9, 5};
    const std::vector<int64_t> slots = {33, 2, 47};
    std::vector<float> rope(10 * rotary);
    for (int32_t p = 0; p < 10; ++p) {
      for (int32_t i = 0; i < rotary / 2; ++i) {
        const double angle = p * std::pow(10000.0, -2.0 * i / rotary);
        rope[(p * (rotary / 2) + i) * 2] = std::cos(angle);
        rope[(p * (rotary / 2) + i) * 2 + 1] = std::sin(angle);
      }
    }
    const DeviceBuffer<float> d_qkv(qkv), d_qn(q_norm), d_kn(k_norm), d_rope(rope);
    const DeviceBuffer<int32_t> d_positions(positions);
    const DeviceBuffer<int64_t> d_slots(slots);
    const DeviceBuffer<uint16_t> q(tokens * heads * d), k(4 * kv_heads * block_size * d), v(4 * kv_heads * block_size * d);
    QkvParams p;
    p.qkv = d_qkv.get();
    p.q_norm = d_qn.get();
    p.k_norm = d_kn.get();
    p.eps = 1e-6f;
    p.rope = reinterpret_cast<const float2*>(d_rope.get());
    p.rotary_dim = rotary;
    p.interleaved = interleaved;
    p.positions = d_positions.get();
    p.slots = d_slots.get();
    p.tokens = tokens;
    p.num_query_heads = heads;
    p.num_kv_heads = kv_heads;
    p.head_dim = d;
    p.block_size = block_size;
    p.q = q.get();
    p.k_cache = k.get();
    p.v_cache = v.get();
    ASSERT_EQ(FinishQkv(p, nullptr), nullptr);
    const std::vector<uint16_t> got_q = q.Read(), got_k = k.Read(), got_v = v.Read();
    const int32_t all = heads + 2 * kv_heads;
    for (int32_t t = 0; t < tokens; ++t) {
      for (int32_t h = 0; h < all; ++h) {
        const float* source = &qkv[(t * all + h) * d];
        const bool is_v = h >= heads + kv_heads;
        std::vector<double> x(source, source + d);
        if (!is_v) {
          double sum = 0;
          for (double value : x) sum += value * value;
          for (int32_t i = 0; i < d; ++i) x[i] *= (h < heads ? q_norm : k_norm)[i] / std::sqrt(sum / d + 1e-6);
          for (int32_t i = 0; i < rotary / 2; ++i) {
            const int32_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + rotary / 2;
            const double angle = positions[t] * std::pow(10000.0, -2.0 * i / rotary), a = x[first], b = x[second];
            x[first] = a * std::cos(angle) - b * std::sin(angle);
            x[second] = b * std::cos(angle) + a * std::sin(angle);
          }
        }
        const int32_t kv_head = (h - heads) % kv_heads;
        const size_t slot = ((slots[t] / block_size * kv_heads + kv_head) * block_size + slots[t] % block_size) * d;
        for (int32_t i = 0; i < d; ++i) {
          const uint16_t got = h < heads ? got_q[(t * heads + h) * d + i] : is_v ? got_v[slot + i] : got_k[slot + i];
          ASSERT_NEAR(FromBf16(got), x[i], std::abs(x[i]) * 0.005 + 1e-5) << "token " << t << " head " << h << " " << i;
        }
      }
    }
    // Nothing but the tokens' slots was written.
    EXPECT_EQ(std::count(got_k.begin(), got_k.end(), 0xFFFF), static_cast<int64_t>(got_k.size()) - tokens * kv_heads * d);
  }
}

TEST(CudaRouting, ChoosesSortsAndCombines) {
  TESSERA_REQUIRE_GPU();
  for (const int32_t experts : {16, 100, 256, 600}) {
    const int32_t tokens = 37, top_k = 4, dim = 48, tile = 8;
    std::vector<float> logits = Normal(tokens * experts, experts);
    for (float& x : logits) x = std::round(x * 8) / 8;  // ties
    logits[5 * experts + 3] = NAN;
    const DeviceBuffer<float> d_logits(logits), weights(tokens * top_k);
    const DeviceBuffer<int32_t> chosen(tokens * top_k);
    RouteParams p;
    p.logits = d_logits.get();
    p.tokens = tokens;
    p.num_experts = experts;
    p.top_k = top_k;
    p.renormalize = true;
    p.scale = 2.5f;
    p.experts = chosen.get();
    p.weights = weights.get();
    ASSERT_EQ(RouteTokens(p, nullptr), nullptr);
    const std::vector<int32_t> ids = chosen.Read();
    const std::vector<float> w = weights.Read();
    for (int32_t t = 0; t < tokens; ++t) {
      if (t == 5) {
        for (int32_t k = 0; k < top_k; ++k) {
          EXPECT_EQ(ids[t * top_k + k], k);
          EXPECT_TRUE(std::isnan(w[t * top_k + k]));
        }
        continue;
      }
      std::vector<int32_t> order(experts);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return logits[t * experts + a] > logits[t * experts + b]; });
      double sum = 0;
      for (int32_t k = 0; k < top_k; ++k) sum += std::exp(logits[t * experts + order[k]]);
      for (int32_t k = 0; k < top_k; ++k) {
        ASSERT_EQ(ids[t * top_k + k], order[k]) << "experts " << experts << " token " << t;
        ASSERT_NEAR(w[t * top_k + k], 2.5 * std::exp(logits[t * experts + order[k]]) / sum, 1e-5);
      }
    }

    const int32_t most = MostTiles(tokens, top_k, experts, tile);
    const DeviceBuffer<int32_t> slot_token(tokens * top_k), token_slot(tokens * top_k), tile_expert(most), num_tiles(1);
    const DeviceBuffer<int2> ranges(most);
    ASSERT_EQ(SortByExpert(chosen.get(), tokens, top_k, experts, tile,
                           {slot_token.get(), token_slot.get(), tile_expert.get(), ranges.get(), num_tiles.get()}, nullptr),
              nullptr);
    std::vector<int32_t> order(tokens * top_k);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return ids[a] < ids[b]; });
    const std::vector<int32_t> slots = slot_token.Read(), back = token_slot.Read(), te = tile_expert.Read();
    const std::vector<int2> r = ranges.Read();
    for (size_t s = 0; s < order.size(); ++s) {
      ASSERT_EQ(slots[s], order[s] / top_k);
      ASSERT_EQ(back[order[s]], static_cast<int32_t>(s));
    }
    const int32_t tiles = num_tiles.Read()[0];
    ASSERT_LE(tiles, most);
    int32_t next = 0;
    for (int32_t i = 0; i < tiles; ++i) {
      ASSERT_EQ(r[i].x, next);
      ASSERT_LE(r[i].y - r[i].x, tile);
      for (int32_t s = r[i].x; s < r[i].y; ++s) ASSERT_EQ(ids[order[s]], te[i]);
      next = r[i].y;
    }
    EXPECT_EQ(next, tokens * top_k);

    const std::vector<float> rows = Normal(tokens * top_k * dim, 8), residual = Normal(tokens * dim, 9);
    const DeviceBuffer<float> d_rows(rows), d_residual(residual);
    ASSERT_EQ(CombineExperts(d_rows.get(), token_slot.get(), weights.get(), tokens, top_k, dim, d_residual.get(), nullptr),
              nullptr);
    const std::vector<float> got = d_residual.Read();
    for (int32_t t = 0; t < tokens; ++t) {
      if (t == 5) continue;
      for (int32_t i = 0; i < dim; ++i) {
        double want = residual[t * dim + i];
        for (int32_t k = 0; k < top_k; ++k) want += double(w[t * top_k + k]) * rows[back[t * top_k + k] * dim + i];
        ASSERT_NEAR(got[t * dim + i], want, 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::cuda
