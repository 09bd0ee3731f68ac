#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "test_server.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

TestServerOptions Slow() {
  TestServerOptions options;
  options.backend.step_time = absl::Milliseconds(5);
  return options;
}

TEST(Control, ModelInfo) {
  TestServer server;
  v1::ModelInfo info;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(server.control().GetModelInfo(&context, {}, &info).ok());
    EXPECT_EQ(info.name(), "test-model");
    EXPECT_EQ(info.vocab_size(), kVocabSize);
  }
  v1::GetModelInfoRequest other;
  other.set_model("other");
  grpc::ClientContext context;
  EXPECT_EQ(server.control().GetModelInfo(&context, other, &info).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST(Control, ServerInfo) {
  TestServer server;
  grpc::ClientContext context;
  v1::ServerInfo info;
  ASSERT_TRUE(server.control().GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.version(), "1.2.3");
  EXPECT_EQ(info.device(), "null");
  EXPECT_EQ(info.kv_blocks_total(), 1024);
  EXPECT_EQ(info.kv_block_size(), 16);
  EXPECT_EQ(info.max_request_bytes(), 64 << 20);
  EXPECT_TRUE(info.prefix_cache_enabled());
  EXPECT_EQ(info.state(), "serving");
}

TEST(Control, LoadFollowsTheEngine) {
  TestServer server(Slow());
  grpc::ClientContext generate;
  auto reader = server.inference().Generate(&generate, TextRequest("load", 1000));
  v1::GenerateResponse response;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(reader->Read(&response));
  v1::Load load;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(server.control().GetLoad(&context, {}, &load).ok());
    EXPECT_EQ(load.running(), 1);
    EXPECT_GT(load.kv_blocks_used(), 0);
    EXPECT_EQ(load.kv_blocks_total(), 1024);
    EXPECT_NEAR(load.kv_usage(), load.kv_blocks_used() / 1024.0, 1e-9);
  }
  generate.TryCancel();
  reader->Finish();
  EXPECT_TRUE(server.WaitIdle());
}

TEST(Control, AbortEndsStreamsAndKeepsWhatTheyHave) {
  TestServer server(Slow());
  v1::GenerateRequest request = TextRequest("abort me", 2000);
  request.set_request_id("victim");
  grpc::ClientContext generate;
  auto reader = server.inference().Generate(&generate, request);
  v1::GenerateResponse response;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(reader->Read(&response));

  v1::AbortRequest abort;
  abort.add_request_ids("victim");
  abort.add_request_ids("nobody");
  v1::AbortResponse aborted;
  grpc::ClientContext context;
  ASSERT_TRUE(server.control().Abort(&context, abort, &aborted).ok());
  EXPECT_THAT(aborted.aborted(), ElementsAre("victim"));
  EXPECT_THAT(aborted.not_found(), ElementsAre("nobody"));

  v1::Finished finished;
  while (reader->Read(&response)) {
    if (response.has_finished()) finished = response.finished();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(finished.reason(), v1::FINISH_REASON_ABORT);
  EXPECT_EQ(finished.error(), "ABORTED: ended by Control.Abort");
  EXPECT_TRUE(finished.has_usage());
  EXPECT_TRUE(server.WaitIdle());
}

TEST(Control, AbortAllAlsoReachesTheQueue) {
  TestServerOptions options = Slow();
  options.engine.scheduler.max_running = 1;
  TestServer server(options);
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> readers[3];
  grpc::ClientContext contexts[3];
  v1::GenerateResponse response;
  for (int i = 0; i < 3; ++i) {
    v1::GenerateRequest request = TextRequest("x", 2000);
    request.set_request_id("r" + std::to_string(i));
    readers[i] = server.inference().Generate(&contexts[i], request);
    ASSERT_TRUE(readers[i]->Read(&response));
  }
  v1::AbortRequest abort;
  abort.set_all(true);
  v1::AbortResponse aborted;
  grpc::ClientContext context;
  ASSERT_TRUE(server.control().Abort(&context, abort, &aborted).ok());
  EXPECT_THAT(aborted.aborted(), UnorderedElementsAre("r0", "r1", "r2"));
  for (auto& reader : readers) {
    v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
    while (reader->Read(&response)) {
      if (response.has_finished()) reason = response.finished().reason();
    }
    EXPECT_TRUE(reader->Finish().ok());
    EXPECT_EQ(reason, v1::FINISH_REASON_ABORT);
  }
  EXPECT_TRUE(server.WaitIdle());
}

TEST(Control, AbortChecksItsRequest) {
  TestServer server;
  grpc::ClientContext context;
  v1::AbortResponse response;
  const grpc::Status status = server.control().Abort(&context, {}, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(FieldViolations(status).contains("request_ids"));
}

}  // namespace
}  // namespace tessera
