// Many threads against one engine: submits, cancels, aborts, deadlines, slow and careful readers, a drain at the end.
// Run it under ASan and TSan. After each round everything must be back, and every request ended exactly once.
#include <atomic>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/engine/engine_test_util.h"

namespace tessera {
namespace {

struct Totals {
  std::atomic<int> accepted{0}, refused{0}, ended{0}, outputs{0}, first_tokens{0};
  std::atomic<int64_t> prompt_tokens{0}, generated_tokens{0}, outputs_with_tokens{0};
};

class Client {
 public:
  Client(TestEngine& engine, Totals& totals, int number)
      : engine_(engine), totals_(totals), number_(number), random_(number) {}

  void Run(int requests) {
    for (int i = 0; i < requests; ++i) {
      if (Chance(10)) {
        OneEmbedding(i);
      } else {
        OneGeneration(i);
      }
    }
  }

 private:
  bool Chance(int percent) { return static_cast<int>(random_() % 100) < percent; }

  void OneEmbedding(int i) {
    EmbedSpec spec;
    spec.request_id = absl::StrCat("e", number_, ".", i);
    spec.arrival = absl::Now();
    const int inputs = 1 + static_cast<int>(random_() % 5);
    for (int input = 0; input < inputs; ++input) {
      spec.inputs.push_back(MakeSpec("", 1 + random_() % 50, 1, random_() % 5).prompt);
    }
    Reader reader;
    auto stream = engine_->Embed(spec, reader.OnReady());
    if (!Accepted(stream.status())) return;
    reader.Attach(*stream);
    if (Chance(20)) reader.stream()->Cancel();
    const Collected result = reader.ReadAll();
    EXPECT_EQ(result.embeddings.size(), spec.inputs.size());
    for (const auto& input : spec.inputs) totals_.prompt_tokens += static_cast<int64_t>(input.size());
    ++totals_.ended;
  }

  void OneGeneration(int i) {
    // A few ids are fought over by all threads.
    const std::string id = Chance(10) ? absl::StrCat("shared", random_() % 3) : absl::StrCat(number_, ".", i);
    GenerateSpec spec = MakeSpec(id, 1 + random_() % 60, 1 + random_() % 40, random_() % 5);
    spec.priority = static_cast<int32_t>(random_() % 3);
    if (Chance(50)) {
      spec.sampling.temperature = 1;
      spec.sampling.seed = random_();
      spec.n = 1 + random_() % 4;
    }
    if (Chance(10)) spec.prompt_logprobs = 1;
    if (Chance(10)) spec.logprobs = 1;
    if (Chance(10)) spec.stopping.stop_strings = {"a", "bc"};
    if (Chance(10)) spec.timeout = absl::Microseconds(random_() % 20000);
    if (Chance(10)) spec.cache_salt = "salt";
    Reader reader;
    auto stream = engine_->Generate(spec, reader.OnReady());
    if (!Accepted(stream.status())) return;
    reader.Attach(*stream);
    const int fate = static_cast<int>(random_() % 10);
    if (fate == 0) reader.stream()->Cancel();
    if (fate == 1) {
      reader.ReadTokens(static_cast<int>(random_() % 10));
      reader.stream()->Cancel();
    }
    if (fate == 2) {
      absl::SleepFor(absl::Microseconds(random_() % 3000));
      engine_->Abort(id, absl::AbortedError("stress"));
    }
    if (fate == 3) absl::SleepFor(absl::Milliseconds(10));
    const Collected result = reader.ReadAll();
    ++totals_.ended;
    Count(spec, result);
  }

  void Count(const GenerateSpec& spec, const Collected& result) {
    ASSERT_EQ(result.outputs.size(), static_cast<size_t>(spec.n));
    int64_t tokens = 0;
    for (const CollectedOutput& output : result.outputs) {
      tokens += static_cast<int64_t>(output.tokens.size());
      totals_.outputs_with_tokens += !output.tokens.empty();
      if (spec.logprobs >= 0) {
        EXPECT_EQ(output.logprobs.size(), output.tokens.size());
      }
      if (output.finished->reason == FinishReason::kLength) {
        EXPECT_EQ(output.tokens.size(), static_cast<size_t>(spec.stopping.max_tokens));
      }
    }
    EXPECT_EQ(result.usage.completion_tokens, tokens);
    EXPECT_EQ(result.timings.time_to_first_token.has_value(), tokens > 0);
    totals_.first_tokens += tokens > 0;
    totals_.generated_tokens += tokens;
    totals_.prompt_tokens += result.usage.prompt_tokens;
    totals_.outputs += spec.n;
  }

  bool Accepted(const absl::Status& status) {
    if (status.ok()) {
      ++totals_.accepted;
      return true;
    }
    ++totals_.refused;
    EXPECT_TRUE(status.code() == absl::StatusCode::kResourceExhausted ||
                status.code() == absl::StatusCode::kAlreadyExists ||
                status.code() == absl::StatusCode::kUnavailable)
        << status;
    return false;
  }

