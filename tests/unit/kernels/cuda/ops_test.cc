#include "kernels/cuda/ops/ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/moe/routing.h"
#include "tests/unit/kernels/cuda/gpu.h"

namespace tessera::cuda {
namespace {

double RmsScale(const float* x, int32_t dim) {
  double sum = 0;
  for (int32_t i = 0; i < dim; ++i) sum += double(x[i]) * x[i];
  return 1 / std::sqrt(sum / dim + 1e-6);
}

TEST(CudaOps, RmsNormGathersAndPadsRows) {
  TESSERA_REQUIRE_GPU();
  const int32_t dim = 700, stride = 703, out_dim = 704;
  const std::vector<float> x = Normal(5 * stride, 1), weight = Normal(dim, 2);
  const std::vector<int32_t> rows = {4, 0, 4};
  const DeviceBuffer<float> d_x(x), d_weight(weight), out(rows.size() * out_dim);
  const DeviceBuffer<uint16_t> rounded(rows.size() * out_dim);
  const DeviceBuffer<int32_t> d_rows(rows);
  RmsNormParams p = {d_x.get(), stride,         d_rows.get(), static_cast<int32_t>(rows.size()),
                     dim,       d_weight.get(), 1e-6f};
  ASSERT_EQ(RmsNormFloat(p, out.get(), out_dim, nullptr), nullptr);
  ASSERT_EQ(RmsNorm(p, rounded.get(), out_dim, nullptr), nullptr);
  const std::vector<float> got = out.Read();
  const std::vector<uint16_t> got_rounded = rounded.Read();
  for (size_t r = 0; r < rows.size(); ++r) {
    const float* source = &x[rows[r] * stride];
    const double scale = RmsScale(source, dim);
    for (int32_t i = 0; i < dim; ++i) {
      const double want = source[i] * scale * weight[i];
      ASSERT_NEAR(got[r * out_dim + i], want, 2e-6 * (1 + std::abs(want)));
      ASSERT_EQ(got_rounded[r * out_dim + i], ToBf16(got[r * out_dim + i]));
    }
    for (int32_t i = dim; i < out_dim; ++i) ASSERT_EQ(got_rounded[r * out_dim + i], 0);
  }
  // In place, as a norm over all heads of q is taken.
  p.rows = nullptr;
  p.tokens = 5;
  ASSERT_EQ(RmsNormFloat(p, d_x.get(), stride, nullptr), nullptr);
  const std::vector<float> in_place = d_x.Read();
  for (int32_t i = 0; i < 5 * stride; ++i) {
    const int32_t row = i / stride, column = i % stride;
    const double scale = column < dim ? RmsScale(&x[row * stride], dim) * weight[column] : 1.0;
    ASSERT_NEAR(in_place[i], x[i] * scale, 2e-6 * (1 + std::abs(x[i] * scale)));
  }
}

TEST(CudaOps, EmbedsTokensAndDraws) {
  TESSERA_REQUIRE_GPU();
  const int32_t vocab = 9, dim = 300;
  std::vector<uint16_t> table;
  for (const float x : Normal(vocab * dim, 1)) table.push_back(ToBf16(x));
  const std::vector<int32_t> ids = {3, IdOfDraw(1), 8, IdOfDraw(0), IdOfDraw(2)};
  const std::vector<int32_t> draws = {5, -7, 7, -7, -1, -7};  // the third came to nothing
  const std::vector<int32_t> rows = {3, 7, 8, 5, 0};
  const DeviceBuffer<uint16_t> d_table(table);
  const DeviceBuffer<int32_t> d_ids(ids), d_draws(draws);
  const DeviceBuffer<float> out(ids.size() * dim);
  ASSERT_EQ(EmbedTokens(d_table.get(), d_ids.get(), {d_draws.get(), 2}, ids.size(), dim, out.get(), nullptr),
            nullptr);
  const std::vector<float> got = out.Read();
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(ToBf16(got[i]), table[rows[i / dim] * dim + i % dim]) << i;
  }
}

TEST(CudaOps, FinishQkvNormalisesRotatesAndWrites) {
  TESSERA_REQUIRE_GPU();
  const int32_t tokens = 3, heads = 4, kv_heads = 2, block_size = 16, rotary = 32;
  for (const auto& [interleaved, d, out_d, gap] :
       {std::tuple(false, 64, 64, 0), std::tuple(true, 64, 64, 16), std::tuple(false, 40, 64, 8)}) {
    const int32_t k_offset = heads * d + gap, v_offset = k_offset + kv_heads * d + gap;
    const int32_t row_stride = v_offset + kv_heads * d + gap;
    const std::vector<float> qkv = Normal(tokens * row_stride, 3);
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
    const int32_t cache_size = 4 * kv_heads * block_size * out_d;
    const DeviceBuffer<uint16_t> q(tokens * heads * out_d), k(cache_size), v(cache_size);
    QkvParams p;
    p.qkv = d_qkv.get();
    p.row_stride = row_stride;
    p.k_offset = k_offset;
    p.v_offset = v_offset;
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
    p.out_dim = out_d;
    p.block_size = block_size;
    p.q = q.get();
    p.k_cache = k.get();
    p.v_cache = v.get();
    ASSERT_EQ(FinishQkv(p, nullptr), nullptr);
    const std::vector<uint16_t> got_q = q.Read(), got_k = k.Read(), got_v = v.Read();
    const int32_t all = heads + 2 * kv_heads;
    for (int32_t t = 0; t < tokens; ++t) {
      for (int32_t h = 0; h < all; ++h) {
        const bool is_v = h >= heads + kv_heads;
        const int32_t kv_head = h < heads ? 0 : (h - heads) % kv_heads;
        const float* source =
            &qkv[t * row_stride + (h < heads ? h * d : (is_v ? v_offset : k_offset) + kv_head * d)];
        std::vector<double> x(source, source + d);
        if (!is_v) {
          double sum = 0;
          for (double value : x) sum += value * value;
          for (int32_t i = 0; i < d; ++i)
            x[i] *= (h < heads ? q_norm : k_norm)[i] / std::sqrt(sum / d + 1e-6);
          for (int32_t i = 0; i < rotary / 2; ++i) {
            const int32_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + rotary / 2;
            const double angle = positions[t] * std::pow(10000.0, -2.0 * i / rotary), a = x[first],
                         b = x[second];
            x[first] = a * std::cos(angle) - b * std::sin(angle);
            x[second] = b * std::cos(angle) + a * std::sin(angle);
          }
        }
        const size_t slot =
            ((slots[t] / block_size * kv_heads + kv_head) * block_size + slots[t] % block_size) * out_d;
        x.resize(out_d, 0.0);
        for (int32_t i = 0; i < out_d; ++i) {
          const uint16_t got = h < heads ? got_q[(t * heads + h) * out_d + i]
                               : is_v    ? got_v[slot + i]
                                         : got_k[slot + i];
          ASSERT_NEAR(FromBf16(got), x[i], i < d ? std::abs(x[i]) * 0.005 + 1e-5 : 0.0)
              << "token " << t << " head " << h << " " << i;
        }
      }
    }
    // Nothing but the tokens' slots was written.
    EXPECT_EQ(std::count(got_k.begin(), got_k.end(), 0xFFFF),
              static_cast<int64_t>(got_k.size()) - tokens * kv_heads * out_d);
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
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return logits[t * experts + a] > logits[t * experts + b];
      });
      double sum = 0;
      for (int32_t k = 0; k < top_k; ++k) sum += std::exp(logits[t * experts + order[k]]);
      for (int32_t k = 0; k < top_k; ++k) {
        ASSERT_EQ(ids[t * top_k + k], order[k]) << "experts " << experts << " token " << t;
        ASSERT_NEAR(w[t * top_k + k], 2.5 * std::exp(logits[t * experts + order[k]]) / sum, 1e-5);
      }
    }

    const int32_t most = MostTiles(tokens, top_k, experts, tile);
    const DeviceBuffer<int32_t> slot_token(tokens * top_k), token_slot(tokens * top_k), tile_expert(most),
        num_tiles(1);
    const DeviceBuffer<int2> ranges(most);
    ASSERT_EQ(
        SortByExpert(chosen.get(), tokens, top_k, experts, tile,
                     {slot_token.get(), token_slot.get(), tile_expert.get(), ranges.get(), num_tiles.get()},
                     nullptr),
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
    ASSERT_EQ(CombineExperts(d_rows.get(), token_slot.get(), weights.get(), tokens, top_k, dim,
                             d_residual.get(), nullptr),
              nullptr);
    const std::vector<float> got = d_residual.Read();
    for (int32_t t = 0; t < tokens; ++t) {
      if (t == 5) continue;
      for (int32_t i = 0; i < dim; ++i) {
        double want = residual[t * dim + i];
        for (int32_t k = 0; k < top_k; ++k)
          want += double(w[t * top_k + k]) * rows[back[t * top_k + k] * dim + i];
        ASSERT_NEAR(got[t * dim + i], want, 1e-5);
      }
    }
  }
}

