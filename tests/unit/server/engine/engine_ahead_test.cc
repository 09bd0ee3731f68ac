// What is generated is the same whether steps are started ahead or not: to the bit, whatever stops, is cancelled,
// preempted, found in the prefix cache or cut into chunks meanwhile.
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/engine/engine_test_util.h"

namespace tessera {
namespace {

struct Case {
  GenerateSpec spec;
  int cancel_after = -1;  // tokens that were read; -1: never
};

struct Load {
  std::vector<Case> cases;
  std::vector<EmbedSpec> embeddings;
};

class Randomly {
 public:
  explicit Randomly(int seed) : random_(seed) {}
  int UpTo(int most) { return static_cast<int>(random_() % (most + 1)); }
  bool Chance(int percent) { return UpTo(99) < percent; }

 private:
  std::mt19937 random_;
};

constexpr int kContext = 96;

Case MakeCase(int number, const ByteTokenizer& tokenizer, Randomly& random) {
  Case made;
  const int prompt = 1 + random.UpTo(39);
  made.spec = MakeSpec(absl::StrCat("g", number), prompt, 1 + random.UpTo(kContext - prompt - 1), random.UpTo(3));
  GenerateSpec& spec = made.spec;
  spec.priority = random.UpTo(2);
  spec.sampling.seed = random.UpTo(1000);
  if (random.Chance(60)) spec.sampling.temperature = 0.5f + 0.25f * random.UpTo(4);
  if (random.Chance(20)) spec.sampling.top_k = 1 + random.UpTo(9);
  if (random.Chance(20)) spec.sampling.top_p = 0.8f;
  if (random.Chance(20)) spec.sampling.min_p = 0.1f;
  if (random.Chance(20)) spec.sampling.presence_penalty = 0.7f;
  if (random.Chance(20)) spec.sampling.frequency_penalty = 0.4f;
  if (random.Chance(20)) spec.sampling.repetition_penalty = 1.3f;
  if (random.Chance(20)) spec.sampling.logit_bias = {{97 + random.UpTo(20), 2.0f}, {130, -3.0f}};
  if (random.Chance(30)) spec.n = 2 + random.UpTo(2);
  if (random.Chance(20)) spec.stopping.min_tokens = random.UpTo(spec.stopping.max_tokens);
  if (random.Chance(40)) {
    for (int i = 0; i < 8; ++i) spec.stopping.stop_token_ids.push_back(97 + random.UpTo(150));
  }
  if (random.Chance(30)) spec.stopping.stop_strings = {"a", "hi", std::string(1, 'b' + random.UpTo(20))};
  spec.stopping.include_stop = random.Chance(30);
  spec.stopping.ignore_eos = random.Chance(30);
  if (random.Chance(30)) spec.logprobs = random.UpTo(3);
  if (random.Chance(20)) spec.prompt_logprobs = random.UpTo(2);
  spec.bypass_prefix_cache = random.Chance(10);
  if (random.Chance(10)) spec.cache_salt = "salt";
  if (random.Chance(20)) made.cancel_after = random.UpTo(spec.stopping.max_tokens);
  return made;
}

Load MakeLoad(int seed, const ByteTokenizer& tokenizer) {
  Randomly random(seed);
  Load load;
  const int cases = 1 + random.UpTo(15);
  for (int i = 0; i < cases; ++i) load.cases.push_back(MakeCase(i, tokenizer, random));
  for (int i = random.UpTo(2); i > 0; --i) {
    EmbedSpec& spec = load.embeddings.emplace_back();
    spec.request_id = absl::StrCat("e", i);
    spec.arrival = absl::Now();
    for (int input = random.UpTo(2); input >= 0; --input) {
      spec.inputs.push_back(MakeSpec("", 1 + random.UpTo(60), 1, random.UpTo(3)).prompt);
    }
  }
  return load;
}

struct Outcome {
  std::vector<Collected> generations, embeddings;
  double preemptions = 0;
};

struct Way {
  bool ahead = false;
  int late_one_in = 0;
  bool cancels = true;
};

Outcome Serve(const Load& load, int seed, const ByteTokenizer& tokenizer, Way way) {
  Randomly random(seed);
  TestEngineOptions options;
  options.block_size = 1 << random.UpTo(3);
  options.num_blocks = kContext / options.block_size * (1 + random.UpTo(4));
  options.max_context = kContext;
  options.max_running = 1 + random.UpTo(11);
  options.max_batched_tokens = 12 + random.UpTo(60);
  options.max_prefill_chunk = 3 + random.UpTo(20);
  options.prefix_cache = random.Chance(80);
  options.tokenizer = tokenizer.get();
  options.engine.eos_token_ids = {tokenizer.eos()};
  options.engine.run_ahead = way.ahead;
  options.engine.slow_reader_timeout = absl::InfiniteDuration();
  options.backend.overlaps = true;
  options.backend.late_one_in = way.late_one_in;
  options.backend.vocab_size = tokenizer.vocab_size();
  options.backend.first_token = 97;
  options.start = false;
  TestEngine engine(options);
  std::vector<Reader> readers, embeddings;
  for (const Case& c : load.cases) readers.push_back(engine.Generate(c.spec));
  for (const EmbedSpec& spec : load.embeddings) embeddings.push_back(engine.Embed(spec));
  engine->Start();
  for (size_t i = 0; i < readers.size() && way.cancels; ++i) {
    if (load.cases[i].cancel_after < 0) continue;
    readers[i].ReadTokens(load.cases[i].cancel_after);
    readers[i].stream()->Cancel();
  }
  Outcome outcome;
  for (Reader& reader : readers) outcome.generations.push_back(reader.ReadAll());
  for (Reader& reader : embeddings) outcome.embeddings.push_back(reader.ReadAll());
  outcome.preemptions = engine.Metric("tessera_preemptions_total");
  engine.ExpectIdle();
  EXPECT_TRUE(engine->Healthy());
  return outcome;
}

bool Same(const TokenLogprob& a, const TokenLogprob& b) {
  return a.token == b.token && a.rank == b.rank && std::memcmp(&a.logprob, &b.logprob, sizeof(float)) == 0;
}

void ExpectSame(const std::vector<PositionLogprobs>& got, const std::vector<PositionLogprobs>& want, size_t count) {
  ASSERT_LE(count, std::min(got.size(), want.size()));
  for (size_t i = 0; i < count; ++i) {
    EXPECT_TRUE(Same(got[i].token, want[i].token)) << i;
    ASSERT_EQ(got[i].top.size(), want[i].top.size());
    for (size_t k = 0; k < got[i].top.size(); ++k) EXPECT_TRUE(Same(got[i].top[k], want[i].top[k])) << i;
  }
}

// `want` ran to its end, `got` may have been cancelled before.
void ExpectSame(const Collected& got, const Collected& want) {
  ASSERT_EQ(got.outputs.size(), want.outputs.size());
  for (size_t i = 0; i < got.outputs.size(); ++i) {
    const CollectedOutput &a = got.outputs[i], &b = want.outputs[i];
    const bool cancelled = a.finished->reason == FinishReason::kAbort;
    ASSERT_LE(a.tokens.size(), b.tokens.size());
    EXPECT_TRUE(std::equal(a.tokens.begin(), a.tokens.end(), b.tokens.begin()));
    ASSERT_EQ(a.logprobs.size(), b.logprobs.empty() ? 0 : a.tokens.size());
    ExpectSame(a.logprobs, b.logprobs, a.logprobs.size());
    if (cancelled) continue;
    EXPECT_EQ(a.tokens.size(), b.tokens.size());
    EXPECT_EQ(a.text, b.text);
    EXPECT_EQ(a.finished->reason, b.finished->reason);
    EXPECT_EQ(a.finished->stopped_by.kind, b.finished->stopped_by.kind);
    EXPECT_EQ(a.finished->stopped_by.token_id, b.finished->stopped_by.token_id);
    EXPECT_EQ(a.finished->stopped_by.stop_string, b.finished->stopped_by.stop_string);
  }
  if (!got.prompt_logprobs.empty()) ExpectSame(got.prompt_logprobs, want.prompt_logprobs, want.prompt_logprobs.size());
}

TEST(EngineAheadTest, GeneratesTheSame) {
  const ByteTokenizer tokenizer;
  double preemptions = 0;
  int stops = 0, aborts = 0;
  for (int seed = 1; seed <= 300 && !testing::Test::HasFailure(); ++seed) {
    const Load load = MakeLoad(seed, tokenizer);
    const Outcome want = Serve(load, seed, tokenizer, {.cancels = false});
    for (const Way way : {Way{.ahead = true}, Way{.ahead = true, .late_one_in = 1 + seed % 7}}) {
      SCOPED_TRACE(absl::StrCat("seed ", seed, ", late ", way.late_one_in));
      const Outcome got = Serve(load, seed, tokenizer, way);
      preemptions += got.preemptions;
      for (size_t i = 0; i < load.cases.size(); ++i) {
        SCOPED_TRACE(load.cases[i].spec.request_id);
        ExpectSame(got.generations[i], want.generations[i]);
        for (const CollectedOutput& output : got.generations[i].outputs) {
          stops += output.finished->reason == FinishReason::kStop;
          aborts += output.finished->reason == FinishReason::kAbort;
        }
      }
      for (size_t i = 0; i < load.embeddings.size(); ++i) {
        for (const auto& [index, embedding] : want.embeddings[i].embeddings) {
          EXPECT_EQ(got.embeddings[i].embeddings.at(index).values, embedding.values);
        }
      }
    }
  }
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(stops, 500);
  EXPECT_GT(aborts, 20);
}

// The next step is on the device before what the last one drew is looked at, and its row takes the token all the same.
TEST(EngineAheadTest, StartsAStepBeforeTheTokensOfTheLastAreKnown) {
  for (const bool ahead : {false, true}) {
    std::vector<int32_t> given;  // of the rows, as the engine gave them
    TestEngineOptions options;
    options.backend.overlaps = true;
    options.engine.run_ahead = ahead;
    options.backend.before_run = [&](absl::Span<const BatchRow> rows) {
      for (const BatchRow& row : rows) given.push_back(row.token_of);
      return absl::OkStatus();
    };
    TestEngine engine(options);
    EXPECT_EQ(engine.GenerateAll(MakeSpec("a", 5, 4)).outputs[0].tokens.size(), 4);
    engine.Destroy();
    EXPECT_EQ(given, ahead ? std::vector<int32_t>({-1, 0, 0, 0}) : std::vector<int32_t>({-1, -1, -1, -1}));
  }
}

// A step with many prompt tokens is waited for first: who arrives meanwhile can be in the next one.
TEST(EngineAheadTest, WaitsForLongPrompts) {
  std::vector<int32_t> given;
  TestEngineOptions options;
  options.max_batched_tokens = options.max_prefill_chunk = 400;
  options.backend.overlaps = true;
  options.backend.before_run = [&](absl::Span<const BatchRow> rows) {
    for (const BatchRow& row : rows) given.push_back(row.token_of);
    return absl::OkStatus();
  };
  TestEngine engine(options);
  EXPECT_EQ(engine.GenerateAll(MakeSpec("a", 300, 4)).outputs[0].tokens.size(), 4);
  engine.Destroy();
  EXPECT_EQ(given, std::vector<int32_t>({-1, -1, 0, 0}));
}

// One that stops costs the row that was started for it, and nothing that anybody could see.
TEST(EngineAheadTest, ASurplusRowLeavesNoTrace) {
  int rows_run = 0;
  TestEngineOptions options;
  options.backend.overlaps = true;
  options.backend.rule = [](int32_t last, int32_t) { return last + 1; };
  options.backend.before_run = [&](absl::Span<const BatchRow> rows) {
    rows_run += static_cast<int>(rows.size());
    return absl::OkStatus();
  };
  options.block_size = 1;
  TestEngine engine(options);
  GenerateSpec spec = MakeSpec("a", 5, 100);
  spec.prompt = {1, 2, 3, 4, 5};
  spec.stopping.stop_token_ids = {9};
  const Collected first = engine.GenerateAll(spec);
  EXPECT_EQ(first.outputs[0].tokens, std::vector<int32_t>({6, 7, 8, 9}));
  EXPECT_EQ(first.usage.completion_tokens, 4);
  EXPECT_EQ(engine.Metric("tessera_generation_tokens_total"), 4);
  // The stop's keys and values were computed, and are not to be found.
  GenerateSpec next = MakeSpec("b", 5, 1);
  next.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  EXPECT_EQ(engine.GenerateAll(next).usage.cached_tokens, 8);
  engine.ExpectIdle();
  engine.Destroy();
  EXPECT_EQ(rows_run, 5 + 1);
}

}  // namespace
}  // namespace tessera
