#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "test_server.h"

namespace tessera {
namespace {

TestServerOptions Slow() {
  TestServerOptions options;
  options.backend.step_time = absl::Milliseconds(5);
  return options;
}

TEST(Shutdown, RunningRequestsFinish) {
  TestServer server(Slow());
  Collected got;
  std::thread caller([&] { got = Generate(server.inference(), TextRequest("finish", 60)); });
  ASSERT_TRUE(server.WaitMetric("tessera_generation_tokens_total", 1));
  EXPECT_TRUE(server.rpc().DrainAndShutdown(absl::Now() + absl::Seconds(20)));
  caller.join();
  EXPECT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.num_tokens[0], 60);
  EXPECT_EQ(got.finished.at(0).reason(), v1::FINISH_REASON_LENGTH);
}

TEST(Shutdown, AfterTheTimeoutRequestsEndWithAMessage) {
  TestServer server(Slow());
  Collected got;
  std::thread caller([&] { got = Generate(server.inference(), TextRequest("too long", 2000)); });
  ASSERT_TRUE(server.WaitMetric("tessera_generation_tokens_total", 1));
  const absl::Time start = absl::Now();
  EXPECT_FALSE(server.rpc().DrainAndShutdown(absl::Now() + absl::Milliseconds(100)));
  EXPECT_LT(absl::Now() - start, absl::Seconds(3));
  caller.join();
  EXPECT_TRUE(got.status.ok()) << got.status.error_message();
  ASSERT_EQ(got.finished.size(), 1u);
  EXPECT_EQ(got.finished[0].reason(), v1::FINISH_REASON_ABORT);
  EXPECT_GT(got.num_tokens[0], 0);
}

TEST(Shutdown, AReaderThatDoesNotReadCannotHoldItUp) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("x", 2000);
  request.set_logprobs(20);
  request.set_n(64);
  auto stub = v1::Inference::NewStub(server.NewChannel());
  grpc::ClientContext context;
  auto reader = stub->Generate(&context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  ASSERT_TRUE(server.WaitMetric("tessera_generation_tokens_total",
                                20000));  // tens of megabytes: the windows are full
  const absl::Time start = absl::Now();
  server.rpc().DrainAndShutdown(absl::Now());
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
  context.TryCancel();
  reader->Finish();
}

TEST(Shutdown, AnIdleConnectionDoesNotHoldItUp) {
  TestServerOptions options;
  options.rpc.flush_timeout = absl::Minutes(2);
  TestServer server(options);
  // A peer that never says anything, and one that has had its answer.
  auto silent = server.NewChannel();
  ASSERT_TRUE(silent->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Seconds(60))));
  EXPECT_TRUE(Generate(server.inference(), TextRequest("once", 3)).status.ok());
  const absl::Time start = absl::Now();
  EXPECT_TRUE(server.rpc().DrainAndShutdown(absl::Now() + absl::Seconds(20)));
  EXPECT_LT(absl::Now() - start, absl::Minutes(1));
}

TEST(Shutdown, WhileStartingEndsAtOnce) {
  TestServerOptions options;
  options.serve = false;
  TestServer server(options);
  EXPECT_TRUE(server.rpc().DrainAndShutdown(absl::Now() + absl::Seconds(20)));
}

}  // namespace
}  // namespace tessera
