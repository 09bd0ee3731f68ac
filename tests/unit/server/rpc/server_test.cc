// Whole calls: a server in this process, a real channel, the null backend.
#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "test_server.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(Generate, StreamsAcceptedDeltasFinished) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("hello", 20);
  request.set_request_id("my-request");
  request.set_return_prompt_token_ids(true);
  const Collected got = Generate(server.inference(), request);
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.accepted.request_id(), "my-request");
  EXPECT_EQ(got.accepted.model(), "test-model");
  EXPECT_EQ(got.accepted.prompt_tokens(), 5);
  EXPECT_EQ(got.accepted.prompt_token_ids(0), 'h');
  EXPECT_EQ(got.accepted.seed(), 1u);
  EXPECT_EQ(got.texts[0].size(), 20u);
  EXPECT_EQ(got.num_tokens[0], 20);
  ASSERT_EQ(got.finished.size(), 1u);
  EXPECT_EQ(got.finished[0].reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(got.finished[0].usage().prompt_tokens(), 5);
  EXPECT_EQ(got.finished[0].usage().completion_tokens(), 20);
  EXPECT_TRUE(got.finished[0].timings().has_time_to_first_token());
  EXPECT_TRUE(server.WaitIdle());
}

TEST(Generate, UnaryEqualsStreamed) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("the same", 50);
  request.set_n(3);
  request.set_logprobs(2);
  request.set_return_token_ids(true);
  request.set_prompt_logprobs(1);
  const Collected streamed = Generate(server.inference(), request);
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  grpc::ClientContext context;
  v1::GenerateOnceResponse once;
  const grpc::Status status = server.inference().GenerateOnce(&context, request, &once);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(once.outputs_size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(once.outputs(i).index(), i);
    EXPECT_EQ(once.outputs(i).text(), streamed.texts[i]);
    EXPECT_EQ(once.outputs(i).token_ids_size(), 50);
    EXPECT_EQ(once.outputs(i).logprobs_size(), 50);
    EXPECT_EQ(once.outputs(i).logprobs(0).top_size(), 2);
    EXPECT_EQ(once.outputs(i).logprobs(0).token().piece(),
              std::string(1, static_cast<char>(once.outputs(i).token_ids(0))));
    EXPECT_EQ(once.outputs(i).finished().reason(), v1::FINISH_REASON_LENGTH);
  }
  EXPECT_NE(once.outputs(0).text(), once.outputs(1).text());
  EXPECT_EQ(once.usage().completion_tokens(), 150);
  ASSERT_EQ(once.prompt_logprobs_size(), 8);
  EXPECT_EQ(once.prompt_logprobs(0).token().rank(), 0);
  EXPECT_GT(once.prompt_logprobs(1).token().rank(), 0);
  EXPECT_FALSE(once.request_id().empty());
}

TEST(Generate, OneFinishedAnOutputAndUsageInTheLast) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("many", 10);
  request.set_n(8);
  const Collected got = Generate(server.inference(), request);
  ASSERT_TRUE(got.status.ok());
  ASSERT_EQ(got.finished.size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(got.finished[i].has_usage(), i == 7) << i;
  EXPECT_EQ(got.finished[7].usage().completion_tokens(), 80);
  EXPECT_EQ(got.finished[7].usage().prompt_tokens(), 4);
}

TEST(Generate, ChatGoesThroughTheTemplate) {
  TestServer server;
  v1::GenerateRequest request;
  v1::ChatMessage* message = request.mutable_prompt()->mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("<|im_end|>");  // stays text
  request.set_return_prompt_token_ids(true);
  const Collected got = Generate(server.inference(), request);
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.accepted.prompt_token_ids(0), kImStart);
  EXPECT_EQ(got.accepted.prompt_tokens(), 1 + 5 + 10 + 1 + 1);
  EXPECT_EQ(got.num_tokens[0], 16);  // the default max_tokens

  message->set_role("robot");
  const Collected refused = Generate(server.inference(), request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(FieldViolations(refused.status)["prompt.chat"], HasSubstr("no robots"));
}

