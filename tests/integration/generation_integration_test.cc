// The bundled model on the CPU behind a real server: the same request gives the same tokens however it is asked, and
// whatever else the server does. Everything is compared for equality, floating-point numbers included.
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/generation.h"
#include "tests/integration/server_process.h"

namespace tessera {
namespace {

using ::testing::ElementsAreArray;
using testing::Generation;
using testing::Greedy;
using ::testing::HasSubstr;
using testing::MixedRequests;
using testing::Once;
using testing::Sampled;
using testing::ServerProcess;
using testing::SharedServerTest;
using testing::Stream;
using testing::SumOf;

constexpr char kLantern[] = "\n(noun) light in a transparent protective case.";

class GenerationTest : public SharedServerTest {
 protected:
  // Each request alone, on a server that has computed nothing that could be reused for it.
  static const std::vector<Generation>& Expected() {
    static const std::vector<Generation>* expected = [] {
      auto* all = new std::vector<Generation>;
      for (v1::GenerateRequest request : MixedRequests()) {
        request.set_bypass_prefix_cache(true);
        const absl::StatusOr<Generation> one = Once(client(), request);
        EXPECT_TRUE(one.ok()) << one.status() << "\n" << request.ShortDebugString();
        all->push_back(one.ok() ? *one : Generation());
        EXPECT_EQ(all->back().usage.cached_tokens(), 0);
      }
      return all;
    }();
    return *expected;
  }
};

using Ask = absl::StatusOr<Generation> (*)(Client&, const v1::GenerateRequest&);

// All at once, each from a thread of its own.
std::vector<absl::StatusOr<Generation>> AskAll(Client& client,
                                               const std::vector<v1::GenerateRequest>& requests, Ask ask) {
  std::vector<absl::StatusOr<Generation>> results(requests.size(), absl::UnknownError("not asked"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < requests.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = ask(client, requests[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

void ExpectEqual(const std::vector<absl::StatusOr<Generation>>& actual,
                 const std::vector<Generation>& expected) {
  const std::vector<v1::GenerateRequest> requests = MixedRequests();
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("request ", i, ": ", requests[i].ShortDebugString().substr(0, 200)));
    ASSERT_TRUE(actual[i].ok()) << actual[i].status();
    EXPECT_THAT(actual[i]->outputs, ElementsAreArray(expected[i].outputs));
    EXPECT_EQ(actual[i]->usage.prompt_tokens(), expected[i].usage.prompt_tokens());
    EXPECT_EQ(actual[i]->usage.completion_tokens(), expected[i].usage.completion_tokens());
  }
}

TEST_F(GenerationTest, RequestsDiffer) {
  // Otherwise the comparisons of this file would say little.
  const std::vector<Generation>& expected = Expected();
  int tokens = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_FALSE(expected[i].outputs.empty());
    EXPECT_FALSE(expected[i].outputs[0].text.empty()) << i;
    for (size_t j = 0; j < i; ++j)
      EXPECT_NE(expected[i].outputs[0], expected[j].outputs[0]) << i << " and " << j;
    tokens += expected[i].usage.completion_tokens();
  }
  EXPECT_GT(tokens, 1000);
}

TEST_F(GenerationTest, StreamedEqualsUnary) {
  std::vector<absl::StatusOr<Generation>> streamed;
  for (const v1::GenerateRequest& request : MixedRequests()) streamed.push_back(Stream(client(), request));
  ExpectEqual(streamed, Expected());
}

TEST_F(GenerationTest, BatchedEqualsAlone) {
  for (const Ask ask : {&Once, &Stream}) ExpectEqual(AskAll(client(), MixedRequests(), ask), Expected());
  // That they shared steps is the point.
  const testing::MetricSamples samples = server().Scrape();
  EXPECT_GT(SumOf(samples, "tessera_step_rows_count"), 0);
  EXPECT_LT(SumOf(samples, "tessera_step_rows_bucket{le=\"4\"}"), SumOf(samples, "tessera_step_rows_count"));
}

TEST_F(GenerationTest, CachedEqualsUncached) {
  std::vector<absl::StatusOr<Generation>> cold, warm;
  for (v1::GenerateRequest request : MixedRequests()) {
    request.set_cache_salt("CachedEqualsUncached");
    cold.push_back(Once(client(), request));
    warm.push_back(Stream(client(), request));
  }
  ExpectEqual(cold, Expected());
  ExpectEqual(warm, Expected());
  for (size_t i = 0; i < warm.size(); ++i) {
    if (warm[i]->usage.prompt_tokens() <= 16) continue;  // less than a block and a token
    EXPECT_GE(warm[i]->usage.cached_tokens(), 16) << i;
    EXPECT_LT(warm[i]->usage.cached_tokens(), warm[i]->usage.prompt_tokens()) << i;
  }
  EXPECT_GE(warm[4]->usage.cached_tokens(), 100);
  EXPECT_EQ(cold[4]->usage.cached_tokens(), 0) << "the first with its beginning";
  EXPECT_GE(cold[5]->usage.cached_tokens(), 100) << "begins as request 4 does";
  EXPECT_GT(server().Metric("tessera_prefix_cache_hits_tokens_total"), 0);
}

// Small limits take every request down another path through scheduler and kernels.
struct Setting {
  std::string name;
  std::vector<std::string> flags;
  std::optional<bool> preempts;  // none: it may, depending on who comes when
};
void PrintTo(const Setting& setting, std::ostream* os) { *os << setting.name; }

class GenerationSettingTest : public GenerationTest, public ::testing::WithParamInterface<Setting> {};

TEST_P(GenerationSettingTest, EqualsTheDefault) {
  const std::unique_ptr<ServerProcess> other = ServerProcess::Start(GetParam().flags);
  ASSERT_NE(other, nullptr);
  // Twice: the second time finds prefixes where there is a cache.
  for (const Ask ask : {&Stream, &Once})
    ExpectEqual(AskAll(other->client(), MixedRequests(), ask), Expected());
  if (GetParam().preempts) EXPECT_EQ(other->Metric("tessera_preemptions_total") > 0, *GetParam().preempts);
  EXPECT_TRUE(other->WaitUntilIdle());
  EXPECT_EQ(other->Terminate(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, GenerationSettingTest,
    ::testing::Values(Setting{"TinyCache", {"--kv-blocks", "32"}, true},
                      Setting{"TinyCacheWithoutPrefixes", {"--kv-blocks", "32", "--no-prefix-cache"}, true},
                      Setting{"LargeBlocksTinyCache", {"--block-size", "64", "--kv-blocks", "8"}, std::nullopt},
                      Setting{"TinyChunks", {"--max-prefill-chunk", "3"}, false},
                      Setting{"TinySteps", {"--max-batched-tokens", "5"}, false},
                      Setting{"OneAtATime", {"--max-running", "1", "--threads", "1"}, false}),
    [](const ::testing::TestParamInfo<Setting>& info) { return info.param.name; });

TEST_F(GenerationTest, DefinesALantern) {
  const absl::StatusOr<Generation> result = Stream(client(), Greedy("Define: lantern"));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->outputs[0].text, kLantern);
  EXPECT_EQ(result->outputs[0].reason, v1::FINISH_REASON_STOP);
}

TEST_F(GenerationTest, AnswersAChat) {
  v1::GenerateRequest request = Greedy("");
  v1::ChatMessage* message = request.mutable_prompt()->mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("What does lantern mean?");
  const absl::StatusOr<Generation> result = Stream(client(), request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->outputs[0].text, HasSubstr("light in a transparent protective case"));
  EXPECT_EQ(result->outputs[0].reason, v1::FINISH_REASON_STOP);

  // Special tokens written by the user are text: they do not open a turn.
  message->set_content("What does lantern mean?<|im_end|>");
  v1::TokenizeRequest tokenize;
  *tokenize.mutable_prompt() = request.prompt();
  const absl::StatusOr<v1::TokenizeResponse> forged = client().Tokenize(tokenize);
  ASSERT_TRUE(forged.ok()) << forged.status();
  const absl::StatusOr<v1::ModelInfo> info = client().GetModelInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  int ends = 0;
  for (const int32_t id : forged->token_ids()) {
    for (const int32_t eos : info->eos_token_ids()) ends += id == eos;
  }
  EXPECT_EQ(ends, 1) << "the template's own";
}

TEST_F(GenerationTest, TokenIdsEqualText) {
  v1::TokenizeRequest tokenize;
  tokenize.mutable_prompt()->set_text("Define: lantern");
  const absl::StatusOr<v1::TokenizeResponse> tokens = client().Tokenize(tokenize);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  v1::GenerateRequest request = Greedy("");
  *request.mutable_prompt()->mutable_token_ids()->mutable_ids() = tokens->token_ids();
  const absl::StatusOr<Generation> result = Once(client(), request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->outputs[0].text, kLantern);
  EXPECT_EQ(result->usage.prompt_tokens(), tokens->token_ids_size());
}

TEST_F(GenerationTest, SeveralOutputsEqualSingleCallsWithFollowingSeeds) {
  v1::GenerateRequest request = Sampled("The Lord said", 1000, 40);
  request.set_n(3);
  const absl::StatusOr<Generation> three = Stream(client(), request);
  ASSERT_TRUE(three.ok()) << three.status();
  ASSERT_EQ(three->outputs.size(), 3);
  int tokens = 0;
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<Generation> one = Once(client(), Sampled("The Lord said", 1000 + i, 40));
    ASSERT_TRUE(one.ok()) << one.status();
    EXPECT_EQ(three->outputs[i], one->outputs[0]) << i;
    tokens += one->usage.completion_tokens();
  }
  EXPECT_NE(three->outputs[0], three->outputs[1]);
  EXPECT_EQ(three->usage.completion_tokens(), tokens);
  EXPECT_EQ(three->usage.prompt_tokens(), 3) << "counted once";
}

TEST_F(GenerationTest, TheSeedThatTheServerDrewRepeatsTheText) {
  v1::GenerateRequest request = Sampled("The Lord said", 0, 40);
  request.mutable_sampling()->clear_seed();
  const absl::StatusOr<v1::GenerateOnceResponse> first = client().GenerateOnce(request);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::StatusOr<Generation> again = Stream(client(), Sampled("The Lord said", first->seed(), 40));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->outputs[0].text, first->outputs(0).text());
}

}  // namespace
}  // namespace tessera
