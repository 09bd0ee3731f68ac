#include "client/cli/perplexity.h"

#include <cmath>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

constexpr char kBundled[] = TESSERA_SOURCE_DIR "/deploy/model";

nlohmann::json Golden() {
  std::ifstream file(TESSERA_SOURCE_DIR "/tests/golden/perplexity/bundled.json");
  return nlohmann::json::parse(file);
}

TEST(Perplexity, AsTransformers) {
  const nlohmann::json golden = Golden();
  const std::vector<double> logprobs = golden["logprobs"];
  int64_t scored = 0;
  PerplexityOptions options{.context = golden["context"], .num_threads = 2};
  options.scoring = [&](int64_t done, int64_t) { scored = done; };
  const auto result = MeasurePerplexity(kBundled, std::string(golden["text"]), options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->tokens, std::vector<int32_t>(golden["tokens"]));
  ASSERT_EQ(result->logprobs.size(), logprobs.size());
  double sum = 0, squares = 0;
  for (size_t i = 0; i < logprobs.size(); ++i) {
    sum += logprobs[i];
    const double difference = result->logprobs[i] - logprobs[i];
    squares += difference * difference;
    EXPECT_NEAR(difference, 0, 0.5)
        << i;  // sums run in another order: a router's near tie may fall otherwise
  }
  EXPECT_LT(std::sqrt(squares / static_cast<double>(logprobs.size())), 0.08);
  EXPECT_NEAR(result->MeanNll(), -sum / static_cast<double>(logprobs.size()), 0.01);
  EXPECT_NEAR(std::log(result->Value()), result->MeanNll(), 1e-9);
  EXPECT_GE(scored, static_cast<int64_t>(logprobs.size()));
  EXPECT_GT(result->bytes, 250);
  EXPECT_NEAR(result->BitsPerByte(),
              result->MeanNll() * static_cast<double>(logprobs.size()) / std::log(2.0) /
                  static_cast<double>(result->bytes),
              1e-9);
}

TEST(Perplexity, ComparesTokenByToken) {
  Perplexity a, b;
  a.tokens = b.tokens = {1, 2, 3, 4};
  a.logprobs = {-1, -2, -3, -4};
  b.logprobs = {-1.5f, -2.5f, -3.5f, -4.5f};
  a.choices = {1, 2, 5, 6};
  b.choices = {1, 9, 5, 7};
  const PerplexityDifference difference = Compare(a, b);
  EXPECT_DOUBLE_EQ(difference.nll, 0.5);
  EXPECT_DOUBLE_EQ(difference.nll_error, 0);  // all differ alike
  EXPECT_DOUBLE_EQ(difference.same_choice, 0.5);
  EXPECT_DOUBLE_EQ(a.FirstChoiceShare(), 0.5);
  EXPECT_NEAR(NllError(a), std::sqrt(5.0 / 3 / 4), 1e-12);
  EXPECT_DOUBLE_EQ(a.MeanNll(), 2.5);
}

TEST(Perplexity, Refusals) {
  EXPECT_FALSE(MeasurePerplexity("/nowhere", "text", {}).ok());
  EXPECT_EQ(MeasurePerplexity(kBundled, "", {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(MeasurePerplexity(kBundled, "some text", {.context = 1 << 20}).status().message(),
              testing::HasSubstr("a window of 1048576 tokens, the model takes"));
  EXPECT_EQ(MeasurePerplexity(kBundled, "some text", {.cancelled = [] { return true; }}).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_FALSE(MeasurePerplexity(kBundled, "\xff\xfe not UTF-8", {}).ok());
}

}  // namespace
}  // namespace tessera::cli
