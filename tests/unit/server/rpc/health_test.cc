#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "test_server.h"

namespace tessera {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using Status = HealthCheckResponse::ServingStatus;

Status Check(TestServer& server, const std::string& service = "") {
  HealthCheckRequest request;
  request.set_service(service);
  grpc::ClientContext context;
  HealthCheckResponse response;
  EXPECT_TRUE(server.health().Check(&context, request, &response).ok());
  return response.status();
}

std::string State(TestServer& server) {
  grpc::ClientContext context;
  v1::ServerInfo info;
  EXPECT_TRUE(server.control().GetServerInfo(&context, {}, &info).ok());
  return info.state();
}

TEST(Health, FollowsTheLifeOfTheServer) {
  TestServerOptions options;
  options.serve = false;
  TestServer server(options);
  EXPECT_EQ(Check(server), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check(server, "tessera.v1.Inference"), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check(server, "tessera.v1.Control"), HealthCheckResponse::SERVING);
  EXPECT_EQ(State(server), "starting");
  EXPECT_EQ(Generate(server.inference(), TextRequest("x", 1)).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  grpc::ClientContext context;
  v1::Load load;
  EXPECT_EQ(server.control().GetLoad(&context, {}, &load).error_code(), grpc::StatusCode::UNAVAILABLE);

  server.Serve();
  EXPECT_EQ(Check(server), HealthCheckResponse::SERVING);
  EXPECT_EQ(Check(server, "tessera.v1.Inference"), HealthCheckResponse::SERVING);
  EXPECT_TRUE(Generate(server.inference(), TextRequest("x", 1)).status.ok());

  server.rpc().Drain();
  EXPECT_EQ(Check(server), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check(server, "tessera.v1.Control"), HealthCheckResponse::SERVING);
  EXPECT_EQ(State(server), "draining");
  EXPECT_EQ(Generate(server.inference(), TextRequest("x", 1)).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST(Health, UnknownServices) {
  TestServer server;
  HealthCheckRequest request;
  request.set_service("nobody");
  {
    grpc::ClientContext context;
    HealthCheckResponse response;
    EXPECT_EQ(server.health().Check(&context, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
  }
  grpc::ClientContext context;
  auto reader = server.health().Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  context.TryCancel();
  reader->Finish();
}

TEST(Health, WatchTellsOfEachChangeAndEndsWithTheServer) {
  TestServerOptions options;
  options.serve = false;
  TestServer server(options);
  grpc::ClientContext context;
  auto reader = server.health().Watch(&context, {});
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  server.Serve();
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  server.rpc().Drain();
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  const absl::Time start = absl::Now();
  EXPECT_TRUE(server.rpc().DrainAndShutdown(absl::InfiniteFuture()));
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));  // an open watch does not hold the shutdown up
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(Health, AStuckStepTurnsItOffAndItAnswersAllTheWhile) {
  std::atomic<bool> stuck = false;
  TestServerOptions options;
  options.engine.watchdog_timeout = absl::Milliseconds(100);
  options.backend.before_run = [&stuck](absl::Span<const BatchRow>) {
    while (stuck) absl::SleepFor(absl::Milliseconds(1));
    return absl::OkStatus();
  };
  TestServer server(options);
  EXPECT_EQ(Check(server), HealthCheckResponse::SERVING);
  stuck = true;
  grpc::ClientContext context;
  auto reader = server.inference().Generate(&context, TextRequest("x", 5));
  auto wait_for = [&server](Status status) {
    const absl::Time deadline = absl::Now() + absl::Seconds(5);
    while (absl::Now() < deadline) {
      if (Check(server) == status) return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  };
  EXPECT_TRUE(wait_for(HealthCheckResponse::NOT_SERVING));
  EXPECT_EQ(Check(server, "tessera.v1.Control"), HealthCheckResponse::NOT_SERVING);
  EXPECT_FALSE(server.rpc().alive());
  EXPECT_EQ(Generate(server.inference(), TextRequest("x", 1)).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  stuck = false;
  EXPECT_TRUE(wait_for(HealthCheckResponse::SERVING));
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
}

}  // namespace
}  // namespace tessera
