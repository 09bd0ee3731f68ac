// What comes out of a generation: tokens, text, ends, log-probabilities; and that it does not depend on how it was
// served.
#include <atomic>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/engine/engine_test_util.h"

namespace tessera {
namespace {

// An engine whose greedy output is `script`, whatever the prompt (of 3 tokens).
constexpr int kPrompt = 3;
TestEngineOptions Scripted(const ByteTokenizer& tokenizer, std::vector<int32_t> script) {
  TestEngineOptions options;
  options.tokenizer = tokenizer.get();
  options.engine.eos_token_ids = {tokenizer.eos()};
  options.backend.vocab_size = tokenizer.vocab_size();
  options.backend.rule = [script](int32_t, int32_t position) {
    const size_t step = static_cast<size_t>(position - (kPrompt - 1));
    return step < script.size() ? script[step] : static_cast<int32_t>('.');
  };
  return options;
}

std::vector<int32_t> Bytes(const std::string& text) {
  std::vector<int32_t> ids;
  for (char byte : text) ids.push_back(static_cast<uint8_t>(byte));
  return ids;
}

TEST(EngineGenerationTest, TokensTextUsageAndLength) {
  ByteTokenizer tokenizer;
  TestEngine engine(Scripted(tokenizer, Bytes("hello world")));
  const Collected result = engine.GenerateAll(MakeSpec("a", kPrompt, 5));
  ASSERT_EQ(result.outputs.size(), 1u);
  EXPECT_EQ(result.outputs[0].text, "hello");
  EXPECT_EQ(result.outputs[0].tokens, Bytes("hello"));
  EXPECT_EQ(result.outputs[0].finished->reason, FinishReason::kLength);
  EXPECT_EQ(result.outputs[0].finished->stopped_by.kind, StoppedBy::kNone);
  EXPECT_EQ(result.usage.prompt_tokens, kPrompt);
  EXPECT_EQ(result.usage.completion_tokens, 5);
  EXPECT_EQ(result.usage.cached_tokens, 0);
  EXPECT_TRUE(result.timings.time_to_first_token.has_value());
  EXPECT_LE(result.timings.queue + result.timings.prefill + result.timings.decode,
            result.timings.total + absl::Microseconds(1));
  engine.ExpectIdle();
}

TEST(EngineGenerationTest, EosIsCountedAndIsNoText) {
  ByteTokenizer tokenizer;
  std::vector<int32_t> script = Bytes("hi");
  script.push_back(tokenizer.eos());
  TestEngine engine(Scripted(tokenizer, script));
  Collected result = engine.GenerateAll(MakeSpec("a", kPrompt, 50));
  EXPECT_EQ(result.outputs[0].text, "hi");
  EXPECT_EQ(result.outputs[0].tokens, script);
  EXPECT_EQ(result.outputs[0].finished->reason, FinishReason::kStop);
  EXPECT_EQ(result.outputs[0].finished->stopped_by.kind, StoppedBy::kEos);
  EXPECT_EQ(result.outputs[0].finished->stopped_by.token_id, tokenizer.eos());
  EXPECT_EQ(result.usage.completion_tokens, 3);

  GenerateSpec ignoring = MakeSpec("b", kPrompt, 5);
  ignoring.stopping.ignore_eos = true;
  result = engine.GenerateAll(ignoring);
  EXPECT_EQ(result.outputs[0].text, "hi..");
  EXPECT_EQ(result.outputs[0].finished->reason, FinishReason::kLength);

  ignoring.request_id = "c";
  ignoring.skip_special_tokens = false;
  EXPECT_EQ(engine.GenerateAll(ignoring).outputs[0].text, "hi<eos>..");
}

TEST(EngineGenerationTest, MinTokensBarsTheEnd) {
  ByteTokenizer tokenizer;
  TestEngine engine(Scripted(tokenizer, std::vector<int32_t>(20, tokenizer.eos())));
  GenerateSpec spec = MakeSpec("a", kPrompt, 10);
  spec.stopping.min_tokens = 4;
  const Collected result = engine.GenerateAll(spec);
  EXPECT_EQ(result.usage.completion_tokens, 5);
  EXPECT_EQ(result.outputs[0].finished->stopped_by.kind, StoppedBy::kEos);
  for (int i = 0; i < 4; ++i) EXPECT_NE(result.outputs[0].tokens[i], tokenizer.eos());
}

TEST(EngineGenerationTest, StopStringInsideAToken) {
  ByteTokenizer tokenizer({"DEF"});
  TestEngine engine(Scripted(tokenizer, {'A', 'B', 'C', tokenizer.Word(0), 'G'}));
  GenerateSpec spec = MakeSpec("a", kPrompt, 50);
  spec.stopping.stop_strings = {"DE"};
  Collected result = engine.GenerateAll(spec);
  EXPECT_EQ(result.outputs[0].text, "ABC");
  EXPECT_EQ(result.outputs[0].finished->reason, FinishReason::kStop);
  EXPECT_EQ(result.outputs[0].finished->stopped_by.stop_string, "DE");
  EXPECT_EQ(result.usage.completion_tokens, 4);

  spec.request_id = "b";
  spec.stopping.include_stop = true;
  result = engine.GenerateAll(spec);
  EXPECT_EQ(result.outputs[0].text, "ABCDE");
}

TEST(EngineGenerationTest, StopStringAcrossTokensIsNeverSentAhead) {
  ByteTokenizer tokenizer({"DEFG", " HI"});
  TestEngine engine(Scripted(tokenizer, {'A', tokenizer.Word(0), tokenizer.Word(1), 'J'}));
  GenerateSpec spec = MakeSpec("a", kPrompt, 50);
  spec.stopping.stop_strings = {"DEFG HI"};
  const Collected result = engine.GenerateAll(spec);
  EXPECT_EQ(result.outputs[0].text, "A");
  EXPECT_EQ(result.usage.completion_tokens, 3);
}

TEST(EngineGenerationTest, HeldTextComesOutAtTheEnd) {
  ByteTokenizer tokenizer;
  TestEngine engine(Scripted(tokenizer, Bytes("abcd")));
  GenerateSpec spec = MakeSpec("a", kPrompt, 4);
  spec.stopping.stop_strings = {"cde"};
  const Collected result = engine.GenerateAll(spec);
  EXPECT_EQ(result.outputs[0].text, "abcd");
  EXPECT_EQ(result.outputs[0].finished->reason, FinishReason::kLength);
}

TEST(EngineGenerationTest, StopStringOnTheLastTokenIsAStop) {
  ByteTokenizer tokenizer;
  TestEngine engine(Scripted(tokenizer, Bytes("abcd")));
  GenerateSpec spec = MakeSpec("a", kPrompt, 4);
  spec.stopping.stop_strings = {"cd"};
  const Collected result = engine.GenerateAll(spec);
  EXPECT_EQ(result.outputs[0].text, "ab");
  EXPECT_EQ(result.outputs[0].finished->reason, FinishReason::kStop);
}

TEST(EngineGenerationTest, StopTokens) {
  ByteTokenizer tokenizer;
  TestEngine engine(Scripted(tokenizer, Bytes("abcd")));
  GenerateSpec spec = MakeSpec("a", kPrompt, 50);
  spec.stopping.stop_token_ids = {'c'};
  Collected result = engine.GenerateAll(spec);
  EXPECT_EQ(result.outputs[0].text, "ab");
  EXPECT_EQ(result.outputs[0].tokens, Bytes("abc"));
  EXPECT_EQ(result.outputs[0].finished->stopped_by.kind, StoppedBy::kStopToken);
  EXPECT_EQ(result.outputs[0].finished->stopped_by.token_id, 'c');
  spec.request_id = "b";
  spec.stopping.include_stop = true;
  EXPECT_EQ(engine.GenerateAll(spec).outputs[0].text, "abc");
}

TEST(EngineGenerationTest, StopStringsAreNotLookedForBeforeMinTokens) {
  ByteTokenizer tokenizer;
  TestEngine engine(Scripted(tokenizer, Bytes("ab ab ab")));
  GenerateSpec spec = MakeSpec("a", kPrompt, 50);
  spec.stopping.stop_strings = {"ab"};
  spec.stopping.min_tokens = 4;
  const Collected result = engine.GenerateAll(spec);
  EXPECT_EQ(result.outputs[0].text, "ab ");
  EXPECT_EQ(result.usage.completion_tokens, 5);
}

TEST(EngineGenerationTest, CharactersOverSeveralTokens) {
  ByteTokenizer tokenizer;
  const std::string text = "\xF0\x9F\x98\x80\xE4\xBD\xA0";  // an emoji and a CJK character, a token a byte
  TestEngine engine(Scripted(tokenizer, Bytes(text)));
  EXPECT_EQ(engine.GenerateAll(MakeSpec("a", kPrompt, 7)).outputs[0].text, text);
  // Cut in the middle of a character: the rest is U+FFFD, as decoding all tokens has it.
  const Collected cut = engine.GenerateAll(MakeSpec("b", kPrompt, 6));
  EXPECT_EQ(cut.outputs[0].text, *tokenizer.get()->Decode(cut.outputs[0].tokens));
  EXPECT_EQ(cut.outputs[0].text, "\xF0\x9F\x98\x80\xEF\xBF\xBD");
}

TEST(EngineGenerationTest, WithoutATokenizerThereAreTokensAlone) {
  TestEngine engine;
  const Collected result = engine.GenerateAll(MakeSpec("a", 10, 6));
  EXPECT_EQ(result.outputs[0].text, "");
  EXPECT_EQ(result.outputs[0].tokens.size(), 6u);
  GenerateSpec spec = MakeSpec("b", 10, 6);
  spec.stopping.stop_strings = {"x"};
  EXPECT_EQ(engine->Generate(spec, nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(EngineGenerationTest, LogprobsOneATokenAndTokensUnchanged) {
  TestEngine engine;
  GenerateSpec spec = MakeSpec("a", 10, 6);
  spec.sampling.temperature = 1;
  spec.sampling.seed = 5;
  const Collected plain = engine.GenerateAll(spec);
  spec.logprobs = 3;
  const Collected scored = engine.GenerateAll(spec);
  EXPECT_EQ(plain.outputs[0].tokens, scored.outputs[0].tokens);
  EXPECT_TRUE(plain.outputs[0].logprobs.empty());
  ASSERT_EQ(scored.outputs[0].logprobs.size(), 6u);
  for (int i = 0; i < 6; ++i) {
    const PositionLogprobs& position = scored.outputs[0].logprobs[i];
    EXPECT_EQ(position.token.token, scored.outputs[0].tokens[i]);
    EXPECT_LT(position.token.logprob, 0);
    ASSERT_EQ(position.top.size(), 3u);
    EXPECT_EQ(position.top[0].rank, 1);
    if (position.token.rank <= 3) {
      EXPECT_EQ(position.top[position.token.rank - 1].token, position.token.token);
    }
  }
}

TEST(EngineGenerationTest, PromptLogprobsDoNotDependOnTheCacheOrChunks) {
  TestEngine engine;
  GenerateSpec spec = MakeSpec("a", 150, 3);
  engine.GenerateAll(spec);  // fills the prefix cache
  spec.prompt_logprobs = 2;
  spec.n = 3;
  spec.sampling.temperature = 1;
  const Collected warm = engine.GenerateAll(spec);
  EXPECT_EQ(warm.usage.cached_tokens, 0);
  // Output 0 computed the prompt again; the other two found it.
  EXPECT_LT(engine.Metric("tessera_computed_tokens_total{phase=\"prefill\"}"), 2 * 150 + 2 * 20);
  TestEngineOptions cold_options;
  cold_options.max_prefill_chunk = 7;
  TestEngine cold_engine(cold_options);
  const Collected cold = cold_engine.GenerateAll(spec);
  ASSERT_EQ(warm.prompt_logprobs.size(), 150u);
  ASSERT_EQ(cold.prompt_logprobs.size(), 150u);
  EXPECT_EQ(warm.prompt_logprobs[0].token.rank, 0);
  for (int i = 0; i < 150; ++i) {
    EXPECT_EQ(warm.prompt_logprobs[i].token.token, spec.prompt[i]);
    EXPECT_EQ(warm.prompt_logprobs[i].token.logprob, cold.prompt_logprobs[i].token.logprob);
    EXPECT_EQ(warm.prompt_logprobs[i].top.size(), i == 0 ? 0u : 2u);
  }
  EXPECT_EQ(warm.outputs[2].tokens, cold.outputs[2].tokens);
}

TEST(EngineGenerationTest, OutputsDrawWithSeedPlusIndex) {
  TestEngine engine;
  GenerateSpec spec = MakeSpec("all", 20, 12);
  spec.sampling.temperature = 1;
  spec.sampling.seed = 1000;
  spec.n = 4;
  const Collected all = engine.GenerateAll(spec);
  ASSERT_EQ(all.outputs.size(), 4u);
  EXPECT_EQ(all.usage.prompt_tokens, 20);
  EXPECT_EQ(all.usage.completion_tokens, 48);
  std::set<std::vector<int32_t>> distinct;
  for (int i = 0; i < 4; ++i) {
    GenerateSpec one = spec;
    one.request_id = absl::StrCat("one", i);
    one.n = 1;
    one.sampling.seed = 1000 + i;
    EXPECT_EQ(engine.GenerateAll(one).outputs[0].tokens, all.outputs[i].tokens);
    distinct.insert(all.outputs[i].tokens);
  }
  EXPECT_EQ(distinct.size(), 4u);
}

TEST(EngineGenerationTest, SecondTimeComesFromTheCacheUnlessBypassed) {
  TestEngine engine;
  GenerateSpec spec = MakeSpec("a", 40, 4);
  const Collected first = engine.GenerateAll(spec);
  const Collected second = engine.GenerateAll(spec);
  EXPECT_EQ(first.usage.cached_tokens, 0);
  EXPECT_GE(second.usage.cached_tokens, 36);
  EXPECT_LT(second.usage.cached_tokens, 40);
  EXPECT_EQ(first.outputs[0].tokens, second.outputs[0].tokens);
  spec.bypass_prefix_cache = true;
  EXPECT_EQ(engine.GenerateAll(spec).usage.cached_tokens, 0);
  spec.bypass_prefix_cache = false;
  spec.cache_salt = "other";
  EXPECT_EQ(engine.GenerateAll(spec).usage.cached_tokens, 0);
  EXPECT_GT(engine->Load().prefix_cache_hit_rate, 0);
}

// The same requests alone, slowly read, all at once, cached, and through a cache so small that they preempt each other.
TEST(EngineGenerationTest, ResultsDoNotDependOnHowTheyWereServed) {
  ByteTokenizer tokenizer({"DEF", "ab", " the", "\xE4\xBD", "\xF0\x9F"});
  std::mt19937 random(1);
  std::vector<GenerateSpec> specs;
  for (int i = 0; i < 40; ++i) {
    GenerateSpec spec = MakeSpec(absl::StrCat("r", i), 1 + random() % 60, 1 + random() % 60, i / 4);
    if (i % 3 != 0) {
      spec.sampling.temperature = 0.5f + (random() % 100) / 100.0f;
      spec.n = 1 + random() % 3;
    }
    spec.sampling.seed = random();
    if (i % 4 == 1) spec.sampling.top_p = 0.8f;
    if (i % 4 == 2) spec.sampling.frequency_penalty = 0.5f;
    if (i % 5 == 2) spec.sampling.repetition_penalty = 1.3f;
    if (i % 5 == 1) spec.stopping.stop_strings = {"a", "ef", "\n"};
    if (i % 7 == 3) spec.prompt_logprobs = 1;
    if (i % 7 == 4) spec.logprobs = 2;
    spec.priority = static_cast<int>(random() % 3);
    specs.push_back(std::move(spec));
  }
  TestEngineOptions options;
  options.tokenizer = tokenizer.get();
  options.engine.eos_token_ids = {tokenizer.eos()};
  options.backend.vocab_size = tokenizer.vocab_size();

  std::vector<Collected> expected;
  {
    TestEngineOptions alone = options;
    alone.prefix_cache = false;
    TestEngine engine(alone);
    for (const GenerateSpec& spec : specs) expected.push_back(engine.GenerateAll(spec));
  }
  const auto expect_same = [&](const std::vector<Collected>& results, const char* how) {
    for (size_t i = 0; i < specs.size(); ++i) {
      ASSERT_EQ(results[i].outputs.size(), expected[i].outputs.size());
      EXPECT_EQ(results[i].usage.completion_tokens, expected[i].usage.completion_tokens);
      for (size_t o = 0; o < expected[i].outputs.size(); ++o) {
        const CollectedOutput& a = results[i].outputs[o];
        const CollectedOutput& b = expected[i].outputs[o];
        EXPECT_EQ(a.tokens, b.tokens) << how << " request " << i << " output " << o;
        EXPECT_EQ(a.text, b.text) << how << " request " << i << " output " << o;
        EXPECT_EQ(a.finished->reason, b.finished->reason);
        EXPECT_EQ(a.finished->stopped_by.kind, b.finished->stopped_by.kind);
        EXPECT_EQ(a.logprobs.size(), b.logprobs.size());
      }
      ASSERT_EQ(results[i].prompt_logprobs.size(), expected[i].prompt_logprobs.size());
      for (size_t t = 0; t < expected[i].prompt_logprobs.size(); ++t) {
        EXPECT_EQ(results[i].prompt_logprobs[t].token.logprob, expected[i].prompt_logprobs[t].token.logprob);
      }
    }
  };
  const auto run_together = [&](TestEngine& engine, absl::Duration pause) {
    std::vector<Reader> readers;
    for (const GenerateSpec& spec : specs) readers.push_back(engine.Generate(spec));
    std::vector<Collected> results;
    for (Reader& reader : readers) results.push_back(reader.ReadAll(pause));
    engine.ExpectIdle();
    return results;
  };
  {
    TestEngine engine(options);
    expect_same(run_together(engine, absl::ZeroDuration()), "batched");
    expect_same(run_together(engine, absl::ZeroDuration()), "cached");
    expect_same(run_together(engine, absl::Milliseconds(1)), "slowly read");
  }
  {
    TestEngineOptions tiny = options;
    tiny.num_blocks = 40;  // the longest request needs 30
    tiny.max_batched_tokens = 48;
    tiny.max_prefill_chunk = 11;
    TestEngine engine(tiny);
    expect_same(run_together(engine, absl::ZeroDuration()), "preempted");
    expect_same(run_together(engine, absl::ZeroDuration()), "preempted and cached");
    EXPECT_GT(engine->Load().scheduler.preemptions, 0);
    EXPECT_GT(engine.Metric("tessera_preemptions_total"), 0);
  }
}

}  // namespace
}  // namespace tessera
