#include "server/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "gtest/gtest.h"
#include "server/sampling/logits.h"
#include "server/sampling/philox.h"

namespace tessera {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The distribution that types.proto describes, written down plainly in double precision.
std::vector<double> ReferenceDistribution(std::vector<double> logits, const SamplingParams& params,
                                          const std::vector<int32_t>& prompt,
                                          const std::vector<int32_t>& output,
                                          const std::vector<int32_t>& barred) {
  const int size = static_cast<int>(logits.size());
  for (auto [token, bias] : params.logit_bias) logits[token] += bias;
  for (int32_t token : barred) logits[token] = -kInf;
  std::map<int32_t, int> counts;
  for (int32_t token : output) ++counts[token];
  for (int token = 0; token < size; ++token) {
    const bool seen = counts.count(token) || std::count(prompt.begin(), prompt.end(), token);
    if (seen)
      logits[token] *= logits[token] > 0 ? 1.0 / params.repetition_penalty : params.repetition_penalty;
    if (counts.count(token))
      logits[token] -= params.presence_penalty + params.frequency_penalty * counts[token];
  }
  std::vector<int> order(size);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  std::vector<double> p(size, 0.0);
  if (params.temperature == 0) {
    p[order[0]] = 1;
    return p;
  }
  const double largest = logits[order[0]];
  const auto weight = [&](int token) { return std::exp((logits[token] - largest) / params.temperature); };
  if (params.top_k > 0) order.resize(std::min(size, params.top_k));
  double total = 0;
  for (int token : order) total += weight(token);
  double sum = 0;
  size_t kept = 0;
  if (params.top_p < 1) {
    while (kept < order.size() && sum < params.top_p * total) sum += weight(order[kept++]);
    order.resize(std::max<size_t>(kept, 1));
  }
  while (order.size() > 1 && weight(order.back()) < params.min_p) order.pop_back();
  total = 0;
  for (int token : order) total += weight(token);
  for (int token : order) p[token] = weight(token) / total;
  return p;
}

std::vector<float> RandomLogits(std::mt19937* random, int size, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(size);
  for (float& x : logits) x = normal(*random);
  return logits;
}

Sampler MakeSampler(SamplingParams params, int num_logprobs = -1) {
  return Sampler(std::move(params), {}, {}, 0, num_logprobs);
}

SamplingParams RandomParams(std::mt19937* random, int size) {
  SamplingParams params;
  const auto chance = [&](int percent) { return static_cast<int>((*random)() % 100) < percent; };
  params.temperature = chance(20) ? 0.0f : 0.1f + static_cast<float>((*random)() % 190) / 100;
  if (chance(50)) params.top_k = 1 + (*random)() % (size + 10);
  if (chance(50)) params.top_p = 0.05f + static_cast<float>((*random)() % 95) / 100;
  if (chance(30)) params.min_p = static_cast<float>((*random)() % 100) / 100;
  if (chance(30)) params.repetition_penalty = 0.5f + static_cast<float>((*random)() % 200) / 100;
  if (chance(30)) params.presence_penalty = static_cast<float>((*random)() % 400) / 100 - 2;
  if (chance(30)) params.frequency_penalty = static_cast<float>((*random)() % 400) / 100 - 2;
  if (chance(30)) {
    for (int token = (*random)() % 7; token < size; token += 7) params.logit_bias.emplace_back(token, 3.0f);
  }
  return params;
}

// Every token drawn is where the reference's cumulative distribution, walked by id, says.
TEST(SamplerTest, FollowsTheReferenceForAllParameters) {
  std::mt19937 random(3);
  int near_an_edge = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const int size = trial % 10 == 0 ? 4000 : 20 + random() % 200;
    SamplingParams params = RandomParams(&random, size);
    params.seed = random();
    std::vector<int32_t> prompt, output, barred;
    for (int i = 0; i < 10; ++i) prompt.push_back(random() % size);
    for (int i = 0; i < static_cast<int>(random() % 15); ++i) output.push_back(random() % size);
    if (random() % 3 == 0)
      barred = {static_cast<int32_t>(random() % size), static_cast<int32_t>(random() % size)};
    Sampler sampler(params, prompt, barred, 100, -1);
    for (int32_t token : output) sampler.Accept(token);
    std::vector<float> logits = RandomLogits(&random, size, 3);
    const std::vector<double> p =
        ReferenceDistribution({logits.begin(), logits.end()}, params, prompt, output, barred);
    const auto sampled = sampler.Sample(absl::MakeSpan(logits));
    ASSERT_TRUE(sampled.ok());
    ASSERT_GT(p[sampled->token], 0.0) << "trial " << trial;
    const double u = UniformAt(params.seed, output.size());
    double below = 0;
    for (int token = 0; token < sampled->token; ++token) below += p[token];
    if (u < below - 1e-5 || u > below + p[sampled->token] + 1e-5) {
      ADD_FAILURE() << "trial " << trial << ": u " << u << " outside " << below << " + " << p[sampled->token];
    }
    near_an_edge += std::abs(u - below) < 1e-5;
  }
  EXPECT_LT(near_an_edge, 20);
}

