// What the answers of a real server say beside the text: why an output ended, log-probabilities, counts and times; and
// embeddings and tokens.
#include <atomic>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/generation.h"
#include "tests/integration/server_process.h"

namespace tessera {
namespace {

using testing::Generation;
using testing::Greedy;
using testing::Once;
using testing::Sampled;
using testing::ServerProcess;
using testing::SharedServerTest;
using testing::Stream;

// The greedy answer to "Define: lantern" is
//   \n | (noun | ) | _light | _in | _a | _transparent | _protective | _case | . | <|endoftext|>
constexpr int kLanternTokens = 11;

class AnswersTest : public SharedServerTest {
 protected:
  // The same streamed and unary, which is checked.
  static Generation Both(const v1::GenerateRequest& request) {
    const absl::StatusOr<Generation> once = Once(client(), request), streamed = Stream(client(), request);
    EXPECT_TRUE(once.ok()) << once.status();
    EXPECT_TRUE(streamed.ok()) << streamed.status();
    if (!once.ok() || !streamed.ok()) return {{{}}, {}};
    EXPECT_THAT(streamed->outputs, ::testing::ElementsAreArray(once->outputs));
    EXPECT_EQ(streamed->usage.completion_tokens(), once->usage.completion_tokens());
    return *once;
  }
};

TEST_F(AnswersTest, StopStringAcrossTokens) {
  v1::GenerateRequest request = Greedy("Define: lantern");
  request.mutable_stopping()->add_stop_strings("nowhere");
  request.mutable_stopping()->add_stop_strings("ent protect");
  Generation result = Both(request);
  EXPECT_EQ(result.outputs[0].text, "\n(noun) light in a transpar");
  EXPECT_EQ(result.outputs[0].reason, v1::FINISH_REASON_STOP);
  EXPECT_EQ(result.usage.completion_tokens(), 8) << "up to the token that completes it";

  request.mutable_stopping()->set_include_stop(true);
  result = Both(request);
  EXPECT_EQ(result.outputs[0].text, "\n(noun) light in a transparent protect");

  const absl::StatusOr<v1::GenerateOnceResponse> once = client().GenerateOnce(request);
  ASSERT_TRUE(once.ok()) << once.status();
  EXPECT_EQ(once->outputs(0).finished().stop_string(), "ent protect");
}

TEST_F(AnswersTest, StopTokenAndEndToken) {
  v1::GenerateRequest request = Greedy("Define: lantern");
  absl::StatusOr<v1::GenerateOnceResponse> once = client().GenerateOnce(request);
  ASSERT_TRUE(once.ok()) << once.status();
  ASSERT_EQ(once->outputs(0).token_ids_size(), kLanternTokens);
  EXPECT_EQ(once->outputs(0).finished().eos_token_id(), once->outputs(0).token_ids(kLanternTokens - 1));

  const int32_t light = once->outputs(0).token_ids(3);
  request.mutable_stopping()->add_stop_token_ids(light);
  EXPECT_EQ(Both(request).outputs[0].text, "\n(noun)");
  once = client().GenerateOnce(request);
  ASSERT_TRUE(once.ok()) << once.status();
  EXPECT_EQ(once->outputs(0).finished().stop_token_id(), light);
  EXPECT_EQ(once->usage().completion_tokens(), 4);
}

TEST_F(AnswersTest, MaxAndMinTokens) {
  v1::GenerateRequest request = Greedy("Define: lantern", 4);
  Generation result = Both(request);
  EXPECT_EQ(result.outputs[0].text, "\n(noun) light");
  EXPECT_EQ(result.outputs[0].reason, v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(result.usage.completion_tokens(), 4);

  request = Greedy("Define: lantern", 30);
  request.mutable_stopping()->set_min_tokens(20);
  result = Both(request);
  EXPECT_GE(result.usage.completion_tokens(), 20) << "the end token is barred";

  request = Greedy("Define: lantern", 30);
  request.mutable_stopping()->add_stop_strings(" a ");
  request.mutable_stopping()->add_stop_strings("case");
  request.mutable_stopping()->set_min_tokens(8);
  EXPECT_EQ(Both(request).outputs[0].text, "\n(noun) light in a transparent protective ")
      << "\" a \" came too early";
}

TEST_F(AnswersTest, ContextEndsAnOutput) {
  const std::unique_ptr<ServerProcess> small = ServerProcess::Start({"--max-context", "32"});
  ASSERT_NE(small, nullptr);
  v1::GenerateRequest request = Greedy("Define: lantern", 27);
  request.mutable_stopping()->set_ignore_eos(true);
  absl::StatusOr<Generation> result = Stream(small->client(), request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->outputs[0].reason, v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(result->usage.prompt_tokens() + result->usage.completion_tokens(), 32);

  request.mutable_prompt()->set_text(std::string(300, 'x') +
                                     " a prompt that cannot fit, whatever is done with it");
  result = Stream(small->client(), request);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(FieldViolations(result.status()).empty()) << result.status();
}

TEST_F(AnswersTest, UsageAndTimings) {
  v1::GenerateRequest request = Greedy("Define: lantern");
  const absl::Time start = absl::Now();
  const absl::StatusOr<v1::GenerateOnceResponse> once = client().GenerateOnce(request);
  const absl::Duration elapsed = absl::Now() - start;
  ASSERT_TRUE(once.ok()) << once.status();
  EXPECT_EQ(once->usage().prompt_tokens(), 5);
  EXPECT_EQ(once->usage().completion_tokens(), kLanternTokens);
  auto seconds = [](const google::protobuf::Duration& d) { return d.seconds() + 1e-9 * d.nanos(); };
  const v1::Timings& t = once->timings();
  EXPECT_GE(seconds(t.queue()), 0);
  EXPECT_GT(seconds(t.prefill()), 0);
  EXPECT_GT(seconds(t.decode()), 0);
  EXPECT_NEAR(seconds(t.queue()) + seconds(t.prefill()), seconds(t.time_to_first_token()), 1e-6);
  EXPECT_LE(seconds(t.time_to_first_token()) + seconds(t.decode()), seconds(t.total()) + 1e-6);
  EXPECT_LE(seconds(t.total()), absl::ToDoubleSeconds(elapsed));
}

TEST_F(AnswersTest, TimeoutKeepsWhatWasGenerated) {
  v1::GenerateRequest request = Greedy("Define: lantern", 2000);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_timeout()->set_nanos(200'000'000);
  const absl::StatusOr<Generation> result = Stream(client(), request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->outputs[0].reason, v1::FINISH_REASON_DEADLINE);
  EXPECT_LT(result->usage.completion_tokens(), 2000);
}

void CheckPosition(const v1::PositionLogprobs& position, int top) {
  ASSERT_EQ(position.top_size(), top);
  double sum = 0;
  for (int i = 0; i < top; ++i) {
    EXPECT_EQ(position.top(i).rank(), i + 1);
    EXPECT_LE(position.top(i).logprob(), i == 0 ? 0 : position.top(i - 1).logprob());
    sum += std::exp(position.top(i).logprob());
    if (position.top(i).token_id() == position.token().token_id()) {
      EXPECT_EQ(position.top(i).logprob(), position.token().logprob());
      EXPECT_EQ(position.top(i).rank(), position.token().rank());
    }
  }
  EXPECT_LE(sum, 1 + 1e-5);
  EXPECT_LE(position.token().logprob(), 0);
  EXPECT_GE(position.token().rank(), 1);
  EXPECT_TRUE(position.token().rank() > top ||
              position.top(position.token().rank() - 1).logprob() == position.token().logprob());
}

TEST_F(AnswersTest, LogprobsOfGeneratedTokens) {
  v1::GenerateRequest request = Greedy("Define: lantern");
  request.set_logprobs(5);
  absl::StatusOr<v1::GenerateOnceResponse> once = client().GenerateOnce(request);
  ASSERT_TRUE(once.ok()) << once.status();
  const v1::Output& output = once->outputs(0);
  ASSERT_EQ(output.logprobs_size(), output.token_ids_size());
  std::string text;
  for (int i = 0; i < output.logprobs_size(); ++i) {
    CheckPosition(output.logprobs(i), 5);
    EXPECT_EQ(output.logprobs(i).token().token_id(), output.token_ids(i));
    EXPECT_EQ(output.logprobs(i).token().rank(), 1) << "greedy";
    if (i + 1 < output.logprobs_size()) text += output.logprobs(i).token().piece();
  }
  EXPECT_EQ(text, output.text());

  // Under sampling they are those of the model's own distribution, whatever the parameters.
  request.mutable_sampling()->set_temperature(2);
  request.mutable_sampling()->set_seed(9);
  request.mutable_sampling()->set_presence_penalty(2);
  request.mutable_stopping()->set_ignore_eos(true);
  once = client().GenerateOnce(request);
  ASSERT_TRUE(once.ok()) << once.status();
  int not_first = 0;
  for (const v1::PositionLogprobs& position : once->outputs(0).logprobs()) {
    CheckPosition(position, 5);
    not_first += position.token().rank() != 1;
  }
  EXPECT_GT(not_first, 0);

  // 0: the tokens' own alone.
  request.set_logprobs(0);
  once = client().GenerateOnce(request);
  ASSERT_TRUE(once.ok()) << once.status();
  for (const v1::PositionLogprobs& position : once->outputs(0).logprobs()) EXPECT_EQ(position.top_size(), 0);
}

TEST_F(AnswersTest, PromptLogprobsDoNotDependOnCacheOrChunks) {
  std::string prompt = "Define: lantern\n(noun) light in a transparent protective case.";
  for (int i = 0; i < 3; ++i) prompt += " And God said, Let there be light: and there was light.";
  v1::GenerateRequest request = Greedy(prompt, 3);
  request.set_prompt_logprobs(3);
  const absl::StatusOr<v1::GenerateOnceResponse> cold = client().GenerateOnce(request);
  const absl::StatusOr<v1::GenerateOnceResponse> warm = client().GenerateOnce(request);
  ASSERT_TRUE(cold.ok()) << cold.status();
  ASSERT_TRUE(warm.ok()) << warm.status();
  ASSERT_EQ(cold->prompt_logprobs_size(), cold->usage().prompt_tokens());
  EXPECT_EQ(cold->prompt_logprobs(0).token().rank(), 0) << "nothing comes before the first";
  EXPECT_EQ(cold->prompt_logprobs(0).top_size(), 0);
  for (int i = 1; i < cold->prompt_logprobs_size(); ++i) CheckPosition(cold->prompt_logprobs(i), 3);
  EXPECT_EQ(warm->usage().cached_tokens(), 0) << "such a request does not read the cache";

  const std::unique_ptr<ServerProcess> chunked = ServerProcess::Start({"--max-prefill-chunk", "7"});
  ASSERT_NE(chunked, nullptr);
  const absl::StatusOr<v1::GenerateOnceResponse> in_chunks = chunked->client().GenerateOnce(request);
  ASSERT_TRUE(in_chunks.ok()) << in_chunks.status();
  for (const auto* other : {&*warm, &*in_chunks}) {
    ASSERT_EQ(other->prompt_logprobs_size(), cold->prompt_logprobs_size());
    for (int i = 0; i < cold->prompt_logprobs_size(); ++i) {
      EXPECT_EQ(other->prompt_logprobs(i).SerializeAsString(), cold->prompt_logprobs(i).SerializeAsString())
          << i;
    }
  }

  // What the prompt says of a continuation is what generating it said.
  v1::GenerateRequest generate = Greedy("Define: lantern");
  generate.set_logprobs(0);
  const absl::StatusOr<v1::GenerateOnceResponse> generated = client().GenerateOnce(generate);
  ASSERT_TRUE(generated.ok()) << generated.status();
  for (int i = 0; i + 1 < kLanternTokens; ++i) {
    EXPECT_EQ(cold->prompt_logprobs(5 + i).token().SerializeAsString(),
              generated->outputs(0).logprobs(i).token().SerializeAsString())
        << i;
  }
}

v1::EmbedRequest EmbedOf(const std::vector<std::string>& texts) {
  v1::EmbedRequest request;
  for (const std::string& text : texts) request.add_inputs()->set_text(text);
  return request;
}

double Norm(const v1::Embedding& embedding) {
  double sum = 0;
  for (const float value : embedding.values()) sum += double{value} * value;
  return std::sqrt(sum);
}

TEST_F(AnswersTest, EmbeddingsInABatchEqualSingleOnesAlsoUnderLoad) {
  std::vector<std::string> texts = {"a small dog", "puppy", "an arch of stone over a river", "x",
                                    "In the beginning God created the heaven and the earth."};
  for (int i = 0; i < 8; ++i) texts.push_back(absl::StrCat("word", i, " ", std::string(i * 20, 'y')));
  for (const v1::Pooling pooling : {v1::POOLING_LAST, v1::POOLING_MEAN, v1::POOLING_CLS}) {
    SCOPED_TRACE(v1::Pooling_Name(pooling));
    std::vector<std::string> single;
    int tokens = 0;
    for (const std::string& text : texts) {
      v1::EmbedRequest request = EmbedOf({text});
      request.set_pooling(pooling);
      const absl::StatusOr<v1::EmbedResponse> response = client().Embed(request);
      ASSERT_TRUE(response.ok()) << response.status();
      EXPECT_EQ(response->embeddings(0).values_size(), 384);
      EXPECT_NEAR(Norm(response->embeddings(0)), 1, 1e-5);
      single.push_back(response->embeddings(0).SerializeAsString());
      tokens += response->prompt_tokens();
    }
    std::atomic<bool> stop = false;
    std::vector<std::thread> load;
    for (int i = 0; i < 8; ++i) {
      load.emplace_back([&, i] {
        for (int seed = i; !stop; seed += 8) (void)Once(client(), Sampled("The Lord said", seed, 50));
      });
    }
    v1::EmbedRequest request = EmbedOf(texts);
    request.set_pooling(pooling);
    for (int round = 0; round < 3; ++round) {
      const absl::StatusOr<v1::EmbedResponse> batch = client().Embed(request);
      EXPECT_TRUE(batch.ok()) << batch.status();
      if (!batch.ok() || batch->embeddings_size() != static_cast<int>(texts.size())) break;
      for (size_t i = 0; i < texts.size(); ++i) {
        EXPECT_EQ(batch->embeddings(i).SerializeAsString(), single[i]) << texts[i];
      }
      EXPECT_EQ(batch->prompt_tokens(), tokens);
    }
    stop = true;
    for (std::thread& thread : load) thread.join();
  }
}

TEST_F(AnswersTest, EmbeddingsWithoutNormalisationPointTheSameWay) {
  v1::EmbedRequest request = EmbedOf({"a small dog"});
  const absl::StatusOr<v1::EmbedResponse> unit = client().Embed(request);
  request.set_normalize(false);
  const absl::StatusOr<v1::EmbedResponse> raw = client().Embed(request);
  ASSERT_TRUE(unit.ok()) << unit.status();
  ASSERT_TRUE(raw.ok()) << raw.status();
  const double norm = Norm(raw->embeddings(0));
  EXPECT_GT(std::fabs(norm - 1), 1e-3);
  for (int i = 0; i < 384; ++i) {
    EXPECT_NEAR(raw->embeddings(0).values(i) / norm, unit->embeddings(0).values(i), 1e-6);
  }
}

TEST_F(AnswersTest, TokenizeAndDetokenizeRoundTrip) {
  for (const std::string text :
       {"Define: lantern", " two  spaces\n\tand\r\n", "naïve Ωμέγα 漢字 🙂👩‍👩‍👧",
        "<|im_end|> as text", "0123456789 \u00e9", "\xEF\xBF\xBD"}) {
    SCOPED_TRACE(text);
    v1::TokenizeRequest tokenize;
    tokenize.mutable_prompt()->set_text(text);
    tokenize.set_return_pieces(true);
    const absl::StatusOr<v1::TokenizeResponse> tokens = client().Tokenize(tokenize);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    ASSERT_EQ(tokens->pieces_size(), tokens->token_ids_size());
    std::string pieces;
    for (const std::string& piece : tokens->pieces()) pieces += piece;
    EXPECT_EQ(pieces, text);
    v1::DetokenizeRequest detokenize;
    *detokenize.mutable_token_ids() = tokens->token_ids();
    const absl::StatusOr<v1::DetokenizeResponse> back = client().Detokenize(detokenize);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->text(), text);
  }
  // The model's own normaliser composes characters (NFC), here too.
  v1::TokenizeRequest decomposed, composed;
  decomposed.mutable_prompt()->set_text("cafe\u0301");
  composed.mutable_prompt()->set_text("caf\u00e9");
  const absl::StatusOr<v1::TokenizeResponse> from_two = client().Tokenize(decomposed);
  const absl::StatusOr<v1::TokenizeResponse> from_one = client().Tokenize(composed);
  ASSERT_TRUE(from_two.ok() && from_one.ok());
  EXPECT_EQ(from_two->SerializeAsString(), from_one->SerializeAsString());

  v1::TokenizeRequest special;
  special.mutable_prompt()->set_text("<|im_end|>");
  special.set_parse_special(true);
  const absl::StatusOr<v1::TokenizeResponse> one = client().Tokenize(special);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->token_ids_size(), 1);
}

TEST_F(AnswersTest, ABeginningOfACharacterBecomesAReplacementCharacterAtTheEnd) {
  v1::TokenizeRequest tokenize;
  tokenize.mutable_prompt()->set_text("\U00013000");  // rare enough to be a token a byte or two
  tokenize.set_return_pieces(true);
  const absl::StatusOr<v1::TokenizeResponse> tokens = client().Tokenize(tokenize);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  ASSERT_GT(tokens->token_ids_size(), 1);
  v1::GenerateRequest request = Greedy("Define: lantern", 1);
  (*request.mutable_sampling()->mutable_logit_bias())[tokens->token_ids(0)] = 100;
  const Generation result = Both(request);
  EXPECT_EQ(result.outputs[0].token_ids, std::vector<int32_t>{tokens->token_ids(0)});
  EXPECT_EQ(result.outputs[0].text, "\uFFFD");
}

TEST_F(AnswersTest, MessagesBeyondFourMebibytes) {
  const std::unique_ptr<ServerProcess> null = ServerProcess::Start({"--device", "null"});
  ASSERT_NE(null, nullptr);
  v1::GenerateRequest request = Sampled("Define: lantern", 1, 400);
  request.set_n(64);
  request.set_logprobs(20);
  const absl::StatusOr<v1::GenerateOnceResponse> large = null->client().GenerateOnce(request);
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_GT(large->ByteSizeLong(), 5 << 20);
  request.mutable_prompt()->set_text(std::string(6 << 20, 'x'));
  const absl::Status refused = null->client().GenerateOnce(request).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument)
      << "the context is the limit, not the message: " << refused;
}

TEST_F(AnswersTest, BadRequestsAreRefusedAndTheServerLives) {
  v1::GenerateRequest request = Greedy("x");
  request.mutable_sampling()->set_temperature(NAN);
  request.mutable_stopping()->add_stop_token_ids(-1);
  (*request.mutable_sampling()->mutable_logit_bias())[1 << 30] = 1;
  for (const absl::Status& status : {Once(client(), request).status(), Stream(client(), request).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(FieldViolations(status).size(), 3) << status;
  }
  request = Greedy("x");
  request.set_model("another");
  EXPECT_EQ(Once(client(), request).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Both(Greedy("Define: lantern")).usage.completion_tokens(), kLanternTokens);
}

}  // namespace
}  // namespace tessera
