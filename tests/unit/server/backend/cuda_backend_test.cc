// The CUDA backend beside the CPU backend, on the bundled model; skipped where there is no GPU.
#include "server/backend/cuda/cuda_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "server/backend/cpu/cpu_backend.h"
#include "server/model/checkpoint.h"
#include "server/tokenizer/tokenizer.h"

namespace tessera {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr int32_t kBlocks = 512;

class CudaBackendTest : public testing::Test {
 protected:
  void SetUp() override {
    if (absl::Status status = CheckCudaDevice(0); !status.ok()) GTEST_SKIP() << status.message();
    // A bundle of tests runs where the source tree is not (tests/gpu/bundle).
    const char* root = std::getenv("TESSERA_SOURCE_DIR");
    auto checkpoint = Checkpoint::Open(std::string(root ? root : TESSERA_SOURCE_DIR) + "/deploy/model");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = std::move(*checkpoint);
    auto cuda = CreateCudaBackend(*checkpoint_, {});
    ASSERT_TRUE(cuda.ok()) << cuda.status();
    cuda_ = std::move(*cuda);
    ASSERT_TRUE(cuda_->AllocateKvCache({kBlocks, kBlockSize}).ok());
  }

  std::unique_ptr<Backend> MakeCpu() {
    auto cpu = CreateCpuBackend(*checkpoint_, {});
    EXPECT_TRUE(cpu.ok()) << cpu.status();
    EXPECT_TRUE((*cpu)->AllocateKvCache({kBlocks, kBlockSize}).ok());
    return std::move(*cpu);
  }

  std::vector<int32_t> Prompt(int32_t length, uint32_t seed) const {
    std::vector<int32_t> tokens(length);
    for (int32_t& token : tokens) {
      seed = seed * 1664525 + 1013904223;
      token = (seed >> 8) % (checkpoint_->spec().vocab_size - 8);
    }
    return tokens;
  }

  static std::vector<int32_t> Blocks(int32_t first, int32_t tokens) {
    std::vector<int32_t> blocks((tokens + kBlockSize - 1) / kBlockSize);
    std::iota(blocks.begin(), blocks.end(), first);
    return blocks;
  }

  // Log-probabilities of every prompt token, the prompt cut into chunks of `chunk`.
  static std::vector<PositionLogprobs> Score(Backend& backend, const std::vector<int32_t>& prompt,
                                             int32_t chunk, int32_t first_block) {
    PromptScorer scorer(prompt, 5);
    const std::vector<int32_t> blocks = Blocks(first_block, prompt.size());
    for (size_t start = 0; start < prompt.size(); start += chunk) {
      BatchRow row;
      row.tokens = absl::MakeConstSpan(prompt).subspan(start, chunk);
      row.start = start;
      row.block_table = blocks;
      row.prompt_scorer = &scorer;
      std::vector<RowResult> results;
      EXPECT_TRUE(backend.Run({row}, &results).ok());
      EXPECT_TRUE(results[0].status.ok()) << results[0].status;
    }
    return scorer.result();
  }

