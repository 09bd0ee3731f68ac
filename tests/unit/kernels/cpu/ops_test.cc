#include "kernels/cpu/ops/ops.h"

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/reference.h"
#include "tests/unit/kernels/cpu/test_util.h"

namespace tessera::cpu {
namespace {

class OpsTest : public EachIsa {
 protected:
  Random random_{1};
  ThreadPool pool_{2};
};

TEST_P(OpsTest, ExpIsAccurateAndExactWhereItMatters) {
  const KernelTable& table = Kernels();
  double worst = 0;
  std::vector<float> x, y;
  for (float v = -87.0f; v < 88.37f; v += 0.0009765f) x.push_back(v);
  for (int i = 0; i < 20000; ++i) x.push_back(random_.Normal());
  y.resize(x.size());
  table.exp_sum(x.data(), 0.0f, static_cast<int64_t>(x.size()), y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    worst = std::max(worst, std::fabs(y[i] - exact) / exact);
  }
  EXPECT_LT(worst, 0x1p-22);
  const float inf = std::numeric_limits<float>::infinity();
  const float special[] = {0.0f, -0.0f, -inf, -87.5f, -1e30f, inf, 89.0f, kNaN};
  float result[8];
  table.exp_sum(special, 0.0f, 8, result);
  EXPECT_EQ(result[0], 1.0f);
  EXPECT_EQ(result[1], 1.0f);
  EXPECT_EQ(result[2], 0.0f);
  EXPECT_EQ(result[3], 0.0f);
  EXPECT_EQ(result[4], 0.0f);
  EXPECT_EQ(result[5], inf);
  EXPECT_EQ(result[6], inf);
  EXPECT_TRUE(std::isnan(result[7]));
}

TEST_P(OpsTest, RmsNormMatchesDoublePrecision) {
  for (int64_t dim : {1, 7, 16, 33, 128, 2048}) {
    const int64_t tokens = 9, stride = dim + 4;
    std::vector<float> x = random_.Normals(tokens * stride, 3.0f);
    const std::vector<float> weight = random_.Normals(dim);
    for (const float* w : {weight.data(), static_cast<const float*>(nullptr)}) {
      const std::vector<double> expected = reference::RmsNorm(x.data(), stride, tokens, dim, w, 1e-6);
      std::vector<float> out(tokens * dim);
      std::vector<Bf16> out_bf16(tokens * dim);
      ASSERT_TRUE(RmsNorm(x.data(), stride, tokens, dim, w, 1e-6f, out.data(), dim, pool_).ok());
      ASSERT_TRUE(RmsNorm(x.data(), stride, tokens, dim, w, 1e-6f, out_bf16.data(), dim, pool_).ok());
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_NEAR(out[i], expected[i], 1e-6 * std::fabs(expected[i]) + 1e-30);
        ASSERT_EQ(out_bf16[i], ToBf16(out[i]));
      }
    }
  }
}

TEST_P(OpsTest, HeadRmsNormNormalisesEachHeadAlone) {
  const int64_t tokens = 5, heads = 3, dim = 48, stride = 200;
  std::vector<float> x = random_.Normals(tokens * stride);
  const std::vector<float> before = x;
  const std::vector<float> weight = random_.Normals(dim);
  ASSERT_TRUE(HeadRmsNorm(x.data(), stride, tokens, heads, dim, weight.data(), 1e-6f, pool_).ok());
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = t * stride + h * dim;
      const std::vector<double> expected =
          reference::RmsNorm(before.data() + at, dim, 1, dim, weight.data(), 1e-6);
      for (int64_t i = 0; i < dim; ++i) ASSERT_NEAR(x[at + i], expected[i], 2e-6);
    }
    for (int64_t i = heads * dim; i < stride; ++i) ASSERT_EQ(x[t * stride + i], before[t * stride + i]);
  }
}

TEST_P(OpsTest, RopeRotatesPairs) {
  const int64_t tokens = 4, heads = 2, dim = 80;
  const int32_t positions[] = {0, 1, 77, 40959};
  for (RopeKind kind : {RopeKind::kNeox, RopeKind::kInterleaved}) {
    for (int64_t rotary : {int64_t{2}, int64_t{40}, dim}) {
      const int64_t half = rotary / 2, stride = heads * dim + 1;
      std::vector<double> frequencies;
      for (int64_t i = 0; i < half; ++i) frequencies.push_back(std::pow(1e6, -2.0 * i / rotary));
      std::vector<float> cos(tokens * half), sin(tokens * half);
      ASSERT_TRUE(
          RopeTable(positions, tokens, frequencies.data(), half, 1.25, cos.data(), sin.data(), pool_).ok());
      std::vector<float> x = random_.Normals(tokens * stride);
      const std::vector<float> before = x;
      ASSERT_TRUE(
          Rope(kind, x.data(), stride, tokens, heads, dim, rotary, cos.data(), sin.data(), pool_).ok());
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t h = 0; h < heads; ++h) {
          const float* head = before.data() + t * stride + h * dim;
          const float* out = x.data() + t * stride + h * dim;
          for (int64_t i = 0; i < half; ++i) {
            const int64_t a = kind == RopeKind::kNeox ? i : 2 * i;
            const int64_t b = kind == RopeKind::kNeox ? i + half : 2 * i + 1;
            const double angle = positions[t] * frequencies[i];
            const double c = 1.25 * std::cos(angle), s = 1.25 * std::sin(angle);
            ASSERT_NEAR(out[a], head[a] * c - head[b] * s, 2e-6);
            ASSERT_NEAR(out[b], head[b] * c + head[a] * s, 2e-6);
          }
          for (int64_t i = rotary; i < dim; ++i) ASSERT_EQ(out[i], head[i]);
        }
      }
    }
  }
}

