#include "server/rpc/listen_address.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "test_server.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(ParseHostPort, TakesNamesAndBothFamilies) {
  EXPECT_EQ(ParseHostPort("127.0.0.1:50051")->port, 50051);
  EXPECT_EQ(ParseHostPort("localhost:0")->host, "localhost");
  EXPECT_EQ(ParseHostPort("[::1]:1")->host, "::1");
  EXPECT_EQ(ParseHostPort("0.0.0.0:65535")->port, 65535);
}

TEST(ParseHostPort, SaysWhatIsWrong) {
  for (const char* bad :
       {"", "50051", "localhost", ":50051", "localhost:", "localhost:65536", "localhost:-1", "::1:50051",
        "localhost:http", "localhost:1x", "[::1]", "localhost: 1", "localhost:99999999999999999999"}) {
    const absl::Status status = ParseHostPort(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("found \"", bad, "\"")));
  }
}

TEST(RpcServer, APortInUseIsAClearError) {
  TestServer server;
  RpcServerOptions options;
  options.listen = server.rpc().address();
  const absl::Status status = RpcServer::Start(options, &server.metrics()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), absl::StrCat("cannot listen on ", options.listen, ": Address already in use"));
}

TEST(RpcServer, AnAddressThatIsNotOursIsAClearError) {
  const std::unique_ptr<Metrics> metrics = *Metrics::Create({});
  RpcServerOptions options;
  options.listen = "192.0.2.1:0";  // a documentation address
  const absl::Status status = RpcServer::Start(options, metrics.get()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("192.0.2.1:0: Cannot assign requested address"));
}

}  // namespace
}  // namespace tessera
