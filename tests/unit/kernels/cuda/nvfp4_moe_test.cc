#include "kernels/cuda/moe/nvfp4_moe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/kernels/cuda/gpu.h"
#include "tests/unit/kernels/cuda/nvfp4_matrix.h"

namespace tessera::cuda {
namespace {

// A layer of experts with random weights, tokens and routing.
struct Layer {
  int32_t hidden, inter, experts, top_k, tokens;
  std::mt19937 rng{17};
  std::vector<Matrix> gates, ups, downs;
  std::vector<uint16_t> x;
  std::vector<int32_t> chosen;
  std::vector<float> weights, in_scales, inner_scales;

  Layer(int32_t hidden, int32_t inter, int32_t experts, int32_t top_k, int32_t tokens)
      : hidden(hidden), inter(inter), experts(experts), top_k(top_k), tokens(tokens) {
    for (int32_t e = 0; e < experts; ++e) {
      gates.emplace_back(inter, hidden, rng);
      ups.emplace_back(inter, hidden, rng);
      downs.emplace_back(hidden, inter, rng);
      // About the size that calibration would find: inputs up to 5, intermediate results up to 20000.
      in_scales.push_back((4 + e % 3) / 2688.0f);
      inner_scales.push_back((20000 + e % 5 * 1000) / 2688.0f);
    }
    x = RandomActivations(size_t(tokens) * hidden, rng);
    std::vector<int32_t> order(experts);
    std::iota(order.begin(), order.end(), 0);
    for (int32_t t = 0; t < tokens; ++t) {
      std::shuffle(order.begin(), order.end(), rng);
      chosen.insert(chosen.end(), order.begin(), order.begin() + top_k);
      for (int32_t k = 0; k < top_k; ++k) weights.push_back((1 + rng() % 100) / 200.0f);
    }
  }

