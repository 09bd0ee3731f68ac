// A server to which nothing has come for a while answers as soon as one that is busy.
#include "server/rpc/callback_threads.h"

#include <algorithm>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/rpc/test_server.h"

namespace tessera {
namespace {

TEST(CallbackThreads, AnIdleServerAnswersAtOnce) {
  TestServer server;
  std::vector<absl::Duration> times;
  for (int i = 0; i < 7; ++i) {
    // In the middle of the 100 ms that threads without an event sleep after a second.
    absl::SleepFor(i == 0 ? absl::ZeroDuration() : absl::Milliseconds(1030));
    const absl::Time begin = absl::Now();
    grpc::ClientContext context;
    v1::ServerInfo info;
    ASSERT_TRUE(server.control().GetServerInfo(&context, {}, &info).ok());
    times.push_back(absl::Now() - begin);
  }
  std::sort(times.begin(), times.end());
  EXPECT_LT(times[times.size() / 2], absl::Milliseconds(35));
}

TEST(CallbackThreads, MayGoWhileItsCallIsOnItsWay) {
  const TestServer server;  // keeps the threads
  for (int i = 0; i < 200; ++i) {
    CallbackThreads threads;
    threads.KeepAwake();
    threads.KeepAwake();
  }
}

}  // namespace
}  // namespace tessera
