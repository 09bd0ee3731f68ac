#include "server/sampling/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "gtest/gtest.h"
#include "server/sampling/philox.h"

namespace tessera {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Known answers of Random123 1.09, kat_vectors.
TEST(PhiloxTest, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, UniformIsInRangeAndFlat) {
  constexpr int kBins = 64, kDraws = 64000;
  std::vector<int> bins(kBins);
  for (int i = 0; i < kDraws; ++i) {
    const double u = UniformAt(7, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++bins[static_cast<int>(u * kBins)];
  }
  double chi2 = 0;
  for (int count : bins) chi2 += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi2, 103.4);  // 63 degrees of freedom, p = 0.001
  EXPECT_NE(UniformAt(1, 0), UniformAt(2, 0));
  EXPECT_NE(UniformAt(uint64_t{1} << 32, 0), UniformAt(0, 0));
}

TEST(ExpTest, AgreesWithDoublePrecision) {
  for (int i = 0; i <= 870000; ++i) {
    const float x = -static_cast<float>(i) * 1e-4f;
    const double exact = std::exp(static_cast<double>(x));
    ASSERT_NEAR(ExpOfNonPositive(x) / exact, 1.0, 3e-7) << x;
  }
  EXPECT_EQ(ExpOfNonPositive(0.0f), 1.0f);
  EXPECT_EQ(ExpOfNonPositive(-0.0f), 1.0f);
  EXPECT_EQ(ExpOfNonPositive(-88.0f), 0.0f);
  EXPECT_EQ(ExpOfNonPositive(-3e38f), 0.0f);
  EXPECT_EQ(ExpOfNonPositive(-kInf), 0.0f);
}

TEST(OrderKeyTest, OrdersLikeFloats) {
  const std::vector<float> values = {-kInf, -3e38f, -1.0f, -1e-45f, -0.0f, 0.0f, 1e-45f, 1.0f, 3e38f, kInf};
  for (float a : values) {
    for (float b : values) EXPECT_EQ(a < b, OrderKey(a) < OrderKey(b)) << a << " " << b;
  }
}

TEST(FindLargestTest, LowestIndexAmongEquals) {
  std::vector<float> logits(5000, -1.0f);
  logits[4100] = logits[1500] = logits[1501] = 2.0f;
  EXPECT_EQ(FindLargest(absl::MakeSpan(logits))->index, 1500);
  logits.assign(3, -1.0f);
  logits[1] = -0.0f;
  logits[2] = 0.0f;
  EXPECT_EQ(FindLargest(absl::MakeSpan(logits))->index, 1);
}

TEST(FindLargestTest, RefusesWhatIsNoDistribution) {
  for (float bad : {kNan, -kNan, kInf}) {
    for (size_t position : {0, 999, 1024, 2999}) {
      std::vector<float> logits(3000, 0.5f);
      logits[position] = bad;
      const auto found = FindLargest(absl::MakeSpan(logits));
      ASSERT_FALSE(found.ok());
      EXPECT_EQ(found.status().code(), absl::StatusCode::kInternal);
      EXPECT_TRUE(IsInvalidLogits(found.status()));
    }
  }
  std::vector<float> none(3000, -kInf);
  EXPECT_TRUE(IsInvalidLogits(FindLargest(absl::MakeSpan(none)).status()));
  EXPECT_TRUE(IsInvalidLogits(FindLargest({}).status()));
  none[2000] = -3e38f;
  EXPECT_EQ(FindLargest(absl::MakeSpan(none))->index, 2000);
  EXPECT_FALSE(IsInvalidLogits(absl::InternalError("other")));
}

TEST(SelectTopTest, EqualsAStableSort) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const int size = 1 + random() % 3000;
    std::vector<float> logits(size);
    const int levels = 1 + random() % 50;  // many ties
    for (float& x : logits) x = static_cast<float>(random() % levels) - levels / 2;
    if (trial % 3 == 0) logits[random() % size] = -kInf;
    std::vector<int32_t> expected(size);
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin(), expected.end(), [&](int a, int b) { return logits[a] > logits[b]; });
    for (int i = 0; i < 20; ++i) {
      const int j = random() % size;
      EXPECT_EQ(RankOf(absl::MakeSpan(logits), expected[j]), j + 1);
    }
    const int k = 1 + random() % (size + 5);
    expected.resize(std::min(k, size));
    std::vector<int32_t> selected;
    SelectTop(absl::MakeSpan(logits), k, &selected);
    ASSERT_EQ(selected, expected) << "size " << size << " k " << k;
  }
}

TEST(ComputeLogprobsTest, AgreesWithDoublePrecision) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> logits(150001);
  for (float& x : logits) x = normal(random);
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x));
  const auto largest = FindLargest(absl::MakeSpan(logits));
  const PositionLogprobs result = ComputeLogprobs(absl::MakeSpan(logits), largest->value, 777, 20);
  EXPECT_NEAR(result.token.logprob, logits[777] - std::log(sum), 2e-6);
  ASSERT_EQ(result.top.size(), 20u);
  EXPECT_EQ(result.top[0].token, largest->index);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(result.top[i].rank, i + 1);
    EXPECT_NEAR(result.top[i].logprob, logits[result.top[i].token] - std::log(sum), 2e-6);
  }
}

}  // namespace
}  // namespace tessera