  // Greedy continuations of several prompts at once, each with its own blocks; with `logprobs`, those of their tokens too.
  static std::vector<std::vector<int32_t>> Greedy(
      Backend& backend, std::vector<std::vector<int32_t>> sequences, int32_t count, int32_t first_block,
      std::vector<std::vector<PositionLogprobs>>* logprobs = nullptr) {
    const size_t n = sequences.size();
    std::vector<std::unique_ptr<Sampler>> samplers;
    std::vector<std::vector<int32_t>> blocks, out(n);
    for (const auto& sequence : sequences) {
      SamplingParams greedy;
      greedy.temperature = 0;
      samplers.push_back(std::make_unique<Sampler>(greedy, sequence, std::vector<int32_t>{}, 0,
                                                   logprobs != nullptr ? 5 : -1));
      blocks.push_back(Blocks(first_block, sequence.size() + count));
      first_block += blocks.back().size();
    }
    std::vector<int32_t> computed(n, 0);
    for (int32_t step = 0; step < count; ++step) {
      std::vector<BatchRow> rows(n);
      for (size_t i = 0; i < n; ++i) {
        rows[i].tokens = absl::MakeConstSpan(sequences[i]).subspan(computed[i]);
        rows[i].start = computed[i];
        rows[i].block_table = blocks[i];
        rows[i].sampler = samplers[i].get();
      }
      std::vector<RowResult> results;
      EXPECT_TRUE(backend.Run(rows, &results).ok());
      for (size_t i = 0; i < n; ++i) {
        EXPECT_TRUE(results[i].status.ok()) << results[i].status;
        computed[i] = sequences[i].size();
        sequences[i].push_back(results[i].sampled.token);
        out[i].push_back(results[i].sampled.token);
        samplers[i]->Accept(results[i].sampled.token);
        if (logprobs != nullptr) (*logprobs)[i].push_back(results[i].sampled.logprobs);
      }
    }
    return out;
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Backend> cuda_;
};

bool SameBits(const std::vector<PositionLogprobs>& a, const std::vector<PositionLogprobs>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 1; i < a.size(); ++i) {
    if (a[i].token.logprob != b[i].token.logprob || a[i].top.size() != b[i].top.size()) return false;
    for (size_t k = 0; k < a[i].top.size(); ++k) {
      if (a[i].top[k].token != b[i].top[k].token || a[i].top[k].logprob != b[i].top[k].logprob) return false;
    }
  }
  return true;
}

// What the model says to real prompts, as the CPU backend computes it. On random tokens the two backends drift apart as
// any two roundings do, since a token near an edge is routed to other experts; on text they must not.
TEST_F(CudaBackendTest, TextAgreesWithTheCpu) {
  const std::unique_ptr<Backend> cpu = MakeCpu();
  auto tokenizer = Tokenizer::Load(checkpoint_->directory());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::vector<std::vector<int32_t>> prompts;
  for (const char* word : {"lantern", "river", "courage", "volcano", "happy", "violin", "to run", "bright"}) {
    auto ids = (*tokenizer)->Encode(std::string("Define: ") + word, {});
    ASSERT_TRUE(ids.ok()) << ids.status();
    prompts.push_back(*ids);
  }
  constexpr int32_t kTokens = 12;  // within the definitions
  const auto want = Greedy(*cpu, prompts, kTokens, 0);
  const auto got = Greedy(*cuda_, prompts, kTokens, 0);
  double sum2 = 0;
  int32_t count = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(got[i], want[i]) << "prompt " << i;
    std::vector<int32_t> text = prompts[i];
    text.insert(text.end(), want[i].begin(), want[i].end());
    const auto a = Score(*cpu, text, 512, 200), b = Score(*cuda_, text, 512, 200);
    for (size_t at = prompts[i].size(); at < text.size(); ++at, ++count) {
      sum2 += std::pow(a[at].token.logprob - b[at].token.logprob, 2);
    }
  }
  EXPECT_LT(std::sqrt(sum2 / count), 0.05);
}

