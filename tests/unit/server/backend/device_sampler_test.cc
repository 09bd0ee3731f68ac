// The device's sampler beside the host's, which defines what is right: the same tokens, the same log-probabilities, the
// same errors, to the bit. Skipped where there is no GPU.
#include "server/backend/cuda/device_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "server/backend/cuda/stream.h"
#include "server/sampling/logits.h"
#include "tests/unit/kernels/cuda/gpu.h"

namespace tessera::cuda {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Rows of logits, and what is wanted of each.
struct Case {
  std::vector<float> logits;
  std::unique_ptr<Sampler> sampler;
  std::vector<int32_t> scored_prompt;  // not empty: log-probabilities of its second token
  int num_top = 0;
};

class DeviceSamplerTest : public testing::Test {
 protected:
  void SetUp() override { TESSERA_REQUIRE_GPU(); }

  void ExpectTheSame(std::vector<Case>& cases, int32_t vocab) {
    const size_t n = cases.size();
    std::vector<std::vector<int32_t>> tokens(n, {0});
    const std::vector<int32_t> block = {0};
    std::vector<std::unique_ptr<PromptScorer>> scorers(n), host_scorers(n);
    std::vector<BatchRow> rows(n);
    std::vector<float> all;
    for (size_t i = 0; i < n; ++i) {
      ASSERT_EQ(cases[i].logits.size(), vocab);
      all.insert(all.end(), cases[i].logits.begin(), cases[i].logits.end());
      rows[i].tokens = tokens[i];
      rows[i].block_table = block;
      rows[i].sampler = cases[i].sampler.get();
      if (!cases[i].scored_prompt.empty()) {
        scorers[i] = std::make_unique<PromptScorer>(cases[i].scored_prompt, cases[i].num_top);
        host_scorers[i] = std::make_unique<PromptScorer>(cases[i].scored_prompt, cases[i].num_top);
        rows[i].prompt_scorer = scorers[i].get();
      }
    }
    BackendInfo info;
    info.vocab_size = vocab;
    info.max_context = 16;
    StepRows step;
    std::vector<RowResult> results;
    step.Choose(rows, info, {1, 16}, &results);
    ASSERT_EQ(step.wanted().size(), n);

    auto stream = Stream::Create();
    ASSERT_TRUE(stream.ok());
    DeviceSampler sampler(stream->get(), stream->get());
    DeviceMemory logits;
    ASSERT_TRUE(logits.Allocate(all.size() * 4, "logits").ok());
    ASSERT_EQ(cudaMemcpy(logits.get(), all.data(), all.size() * 4, cudaMemcpyHostToDevice), cudaSuccess);
    cpu::ThreadPool pool(1);
    ASSERT_TRUE(sampler.Start(rows, step, 0, n, logits.get<float>(), vocab).ok());
    ASSERT_EQ(cudaStreamSynchronize(stream->get()), cudaSuccess);
    ASSERT_TRUE(sampler.Finish(rows, step, pool, &results).ok());

    for (size_t i = 0; i < n; ++i) {
      SCOPED_TRACE("case " + std::to_string(i));
      if (scorers[i] != nullptr) {
        const absl::Status want = host_scorers[i]->Add(0, cases[i].logits);
        EXPECT_EQ(results[i].status, want);
        ExpectSame(scorers[i]->result()[1], host_scorers[i]->result()[1]);
        continue;
      }
      const absl::StatusOr<SampledToken> want = cases[i].sampler->Sample(absl::MakeSpan(cases[i].logits));
      EXPECT_EQ(results[i].status, want.status());
      if (!want.ok()) continue;
      EXPECT_EQ(results[i].sampled.token, want->token);
      ExpectSame(results[i].sampled.logprobs, want->logprobs);
    }
    // The logits are as they were.
    std::vector<float> after(all.size());
    ASSERT_EQ(cudaMemcpy(after.data(), logits.get(), all.size() * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(std::memcmp(after.data(), all.data(), all.size() * 4), 0);
  }

  static void ExpectSame(const PositionLogprobs& got, const PositionLogprobs& want) {
    const auto same = [](const TokenLogprob& a, const TokenLogprob& b) {
      return a.token == b.token && std::memcmp(&a.logprob, &b.logprob, 4) == 0 && a.rank == b.rank;
    };
    EXPECT_TRUE(same(got.token, want.token))
        << got.token.token << " " << got.token.logprob << " " << got.token.rank << ", want "
        << want.token.token << " " << want.token.logprob << " " << want.token.rank;
    ASSERT_EQ(got.top.size(), want.top.size());
    for (size_t k = 0; k < got.top.size(); ++k) {
      EXPECT_TRUE(same(got.top[k], want.top[k])) << "top " << k << ": " << got.top[k].token;
    }
  }

  std::vector<float> Logits(int32_t vocab, float spread) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> logits(vocab);
    for (float& x : logits) x = normal(random_);
    return logits;
  }

  bool Chance(int percent) { return static_cast<int>(random_() % 100) < percent; }

  std::unique_ptr<Sampler> RandomSampler(int32_t vocab) {
    SamplingParams params;
    params.temperature = Chance(20)   ? 0.0f
                         : Chance(10) ? 1e-30f
                         : Chance(10) ? 50.0f
                                      : 0.1f + random_() % 190 / 100.0f;
    if (Chance(40)) params.top_k = 1 + random_() % (Chance(50) ? 40 : vocab + 10);
    if (Chance(50))
      params.top_p = Chance(10) ? 1e-6f : Chance(10) ? 0.9999f : 0.05f + random_() % 95 / 100.0f;
    if (Chance(30)) params.min_p = random_() % 100 / 100.0f;
    if (Chance(30)) params.repetition_penalty = 0.5f + random_() % 200 / 100.0f;
    if (Chance(30)) params.presence_penalty = -2.0f + random_() % 400 / 100.0f;
    if (Chance(30)) params.frequency_penalty = -2.0f + random_() % 400 / 100.0f;
    if (Chance(30)) {
      for (int32_t token = random_() % 7; token < vocab; token += 1 + random_() % (vocab / 4 + 1)) {
        params.logit_bias.emplace_back(token, Chance(10) ? -kInf : -100.0f + random_() % 200);
      }
    }
    params.seed = random_();
    std::vector<int32_t> prompt(random_() % 20), barred(random_() % 4);
    for (int32_t& token : prompt) token = random_() % vocab;
    for (int32_t& token : barred) token = random_() % vocab;
    if (barred.size() > 1) barred[1] = barred[0];
    if (Chance(10)) prompt.push_back(vocab + 3);
    const int num_logprobs = Chance(60) ? -1 : Chance(30) ? 0 : 1 + random_() % 20;
    auto sampler = std::make_unique<Sampler>(params, prompt, barred, random_() % 8, num_logprobs);
    for (int i = random_() % 12; i > 0; --i) sampler->Accept(random_() % std::min(vocab, 9));
    return sampler;
  }

  // Logits as they come, with ties, in steps, among infinities.
  std::vector<float> RandomLogits(int32_t vocab) {
    std::vector<float> logits = Logits(vocab, Chance(20) ? 0.01f : Chance(20) ? 30.0f : 3.0f);
    if (Chance(30)) {
      for (float& x : logits) x = std::round(x);
    }
    if (Chance(15)) std::fill(logits.begin(), logits.end(), logits[0]);
    if (Chance(15)) {
      for (float& x : logits) x = Chance(50) ? -kInf : x;
      logits[random_() % vocab] = 1.0f;
    }
    if (Chance(10)) {
      for (float& x : logits) x = Chance(50) ? 0.0f : -0.0f;
    }
    if (Chance(10)) std::sort(logits.begin(), logits.end());
    if (Chance(3)) logits[random_() % vocab] = std::numeric_limits<float>::quiet_NaN();
    if (Chance(3)) logits[random_() % vocab] = -std::numeric_limits<float>::quiet_NaN();
    if (Chance(3)) logits[random_() % vocab] = kInf;
    if (Chance(3)) std::fill(logits.begin(), logits.end(), -kInf);
    return logits;
  }

  std::mt19937 random_{17};
};

TEST_F(DeviceSamplerTest, AllParametersOverAllKindsOfLogits) {
  for (const int32_t vocab : {1, 2, 31, 257, 1024, 1500, 5000}) {
    SCOPED_TRACE("vocab " + std::to_string(vocab));
    std::vector<Case> cases;
    for (int i = 0; i < 60; ++i) {
      Case& c = cases.emplace_back();
      c.logits = RandomLogits(vocab);
      if (Chance(15)) {
        c.scored_prompt = {0, static_cast<int32_t>(random_() % vocab)};
        c.num_top = random_() % 21;
      } else {
        c.sampler = RandomSampler(vocab);
      }
    }
    ExpectTheSame(cases, vocab);
  }
}

// A row large enough that the best tokens are few among many, as with a model's vocabulary.
TEST_F(DeviceSamplerTest, LargeVocabulary) {
  const int32_t vocab = 70001;
  std::vector<Case> cases;
  for (int i = 0; i < 16; ++i) {
    Case& c = cases.emplace_back();
    c.logits = Logits(vocab, 2.5f);
    c.sampler = RandomSampler(vocab);
  }
  ExpectTheSame(cases, vocab);
}

// Equal logits in every place that a limit can cut.
TEST_F(DeviceSamplerTest, TiesAtTheEdges) {
  const int32_t vocab = 4000;
  std::vector<Case> cases;
  for (const int32_t top_k : {1, 2, 15, 16, 17, 255, 256}) {
    for (const float top_p : {1.0f, 0.5f}) {
      Case& c = cases.emplace_back();
      c.logits.resize(vocab);
      for (int32_t i = 0; i < vocab; ++i) c.logits[i] = i % 3;
      SamplingParams params;
      params.top_k = top_k;
      params.top_p = top_p;
      params.seed = top_k;
      c.sampler = std::make_unique<Sampler>(params, std::vector<int32_t>{}, std::vector<int32_t>{}, 0, 20);
    }
  }
  ExpectTheSame(cases, vocab);
}

// A step without anything to draw, and one whose only row is the host's.
TEST_F(DeviceSamplerTest, NothingForTheKernels) {
  std::vector<Case> cases(1);
  cases[0].logits = Logits(3000, 1.0f);
  SamplingParams params;
  params.top_k = 2000;
  cases[0].sampler = std::make_unique<Sampler>(params, std::vector<int32_t>{}, std::vector<int32_t>{}, 0, 5);
  ExpectTheSame(cases, 3000);
}

}  // namespace
}  // namespace tessera::cuda
