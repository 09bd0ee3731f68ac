#include "kernels/nvfp4/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::nvfp4 {
namespace {

float FromBits(const std::string& hex) {
  return std::bit_cast<float>(static_cast<uint32_t>(std::stoul(hex, nullptr, 16)));
}

// tests/golden/make_nvfp4.py says what the lines mean.
TEST(QuantizeTest, AgreesWithTorchAndModelOpt) {
  std::ifstream file(std::string(TESSERA_SOURCE_DIR) + "/tests/golden/nvfp4/codec.txt");
  ASSERT_TRUE(file) << "golden file is missing";
  int counts[4] = {};
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string kind, a, b;
    fields >> kind >> a >> b;
    if (kind == "e4m3_decode") {
      EXPECT_EQ(E4M3ToFloat(static_cast<uint8_t>(std::stoul(a, nullptr, 16))), FromBits(b)) << line;
      ++counts[0];
    } else if (kind == "e4m3_encode") {
      EXPECT_EQ(FloatToE4M3(FromBits(a)), std::stoul(b, nullptr, 16)) << line;
      ++counts[1];
    } else if (kind == "e2m1_encode") {
      EXPECT_EQ(FloatToE2M1(FromBits(a)), std::stoul(b, nullptr, 16)) << line;
      ++counts[2];
    } else if (kind == "block") {
      std::string code_digits, value;
      fields >> code_digits;
      std::vector<float> values;
      while (fields >> value) values.push_back(FromBits(value));
      ASSERT_EQ(values.size(), 16u);
      uint8_t codes[8], scale;
      QuantizeRow(values.data(), 16, FromBits(a), BlockScaleRule::kModelOpt, codes, &scale);
      EXPECT_EQ(scale, std::stoul(b, nullptr, 16)) << line;
      for (int i = 0; i < 16; ++i) {
        const int code = (codes[i / 2] >> (i % 2 * 4)) & 0xf;
        EXPECT_EQ(code, std::stoi(code_digits.substr(i, 1), nullptr, 16)) << line << " element " << i;
      }
      ++counts[3];
    } else {
      FAIL() << line;
    }
  }
  EXPECT_EQ(counts[0], 254);
  EXPECT_GT(counts[1], 1000);
  EXPECT_GT(counts[2], 300);
  EXPECT_EQ(counts[3], 96);
}

std::vector<float> Normals(int64_t count, float scale, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& v : values) v = normal(engine);
  return values;
}

struct Quantized {
  std::vector<uint8_t> codes, scales;
  float tensor_scale;
  ErrorStats stats;
};

Quantized Quantize(const std::vector<float>& row, BlockScaleRule rule) {
  const int64_t k = static_cast<int64_t>(row.size());
  Quantized q{std::vector<uint8_t>(k / 2),
              std::vector<uint8_t>(k / 16),
              TensorScaleFromAmax(AbsMax(row.data(), k), rule),
              {}};
  q.stats = QuantizeRow(row.data(), k, q.tensor_scale, rule, q.codes.data(), q.scales.data());
  return q;
}

TEST(QuantizeTest, StatisticsAreThoseOfTheDequantisedRow) {
  for (BlockScaleRule rule : {BlockScaleRule::kModelOpt, BlockScaleRule::kFourOverSix}) {
    std::vector<float> row = Normals(4096, 0.03f, 1);
    std::fill(row.begin() + 32, row.begin() + 48, 0.0f);
    const Quantized q = Quantize(row, rule);
    double error = 0, value = 0, max = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      const uint8_t code = (q.codes[i / 2] >> (i % 2 * 4)) & 0xf;
      const double w = static_cast<double>(DequantizeUnscaled(code, q.scales[i / 16])) * q.tensor_scale;
      error += (row[i] - w) * (row[i] - w);
      value += static_cast<double>(row[i]) * row[i];
      max = std::max(max, std::fabs(row[i] - w));
    }
    EXPECT_EQ(q.stats.count, 4096);
    EXPECT_EQ(q.stats.zero_blocks, 1);
    EXPECT_EQ(q.stats.non_finite_count, 0);
    EXPECT_NEAR(q.stats.sum_squared_error, error, 1e-9 * error);
    EXPECT_NEAR(q.stats.sum_squared_value, value, 1e-9 * value);
    EXPECT_DOUBLE_EQ(q.stats.max_abs_error, max);
    EXPECT_GT(q.stats.SignalToNoiseDb(), 19.0);
  }
}

