// The engine over the CUDA backend generates the same whether it starts steps ahead or not; skipped where there is no GPU.
#include <gtest/gtest.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/unit/server/backend/cuda_tiny.h"
#include "tests/unit/server/engine/engine_test_util.h"

namespace tessera {
namespace {

class CudaAheadTest : public testing::Test {
 protected:
  void SetUp() override {
    if (absl::Status status = CheckCudaDevice(0); !status.ok()) GTEST_SKIP() << status.message();
    Open(TinyDirectory("moe_nvfp4"));
  }

  void Open(const std::string& directory) {
    auto checkpoint = Checkpoint::Open(directory);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = std::move(*checkpoint);
  }

  GenerateSpec Spec(int number, int prompt, int max_tokens) const {
    GenerateSpec spec = MakeSpec(absl::StrCat(number), prompt, max_tokens, number);
    for (int32_t& token : spec.prompt) token %= checkpoint_->spec().vocab_size;
    spec.sampling.seed = number;
    return spec;
  }

  struct Results {
    std::vector<Collected> generations, embeddings;
  };
  Results Generate(const std::vector<GenerateSpec>& specs, const std::vector<EmbedSpec>& embeddings, bool ahead) {
    auto backend = MakeTinyCudaBackend(*checkpoint_);
    EXPECT_TRUE(backend.ok()) << backend.status();
    EngineConfig config;
    config.scheduler.num_blocks = 12;  // somebody has to be preempted
    config.scheduler.block_size = kTinyBlockSize;
    config.scheduler.max_prefill_chunk = 20;
    config.scheduler.max_batched_tokens = 60;
    config.scheduler.max_running = 8;
    config.run_ahead = ahead;
    auto metrics = *Metrics::Create({});
    Engine engine(config, *std::move(backend), nullptr, metrics.get());
    std::vector<Reader> generating(specs.size()), embedding(embeddings.size());
    for (size_t i = 0; i < specs.size(); ++i) {
      generating[i].Attach(*engine.Generate(specs[i], generating[i].OnReady()));
    }
    for (size_t i = 0; i < embeddings.size(); ++i) {
      embedding[i].Attach(*engine.Embed(embeddings[i], embedding[i].OnReady()));
    }
    engine.Start();
    Results results;
    for (Reader& reader : generating) results.generations.push_back(reader.ReadAll());
    for (Reader& reader : embedding) results.embeddings.push_back(reader.ReadAll());
    EXPECT_TRUE(engine.Healthy());
    return results;
  }

  static void ExpectSame(const Results& got, const Results& want) {
    for (size_t i = 0; i < want.generations.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("request ", i));
      const Collected &a = got.generations[i], &b = want.generations[i];
      ASSERT_EQ(a.outputs.size(), b.outputs.size());
      EXPECT_TRUE(SameBits(a.prompt_logprobs, b.prompt_logprobs));
      for (size_t k = 0; k < a.outputs.size(); ++k) {
        EXPECT_EQ(a.outputs[k].tokens, b.outputs[k].tokens);
        EXPECT_EQ(a.outputs[k].finished->reason, b.outputs[k].finished->reason);
        EXPECT_NE(a.outputs[k].finished->reason, FinishReason::kError) << a.outputs[k].finished->error;
        EXPECT_TRUE(SameBits(a.outputs[k].logprobs, b.outputs[k].logprobs));
      }
    }
    for (size_t i = 0; i < want.embeddings.size(); ++i) {
      for (const auto& [index, embedding] : want.embeddings[i].embeddings) {
        EXPECT_TRUE(embedding.status.ok());
        EXPECT_EQ(got.embeddings[i].embeddings.at(index).values, embedding.values);
      }
    }
  }

  static bool SameBits(const std::vector<PositionLogprobs>& a, const std::vector<PositionLogprobs>& b) {
    const auto same = [](const TokenLogprob& x, const TokenLogprob& y) {
      return x.token == y.token && x.rank == y.rank && std::memcmp(&x.logprob, &y.logprob, sizeof(float)) == 0;
    };
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const auto& x, const auto& y) {
      return same(x.token, y.token) && std::equal(x.top.begin(), x.top.end(), y.top.begin(), y.top.end(), same);
    });
  }

  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(CudaAheadTest, GeneratesTheSame) {
  std::vector<GenerateSpec> specs;
  specs.push_back(Spec(0, 5, 12));
  specs.push_back(Spec(1, 30, 9));
  specs.back().sampling.temperature = 1;
  specs.back().logprobs = 2;
  specs.push_back(Spec(2, 17, 10));
  specs.back().sampling.temperature = 1;
  specs.back().sampling.presence_penalty = 1;
  specs.back().sampling.repetition_penalty = 1.4f;
  specs.back().n = 2;
  specs.push_back(Spec(3, 8, 14));
  specs.back().sampling.temperature = 2;
  specs.back().sampling.top_p = 0.9f;
  specs.back().stopping.min_tokens = 3;
  specs.push_back(Spec(4, 40, 3));
  specs.back().prompt_logprobs = 1;
  specs.push_back(Spec(5, 9, 14));
  for (int32_t token = 0; token < checkpoint_->spec().vocab_size; token += 5) {
    specs.back().stopping.stop_token_ids.push_back(token);
  }
  specs.back().sampling.temperature = 1;
  EmbedSpec embedding;
  embedding.request_id = "e";
  embedding.arrival = absl::Now();
  embedding.inputs = {Spec(6, 50, 1).prompt, Spec(7, 3, 1).prompt};
  ExpectSame(Generate(specs, {embedding}, /*ahead=*/true), Generate(specs, {embedding}, /*ahead=*/false));
}

// Where more tokens are kept than the kernel takes, the host draws, and the step that was started ahead took another token.
TEST_F(CudaAheadTest, TakesDrawsThatComeLate) {
  const char* root = std::getenv("TESSERA_SOURCE_DIR");
  Open(std::string(root ? root : TESSERA_SOURCE_DIR) + "/deploy/model");
  std::vector<GenerateSpec> specs = {Spec(0, 5, 4), Spec(1, 3, 5)};
  specs[0].sampling.temperature = 20;
  specs[0].sampling.top_p = 0.9f;
  ExpectSame(Generate(specs, {}, /*ahead=*/true), Generate(specs, {}, /*ahead=*/false));
}

}  // namespace
}  // namespace tessera
