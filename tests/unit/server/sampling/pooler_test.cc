#include "server/sampling/pooler.h"

#include <cmath>
#include <random>

#include "gtest/gtest.h"

namespace tessera {
namespace {

std::vector<std::vector<float>> RandomHidden(int tokens, int size) {
  std::mt19937 random(tokens);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> hidden(tokens, std::vector<float>(size));
  for (auto& row : hidden) {
    for (float& x : row) x = normal(random);
  }
  return hidden;
}

TEST(PoolerTest, Kinds) {
  const auto hidden = RandomHidden(5, 8);
  for (PoolingKind kind : {PoolingKind::kLast, PoolingKind::kMean, PoolingKind::kCls}) {
    Pooler pooler(kind, 8, 5);
    for (int i = 0; i < 5; ++i) {
      EXPECT_FALSE(pooler.complete());
      pooler.Add(i, hidden[i]);
    }
    EXPECT_TRUE(pooler.complete());
    const std::vector<float> result = pooler.Result(false);
    for (int j = 0; j < 8; ++j) {
      double mean = 0;
      for (const auto& row : hidden) mean += row[j] / 5.0;
      const double expected = kind == PoolingKind::kLast  ? hidden[4][j]
                              : kind == PoolingKind::kCls ? hidden[0][j]
                                                          : mean;
      EXPECT_NEAR(result[j], expected, 1e-6);
    }
    const std::vector<float> unit = pooler.Result(true);
    double length = 0, dot = 0, norm = 0;
    for (int j = 0; j < 8; ++j) {
      length += unit[j] * unit[j];
      dot += unit[j] * result[j];
      norm += result[j] * result[j];
    }
    EXPECT_NEAR(length, 1.0, 1e-6);
    EXPECT_NEAR(dot, std::sqrt(norm), 1e-5);
  }
}

TEST(PoolerTest, PositionZeroStartsOver) {
  const auto hidden = RandomHidden(4, 3);
  Pooler pooler(PoolingKind::kMean, 3, 4), once(PoolingKind::kMean, 3, 4);
  for (int i = 0; i < 3; ++i) pooler.Add(i, hidden[i]);
  for (int i = 0; i < 4; ++i) pooler.Add(i, hidden[i]);
  for (int i = 0; i < 4; ++i) once.Add(i, hidden[i]);
  ASSERT_TRUE(pooler.complete());
  EXPECT_EQ(pooler.Result(true), once.Result(true));
}

TEST(PoolerTest, AMissingPositionNeverCompletes) {
  const auto hidden = RandomHidden(4, 3);
  Pooler pooler(PoolingKind::kLast, 3, 4);
  for (int i : {0, 1, 3}) pooler.Add(i, hidden[i]);
  EXPECT_FALSE(pooler.complete());
}

TEST(PoolerTest, ZeroStaysZero) {
  Pooler pooler(PoolingKind::kLast, 3, 1);
  pooler.Add(0, std::vector<float>(3, 0.0f));
  EXPECT_EQ(pooler.Result(true), std::vector<float>(3, 0.0f));
}

}  // namespace
}  // namespace tessera
