#include <cmath>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/unit/server/engine/engine_test_util.h"

namespace tessera {
namespace {

EmbedSpec MakeEmbed(const std::string& id, int inputs) {
  EmbedSpec spec;
  spec.request_id = id;
  for (int i = 0; i < inputs; ++i) spec.inputs.push_back(MakeSpec("", 1 + (i * 13) % 60, 1, i).prompt);
  return spec;
}

TEST(EngineEmbeddingTest, OneResultAnInputOfUnitLength) {
  TestEngine engine;
  const Collected result = engine.Embed(MakeEmbed("a", 5)).ReadAll();
  ASSERT_EQ(result.embeddings.size(), 5u);
  for (int i = 0; i < 5; ++i) {
    const EmbeddingResult& embedding = result.embeddings.at(i);
    EXPECT_TRUE(embedding.status.ok());
    EXPECT_EQ(embedding.num_tokens, 1 + (i * 13) % 60);
    ASSERT_EQ(embedding.values.size(), 64u);
    double length = 0;
    for (float x : embedding.values) length += static_cast<double>(x) * x;
    EXPECT_NEAR(length, 1.0, 1e-6);
  }
  engine.ExpectIdle();
}

TEST(EngineEmbeddingTest, ResultsDoNotDependOnLoadChunksCacheOrPreemption) {
  for (PoolingKind kind : {PoolingKind::kLast, PoolingKind::kMean, PoolingKind::kCls}) {
    std::vector<std::vector<float>> alone;
    {
      TestEngine engine;
      for (int i = 0; i < 20; ++i) {
        EmbedSpec one = MakeEmbed("one", i + 1);
        one.inputs = {one.inputs.back()};
        one.pooling = kind;
        one.normalize = false;
        alone.push_back(engine.Embed(one).ReadAll().embeddings.at(0).values);
      }
    }
    TestEngineOptions options;
    options.num_blocks = 20;
    options.max_batched_tokens = 30;
    options.max_prefill_chunk = 7;
    TestEngine engine(options);
    Reader busy = engine.Generate(MakeSpec("busy", 10, 60));
    EmbedSpec all = MakeEmbed("all", 20);
    all.pooling = kind;
    all.normalize = false;
    for (int round = 0; round < 2; ++round) {
      const Collected result = engine.Embed(all).ReadAll();
      for (int i = 0; i < 20; ++i) EXPECT_EQ(result.embeddings.at(i).values, alone[i]) << i;
    }
    busy.ReadAll();
    engine.ExpectIdle();
  }
}

TEST(EngineEmbeddingTest, CancelGivesEveryInputAnError) {
  TestEngineOptions options;
  options.backend.step_time = absl::Milliseconds(2);
  options.max_running = 1;
  TestEngine engine(options);
  Reader reader = engine.Embed(MakeEmbed("a", 30));
  reader.stream()->Cancel();
  const Collected result = reader.ReadAll();
  ASSERT_EQ(result.embeddings.size(), 30u);
  EXPECT_EQ(result.embeddings.at(29).status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine.Metric("tessera_requests_total{kind=\"embed\",finish_reason=\"abort\"}"), 1);
  engine.ExpectIdle();
}

}  // namespace
}  // namespace tessera