// As kernels/cpu/moe/router.cc has it, in double precision.
void RouteOnHost(const RouteParams& p, const float* logits, const std::vector<float>& bias, int32_t* ids,
                 double* weights) {
  const int32_t n = p.num_experts;
  std::vector<double> score(logits, logits + n), choice(n);
  double sum = 0;
  for (const double x : score) sum += std::exp(x);
  for (double& x : score) {
    if (p.score == RoutingScore::kSoftmax) x = std::exp(x) / sum;
    if (p.score == RoutingScore::kSigmoid) x = 1 / (1 + std::exp(-x));
  }
  for (int32_t i = 0; i < n; ++i) choice[i] = score[i] + (bias.empty() ? 0.0 : bias[i]);
  const int32_t size = n / p.num_groups;
  std::vector<std::pair<double, int32_t>> groups;
  for (int32_t g = 0; g < p.num_groups; ++g) {
    std::vector<double> members(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::sort(members.rbegin(), members.rend());
    groups.emplace_back(size == 1 ? -members[0] : -(members[0] + members[1]), g);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<std::pair<double, int32_t>> order;
  for (int32_t g = 0; g < (p.num_groups == 1 ? 1 : p.topk_groups); ++g) {
    for (int32_t i = groups[g].second * size; i < (groups[g].second + 1) * size; ++i) {
      order.emplace_back(-choice[i], i);
    }
  }
  std::sort(order.begin(), order.end());
  sum = 0;
  for (int32_t k = 0; k < p.top_k; ++k) {
    ids[k] = order[k].second;
    weights[k] = score[ids[k]];
    if (p.score == RoutingScore::kSoftmaxSelected) weights[k] = std::exp(weights[k]);
    sum += weights[k];
  }
  for (int32_t k = 0; k < p.top_k; ++k) {
    if (p.renormalize || p.score == RoutingScore::kSoftmaxSelected) weights[k] /= sum;
    weights[k] *= p.scale;
  }
}

TEST(CudaRouting, TakesEveryKindOfRouter) {
  TESSERA_REQUIRE_GPU();
  const int32_t tokens = 19;
  for (const auto& [experts, top_k, groups, kept] :
       {std::tuple(6, 3, 1, 1), std::tuple(8, 3, 4, 2), std::tuple(16, 2, 16, 5), std::tuple(160, 6, 8, 3),
        std::tuple(256, 8, 8, 4), std::tuple(768, 32, 32, 7)}) {
    const std::vector<float> logits = Normal(tokens * experts, experts);
    std::vector<float> bias = Normal(experts, experts + 1);
    for (float& b : bias) b *= 0.2f;
    const DeviceBuffer<float> d_logits(logits), d_bias(bias), weights(tokens * top_k);
    const DeviceBuffer<int32_t> chosen(tokens * top_k);
    for (const RoutingScore score :
         {RoutingScore::kSoftmax, RoutingScore::kSigmoid, RoutingScore::kSoftmaxSelected}) {
      for (const bool biased : {false, true}) {
        RouteParams p;
        p.logits = d_logits.get();
        p.tokens = tokens;
        p.num_experts = experts;
        p.top_k = top_k;
        p.score = score;
        p.selection_bias = biased ? d_bias.get() : nullptr;
        p.num_groups = groups;
        p.topk_groups = kept;
        p.renormalize = !biased;
        p.scale = 1.5f;
        p.experts = chosen.get();
        p.weights = weights.get();
        const char* error = RouteTokens(p, nullptr);
        ASSERT_EQ(error, nullptr) << error;
        const std::vector<int32_t> ids = chosen.Read();
        const std::vector<float> got = weights.Read();
        for (int32_t t = 0; t < tokens; ++t) {
          std::vector<int32_t> want_ids(top_k);
          std::vector<double> want(top_k);
          RouteOnHost(p, &logits[t * experts], biased ? bias : std::vector<float>(), want_ids.data(),
                      want.data());
          for (int32_t k = 0; k < top_k; ++k) {
            ASSERT_EQ(ids[t * top_k + k], want_ids[k])
                << experts << " experts, token " << t << " choice " << k;
            ASSERT_NEAR(got[t * top_k + k], want[k], 1e-5 * (1 + std::abs(want[k])));
          }
        }
      }
    }
  }
  RouteParams p;
  p.tokens = 1;
  p.num_experts = 8;
  p.top_k = 5;
  p.num_groups = 4;
  p.topk_groups = 2;
  EXPECT_NE(RouteTokens(p, nullptr), nullptr) << "two groups of two hold no five experts";
}

}  // namespace
}  // namespace tessera::cuda