TEST_P(OpsTest, SwiGluMatchesDoublePrecision) {
  const int64_t tokens = 3, dim = 37;
  std::vector<float> gate = random_.Normals(tokens * dim, 4.0f), up = random_.Normals(tokens * dim);
  gate[0] = -200.0f;  // silu underflows to zero, not NaN
  gate[1] = 200.0f;
  std::vector<Bf16> out(tokens * dim);
  ASSERT_TRUE(
      GatedActivation(Glu{}, gate.data(), dim, up.data(), dim, tokens, dim, out.data(), dim, pool_).ok());
  for (int64_t i = 0; i < tokens * dim; ++i) {
    const double expected = gate[i] / (1.0 + std::exp(-static_cast<double>(gate[i]))) * up[i];
    EXPECT_NEAR(ToFloat(out[i]), expected, std::fabs(expected) * 0x1.01p-8 + 1e-30) << gate[i];
  }
}

TEST_P(OpsTest, ClampedActivationMatchesDoublePrecision) {
  const int64_t tokens = 5, dim = 43;
  const Glu glu{/*limit=*/2.5f, /*sigmoid_scale=*/1.702f, /*up_offset=*/1.0f};
  std::vector<float> gate = random_.Normals(tokens * dim, 3.0f), up = random_.Normals(tokens * dim, 3.0f);
  gate[0] = -200.0f;  // not clamped below
  gate[1] = 200.0f;
  up[2] = -200.0f;
  up[3] = 200.0f;
  gate[4] = up[5] = kNaN;
  std::vector<Bf16> out(tokens * dim);
  ASSERT_TRUE(
      GatedActivation(glu, gate.data(), dim, up.data(), dim, tokens, dim, out.data(), dim, pool_).ok());
  for (int64_t i = 0; i < tokens * dim; ++i) {
    if (i == 4 || i == 5) {
      EXPECT_TRUE(std::isnan(ToFloat(out[i])));
      continue;
    }
    const double g = std::min(static_cast<double>(gate[i]), 2.5);
    const double u = std::clamp(static_cast<double>(up[i]), -2.5, 2.5);
    const double expected = g / (1.0 + std::exp(-1.702 * g)) * (u + 1.0);
    EXPECT_NEAR(ToFloat(out[i]), expected, std::fabs(expected) * 0x1.01p-8 + 1e-6) << gate[i] << " " << up[i];
  }
}

TEST_P(OpsTest, EmbeddingLookupCopiesRowsAndRefusesUnknownIds) {
  const int64_t vocab = 11, dim = 21;
  const std::vector<Bf16> table = random_.Bf16Normals(vocab * dim);
  std::vector<float> out(3 * dim, 5.0f);
  int32_t ids[] = {10, 0, 11};
  EXPECT_EQ(EmbeddingLookup(table.data(), vocab, dim, ids, 3, out.data(), dim, pool_).message(),
            "EmbeddingLookup: token id 11 at place 2 is outside the vocabulary of 11");
  EXPECT_EQ(out[0], 5.0f);
  ids[2] = 4;
  ASSERT_TRUE(EmbeddingLookup(table.data(), vocab, dim, ids, 3, out.data(), dim, pool_).ok());
  for (int t = 0; t < 3; ++t) {
    for (int64_t i = 0; i < dim; ++i) EXPECT_EQ(out[t * dim + i], ToFloat(table[ids[t] * dim + i]));
  }
}

TEST_P(OpsTest, ConvertToBf16RoundsLikeToBf16) {
  std::vector<float> x;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      x.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  std::vector<Bf16> out(x.size());
  ASSERT_TRUE(ConvertToBf16(x.data(), 0, 1, static_cast<int64_t>(x.size()), out.data(), 0, pool_).ok());
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(out[i], ToBf16(x[i])) << std::bit_cast<uint32_t>(x[i]);
}

TEST_P(OpsTest, RefuseShapesThatDoNotFit) {
  std::vector<float> x(64, 5.0f);
  std::vector<Bf16> out(64);
  EXPECT_FALSE(RmsNorm(x.data(), 15, 2, 16, nullptr, 1e-6f, out.data(), 16, pool_).ok());
  EXPECT_FALSE(RmsNorm(nullptr, 16, 2, 16, nullptr, 1e-6f, out.data(), 16, pool_).ok());
  EXPECT_FALSE(HeadRmsNorm(x.data(), 16, 2, 0, 16, nullptr, 1e-6f, pool_).ok());
  EXPECT_FALSE(Rope(RopeKind::kNeox, x.data(), 16, 2, 1, 16, 18, x.data(), x.data(), pool_).ok());
  EXPECT_FALSE(Rope(RopeKind::kNeox, x.data(), 16, 2, 1, 16, 3, x.data(), x.data(), pool_).ok());
  EXPECT_FALSE(GatedActivation(Glu{}, x.data(), 16, x.data(), 8, 2, 16, out.data(), 16, pool_).ok());
  EXPECT_FALSE(ConvertToBf16(x.data(), 16, -1, 16, out.data(), 16, pool_).ok());
  EXPECT_TRUE(ConvertToBf16(nullptr, 16, 0, 16, nullptr, 16, pool_).ok());
}

TESSERA_EACH_ISA(OpsTest);

}  // namespace
}  // namespace tessera::cpu
