#include "kernels/cpu/moe/router.h"

#include "kernels/cpu/reference.h"
#include "tests/unit/kernels/cpu/test_util.h"

namespace tessera::cpu {
namespace {

class RouterTest : public EachIsa {};

TEST_P(RouterTest, MatchesDoublePrecision) {
  Random random(1);
  const std::vector<float> bias = random.Normals(256, 0.2f);
  std::vector<RouterConfig> configs;
  configs.push_back({128, 8, RouterScore::kSoftmax, nullptr, 1, 1, true});
  configs.push_back({128, 8, RouterScore::kSoftmax, nullptr, 1, 1, false});
  configs.push_back({8, 2, RouterScore::kSoftmax, nullptr, 1, 1, true});
  configs.push_back({1, 1});
  configs.push_back({256, 8, RouterScore::kSigmoid, bias.data(), 8, 4, true, 2.5f});
  configs.push_back({30, 5, RouterScore::kSigmoid, bias.data(), 30, 7, true});
  configs.push_back({32, 4, RouterScore::kSoftmaxSelected});
  configs.push_back({16, 16, RouterScore::kSoftmax, nullptr, 1, 1, true});
  for (const RouterConfig& config : configs) {
    SCOPED_TRACE(config.num_experts);
    const int64_t tokens = 41, stride = config.num_experts + 3;
    const std::vector<float> logits = random.Normals(tokens * stride, 3.0f);
    std::vector<int32_t> ids(tokens * config.top_k);
    std::vector<float> weights(tokens * config.top_k);
    ThreadPool pool(2);
    ASSERT_TRUE(Router(config, logits.data(), stride, tokens, ids.data(), weights.data(), pool).ok());
    const reference::Routing expected = reference::Route(config, logits.data(), stride, tokens);
    EXPECT_EQ(ids, expected.ids);
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_NEAR(weights[i], expected.weights[i], 2e-6 * (1e-3 + std::fabs(expected.weights[i])));
    }
  }
}

TEST_P(RouterTest, TiesGoToTheLowestIndex) {
  const float logits[] = {1, 3, 2, 3, 3, 0, 2, 2};
  int32_t ids[5];
  float weights[5];
  ThreadPool pool(1);
  ASSERT_TRUE(Router({8, 5}, logits, 8, 1, ids, weights, pool).ok());
  EXPECT_THAT(ids, ::testing::ElementsAre(1, 3, 4, 2, 6));
}

TEST_P(RouterTest, ExtremeLogits) {
  const float inf = std::numeric_limits<float>::infinity();
  const float logits[] = {-inf, 3.0e38f, -inf, -inf,  //
                          0,    1,       kNaN, 2};
  int32_t ids[4];
  float weights[4];
  ThreadPool pool(1);
  ASSERT_TRUE(
      Router({4, 2, RouterScore::kSoftmax, nullptr, 1, 1, true}, logits, 4, 2, ids, weights, pool).ok());
  EXPECT_EQ(ids[0], 1);
  EXPECT_EQ(ids[1], 0);
  EXPECT_EQ(weights[0], 1.0f);
  EXPECT_EQ(weights[1], 0.0f);
  EXPECT_EQ(ids[2], 0);
  EXPECT_EQ(ids[3], 1);
  EXPECT_TRUE(std::isnan(weights[2]) && std::isnan(weights[3]));
}

TEST_P(RouterTest, RefusesWhatDoesNotFit) {
  const std::vector<float> logits(2048);
  int32_t ids[4];
  float weights[4];
  ThreadPool pool(1);
  const auto ok = [&](const RouterConfig& config, int64_t stride) {
    return Router(config, logits.data(), stride, 1, ids, weights, pool).ok();
  };
  EXPECT_TRUE(ok({8, 4}, 8));
  EXPECT_FALSE(ok({0, 1}, 8));
  EXPECT_FALSE(ok({2000, 1}, 2000));
  EXPECT_FALSE(ok({2, 4}, 8));
  EXPECT_FALSE(ok({8, 0}, 8));
  EXPECT_FALSE(ok({8, 4, RouterScore::kSoftmax, nullptr, 3, 1}, 8));
  EXPECT_FALSE(ok({8, 4, RouterScore::kSoftmax, nullptr, 4, 1}, 8));
  EXPECT_FALSE(Router({8, 4}, logits.data(), 7, 2, ids, weights, pool).ok());
  EXPECT_FALSE(Router({8, 4}, logits.data(), 8, 1, nullptr, weights, pool).ok());
}

TESSERA_EACH_ISA(RouterTest);

}  // namespace
}  // namespace tessera::cpu
