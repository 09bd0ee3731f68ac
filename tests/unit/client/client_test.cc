#include "client/tessera_client.h"

#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace tessera {
namespace {

using testing::BadRequest;
using testing::Behaviour;
using ::testing::ElementsAre;
using testing::FakeServer;
using ::testing::HasSubstr;
using testing::Refuse;
using ::testing::SizeIs;

// Fast retries, so that the tests are.
ClientOptions Options(const FakeServer& server) {
  return {.address = server.address(),
          .retry = {.max_attempts = 4,
                    .initial_backoff = absl::Milliseconds(2),
                    .max_backoff = absl::Milliseconds(10)}};
}

std::unique_ptr<Client> Connect(const ClientOptions& options) {
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(options);
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

v1::GenerateRequest Request(const std::string& text = "hello") {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text(text);
  return request;
}

std::string ReadAll(GenerateStream& stream) {
  std::string text;
  v1::GenerateResponse event;
  while (stream.Read(&event)) text += event.delta().text();
  return text;
}

void WaitFor(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (!condition() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(condition());
}

TEST(Client, StreamsEventsInOrder) {
  FakeServer server;
  auto client = Connect(Options(server));
  auto stream = client->Generate(Request("a prompt"));
  v1::GenerateResponse event;
  ASSERT_TRUE(stream->Read(&event));
  EXPECT_EQ(event.accepted().request_id(), "fake-1");
  std::string text;
  while (stream->Read(&event)) text += event.delta().text();
  EXPECT_EQ(text, "word0 word1 word2 ");
  EXPECT_EQ(event.finished().usage().completion_tokens(), 3) << "the last event stays in place";
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_FALSE(stream->Read(&event)) << "reading past the end is harmless";
  EXPECT_EQ(server.last_request().prompt().text(), "a prompt");
}

TEST(Client, CallbackGetsTheSameAndMayStop) {
  FakeServer server;
  auto client = Connect(Options(server));
  int events = 0;
  EXPECT_TRUE(client->Generate(Request(), [&](const v1::GenerateResponse&) { return ++events > 0; }).ok());
  EXPECT_EQ(events, 5);  // accepted, three deltas, finished

  server.Script({{.deltas = 2, .hang = true}});
  events = 0;
  const absl::Status status =
      client->Generate(Request(), [&](const v1::GenerateResponse&) { return ++events < 2; });
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(events, 2);
  WaitFor([&] { return server.cancelled() == 1; });
}

TEST(Client, UnaryCalls) {
  FakeServer server;
  auto client = Connect(Options(server));
  EXPECT_EQ(client->GenerateOnce(Request())->outputs(0).text(), "whole");
  v1::EmbedRequest embed;
  embed.add_inputs()->set_text("A");
  embed.add_inputs()->set_text("B");
  EXPECT_EQ(client->Embed(embed)->embeddings(1).values(0), 66.0f);
  v1::TokenizeRequest tokenize;
  tokenize.mutable_prompt()->set_text("AB");
  EXPECT_THAT(client->Tokenize(tokenize)->token_ids(), ElementsAre(65, 66));
  v1::DetokenizeRequest detokenize;
  detokenize.add_token_ids(67);
  EXPECT_EQ(client->Detokenize(detokenize)->text(), "C");
  EXPECT_EQ(client->GetModelInfo()->name(), "fake-model");
  EXPECT_EQ(client->GetServerInfo()->version(), "9.9.9");
  EXPECT_EQ(client->GetLoad()->running(), 2);
  v1::AbortRequest abort;
  abort.add_request_ids("known");
  abort.add_request_ids("other");
  const auto aborted = client->Abort(abort);
  EXPECT_THAT(aborted->aborted(), ElementsAre("known"));
  EXPECT_THAT(aborted->not_found(), ElementsAre("other"));
}

TEST(ClientRetry, StreamAndUnaryRecoverFromUnavailable) {
  FakeServer server;
  auto client = Connect(Options(server));
  server.Script({Refuse(grpc::StatusCode::UNAVAILABLE), Refuse(grpc::StatusCode::UNAVAILABLE)});
  std::vector<absl::Duration> waits;
  CallOptions options;
  options.on_retry = [&](const absl::Status& status, absl::Duration wait) {
    EXPECT_TRUE(absl::IsUnavailable(status));
    waits.push_back(wait);
  };
  auto stream = client->Generate(Request(), options);
  EXPECT_EQ(ReadAll(*stream), "word0 word1 word2 ");
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(server.calls(), 3);
  EXPECT_THAT(waits, SizeIs(2));

  server.Script({Refuse(grpc::StatusCode::UNAVAILABLE)});
  EXPECT_TRUE(client->GenerateOnce(Request()).ok());
  EXPECT_EQ(server.calls(), 5);
}

TEST(ClientRetry, GivesUpAfterMaxAttempts) {
  FakeServer server;
  auto client = Connect(Options(server));
  server.Script(std::deque<Behaviour>(10, Refuse(grpc::StatusCode::UNAVAILABLE)));
  auto stream = client->Generate(Request());
  EXPECT_EQ(ReadAll(*stream), "");
  EXPECT_TRUE(absl::IsUnavailable(stream->Finish()));
  EXPECT_EQ(server.calls(), 4);
}

TEST(ClientRetry, NeverAfterTheFirstMessage) {
  FakeServer server;
  auto client = Connect(Options(server));
  server.Script({{.status = {grpc::StatusCode::UNAVAILABLE, "gone"}, .deltas = 2}});
  auto stream = client->Generate(Request());
  EXPECT_EQ(ReadAll(*stream), "word0 word1 ");
  const absl::Status status = stream->Finish();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(server.calls(), 1);
}

TEST(ClientRetry, WaitsAsLongAsTheServerSays) {
  FakeServer server;
  auto client = Connect(Options(server));
  server.Script({Refuse(grpc::StatusCode::RESOURCE_EXHAUSTED, "60")});
  const absl::Time start = absl::Now();
  EXPECT_TRUE(client->GenerateOnce(Request()).ok());
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(60));
  EXPECT_EQ(server.calls(), 2);
}

TEST(ClientRetry, StopsWhenTheServerSaysSo) {
  for (const char* pushback : {"-1", "soon"}) {
    FakeServer server;
    auto client = Connect(Options(server));
    server.Script({Refuse(grpc::StatusCode::UNAVAILABLE, pushback)});
    EXPECT_TRUE(absl::IsUnavailable(client->GenerateOnce(Request()).status()));
    EXPECT_EQ(server.calls(), 1) << pushback;
  }
}

TEST(ClientRetry, InvalidRequestsAreNotRepeated) {
  FakeServer server;
  auto client = Connect(Options(server));
  server.Script({{.status = BadRequest({{"sampling.top_p", "got 1.5; expected above 0, at most 1"},
                                        {"n", "got 0; expected 1 to 64"}}),
                  .deltas = 0}});
  auto stream = client->Generate(Request());
  EXPECT_EQ(ReadAll(*stream), "");
  const absl::Status status = stream->Finish();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(), HasSubstr("sampling.top_p: got 1.5; expected above 0, at most 1"));
  const std::vector<FieldViolation> violations = FieldViolations(status);
  ASSERT_THAT(violations, SizeIs(2));
  EXPECT_EQ(violations[0].field, "sampling.top_p");
  EXPECT_EQ(violations[1].description, "got 0; expected 1 to 64");
  EXPECT_EQ(server.calls(), 1);
  EXPECT_THAT(FieldViolations(absl::InvalidArgumentError("plain")), SizeIs(0));
}

TEST(ClientRetry, DeadlineCoversAllTries) {
  FakeServer server;
  ClientOptions options = Options(server);
  options.retry = {.max_attempts = 1000000, .initial_backoff = absl::Milliseconds(5), .multiplier = 1};
  auto client = Connect(options);
  server.Script(std::deque<Behaviour>(10000, Refuse(grpc::StatusCode::UNAVAILABLE)));
  const absl::Time start = absl::Now();
  const absl::Status status = client->GenerateOnce(Request(), {.timeout = absl::Milliseconds(150)}).status();
  EXPECT_FALSE(status.ok());
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_GT(server.calls(), 1);
}

TEST(ClientDeadline, EndsASilentStream) {
  FakeServer server;
  auto client = Connect(Options(server));
  server.Script({{.deltas = 1, .hang = true}});
  auto stream = client->Generate(Request(), {.timeout = absl::Milliseconds(100)});
  EXPECT_EQ(ReadAll(*stream), "word0 ");
  EXPECT_TRUE(absl::IsDeadlineExceeded(stream->Finish()));
  WaitFor([&] { return server.cancelled() == 1; });
}

TEST(ClientCancel, FromAnotherThreadWhileReading) {
  FakeServer server;
  auto client = Connect(Options(server));
  server.Script({{.deltas = 1, .hang = true}});
  auto stream = client->Generate(Request());
  std::thread canceller([&] {
    WaitFor([&] { return server.calls() == 1; });
    absl::SleepFor(absl::Milliseconds(20));
    stream->Cancel();
  });
  ReadAll(*stream);
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(stream->Finish()));
  WaitFor([&] { return server.cancelled() == 1; });
  EXPECT_EQ(server.calls(), 1);
}