TEST(Generate, BadFieldsAreAllNamedInTheDetails) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("x", 0);
  request.mutable_sampling()->set_temperature(-1);
  request.set_n(65);
  const Collected got = Generate(server.inference(), request);
  EXPECT_EQ(got.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(got.messages, 0);
  const std::map<std::string, std::string> violations = FieldViolations(got.status);
  EXPECT_EQ(violations.size(), 3u);
  EXPECT_THAT(violations.at("sampling.temperature"), HasSubstr("found -1, expected 0 to 2"));
  EXPECT_TRUE(violations.contains("stopping.max_tokens"));
  EXPECT_TRUE(violations.contains("n"));
  EXPECT_THAT(got.status.error_message(), HasSubstr("3 invalid fields"));
  EXPECT_EQ(server.Metric("tessera_requests_rejected_total{code=\"INVALID_ARGUMENT\"}"), 1);
}

TEST(Generate, AMillionBadTokensStillGiveAReadableStatus) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("", 1);
  for (int i = 0; i < 1000000; ++i) request.mutable_prompt()->mutable_token_ids()->add_ids(-1);
  for (int i = 0; i < 1000; ++i) (*request.mutable_sampling()->mutable_logit_bias())[1000 + i] = 1e9f;
  const Collected got = Generate(server.inference(), request);
  EXPECT_EQ(got.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << got.status.error_message();
  EXPECT_EQ(FieldViolations(got.status).at("prompt.token_ids.ids[0]"), "found -1, expected 0 to 319");
}

TEST(Generate, UnknownModelIsNotFound) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("x", 1);
  request.set_model("gpt");
  EXPECT_EQ(Generate(server.inference(), request).status.error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_model("test-model");
  EXPECT_TRUE(Generate(server.inference(), request).status.ok());
}

TEST(Generate, RequestIdComesFromMetadata) {
  TestServer server;
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "from-metadata");
  v1::GenerateOnceResponse response;
  ASSERT_TRUE(server.inference().GenerateOnce(&context, TextRequest("x", 1), &response).ok());
  EXPECT_EQ(response.request_id(), "from-metadata");

  grpc::ClientContext twice;
  twice.AddMetadata("x-request-id", "a");
  twice.AddMetadata("x-request-id", "b");
  const grpc::Status status = server.inference().GenerateOnce(&twice, TextRequest("x", 1), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(FieldViolations(status).contains("metadata x-request-id"));
}

TestServerOptions Slow() {
  TestServerOptions options;
  options.backend.step_time = absl::Milliseconds(5);
  return options;
}

TEST(Generate, CancellingACallFreesItsMemory) {
  TestServer server(Slow());
  grpc::ClientContext context;
  auto reader = server.inference().Generate(&context, TextRequest("cancel me", 2000));
  v1::GenerateResponse response;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(reader->Read(&response));
  EXPECT_GT(server.engine().Load().scheduler.blocks_used, 0);
  context.TryCancel();
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(server.WaitIdle());
  EXPECT_TRUE(server.WaitMetric("tessera_requests_total{kind=\"generate\",finish_reason=\"abort\"}", 1));
}

TEST(Generate, TheDeadlineOfTheCallEndsItInTheEngine) {
  TestServer server(Slow());
  for (const bool unary : {false, true}) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(60));
    grpc::Status status;
    if (unary) {
      v1::GenerateOnceResponse response;
      status = server.inference().GenerateOnce(&context, TextRequest("x", 2000), &response);
    } else {
      auto reader = server.inference().Generate(&context, TextRequest("x", 2000));
      v1::GenerateResponse response;
      while (reader->Read(&response)) {
      }
      status = reader->Finish();
    }
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    EXPECT_TRUE(server.WaitIdle());
  }
}

TEST(Generate, ItsTimeoutKeepsWhatWasGenerated) {
  TestServer server(Slow());
  v1::GenerateRequest request = TextRequest("x", 2000);
  request.mutable_timeout()->set_nanos(80 * 1000 * 1000);
  const Collected got = Generate(server.inference(), request);
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  ASSERT_EQ(got.finished.size(), 1u);
  EXPECT_EQ(got.finished[0].reason(), v1::FINISH_REASON_DEADLINE);
  EXPECT_GT(got.texts[0].size(), 0u);
  EXPECT_LT(got.texts[0].size(), 2000u);
}

