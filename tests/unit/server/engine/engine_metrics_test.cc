// Every request is counted once, whatever became of it.
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/engine/engine_test_util.h"

namespace tessera {
namespace {

constexpr char kGenerate[] = "{kind=\"generate\"}";

TEST(EngineMetricsTest, CountsOfAPlainLoad) {
  constexpr int kRequests = 20, kPrompt = 11, kTokens = 9;
  TestEngineOptions options;
  options.prefix_cache = false;
  TestEngine engine(options);
  std::vector<Reader> readers;
  for (int i = 0; i < kRequests; ++i)
    readers.push_back(engine.Generate(MakeSpec(absl::StrCat(i), kPrompt, kTokens, i)));
  for (Reader& reader : readers) reader.ReadAll();
  const auto metric = [&](const std::string& name) { return engine.Metric("tessera_" + name); };
  EXPECT_EQ(metric("requests_accepted_total{kind=\"generate\"}"), kRequests);
  EXPECT_EQ(metric("time_to_first_token_seconds_count"), kRequests);
  EXPECT_EQ(metric("inter_token_latency_seconds_count"), kRequests * (kTokens - 1));
  EXPECT_EQ(metric("prompt_tokens_total"), kRequests * kPrompt);
  EXPECT_EQ(metric("generation_tokens_total"), kRequests * kTokens);
  EXPECT_EQ(metric("step_tokens_sum"), kRequests * (kPrompt + kTokens - 1));
  EXPECT_EQ(metric("requests_total{kind=\"generate\",finish_reason=\"length\"}"), kRequests);
  EXPECT_EQ(metric("outputs_total{finish_reason=\"length\"}"), kRequests);
  for (const char* histogram :
       {"request_e2e_seconds", "request_queue_seconds", "request_prefill_seconds", "request_prompt_tokens"}) {
    EXPECT_EQ(metric(absl::StrCat(histogram, "_count", kGenerate)), kRequests) << histogram;
  }
  EXPECT_EQ(metric("request_decode_seconds_count"), kRequests);
  EXPECT_EQ(metric("request_generation_tokens_sum"), kRequests * kTokens);
  // Intervals add up: queue + prefill + decode is the time to the last token.
  EXPECT_NEAR(metric(absl::StrCat("request_queue_seconds_sum", kGenerate)) +
                  metric(absl::StrCat("request_prefill_seconds_sum", kGenerate)),
              metric("time_to_first_token_seconds_sum"), 1e-6);
  EXPECT_NEAR(metric("inter_token_latency_seconds_sum"), metric("request_decode_seconds_sum"), 1e-6);
  engine.ExpectIdle();
  EXPECT_GT(engine->Load().generation_tokens_per_second, 0);
  EXPECT_GT(engine->Load().prompt_tokens_per_second, 0);
}

TEST(EngineMetricsTest, SeveralOutputsAndAborts) {
  TestEngineOptions options;
  options.backend.step_time = absl::Milliseconds(1);
  TestEngine engine(options);
  GenerateSpec several = MakeSpec("several", 10, 6);
  several.n = 3;
  several.sampling.temperature = 1;
  engine.GenerateAll(several);
  Reader aborted = engine.Generate(MakeSpec("aborted", 10, 3000));
  aborted.ReadTokens(4);
  engine->Abort("aborted", absl::AbortedError("x"));
  const int aborted_tokens = aborted.ReadAll().usage.completion_tokens;
  GenerateSpec late = MakeSpec("late", 10, 10);
  late.arrival = absl::Now() - absl::Seconds(1);
  late.timeout = absl::Milliseconds(1);
  engine.GenerateAll(late);
  EmbedSpec embed;
  embed.request_id = "embed";
  embed.inputs = {{1, 2, 3}, {4, 5}};
  embed.arrival = absl::Now();
  engine.Embed(embed).ReadAll();

  EXPECT_EQ(engine.Metric("tessera_requests_accepted_total{kind=\"generate\"}"), 3);
  EXPECT_EQ(engine.Metric("tessera_requests_accepted_total{kind=\"embed\"}"), 1);
  EXPECT_EQ(engine.Metric("tessera_time_to_first_token_seconds_count"), 2);  // "late" had none
  EXPECT_EQ(engine.Metric("tessera_inter_token_latency_seconds_count"), 3 * 5 + aborted_tokens - 1);
  EXPECT_EQ(engine.Metric("tessera_generation_tokens_total"), 18 + aborted_tokens);
  EXPECT_EQ(engine.Metric("tessera_request_generation_tokens_sum"), 18 + aborted_tokens);
  EXPECT_EQ(engine.Metric("tessera_request_generation_tokens_count"), 3);
  EXPECT_EQ(engine.Metric("tessera_prompt_tokens_total"), 30 + 5);
  EXPECT_EQ(engine.Metric("tessera_request_prompt_tokens_count{kind=\"generate\"}"), 3);
  EXPECT_EQ(engine.Metric("tessera_outputs_total{finish_reason=\"length\"}"), 3);
  EXPECT_EQ(engine.Metric("tessera_requests_total{kind=\"generate\",finish_reason=\"abort\"}"), 1);
  EXPECT_EQ(engine.Metric("tessera_requests_total{kind=\"generate\",finish_reason=\"deadline\"}"), 1);
  EXPECT_EQ(engine.Metric("tessera_requests_total{kind=\"embed\",finish_reason=\"stop\"}"), 1);
  EXPECT_EQ(engine.Metric("tessera_request_prefill_seconds_count{kind=\"embed\"}"), 1);
  engine.ExpectIdle();
}

}  // namespace
}  // namespace tessera