TEST(ClientCancel, ACancellationEndsAllItsCalls) {
  FakeServer server;
  auto client = Connect(Options(server));
  server.Script({{.deltas = 0, .hang = true}, {.deltas = 0, .hang = true}});
  CallOptions options;
  absl::Status streamed, unary;
  std::thread first([&] {
    auto stream = client->Generate(Request(), options);
    ReadAll(*stream);
    streamed = stream->Finish();
  });
  std::thread second([&] { unary = client->GenerateOnce(Request(), options).status(); });
  WaitFor([&] { return server.calls() == 2; });
  options.cancellation.Cancel();
  first.join();
  second.join();
  EXPECT_TRUE(absl::IsCancelled(streamed)) << streamed;
  EXPECT_TRUE(absl::IsCancelled(unary)) << unary;
  EXPECT_TRUE(absl::IsCancelled(client->GenerateOnce(Request(), options).status()))
      << "a used handle stays cancelled";
}

TEST(ClientCancel, EndsTheWaitForARetry) {
  FakeServer server;
  auto client = Connect(Options(server));
  server.Script({Refuse(grpc::StatusCode::UNAVAILABLE, "60000")});
  CallOptions options;
  std::thread canceller([&] {
    WaitFor([&] { return server.calls() == 1; });
    absl::SleepFor(absl::Milliseconds(20));
    options.cancellation.Cancel();
  });
  const absl::Time start = absl::Now();
  auto stream = client->Generate(Request(), options);
  ReadAll(*stream);
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(stream->Finish()));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST(ClientCancel, DroppingAStreamCancelsIt) {
  FakeServer server;
  auto client = Connect(Options(server));
  server.Script({{.deltas = 1, .hang = true}});
  {
    auto stream = client->Generate(Request());
    v1::GenerateResponse event;
    ASSERT_TRUE(stream->Read(&event));
  }
  WaitFor([&] { return server.cancelled() == 1; });
  { auto never_read = client->Generate(Request()); }
  EXPECT_EQ(server.calls(), 1) << "a stream that nobody read never reaches the server";
}