  TestEngine& engine_;
  Totals& totals_;
  const int number_;
  std::mt19937 random_;
};

void Stress(TestEngineOptions options, int threads, int requests, bool drain) {
  ByteTokenizer tokenizer({"ab", "\xE4\xBD"});
  options.tokenizer = tokenizer.get();
  options.backend.vocab_size = tokenizer.vocab_size();
  options.engine.eos_token_ids = {tokenizer.eos()};
  TestEngine engine(options);
  Totals totals;
  std::vector<std::thread> clients;
  for (int i = 0; i < threads; ++i) {
    clients.emplace_back([&, i] { Client(engine, totals, i).Run(requests); });
  }
  std::atomic<bool> done{false};
  std::thread observer([&] {
    std::mt19937 random(99);
    while (!done) {
      const EngineLoad load = engine->Load();
      EXPECT_GE(load.scheduler.running, 0);
      EXPECT_GE(load.scheduler.waiting, 0);
      EXPECT_EQ(load.scheduler.blocks_used + load.scheduler.blocks_cached + load.scheduler.blocks_free,
                load.scheduler.blocks_total);
      EXPECT_TRUE(engine->Healthy());
      engine.Metric("tessera_running");
      if (random() % 50 == 0) engine->AbortAll(absl::AbortedError("all"));
      if (random() % 10 == 0) engine->Wake();
      absl::SleepFor(absl::Milliseconds(1));
    }
  });
  if (drain) {
    absl::SleepFor(absl::Milliseconds(200));
    engine->Drain();
    engine->WaitDrained(absl::Now() + absl::Milliseconds(20));
  }
  for (std::thread& client : clients) client.join();
  done = true;
  observer.join();

  EXPECT_TRUE(engine->WaitDrained(absl::Now() + absl::Seconds(10)));
  engine.ExpectIdle();
  EXPECT_EQ(totals.ended, totals.accepted);
  EXPECT_EQ(engine.Metric("tessera_requests_accepted_total{kind=\"generate\"}") +
                engine.Metric("tessera_requests_accepted_total{kind=\"embed\"}"),
            totals.accepted);
  double ended = 0, outputs = 0;
  for (const char* reason : {"stop", "length", "abort", "deadline", "error"}) {
    for (const char* kind : {"generate", "embed"}) {
      ended += engine.Metric(
          absl::StrCat("tessera_requests_total{kind=\"", kind, "\",finish_reason=\"", reason, "\"}"));
    }
    outputs += engine.Metric(absl::StrCat("tessera_outputs_total{finish_reason=\"", reason, "\"}"));
  }
  EXPECT_EQ(ended, totals.accepted);
  EXPECT_EQ(outputs, totals.outputs);
  EXPECT_EQ(engine.Metric("tessera_time_to_first_token_seconds_count"), totals.first_tokens);
  EXPECT_EQ(engine.Metric("tessera_generation_tokens_total"), static_cast<double>(totals.generated_tokens));
  EXPECT_EQ(engine.Metric("tessera_inter_token_latency_seconds_count"),
            static_cast<double>(totals.generated_tokens - totals.outputs_with_tokens));
  EXPECT_EQ(engine.Metric("tessera_prompt_tokens_total"), static_cast<double>(totals.prompt_tokens));
}

TEST(EngineStressTest, TinyCache) {
  TestEngineOptions options;
  options.num_blocks = 30;
  options.max_batched_tokens = 40;
  options.max_prefill_chunk = 13;
  options.engine.max_queued_sequences = 8;
  options.engine.slow_reader_tokens = 30;
  Stress(options, 6, 150, false);
}

TEST(EngineStressTest, RoomyCacheShortQueue) {
  TestEngineOptions options;
  options.num_blocks = 2000;
  options.engine.max_queued_sequences = 3;
  options.engine.slow_reader_timeout = absl::Milliseconds(5);
  Stress(options, 8, 150, false);
}

TEST(EngineStressTest, DrainUnderLoad) {
  TestEngineOptions options;
  options.num_blocks = 60;
  options.max_running = 5;
  options.backend.step_time = absl::Microseconds(200);
  Stress(options, 6, 400, true);
}

// Construct, load and destroy, with readers that live on.
TEST(EngineStressTest, DestructionUnderLoad) {
  for (int round = 0; round < 15; ++round) {
    TestEngineOptions options;
    options.num_blocks = 40;
    TestEngine engine(options);
    std::vector<Reader> readers;
    for (int i = 0; i < 30; ++i) readers.push_back(engine.Generate(MakeSpec(absl::StrCat(i), 20, 60, i)));
    std::thread canceller([&] {
      for (int i = 0; i < 30; i += 3) readers[i].stream()->Cancel();
    });
    absl::SleepFor(absl::Microseconds(300 * round));
    engine.Destroy();
    canceller.join();
    for (Reader& reader : readers) reader.ReadAll();
  }
}

}  // namespace
}  // namespace tessera
