#include <cmath>
#include <limits>
#include <random>

#include "gtest/gtest.h"
#include "server/sampling/logits.h"
#include "server/sampling/sampler.h"

namespace tessera {
namespace {

TEST(PromptScorerTest, ScoresEachTokenByThePositionBefore) {
  const std::vector<int32_t> prompt = {4, 2, 0};
  PromptScorer scorer(prompt, 1);
  const std::vector<float> first = {0, 0, 3, 0, 0}, second = {1, 0, 0, 5, 0};
  ASSERT_TRUE(scorer.Add(0, first).ok());
  ASSERT_TRUE(scorer.Add(1, second).ok());
  ASSERT_TRUE(scorer.Add(2, first).ok());  // predicts output: ignored
  ASSERT_EQ(scorer.result().size(), 3u);
  EXPECT_EQ(scorer.result()[0].token.token, 4);
  EXPECT_EQ(scorer.result()[0].token.rank, 0);
  EXPECT_TRUE(scorer.result()[0].top.empty());
  EXPECT_EQ(scorer.result()[1].token.token, 2);
  EXPECT_EQ(scorer.result()[1].token.rank, 1);
  EXPECT_NEAR(scorer.result()[1].token.logprob, 3 - std::log(std::exp(3.0) + 4), 1e-6);
  EXPECT_EQ(scorer.result()[2].token.token, 0);
  EXPECT_EQ(scorer.result()[2].token.rank, 2);
  EXPECT_EQ(scorer.result()[2].top.at(0).token, 3);
  // Again, after a preemption: the same.
  ASSERT_TRUE(scorer.Add(0, first).ok());
  EXPECT_EQ(scorer.result()[1].token.rank, 1);
}

TEST(PromptScorerTest, InvalidLogitsAreAnError) {
  const std::vector<int32_t> prompt = {0, 1};
  PromptScorer scorer(prompt, 0);
  const std::vector<float> bad = {0, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_TRUE(IsInvalidLogits(scorer.Add(0, bad)));
}

}  // namespace
}  // namespace tessera