// Cancels at every moment of a stream's life; under TSan and ASan this is the test of the locking.
TEST(ClientCancel, AtAnyMoment) {
  FakeServer server;
  auto client = Connect(Options(server));
  for (int i = 0; i < 60; ++i) {
    server.Script({Refuse(grpc::StatusCode::UNAVAILABLE)});
    auto stream = client->Generate(Request());
    std::thread canceller([&] {
      absl::SleepFor(absl::Microseconds(i * 100));
      stream->Cancel();
    });
    ReadAll(*stream);
    const absl::Status status = stream->Finish();
    canceller.join();
    EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
  }
}

TEST(ClientOptions, ApiKeyIsSentAsABearer) {
  FakeServer server;
  ClientOptions options = Options(server);
  options.api_key = "k3y";
  EXPECT_TRUE(Connect(options)->GetLoad().ok());
  EXPECT_EQ(server.authorization(), "Bearer k3y");
  EXPECT_TRUE(Connect(Options(server))->GetLoad().ok());
  EXPECT_EQ(server.authorization(), "");
}

TEST(ClientOptions, BadOnesAreNamed) {
  EXPECT_TRUE(absl::IsInvalidArgument(Client::Create({.address = ""}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Client::Create({.api_key = "a b"}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Client::Create({.tls_cert_file = "x"}).status()));
  const absl::Status missing = Client::Create({.tls_ca_file = "/nonexistent/ca.pem"}).status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_THAT(missing.message(), HasSubstr("/nonexistent/ca.pem"));
}

TEST(ClientOptions, MessageLimits) {
  FakeServer server;
  ClientOptions options = Options(server);
  options.max_send_bytes = 1000;
  EXPECT_TRUE(
      absl::IsResourceExhausted(Connect(options)->GenerateOnce(Request(std::string(2000, 'x'))).status()));
  EXPECT_EQ(server.calls(), 0);
  options.max_send_bytes = 32 << 20;
  EXPECT_TRUE(Connect(options)->GenerateOnce(Request(std::string(16 << 20, 'x'))).ok());
}

TEST(ClientHealth, FollowsTheServer) {
  FakeServer server;
  auto client = Connect(Options(server));
  EXPECT_TRUE(client->CheckHealth().ok());
  EXPECT_TRUE(absl::IsNotFound(client->CheckHealth("no.such.Service")));
  server.SetServing(false);
  const absl::Status status = client->CheckHealth();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(status.message(), HasSubstr("NOT_SERVING"));
  std::thread starter([&] {
    absl::SleepFor(absl::Milliseconds(50));
    server.SetServing(true);
  });
  EXPECT_TRUE(client->WaitUntilServing({.timeout = absl::Seconds(10)}).ok());
  starter.join();
}

TEST(ClientHealth, WaitingForNobodyEnds) {
  int port;
  { port = FakeServer().port(); }
  auto client = Connect({.address = "127.0.0.1:" + std::to_string(port)});
  const absl::Status status = client->WaitUntilServing({.timeout = absl::Milliseconds(200)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_THAT(status.message(), HasSubstr("refused"));
  EXPECT_TRUE(absl::IsUnavailable(client->GetLoad({.timeout = absl::Milliseconds(200)}).status()));
}

TEST(ClientHealth, WaitingEndsAtAnAnswerThatWaitingCannotChange) {
  // A gRPC server without the health service.
  grpc::EnableDefaultHealthCheckService(false);
  grpc::ServerBuilder builder;
  int port = 0;
  v1::Inference::Service service;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  auto client = Connect({.address = "127.0.0.1:" + std::to_string(port)});
  EXPECT_TRUE(absl::IsUnimplemented(client->WaitUntilServing({.timeout = absl::Seconds(30)})));
}

TEST(ClientHealth, AServerThatStartsLateIsFound) {
  int port;
  { port = FakeServer().port(); }
  ClientOptions options{.address = "127.0.0.1:" + std::to_string(port)};
  options.retry = {
      .max_attempts = 100, .initial_backoff = absl::Milliseconds(20), .max_backoff = absl::Milliseconds(50)};
  auto client = Connect(options);
  std::unique_ptr<FakeServer> server;
  std::thread starter([&] {
    absl::SleepFor(absl::Milliseconds(100));
    server = std::make_unique<FakeServer>(grpc::InsecureServerCredentials(), port);
  });
  EXPECT_TRUE(client->GetLoad({.timeout = absl::Seconds(20)}).ok());
  starter.join();
}

std::string TestFile(const std::string& name) {
  return TESSERA_SOURCE_DIR "/tests/unit/client/testdata/" + name;
}

std::string Content(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path).rdbuf();
  return content.str();
}

TEST(ClientTls, ServerAndClientCertificates) {
  grpc::SslServerCredentialsOptions ssl(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  ssl.pem_root_certs = Content(TestFile("ca.pem"));
  ssl.pem_key_cert_pairs.push_back({Content(TestFile("server.key")), Content(TestFile("server.pem"))});
  FakeServer server(grpc::SslServerCredentials(ssl));

  ClientOptions options = Options(server);
  options.tls_ca_file = TestFile("ca.pem");
  options.tls_cert_file = TestFile("client.pem");
  options.tls_key_file = TestFile("client.key");
  EXPECT_TRUE(Connect(options)->GetLoad().ok());
  options.tls_server_name = "tessera-server.test";
  EXPECT_TRUE(Connect(options)->GetLoad().ok());

  options.retry.max_attempts = 1;
  options.tls_server_name = "another.test";
  EXPECT_FALSE(Connect(options)->GetLoad({.timeout = absl::Seconds(5)}).ok()) << "the name is checked";
  ClientOptions anonymous = Options(server);
  anonymous.retry.max_attempts = 1;
  anonymous.tls_ca_file = TestFile("ca.pem");
  EXPECT_FALSE(Connect(anonymous)->GetLoad({.timeout = absl::Seconds(5)}).ok()) << "the client must show one";
  ClientOptions plain = Options(server);
  plain.retry.max_attempts = 1;
  EXPECT_FALSE(Connect(plain)->GetLoad({.timeout = absl::Seconds(5)}).ok());
}

}  // namespace
}  // namespace tessera