TEST(Generate, AnIdInUseIsRefusedAndTheFirstGoesOn) {
  TestServer server(Slow());
  v1::GenerateRequest request = TextRequest("x", 50);
  request.set_request_id("twin");
  grpc::ClientContext context;
  auto reader = server.inference().Generate(&context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(Generate(server.inference(), request).status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  int tokens = 0;
  while (reader->Read(&response)) tokens += response.delta().num_tokens();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(tokens, 50);
  EXPECT_TRUE(Generate(server.inference(), request).status.ok());  // free again
}

TEST(Generate, AFullQueueSaysWhenToComeBack) {
  TestServerOptions options = Slow();
  options.engine.scheduler.max_running = 1;
  options.engine.max_queued_sequences = 1;
  TestServer server(options);
  grpc::ClientContext contexts[2];
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> readers[2];
  v1::GenerateResponse response;
  for (int i = 0; i < 2; ++i) {
    readers[i] = server.inference().Generate(&contexts[i], TextRequest("x", 1000));
    ASSERT_TRUE(readers[i]->Read(&response));
    if (i == 0) {
      ASSERT_TRUE(server.WaitMetric("tessera_running", 1));
    }
  }
  const absl::Time start = absl::Now();
  const Collected got = Generate(server.inference(), TextRequest("x", 1));
  EXPECT_EQ(got.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));  // at once, not when there is room
  ASSERT_EQ(got.trailers.count("grpc-retry-pushback-ms"), 1u);
  const int pushback = std::stoi(got.trailers.find("grpc-retry-pushback-ms")->second);
  EXPECT_GE(pushback, 750);
  EXPECT_LT(pushback, 1250);
  EXPECT_EQ(server.Metric("tessera_requests_rejected_total{code=\"RESOURCE_EXHAUSTED\"}"), 1);
  for (grpc::ClientContext& context : contexts) context.TryCancel();
  for (auto& reader : readers) {
    while (reader->Read(&response)) {
    }
    reader->Finish();
  }
  EXPECT_TRUE(server.WaitIdle());
}

TEST(Generate, APromptThatIsTooLongIsRefusedWithTheNumbers) {
  TestServer server;
  const Collected got = Generate(server.inference(), TextRequest(std::string(2048, 'x'), 1));
  EXPECT_EQ(got.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(FieldViolations(got.status)["prompt"],
              HasSubstr("has more than 2047 tokens, expected at most 2047"));
  EXPECT_TRUE(Generate(server.inference(), TextRequest(std::string(2047, 'x'), 1)).status.ok());
}

TEST(Generate, MaxTokensEndsAtTheContext) {
  TestServer server;
  const Collected got = Generate(server.inference(), TextRequest(std::string(2040, 'x'), 1000));
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.num_tokens[0], 8);
  EXPECT_EQ(got.finished[0].reason(), v1::FINISH_REASON_LENGTH);
}

TEST(Generate, LargeMessagesPassAndTooLargeOnesAreRefused) {
  TestServerOptions options;
  options.rpc.max_request_bytes = 8 << 20;
  TestServer server(options);
  // Larger than gRPC's own default of 4 MiB, refused by the check of its length rather than by gRPC.
  const Collected large = Generate(server.inference(), TextRequest(std::string(6 << 20, 'x'), 1));
  EXPECT_EQ(large.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << large.status.error_message();
  EXPECT_THAT(FieldViolations(large.status)["prompt.text"], HasSubstr("6291456 bytes"));
  const Collected too_large = Generate(server.inference(), TextRequest(std::string(9 << 20, 'x'), 1));
  EXPECT_EQ(too_large.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST(Generate, AReaderThatDoesNotReadIsAbortedAndOthersGoOn) {
  TestServerOptions options;
  options.engine.slow_reader_timeout = absl::Milliseconds(200);
  options.engine.scheduler.max_context = 2048;
  TestServer server(options);
  // Log-probabilities make the answer large enough to fill the transport's windows.
  v1::GenerateRequest request = TextRequest("x", 2000);
  request.set_logprobs(20);
  request.set_n(64);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  auto stub = v1::Inference::NewStub(
      grpc::CreateCustomChannel(server.rpc().address(), grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  auto reader = stub->Generate(&context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_TRUE(server.WaitMetric("tessera_slow_reader_aborts_total", 1));
  const Collected other = Generate(server.inference(), TextRequest("other", 20));
  EXPECT_TRUE(other.status.ok());
  EXPECT_EQ(other.num_tokens[0], 20);
  context.TryCancel();
  reader->Finish();
  EXPECT_TRUE(server.WaitIdle());
}

TEST(Generate, AReaderThatStopsAfterItsAnswerWasMadeIsCutOff) {
  TestServerOptions options;
  options.rpc.slow_reader_timeout = absl::Seconds(1);
  options.engine.slow_reader_timeout = absl::InfiniteDuration();
  options.engine.slow_reader_tokens = 1 << 30;
  TestServer server(options);
  v1::GenerateRequest request = TextRequest("x", 100);
  request.set_logprobs(20);
  request.set_n(32);
  // The transport takes 64 KiB ahead of the reader, and the answer is many times that.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65536);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  auto stub = v1::Inference::NewStub(
      grpc::CreateCustomChannel(server.rpc().address(), grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  auto reader = stub->Generate(&context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_TRUE(server.WaitMetric("tessera_blocked_calls_closed_total", 1));
  bool finished = false;
  while (reader->Read(&response)) finished |= response.finished().has_usage();
  EXPECT_FALSE(finished);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(server.WaitIdle());
}

TEST(Generate, InvalidLogitsAreAnErrorOfThatRequest) {
  TestServerOptions options;
  options.backend.nan_token = 'z';
  TestServer server(options);
  v1::GenerateRequest request = TextRequest("z", 10);
  const Collected got = Generate(server.inference(), request);
  ASSERT_TRUE(got.status.ok());
  ASSERT_EQ(got.finished.size(), 1u);
  EXPECT_EQ(got.finished[0].reason(), v1::FINISH_REASON_ERROR);
  EXPECT_THAT(got.finished[0].error(), HasSubstr("INTERNAL"));
  grpc::ClientContext context;
  v1::GenerateOnceResponse response;
  EXPECT_EQ(server.inference().GenerateOnce(&context, request, &response).error_code(),
            grpc::StatusCode::INTERNAL);
  EXPECT_EQ(server.Metric("tessera_invalid_logits_total"), 2);
}

TEST(Embed, ReturnsOneVectorAnInput) {
  TestServer server;
  v1::EmbedRequest request;
  request.add_inputs()->set_text("one");
  request.add_inputs()->set_text("another");
  request.add_inputs()->set_text("one");
  grpc::ClientContext context;
  v1::EmbedResponse response;
  const grpc::Status status = server.inference().Embed(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.embeddings_size(), 3);
  EXPECT_EQ(response.prompt_tokens(), 13);
  EXPECT_EQ(response.embeddings(0).values_size(), 64);
  EXPECT_EQ(response.embeddings(1).num_tokens(), 7);
  double norm = 0;
  for (int i = 0; i < 64; ++i) {
    norm += response.embeddings(0).values(i) * response.embeddings(0).values(i);
    EXPECT_EQ(response.embeddings(0).values(i), response.embeddings(2).values(i));
  }
  EXPECT_NEAR(norm, 1, 1e-5);
  EXPECT_EQ(server.Metric("tessera_requests_total{kind=\"embed\",finish_reason=\"stop\"}"), 1);
}

TEST(Embed, TruncatesOnlyOnRequest) {
  TestServer server;
  v1::EmbedRequest request;
  request.add_inputs()->set_text(std::string(3000, 'x') + "y");
  {
    grpc::ClientContext context;
    v1::EmbedResponse response;
    const grpc::Status status = server.inference().Embed(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(FieldViolations(status)["inputs[0]"],
                HasSubstr("has more than 2048 tokens, expected at most 2048"));
  }
  request.set_truncate(true);
  v1::EmbedResponse sides[2];
  for (int left = 0; left < 2; ++left) {
    request.set_truncation_side(left ? v1::TRUNCATION_SIDE_LEFT : v1::TRUNCATION_SIDE_RIGHT);
    grpc::ClientContext context;
    const grpc::Status status = server.inference().Embed(&context, request, &sides[left]);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(sides[left].embeddings(0).truncated());
    EXPECT_EQ(sides[left].embeddings(0).num_tokens(), 2048);
  }
  EXPECT_NE(sides[0].embeddings(0).SerializeAsString(), sides[1].embeddings(0).SerializeAsString());
}

TEST(Tokenize, TextAndBack) {
  TestServer server;
  v1::TokenizeRequest request;
  request.mutable_prompt()->set_text("h\xc3\xa9<|im_end|>");
  request.set_return_pieces(true);
  v1::TokenizeResponse response;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(server.inference().Tokenize(&context, request, &response).ok());
    EXPECT_EQ(response.token_ids_size(), 3 + 10);
    EXPECT_EQ(response.pieces(1), "\xc3");
    EXPECT_EQ(response.max_context(), 2048);
  }
  {
    request.set_parse_special(true);
    grpc::ClientContext context;
    ASSERT_TRUE(server.inference().Tokenize(&context, request, &response).ok());
    ASSERT_EQ(response.token_ids_size(), 4);
    EXPECT_EQ(response.token_ids(3), kImEnd);
  }
  v1::DetokenizeRequest back;
  *back.mutable_token_ids() = response.token_ids();
  back.add_token_ids(319);  // padding of the vocabulary: no text
  v1::DetokenizeResponse text;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(server.inference().Detokenize(&context, back, &text).ok());
    EXPECT_EQ(text.text(), "h\xc3\xa9");
  }
  back.set_skip_special_tokens(false);
  back.add_token_ids(320);
  grpc::ClientContext context;
  const grpc::Status status = server.inference().Detokenize(&context, back, &text);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(FieldViolations(status)["token_ids[5]"], "found 320, expected 0 to 319");
}

TEST(ApiKey, IsRequiredButNotForHealth) {
  TestServerOptions options;
  options.rpc.api_keys = ApiKeys({"0123456789abcdef"});
  TestServer server(options);
  EXPECT_EQ(Generate(server.inference(), TextRequest("x", 1)).status.error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    request.mutable_prompt()->set_text("x");
    v1::TokenizeResponse response;
    EXPECT_EQ(server.inference().Tokenize(&context, request, &response).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
  }
  {
    grpc::ClientContext context;
    v1::Load load;
    EXPECT_EQ(server.control().GetLoad(&context, {}, &load).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  }
  {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse response;
    EXPECT_TRUE(server.health().Check(&context, {}, &response).ok());
  }
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer 0123456789abcdef");
  v1::GenerateOnceResponse response;
  EXPECT_TRUE(server.inference().GenerateOnce(&context, TextRequest("x", 1), &response).ok());
}

TEST(Generate, ManyCallersAtOnceCancellingAtRandomLeaveNothingBehind) {
  TestServerOptions options;
  options.num_blocks = 160;
  options.backend.step_time = absl::Microseconds(200);
  TestServer server(options);
  std::atomic<int> finished = 0;
  std::vector<std::thread> callers;
  for (int t = 0; t < 8; ++t) {
    callers.emplace_back([&server, &finished, t] {
      auto stub = v1::Inference::NewStub(server.NewChannel());
      for (int i = 0; i < 12; ++i) {
        v1::GenerateRequest request = TextRequest(absl::StrCat("caller ", t, " call ", i), 40);
        request.set_n(1 + i % 3);
        grpc::ClientContext context;
        auto reader = stub->Generate(&context, request);
        v1::GenerateResponse response;
        const int cancel_after = (t * 7 + i * 5) % 25;
        int messages = 0;
        while (reader->Read(&response)) {
          if (++messages == cancel_after && i % 2 == 0) context.TryCancel();
        }
        const grpc::Status status = reader->Finish();
        EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::CANCELLED)
            << status.error_message();
        ++finished;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(finished, 96);
  EXPECT_TRUE(server.WaitIdle());
  EXPECT_EQ(server.Metric("tessera_requests_accepted_total{kind=\"generate\"}"),
            server.Metric("tessera_request_e2e_seconds_count{kind=\"generate\"}"));
  EXPECT_EQ(server.Metric("tessera_generation_tokens_total"),
            server.Metric("tessera_request_generation_tokens_sum"));
}

}  // namespace
}  // namespace tessera