TEST(SamplerTest, ChiSquareOfTheDistribution) {
  std::mt19937 random(4);
  for (int variant = 0; variant < 4; ++variant) {
    SamplingParams params;
    params.temperature = 0.8f;
    if (variant == 1) params.top_k = 12;
    if (variant == 2) params.top_p = 0.9f;
    if (variant == 3) params.min_p = 0.1f;
    const std::vector<float> logits = RandomLogits(&random, 40, 1.5);
    const std::vector<double> p = ReferenceDistribution({logits.begin(), logits.end()}, params, {}, {}, {});
    constexpr int kDraws = 40000;
    std::vector<int> counts(logits.size());
    params.seed = 99 + variant;
    Sampler sampler = MakeSampler(params);
    for (int i = 0; i < kDraws; ++i) {
      std::vector<float> row = logits;
      const int32_t token = sampler.Sample(absl::MakeSpan(row))->token;
      ++counts[token];
      sampler.Accept(token);
    }
    double chi2 = 0;
    int degrees = -1;
    for (size_t token = 0; token < p.size(); ++token) {
      if (p[token] == 0.0) {
        EXPECT_EQ(counts[token], 0);
        continue;
      }
      const double expected = p[token] * kDraws;
      chi2 += (counts[token] - expected) * (counts[token] - expected) / std::max(expected, 1.0);
      ++degrees;
    }
    // Wilson-Hilferty bound, p = 0.0001.
    const double bound =
        degrees * std::pow(1 - 2.0 / (9 * degrees) + 3.72 * std::sqrt(2.0 / (9 * degrees)), 3);
    EXPECT_LT(chi2, bound) << "variant " << variant << ", " << degrees << " degrees";
  }
}

TEST(SamplerTest, GreedyTakesTheLowestIdAmongEquals) {
  SamplingParams params;
  params.temperature = 0;
  std::vector<float> logits = {1, 5, 5, 5};
  EXPECT_EQ(MakeSampler(params).Sample(absl::MakeSpan(logits))->token, 1);
  params.logit_bias = {{1, -1.0f}};
  EXPECT_EQ(MakeSampler(params).Sample(absl::MakeSpan(logits))->token, 2);
}

TEST(SamplerTest, TiesAtTheEdgeOfTopKGoToTheLowerId) {
  SamplingParams params;
  params.top_k = 2;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    params.seed = seed;
    std::vector<float> logits = {0, 2, 1, 1, 1};
    const int32_t token = MakeSampler(params).Sample(absl::MakeSpan(logits))->token;
    EXPECT_TRUE(token == 1 || token == 2) << token;
  }
}

TEST(SamplerTest, LimitsThatRemoveNothingChangeNothing) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    const std::vector<float> logits = RandomLogits(&random, 1 + random() % 5000, 2);
    SamplingParams plain;
    plain.seed = trial;
    SamplingParams limited = plain;
    limited.top_p = std::nextafter(1.0f, 0.0f);
    limited.top_k = static_cast<int32_t>(logits.size()) + (trial % 2);
    std::vector<float> a = logits, b = logits;
    EXPECT_EQ(MakeSampler(plain).Sample(absl::MakeSpan(a))->token,
              MakeSampler(limited).Sample(absl::MakeSpan(b))->token);
  }
}