TEST(QuantizeTest, FourOverSixIsNeverWorseForABlockAndBetterInAll) {
  const std::vector<float> row = Normals(16384, 1.0f, 2);
  const Quantized six = Quantize(row, BlockScaleRule::kModelOpt);
  const Quantized best = Quantize(row, BlockScaleRule::kFourOverSix);
  EXPECT_LT(best.stats.sum_squared_error, six.stats.sum_squared_error);
  EXPECT_GT(best.stats.four_blocks, 100);
  // With the tensor scale given, the choice can only lower a block's error.
  for (int64_t b = 0; b < 1024; ++b) {
    uint8_t codes[8], scale;
    const ErrorStats a =
        QuantizeRow(row.data() + b * 16, 16, best.tensor_scale, BlockScaleRule::kModelOpt, codes, &scale);
    const ErrorStats c =
        QuantizeRow(row.data() + b * 16, 16, best.tensor_scale, BlockScaleRule::kFourOverSix, codes, &scale);
    ASSERT_LE(c.sum_squared_error, a.sum_squared_error);
    EXPECT_LE(E4M3ToFloat(scale), 1.5f * kFourOverSixScaleMax);
  }
}

TEST(QuantizeTest, RepresentableRowsComeBackExactly) {
  std::vector<float> row(64);
  for (int i = 0; i < 64; ++i) row[i] = E2M1ToFloat(static_cast<uint8_t>(i % 16)) * (i < 32 ? 448.0f : 13.0f);
  const Quantized q = Quantize(row, BlockScaleRule::kModelOpt);
  EXPECT_EQ(q.tensor_scale, 1.0f);
  std::vector<float> back(64);
  std::vector<Bf16> back_bf16(64);
  DequantizeRow(q.codes.data(), q.scales.data(), 64, q.tensor_scale, back.data());
  DequantizeRow(q.codes.data(), q.scales.data(), 64, q.tensor_scale, back_bf16.data());
  EXPECT_EQ(back, row);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(ToFloat(back_bf16[i]), row[i]);
  EXPECT_EQ(q.stats.sum_squared_error, 0);
  EXPECT_EQ(q.stats.SignalToNoiseDb(), std::numeric_limits<double>::infinity());
}

TEST(QuantizeTest, ZeroTensorAndTinyAmaxStayFinite) {
  const Quantized zero = Quantize(std::vector<float>(32, 0.0f), BlockScaleRule::kModelOpt);
  EXPECT_EQ(zero.tensor_scale, 1.0f);
  EXPECT_EQ(zero.scales, std::vector<uint8_t>(2, 0x38));  // 1.0
  EXPECT_EQ(zero.codes, std::vector<uint8_t>(16, 0));
  EXPECT_EQ(zero.stats.zero_blocks, 2);
  const Quantized tiny = Quantize(std::vector<float>(16, 1e-44f), BlockScaleRule::kModelOpt);
  EXPECT_GT(tiny.tensor_scale, 0.0f);
  EXPECT_TRUE(std::isfinite(tiny.stats.sum_squared_error));
}

TEST(QuantizeTest, CountsValuesThatAreNotFinite) {
  std::vector<float> row(32, 1.0f);
  row[3] = std::numeric_limits<float>::quiet_NaN();
  row[20] = -std::numeric_limits<float>::infinity();
  uint8_t codes[16], scales[2];
  EXPECT_EQ(QuantizeRow(row.data(), 32, 1.0f, BlockScaleRule::kModelOpt, codes, scales).non_finite_count, 2);
  EXPECT_TRUE(std::isnan(AbsMax(row.data(), 32)));
  EXPECT_TRUE(std::isinf(AbsMax(row.data() + 16, 16)));
}

TEST(QuantizeTest, StatisticsMerge) {
  const std::vector<float> row = Normals(64, 1.0f, 3);
  uint8_t codes[32], scales[4];
  const ErrorStats whole = QuantizeRow(row.data(), 64, 0.002f, BlockScaleRule::kFourOverSix, codes, scales);
  ErrorStats parts;
  for (int i = 0; i < 4; ++i) {
    parts.Merge(QuantizeRow(row.data() + 16 * i, 16, 0.002f, BlockScaleRule::kFourOverSix, codes, scales));
  }
  EXPECT_EQ(parts.count, whole.count);
  EXPECT_EQ(parts.four_blocks, whole.four_blocks);
  EXPECT_DOUBLE_EQ(parts.sum_squared_error, whole.sum_squared_error);
  EXPECT_DOUBLE_EQ(parts.max_abs_error, whole.max_abs_error);
}

}  // namespace
}  // namespace tessera::nvfp4
