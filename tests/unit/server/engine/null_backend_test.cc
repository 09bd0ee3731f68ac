#include "server/backend/null/null_backend.h"

#include <algorithm>
#include <cmath>

#include "gtest/gtest.h"

namespace tessera {
namespace {

class NullBackendTest : public ::testing::Test {
 protected:
  NullBackendTest() : backend_(NullBackendConfig{}) { EXPECT_TRUE(backend_.AllocateKvCache({64, 4}).ok()); }

  // Computes `tokens` from `start` and draws greedily.
  int32_t Next(const std::vector<int32_t>& tokens, int32_t start, const std::vector<int32_t>& table) {
    SamplingParams params;
    params.temperature = 0;
    Sampler sampler(params, {}, {}, 0, -1);
    BatchRow row;
    row.tokens = tokens;
    row.start = start;
    row.block_table = table;
    row.sampler = &sampler;
    std::vector<RowResult> results;
    EXPECT_TRUE(backend_.Run({row}, &results).ok());
    EXPECT_TRUE(results.at(0).status.ok());
    return results[0].sampled.token;
  }

  NullBackend backend_;
};

TEST_F(NullBackendTest, DependsOnThePrefixAndNotOnChunksOrBlocks) {
  const std::vector<int32_t> tokens = {5, 6, 7, 8, 9, 10, 11};
  const int32_t whole = Next(tokens, 0, {1, 2});
  Next({5, 6, 7}, 0, {9, 4});
  Next({8}, 3, {9, 4});
  EXPECT_EQ(Next({9, 10, 11}, 4, {9, 4}), whole);
  EXPECT_NE(Next({6, 6, 7, 8, 9, 10, 11}, 0, {20, 21}), whole);
}

TEST_F(NullBackendTest, AWrongBlockShows) {
  Next({1, 2, 3, 4, 5, 6, 7}, 0, {1, 2});
  Next({1, 2, 3, 4, 5, 6, 8}, 0, {3, 4});
  const int32_t right = Next({9}, 7, {1, 2});
  EXPECT_NE(Next({9}, 7, {3, 4}), right);
  EXPECT_NE(Next({9}, 7, {60, 61}), right);
}

TEST_F(NullBackendTest, RefusesATableThatIsTooShortOrWrong) {
  std::vector<RowResult> results;
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5};
  for (const std::vector<int32_t>& table : {std::vector<int32_t>{1}, {1, 64}, {1, -1}}) {
    BatchRow row;
    row.tokens = tokens;
    row.block_table = table;
    EXPECT_EQ(backend_.Run({row}, &results).code(), absl::StatusCode::kInternal);
  }
  EXPECT_FALSE(NullBackend(NullBackendConfig{}).AllocateKvCache({0, 4}).ok());
}

TEST_F(NullBackendTest, PromptScoresAgreeWithSampledScores) {
  std::vector<int32_t> tokens = {5, 6, 7};
  SamplingParams params;
  params.temperature = 1;
  params.seed = 3;
  Sampler sampler(params, {}, {}, 0, 20);
  BatchRow row;
  row.tokens = tokens;
  const std::vector<int32_t> table = {1, 2};
  row.block_table = table;
  row.sampler = &sampler;
  std::vector<RowResult> results;
  ASSERT_TRUE(backend_.Run({row}, &results).ok());
  const SampledToken sampled = results[0].sampled;
  tokens.push_back(sampled.token);
  PromptScorer scorer(tokens, 20);
  row.tokens = tokens;
  row.sampler = nullptr;
  row.prompt_scorer = &scorer;
  ASSERT_TRUE(backend_.Run({row}, &results).ok());
  EXPECT_NEAR(scorer.result()[3].token.logprob, sampled.logprobs.token.logprob, 1e-6);
  EXPECT_EQ(scorer.result()[3].token.rank, sampled.logprobs.token.rank);
  ASSERT_EQ(sampled.logprobs.top.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(scorer.result()[3].top[i].token, sampled.logprobs.top[i].token);
}

TEST(NullBackendRangeTest, DrawsInsideItsRange) {
  for (int32_t num_tokens : {1, 5, 24, 30}) {
    NullBackendConfig config;
    config.vocab_size = 100;
    config.first_token = 60;
    config.num_tokens = num_tokens;
    NullBackend backend(config);
    ASSERT_TRUE(backend.AllocateKvCache({64, 4}).ok());
    const std::vector<int32_t> table = {0, 1, 2, 3};
    for (int32_t prompt = 0; prompt < 200; ++prompt) {
      SamplingParams params;
      params.seed = prompt;
      params.temperature = 2;
      Sampler sampler(params, {}, {}, 0, -1);
      const std::vector<int32_t> tokens = {prompt % 100, prompt / 100};
      BatchRow row;
      row.tokens = tokens;
      row.block_table = table;
      row.sampler = &sampler;
      std::vector<RowResult> results;
      ASSERT_TRUE(backend.Run({row}, &results).ok());
      EXPECT_GE(results[0].sampled.token, 60);
      EXPECT_LT(results[0].sampled.token, 60 + num_tokens);
    }
  }
}

TEST(NullBackendRangeTest, HiddenStatesAreOfTheRangeAndThePrefix) {
  NullBackend backend(NullBackendConfig{});
  ASSERT_TRUE(backend.AllocateKvCache({64, 4}).ok());
  const auto embed = [&](std::vector<int32_t> tokens) {
    Pooler pooler(PoolingKind::kLast, 64, static_cast<int32_t>(tokens.size()));
    BatchRow row;
    row.tokens = tokens;
    const std::vector<int32_t> table = {3, 5};
    row.block_table = table;
    row.pooler = &pooler;
    std::vector<RowResult> results;
    EXPECT_TRUE(backend.Run({row}, &results).ok());
    EXPECT_TRUE(pooler.complete());
    return pooler.Result(false);
  };
  const std::vector<float> a = embed({1, 2, 3});
  EXPECT_EQ(a, embed({1, 2, 3}));
  EXPECT_NE(a, embed({2, 2, 3}));
  EXPECT_TRUE(std::all_of(a.begin(), a.end(), [](float x) { return std::abs(x) <= 1; }));
  EXPECT_TRUE(std::any_of(a.begin(), a.end(), [](float x) { return x < 0; }));
}

}  // namespace
}  // namespace tessera