  // What a token's experts add up to, in double precision from quantised inputs.
  std::vector<double> Reference(int32_t token, bool given_scales) const {
    std::vector<double> sum(hidden);
    for (int32_t i = 0; i < top_k; ++i) {
      const int32_t e = chosen[token * top_k + i];
      const uint16_t* row = &x[size_t(token) * hidden];
      const float scale = given_scales ? in_scales[e] : RowScale(row, hidden);
      const QuantizedRow in(row, hidden, scale);
      std::vector<float> inner(inter);
      std::vector<uint16_t> rounded(inter);
      for (int32_t f = 0; f < inter; ++f) {
        double gate = 0, up = 0;
        for (int32_t j = 0; j < hidden; ++j) {
          gate += double(gates[e].Value(f, j)) * in.values[j];
          up += double(ups[e].Value(f, j)) * in.values[j];
        }
        gate *= double(scale) * gates[e].tensor_scale;
        up *= double(scale) * ups[e].tensor_scale;
        inner[f] = gate / (1 + std::exp(-gate)) * up;
        rounded[f] = ToBf16(inner[f]);
      }
      std::vector<uint8_t> codes(inter / 2), scales(inter / 16);
      const float inner_scale = given_scales ? inner_scales[e] : RowScale(rounded.data(), inter);
      if (!given_scales) {
        for (int32_t f = 0; f < inter; ++f) inner[f] = FromBf16(rounded[f]);
      }
      nvfp4::QuantizeRow(inner.data(), inter, inner_scale, nvfp4::BlockScaleRule::kModelOpt, codes.data(),
                         scales.data());
      for (int32_t o = 0; o < hidden; ++o) {
        double row_sum = 0;
        for (int32_t f = 0; f < inter; ++f) {
          row_sum += double(downs[e].Value(o, f)) *
                     nvfp4::DequantizeUnscaled(codes[f / 2] >> (f % 2 * 4) & 15, scales[f / 16]);
        }
        sum[o] += weights[token * top_k + i] * row_sum * inner_scale * downs[e].tensor_scale;
      }
    }
    return sum;
  }
};

class Nvfp4MoeTest : public testing::TestWithParam<bool> {
 protected:
  // Runs the tokens `which` of a layer; returns what was added to a residual of ones.
  static std::vector<float> Run(const Layer& layer, const Packed& gate_up, const Packed& down,
                                const std::vector<int32_t>& which, bool given_scales) {
    std::vector<uint16_t> x;
    std::vector<int32_t> chosen;
    std::vector<float> weights;
    for (int32_t t : which) {
      x.insert(x.end(), layer.x.begin() + size_t(t) * layer.hidden,
               layer.x.begin() + size_t(t + 1) * layer.hidden);
      chosen.insert(chosen.end(), layer.chosen.begin() + t * layer.top_k,
                    layer.chosen.begin() + (t + 1) * layer.top_k);
      weights.insert(weights.end(), layer.weights.begin() + t * layer.top_k,
                     layer.weights.begin() + (t + 1) * layer.top_k);
    }
    const DeviceBuffer<uint16_t> d_x(x);
    const DeviceBuffer<int32_t> d_chosen(chosen);
    const DeviceBuffer<float> d_weights(weights), d_in(layer.in_scales), d_inner(layer.inner_scales);
    DeviceBuffer<float> residual(std::vector<float>(which.size() * layer.hidden, 1.0f));
    Nvfp4MoeParams p;
    p.x = d_x.get();
    p.tokens = which.size();
    p.hidden = layer.hidden;
    p.intermediate = layer.inter;
    p.num_experts = layer.experts;
    p.top_k = layer.top_k;
    p.experts = d_chosen.get();
    p.expert_weights = d_weights.get();
    p.gate_up = gate_up.weights;
    p.down = down.weights;
    p.gate_up_input_scales = given_scales ? d_in.get() : nullptr;
    p.down_input_scales = given_scales ? d_inner.get() : nullptr;
    p.residual = residual.get();
    DeviceBuffer<uint8_t> workspace(Nvfp4MoeWorkspaceBytes(p), Unwritten());
    p.workspace = workspace.get();
    const char* error = Nvfp4Moe(p, nullptr);
    EXPECT_EQ(error, nullptr) << error;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return residual.Read();
  }
};

TEST_P(Nvfp4MoeTest, EqualsDoublePrecisionAndDoesNotDependOnTheBatch) {
  TESSERA_REQUIRE_BLACKWELL();
  const bool given_scales = GetParam();
  const Layer layer(/*hidden=*/208, /*inter=*/144, /*experts=*/6, /*top_k=*/2, /*tokens=*/23);
  const Packed gate_up(layer.gates, layer.ups), down(layer.downs);
  std::vector<int32_t> all(layer.tokens);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<float> got = Run(layer, gate_up, down, all, given_scales);
  double error2 = 0, norm2 = 0;
  for (int32_t t = 0; t < layer.tokens; ++t) {
    const std::vector<double> want = layer.Reference(t, given_scales);
    for (int32_t i = 0; i < layer.hidden; ++i) {
      const double difference = got[size_t(t) * layer.hidden + i] - 1.0 - want[i];
      ASSERT_TRUE(std::isfinite(difference)) << "token " << t << " at " << i;
      error2 += difference * difference;
      norm2 += want[i] * want[i];
    }
  }
  // Values beside a rounding border may fall to the other side of it: a step of the code, an eighth of the value or less,
  // for very few.
  EXPECT_LT(std::sqrt(error2 / norm2), 1e-2);
  for (int32_t t : {0, 11, 22}) {
    const std::vector<float> alone = Run(layer, gate_up, down, {t}, given_scales);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), got.begin() + size_t(t) * layer.hidden))
        << "token " << t;
  }
}

INSTANTIATE_TEST_SUITE_P(Scales, Nvfp4MoeTest, testing::Bool(), [](const auto& info) {
  return info.param ? std::string("given") : std::string("dynamic");
});

TEST(Nvfp4Moe, RefusesWeightsOfAnotherShape) {
  int dummy;
  Nvfp4MoeParams p;
  EXPECT_NE(std::string(Nvfp4Moe(p, nullptr)).find("null"), std::string::npos);
  p.x = p.workspace = &dummy;
  p.experts = &dummy;
  p.expert_weights = p.residual = reinterpret_cast<float*>(&dummy);
  p.tokens = p.top_k = p.num_experts = 1;
  p.hidden = p.intermediate = 72;
  EXPECT_NE(std::string(Nvfp4Moe(p, nullptr)).find("multiples of 16"), std::string::npos);
  p.hidden = p.intermediate = 64;
  p.gate_up.n = 256;
  EXPECT_NE(std::string(Nvfp4Moe(p, nullptr)).find("shapes"), std::string::npos);
}

}  // namespace
}  // namespace tessera::cuda
