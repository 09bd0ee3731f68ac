// Faults of the backend, and what health says.
#include <atomic>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/engine/engine_test_util.h"

namespace tessera {
namespace {

TEST(EngineFailureTest, NanEndsOneOutputAlone) {
  TestEngineOptions options;
  options.backend.nan_token = 199;
  options.backend.num_tokens = 190;  // it comes from a prompt alone
  TestEngine engine(options);
  GenerateSpec bad = MakeSpec("bad", 5, 10);
  bad.prompt.back() = 199;
  Reader good = engine.Generate(MakeSpec("good", 5, 10));
  const Collected result = engine.GenerateAll(bad);
  EXPECT_EQ(result.outputs[0].finished->reason, FinishReason::kError);
  EXPECT_EQ(result.outputs[0].finished->error.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(result.outputs[0].tokens.empty());
  EXPECT_EQ(good.ReadAll().outputs[0].finished->reason, FinishReason::kLength);
  EXPECT_EQ(engine.Metric("tessera_invalid_logits_total"), 1);
  EXPECT_EQ(engine.Metric("tessera_outputs_total{finish_reason=\"error\"}"), 1);
  EXPECT_TRUE(engine->Healthy());
  engine.ExpectIdle();
}

TEST(EngineFailureTest, AnEmbeddingThatIsNotFiniteIsAnErrorOfThatInputAlone) {
  TestEngineOptions options;
  options.backend.nan_token = 199;
  TestEngine engine(options);
  EmbedSpec embed;
  embed.request_id = "e";
  embed.inputs = {{1, 2, 3}, {4, 199}, {5}};
  const Collected result = engine.Embed(embed).ReadAll();
  EXPECT_TRUE(result.embeddings.at(0).status.ok());
  EXPECT_EQ(result.embeddings.at(1).status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(result.embeddings.at(1).values.empty());
  EXPECT_TRUE(result.embeddings.at(2).status.ok());
  EXPECT_TRUE(engine->Healthy());
  engine.ExpectIdle();
}

TEST(EngineFailureTest, ADeviceFailureEndsEverythingAndRefusesMore) {
  for (bool throws : {false, true}) {
    std::atomic<bool> fail{false};
    TestEngineOptions options;
    options.max_running = 4;
    options.backend.step_time = absl::Milliseconds(1);
    options.backend.before_run = [&fail, throws](absl::Span<const BatchRow>) {
      if (fail && throws) throw std::runtime_error("broken");
      return fail ? absl::InternalError("broken") : absl::OkStatus();
    };
    TestEngine engine(options);
    EXPECT_TRUE(engine->Healthy());
    std::vector<Reader> readers;
    for (int i = 0; i < 8; ++i) {  // half of them wait
      GenerateSpec spec = MakeSpec(absl::StrCat("r", i), 5, 3000, i);
      if (i % 2) {
        spec.n = 2;
        spec.sampling.temperature = 1;
      }
      readers.push_back(engine.Generate(spec));
    }
    EmbedSpec embed;
    embed.request_id = "e";
    embed.inputs = {{1, 2, 3}, {4}};
    embed.priority = -1;
    Reader embedding = engine.Embed(embed);
    readers[0].ReadTokens(3);
    fail = true;
    for (Reader& reader : readers) {
      const Collected result = reader.ReadAll();
      for (const CollectedOutput& output : result.outputs) {
        EXPECT_EQ(output.finished->reason, FinishReason::kError);
        EXPECT_EQ(output.finished->error.code(), absl::StatusCode::kInternal);
      }
    }
    EXPECT_EQ(embedding.ReadAll().embeddings.at(1).status.code(), absl::StatusCode::kInternal);
    EXPECT_FALSE(engine->Healthy());
    EXPECT_EQ(engine.Metric("tessera_healthy"), 0);
    EXPECT_EQ(engine->Generate(MakeSpec("x", 5, 3), nullptr).status().code(), absl::StatusCode::kUnavailable);
    engine.ExpectIdle();
    EXPECT_TRUE(engine->WaitDrained(absl::Now() + absl::Seconds(5)));
  }
}

TEST(EngineFailureTest, HealthTellsAStepThatHangs) {
  std::atomic<bool> hang{true};
  TestEngineOptions options;
  options.engine.watchdog_timeout = absl::Milliseconds(50);
  options.start = false;
  options.backend.before_run = [&hang](absl::Span<const BatchRow>) {
    while (hang) absl::SleepFor(absl::Milliseconds(1));
    return absl::OkStatus();
  };
  TestEngine engine(options);
  EXPECT_FALSE(engine->Healthy());  // not started
  engine->Start();
  EXPECT_TRUE(engine->Healthy());
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_TRUE(engine->Healthy());  // idle is not hanging
  Reader reader = engine.Generate(MakeSpec("a", 5, 3));
  absl::SleepFor(absl::Milliseconds(150));
  EXPECT_FALSE(engine->Healthy());
  EXPECT_EQ(engine->Load().scheduler.running, 1);  // answered all the same
  hang = false;
  reader.ReadAll();
  EXPECT_TRUE(engine->Healthy());
}

}  // namespace
}  // namespace tessera