// Texts to their end part where the model has no favourite, if at all: the tokens that the two backends take there are as
// likely as each other, as far as their roundings can tell. (Behind its end a text is noise to the model, which a token
// routed to another expert changes at once.)
TEST_F(CudaBackendTest, LongTextsPartAtTiesAlone) {
  const std::unique_ptr<Backend> cpu = MakeCpu();
  auto tokenizer = Tokenizer::Load(checkpoint_->directory());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::vector<std::vector<int32_t>> prompts;
  for (const char* word : {"lantern", "river",  "courage", "volcano",    "happy",  "violin", "to run",
                           "bright",  "anchor", "justice", "to sleep",   "copper", "winter", "harbor",
                           "logic",   "swift",  "orchard", "to measure", "island", "bread"}) {
    auto ids = (*tokenizer)->Encode(std::string("Define: ") + word, {});
    ASSERT_TRUE(ids.ok()) << ids.status();
    prompts.push_back(*ids);
  }
  constexpr int32_t kTokens = 64;
  constexpr double kTie = 0.1;  // of log-probability: twice what TextAgreesWithTheCpu allows a token
  const auto want = Greedy(*cpu, prompts, kTokens, 0);
  const auto got = Greedy(*cuda_, prompts, kTokens, 0);
  int32_t parted = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto eos = (*tokenizer)->eos_ids();
    const auto end = std::find_first_of(want[i].begin(), want[i].end(), eos.begin(), eos.end());
    const auto [mine, other] = std::mismatch(want[i].begin(), end, got[i].begin());
    if (mine == end) continue;
    ++parted;
    std::vector<int32_t> text = prompts[i];
    text.insert(text.end(), want[i].begin(), mine + 1);
    for (Backend* backend : {cpu.get(), cuda_.get()}) {
      const PositionLogprobs at = Score(*backend, text, 512, 400).back();
      const auto rival = std::find_if(at.top.begin(), at.top.end(),
                                      [&](const TokenLogprob& top) { return top.token == *other; });
      ASSERT_NE(rival, at.top.end()) << "prompt " << i << " parts at " << mine - want[i].begin();
      EXPECT_LT(std::abs(at.token.logprob - rival->logprob), kTie)
          << "prompt " << i << " parts at " << mine - want[i].begin();
    }
  }
  std::cout << parted << " of " << prompts.size() << " texts part within " << kTokens << " tokens\n";
}

// A token has the same bits whether it was decoded or is scored as a prompt's: a sequence that is computed anew after a
// preemption, or found in the prefix cache, goes on as it would have.
TEST_F(CudaBackendTest, DecodedTokensAreScoredAlike) {
  const std::vector<std::vector<int32_t>> prompts = {Prompt(5, 1), Prompt(70, 2), Prompt(300, 3)};
  constexpr int32_t kTokens = 40;
  std::vector<std::vector<PositionLogprobs>> decoded(prompts.size());
  const auto texts = Greedy(*cuda_, prompts, kTokens, 0, &decoded);
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<int32_t> text = prompts[i];
    text.insert(text.end(), texts[i].begin(), texts[i].end());
    auto scored = Score(*cuda_, text, 512, 200);
    scored.erase(scored.begin(), scored.begin() + prompts[i].size() - 1);  // SameBits passes the first over
    decoded[i].insert(decoded[i].begin(), PositionLogprobs());
    EXPECT_TRUE(SameBits(decoded[i], scored)) << "prompt of " << prompts[i].size();
  }
}

TEST_F(CudaBackendTest, ResultsDoNotDependOnChunksOrBlocks) {
  const std::vector<int32_t> prompt = Prompt(700, 3);
  const auto whole = Score(*cuda_, prompt, 700, 0);
  EXPECT_TRUE(SameBits(whole, Score(*cuda_, prompt, 1, 100)));
  EXPECT_TRUE(SameBits(whole, Score(*cuda_, prompt, 130, 200)));
}

TEST_F(CudaBackendTest, ResultsDoNotDependOnTheBatch) {
  std::vector<std::vector<int32_t>> prompts;
  for (int32_t i = 0; i < 40; ++i) prompts.push_back(Prompt(1 + i * 3, i));
  const auto batch = Greedy(*cuda_, prompts, 24, 0);
  for (const int32_t i : {0, 7, 39})
    EXPECT_EQ(Greedy(*cuda_, {prompts[i]}, 24, 400)[0], batch[i]) << "prompt " << i;
}

TEST_F(CudaBackendTest, RefusesWhatDoesNotFit) {
  std::vector<RowResult> results;
  const std::vector<int32_t> tokens = {1}, bad = {1 << 30}, blocks = {0};
  BatchRow good_row, bad_row;
  good_row.tokens = tokens;
  good_row.block_table = blocks;
  bad_row.tokens = bad;
  bad_row.block_table = blocks;
  ASSERT_TRUE(cuda_->Run({good_row, bad_row}, &results).ok());
  EXPECT_TRUE(results[0].status.ok());
  EXPECT_EQ(results[1].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cuda_->AllocateKvCache({kBlocks, kBlockSize}).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tessera
