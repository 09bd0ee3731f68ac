// Beginnings and ends: refusals, cancellation, abort, deadline, slow readers, drain, shutdown.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/engine/engine_test_util.h"

namespace tessera {
namespace {

// Lets the backend's steps through one at a time, or all.
class Gate {
 public:
  std::function<absl::Status(absl::Span<const BatchRow>)> Hook() {
    return [this](absl::Span<const BatchRow> rows) {
      std::unique_lock<std::mutex> lock(mu_);
      arrived_.notify_all();
      ++waiting_;
      for (const BatchRow& row : rows) tokens_ += static_cast<int64_t>(row.tokens.size());
      opened_.wait(lock, [this] { return open_; });
      --waiting_;
      return absl::OkStatus();
    };
  }
  void WaitForStep() {
    std::unique_lock<std::mutex> lock(mu_);
    arrived_.wait(lock, [this] { return waiting_ > 0; });
  }
  void Open() {
    std::lock_guard<std::mutex> lock(mu_);
    open_ = true;
    opened_.notify_all();
  }
  int64_t tokens() {
    std::lock_guard<std::mutex> lock(mu_);
    return tokens_;
  }

 private:
  std::mutex mu_;
  std::condition_variable arrived_, opened_;
  bool open_ = false;
  int waiting_ = 0;
  int64_t tokens_ = 0;
};

FinishReason Reason(const Collected& result) { return result.outputs.at(0).finished->reason; }

TEST(EngineLifecycleTest, RefusesWhatCanNeverFit) {
  TestEngineOptions options;
  options.max_context = 100;
  options.num_blocks = 10;  // of 4 tokens
  TestEngine engine(options);
  const auto code = [&](GenerateSpec spec) {
    return engine->Generate(std::move(spec), nullptr).status().code();
  };
  EXPECT_EQ(code(MakeSpec("a", 90, 20)), absl::StatusCode::kInvalidArgument);  // context
  EXPECT_EQ(code(MakeSpec("a", 30, 20)), absl::StatusCode::kInvalidArgument);  // cache
  EXPECT_EQ(code(MakeSpec("a", 0, 20)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(MakeSpec("a", 3, 0)), absl::StatusCode::kInvalidArgument);
  GenerateSpec none = MakeSpec("a", 3, 1);
  none.n = 0;
  EXPECT_EQ(code(none), absl::StatusCode::kInvalidArgument);
  EmbedSpec embed;
  embed.request_id = "e";
  EXPECT_EQ(engine->Embed(embed, nullptr).status().code(), absl::StatusCode::kInvalidArgument);
  embed.inputs = {{1, 2}, {}};
  EXPECT_EQ(engine->Embed(embed, nullptr).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Reason(engine.GenerateAll(MakeSpec("fits", 21, 20))), FinishReason::kLength);
  engine.ExpectIdle();
}

TEST(EngineLifecycleTest, AnIdInUseIsRefusedAndFreeAfterTheEnd) {
  Gate gate;
  TestEngineOptions options;
  options.backend.before_run = gate.Hook();
  TestEngine engine(options);
  Reader first = engine.Generate(MakeSpec("same", 5, 3));
  EXPECT_EQ(engine->Generate(MakeSpec("same", 5, 3), nullptr).status().code(),
            absl::StatusCode::kAlreadyExists);
  gate.WaitForStep();
  EXPECT_EQ(engine->Generate(MakeSpec("same", 5, 3), nullptr).status().code(),
            absl::StatusCode::kAlreadyExists);
  gate.Open();
  EXPECT_EQ(Reason(first.ReadAll()), FinishReason::kLength);
  for (int i = 0; i < 200; ++i)
    EXPECT_EQ(Reason(engine.GenerateAll(MakeSpec("same", 5, 3))), FinishReason::kLength);
}

TEST(EngineLifecycleTest, AFullQueueRefusesAtOnceAndOutputsCount) {
  Gate gate;
  TestEngineOptions options;
  options.backend.before_run = gate.Hook();
  options.engine.max_queued_sequences = 4;
  options.engine.max_queued_tokens = 100;
  TestEngine engine(options);
  Reader running = engine.Generate(MakeSpec("running", 5, 3));
  gate.WaitForStep();
  GenerateSpec three = MakeSpec("three", 5, 3);
  three.n = 3;
  Reader queued = engine.Generate(three);
  EXPECT_EQ(engine->Load().scheduler.waiting, 3);
  GenerateSpec two = MakeSpec("two", 5, 3);
  two.n = 2;
  const absl::Status refused = engine->Generate(two, nullptr).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_EQ(engine->Generate(MakeSpec("long", 90, 3), nullptr).status().code(),
            absl::StatusCode::kResourceExhausted);
  Reader fourth = engine.Generate(MakeSpec("fourth", 5, 3));
  EXPECT_EQ(engine->Generate(MakeSpec("fifth", 5, 3), nullptr).status().code(),
            absl::StatusCode::kResourceExhausted);
  gate.Open();
  running.ReadAll();
  queued.ReadAll();
  fourth.ReadAll();
  // Empty again: even more than the limits at once.
  GenerateSpec ten = MakeSpec("ten", 90, 3);
  ten.n = 10;
  EXPECT_EQ(engine.GenerateAll(ten).outputs.size(), 10u);
  engine.ExpectIdle();
}

TEST(EngineLifecycleTest, ARequestCancelledInTheQueueIsNeverPrefilled) {
  Gate gate;
  TestEngineOptions options;
  options.backend.before_run = gate.Hook();
  options.max_running = 1;
  TestEngine engine(options);
  Reader running = engine.Generate(MakeSpec("running", 5, 3));
  gate.WaitForStep();
  Reader gone = engine.Generate(MakeSpec("gone", 50, 3, 1));
  Reader aborted = engine.Generate(MakeSpec("aborted", 50, 3, 2));
  gone.stream()->Cancel();
  gone.stream()->Cancel();
  EXPECT_TRUE(engine->Abort("aborted", absl::AbortedError("by test")));
  gate.Open();
  const Collected result = gone.ReadAll();
  EXPECT_EQ(Reason(result), FinishReason::kAbort);
  EXPECT_EQ(result.usage.completion_tokens, 0);
  EXPECT_FALSE(result.timings.time_to_first_token.has_value());
  const Collected by_id = aborted.ReadAll();
  EXPECT_EQ(by_id.outputs[0].finished->error.message(), "by test");
  running.ReadAll();
  EXPECT_EQ(gate.tokens(), 5 + 2);
  engine.ExpectIdle();
}

TEST(EngineLifecycleTest, CancelWhileDecodingEndsThatRequestAlone) {
  TestEngineOptions options;
  options.backend.step_time = absl::Milliseconds(1);
  TestEngine engine(options);
  Reader cancelled = engine.Generate(MakeSpec("cancelled", 5, 3000));
  Reader other = engine.Generate(MakeSpec("other", 5, 60, 1));
  cancelled.ReadTokens(5);
  cancelled.stream()->Cancel();
  const Collected result = cancelled.ReadAll();
  EXPECT_EQ(Reason(result), FinishReason::kAbort);
  EXPECT_LT(result.usage.completion_tokens, 3000);
  EXPECT_EQ(result.usage.completion_tokens, static_cast<int>(result.outputs[0].tokens.size()));
  EXPECT_EQ(Reason(other.ReadAll()), FinishReason::kLength);
  engine.ExpectIdle();
}

TEST(EngineLifecycleTest, AbortKnowsLiveIdsOnly) {
  TestEngineOptions options;
  options.backend.step_time = absl::Milliseconds(1);
  TestEngine engine(options);
  EXPECT_FALSE(engine->Abort("unknown", absl::AbortedError("x")));
  Reader reader = engine.Generate(MakeSpec("a", 5, 3000));
  GenerateSpec several = MakeSpec("b", 5, 3000);
  several.n = 3;
  several.sampling.temperature = 1;
  Reader other = engine.Generate(several);
  reader.ReadTokens(2);
  other.ReadTokens(4);
  EXPECT_TRUE(engine->Abort("a", absl::AbortedError("stop it")));
  EXPECT_EQ(Reason(reader.ReadAll()), FinishReason::kAbort);
  EXPECT_FALSE(engine->Abort("a", absl::AbortedError("again")));
  EXPECT_EQ(engine->AbortAll(absl::AbortedError("all")), std::vector<std::string>{"b"});
  const Collected result = other.ReadAll();
  ASSERT_EQ(result.outputs.size(), 3u);
  for (const CollectedOutput& output : result.outputs)
    EXPECT_EQ(output.finished->reason, FinishReason::kAbort);
  engine.ExpectIdle();
}

TEST(EngineLifecycleTest, DeadlineKeepsWhatWasGenerated) {
  TestEngineOptions options;
  options.backend.step_time = absl::Milliseconds(2);
  TestEngine engine(options);
  GenerateSpec spec = MakeSpec("a", 5, 3000);
  spec.timeout = absl::Milliseconds(60);
  const Collected result = engine.GenerateAll(spec);
  EXPECT_EQ(Reason(result), FinishReason::kDeadline);
  EXPECT_GT(result.usage.completion_tokens, 0);
  EXPECT_LT(result.usage.completion_tokens, 60);
  EXPECT_GE(result.timings.total, absl::Milliseconds(60));
  engine.ExpectIdle();
}

TEST(EngineLifecycleTest, DeadlineInTheQueueNeedsNoFurtherEvent) {
  Gate gate;
  TestEngineOptions options;
  options.max_running = 1;
  options.backend.step_time = absl::Milliseconds(1);
  TestEngine engine(options);
  GenerateSpec first = MakeSpec("first", 5, 200);
  Reader running = engine.Generate(first);
  GenerateSpec spec = MakeSpec("a", 5, 10);
  spec.timeout = absl::Milliseconds(20);
  const Collected result = engine.GenerateAll(spec);
  EXPECT_EQ(Reason(result), FinishReason::kDeadline);
  EXPECT_EQ(result.usage.completion_tokens, 0);
  running.ReadAll();
}

TEST(EngineLifecycleTest, ASlowReaderIsAbortedAndNobodyElseNotices) {
  TestEngineOptions options;
  options.engine.slow_reader_tokens = 50;
  TestEngine engine(options);
  Reader slow = engine.Generate(MakeSpec("slow", 5, 3000));
  EXPECT_EQ(Reason(engine.GenerateAll(MakeSpec("other", 5, 40, 1))), FinishReason::kLength);
  const Collected result = slow.ReadAll(absl::Milliseconds(100));
  EXPECT_EQ(Reason(result), FinishReason::kAbort);
  EXPECT_GE(result.usage.completion_tokens, 50);
  EXPECT_EQ(result.outputs[0].tokens.size(), static_cast<size_t>(result.usage.completion_tokens));
  EXPECT_EQ(engine.Metric("tessera_slow_reader_aborts_total"), 1);
  engine.ExpectIdle();
}

TEST(EngineLifecycleTest, ASlowReaderIsAbortedByTime) {
  TestEngineOptions options;
  options.engine.slow_reader_timeout = absl::Milliseconds(30);
  options.backend.step_time = absl::Milliseconds(1);
  TestEngine engine(options);
  Reader slow = engine.Generate(MakeSpec("slow", 5, 3000));
  Reader quick = engine.Generate(MakeSpec("quick", 5, 100, 1));
  EXPECT_EQ(Reason(quick.ReadAll()), FinishReason::kLength);
  EXPECT_EQ(Reason(slow.ReadAll(absl::Milliseconds(300))), FinishReason::kAbort);
  EXPECT_EQ(engine.Metric("tessera_slow_reader_aborts_total"), 1);
}

TEST(EngineLifecycleTest, DrainRefusesAndLetsTheRestFinish) {
  TestEngineOptions options;
  options.backend.step_time = absl::Milliseconds(1);
  TestEngine engine(options);
  Reader reader = engine.Generate(MakeSpec("a", 5, 40));
  engine->Drain();
  EXPECT_EQ(engine->Generate(MakeSpec("b", 5, 3), nullptr).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine.Metric("tessera_draining"), 1);
  EXPECT_TRUE(engine->Healthy());
  EXPECT_TRUE(engine->WaitDrained(absl::Now() + absl::Seconds(30)));
  EXPECT_EQ(Reason(reader.ReadAll()), FinishReason::kLength);
  EXPECT_TRUE(engine->WaitDrained(absl::InfiniteFuture()));
}

TEST(EngineLifecycleTest, DrainCutsAtItsDeadline) {
  TestEngineOptions options;
  options.backend.step_time = absl::Milliseconds(1);
  TestEngine engine(options);
  Reader reader = engine.Generate(MakeSpec("a", 5, 3000));
  engine->Drain();
  EXPECT_FALSE(engine->WaitDrained(absl::Now() + absl::Milliseconds(20)));
  const Collected result = reader.ReadAll();
  EXPECT_EQ(Reason(result), FinishReason::kAbort);
  EXPECT_EQ(result.outputs[0].finished->error.code(), absl::StatusCode::kUnavailable);
  engine.ExpectIdle();
}

TEST(EngineLifecycleTest, DestructionEndsEveryRequest) {
  for (bool start : {true, false}) {
    TestEngineOptions options;
    options.start = start;
    options.max_running = 2;
    options.backend.step_time = absl::Milliseconds(1);
    TestEngine engine(options);
    std::vector<Reader> readers;
    for (int i = 0; i < 5; ++i)
      readers.push_back(engine.Generate(MakeSpec(absl::StrCat("r", i), 5, 3000, i)));
    if (start) readers[0].ReadTokens(1);
    engine.Destroy();
    for (Reader& reader : readers) {
      EXPECT_EQ(Reason(reader.ReadAll()), FinishReason::kAbort);
      reader.stream()->Cancel();  // after the engine: no harm
    }
  }
}

TEST(EngineLifecycleTest, HigherPriorityGoesFirst) {
  Gate gate;
  TestEngineOptions options;
  options.max_running = 1;
  options.backend.before_run = gate.Hook();
  TestEngine engine(options);
  Reader running = engine.Generate(MakeSpec("running", 5, 2));
  gate.WaitForStep();
  GenerateSpec low = MakeSpec("low", 5, 2, 1), high = MakeSpec("high", 5, 2, 2);
  low.priority = -1;
  high.priority = 1;
  Reader low_reader = engine.Generate(low), high_reader = engine.Generate(high);
  gate.Open();
  const Collected low_result = low_reader.ReadAll(), high_result = high_reader.ReadAll();
  EXPECT_GT(low_result.timings.queue, high_result.timings.queue);
  running.ReadAll();
}

TEST(EngineLifecycleTest, IdsOfOneRequestNeverEndAnother) {
  TestEngineOptions options;
  options.backend.step_time = absl::Microseconds(200);
  TestEngine engine(options);
  for (int i = 0; i < 50; ++i) {
    Reader first = engine.Generate(MakeSpec("same", 5, 3));
    first.ReadAll();
    Reader second = engine.Generate(MakeSpec("same", 5, 5));
    first.stream()->Cancel();  // late, and of the first
    EXPECT_EQ(Reason(second.ReadAll()), FinishReason::kLength);
  }
}

TEST(EngineLifecycleTest, TheFirstEventWakesTheReaderWithoutALock) {
  TestEngine engine;
  std::shared_ptr<RequestStream> stream;
  std::mutex mu;
  std::condition_variable done;
  bool ended = false;
  int tokens = 0;
  std::atomic<bool> attached{false};
  auto on_ready = [&] {  // takes in the engine's own thread
    while (!attached) std::this_thread::yield();
    std::vector<RequestEvent> events;
    const bool more = stream->Take(&events);
    for (const RequestEvent& event : events) {
      if (const auto* delta = std::get_if<OutputDelta>(&event))
        tokens += static_cast<int>(delta->token_ids.size());
    }
    std::lock_guard<std::mutex> lock(mu);
    ended = !more;
    done.notify_all();
  };
  stream = *engine->Generate(MakeSpec("a", 5, 7), on_ready);
  attached = true;
  std::unique_lock<std::mutex> lock(mu);
  done.wait(lock, [&] { return ended; });
  EXPECT_EQ(tokens, 7);
}

// On a device that works beside its host, a step's tokens go out while the next step runs.
TEST(EngineLifecycleTest, DeliversWhileTheNextStepRuns) {
  constexpr int kTokens = 6;
  std::mutex mu;
  std::condition_variable changed;
  int received = 0, steps = 0;
  bool late = false;
  TestEngineOptions options;
  options.backend.overlaps = true;
  options.backend.before_run = [&](absl::Span<const BatchRow>) {
    std::unique_lock<std::mutex> lock(mu);
    // Each step but the first ends once the token of the one before was read.
    if (!changed.wait_for(lock, std::chrono::seconds(20), [&] { return received >= steps; })) late = true;
    ++steps;
    return absl::OkStatus();
  };
  TestEngine engine(options);
  Reader reader = engine.Generate(MakeSpec("a", 5, kTokens));
  for (int tokens = 1; tokens <= kTokens; ++tokens) {
    reader.ReadTokens(tokens);
    std::lock_guard<std::mutex> lock(mu);
    received = tokens;
    changed.notify_all();
  }
  reader.ReadAll();
  std::lock_guard<std::mutex> lock(mu);
  EXPECT_FALSE(late);
  EXPECT_EQ(steps, kTokens);
}

}  // namespace
}  // namespace tessera