TEST(SamplerTest, TinyTemperatureIsGreedyAndFinite) {
  std::mt19937 random(6);
  for (float temperature : {1e-4f, 1e-30f, std::numeric_limits<float>::denorm_min()}) {
    const std::vector<float> logits = RandomLogits(&random, 1000, 3);
    SamplingParams params;
    params.temperature = temperature;
    std::vector<float> row = logits;
    EXPECT_EQ(MakeSampler(params).Sample(absl::MakeSpan(row))->token,
              std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
}

TEST(SamplerTest, SampleDoesNotChangeTheState) {
  SamplingParams params;
  params.seed = 11;
  params.presence_penalty = 1;
  Sampler sampler = MakeSampler(params);
  std::mt19937 random(7);
  const std::vector<float> logits = RandomLogits(&random, 100, 1);
  std::vector<float> a = logits, b = logits;
  EXPECT_EQ(sampler.Sample(absl::MakeSpan(a))->token, sampler.Sample(absl::MakeSpan(b))->token);
  EXPECT_EQ(sampler.position(), 0);
}

TEST(SamplerTest, BarsEndTokensUntilMinTokens) {
  SamplingParams params;
  params.temperature = 0;
  Sampler sampler(params, {}, {2}, 3, -1);
  for (int position = 0; position < 5; ++position) {
    std::vector<float> logits = {0, 1, 9, 2};
    const int32_t token = sampler.Sample(absl::MakeSpan(logits))->token;
    EXPECT_EQ(token, position < 3 ? 3 : 2);
    sampler.Accept(token);
  }
}

TEST(SamplerTest, AllBarredIsAnErrorAndNotAToken) {
  SamplingParams params;
  Sampler sampler(params, {}, {0, 1}, 3, -1);
  std::vector<float> logits = {0, 1};
  EXPECT_TRUE(IsInvalidLogits(sampler.Sample(absl::MakeSpan(logits)).status()));
}

TEST(SamplerTest, InvalidLogitsAreAnError) {
  for (float temperature : {0.0f, 1.0f}) {
    SamplingParams params;
    params.temperature = temperature;
    std::vector<float> logits(100, std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(IsInvalidLogits(MakeSampler(params).Sample(absl::MakeSpan(logits)).status()));
    logits.assign(100, -kInf);
    EXPECT_TRUE(IsInvalidLogits(MakeSampler(params).Sample(absl::MakeSpan(logits)).status()));
  }
}

TEST(SamplerTest, TokensOutsideTheVocabularyAreIgnored) {
  SamplingParams params;
  params.temperature = 0;
  params.repetition_penalty = 2;
  params.logit_bias = {{50, 10.0f}};
  Sampler sampler(params, std::vector<int32_t>{77}, {90}, 5, -1);
  std::vector<float> logits = {1, 2};
  EXPECT_EQ(sampler.Sample(absl::MakeSpan(logits))->token, 1);
}

TEST(SamplerTest, LogprobsAreOfTheRawDistribution) {
  SamplingParams params;
  params.temperature = 0;
  params.logit_bias = {{0, 100.0f}};
  Sampler sampler(params, {}, {3}, 5, 2);
  std::vector<float> logits = {0, 1, 2, 3};
  const SampledToken sampled = *sampler.Sample(absl::MakeSpan(logits));
  const double log_sum = std::log(1 + std::exp(1.0) + std::exp(2.0) + std::exp(3.0));
  EXPECT_EQ(sampled.token, 0);
  EXPECT_EQ(sampled.logprobs.token.rank, 4);
  EXPECT_NEAR(sampled.logprobs.token.logprob, -log_sum, 1e-6);
  ASSERT_EQ(sampled.logprobs.top.size(), 2u);
  EXPECT_EQ(sampled.logprobs.top[0].token, 3);
  EXPECT_NEAR(sampled.logprobs.top[0].logprob, 3 - log_sum, 1e-6);
  EXPECT_EQ(sampled.logprobs.top[1].token, 2);
}

TEST(SamplerTest, AskingForLogprobsDoesNotChangeTokens) {
  std::mt19937 random(8);
  for (int trial = 0; trial < 200; ++trial) {
    SamplingParams params = RandomParams(&random, 300);
    params.seed = trial;
    const std::vector<float> logits = RandomLogits(&random, 300, 2);
    std::vector<float> a = logits, b = logits;
    EXPECT_EQ(MakeSampler(params, -1).Sample(absl::MakeSpan(a))->token,
              MakeSampler(params, 5).Sample(absl::MakeSpan(b))->token);
  }
}

TEST(SamplerTest, SparseEqualsDense) {
  std::mt19937 random(9);
  for (int trial = 0; trial < 500; ++trial) {
    constexpr int kSize = 300;
    SamplingParams params = RandomParams(&random, kSize);
    params.seed = trial;
    std::vector<int32_t> ids;
    for (int token = random() % 20; token < kSize; token += 1 + random() % 40) ids.push_back(token);
    std::vector<float> sparse = RandomLogits(&random, static_cast<int>(ids.size()), 2);
    std::vector<float> dense(kSize, -kInf);
    for (size_t i = 0; i < ids.size(); ++i) dense[ids[i]] = sparse[i];
    Sampler sampler(params, std::vector<int32_t>{1, 2, 3, ids[0]}, {ids.back() + 1}, 2, 3);
    sampler.Accept(ids[ids.size() / 2]);
    const auto a = sampler.Sample(absl::MakeSpan(dense));
    const auto b = sampler.SampleSparse(ids, absl::MakeSpan(sparse));
    ASSERT_TRUE(a.ok() && b.ok());
    ASSERT_EQ(a->token, b->token);
    EXPECT_EQ(a->logprobs.token.rank, b->logprobs.token.rank);
    EXPECT_NEAR(a->logprobs.token.logprob, b->logprobs.token.logprob, 1e-6);
    EXPECT_EQ(b->logprobs.top[0].token, a->logprobs.top[0].token);
  }
}

}  // namespace
}  // namespace tessera
