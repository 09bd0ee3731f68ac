// In which order tasks of different sizes run.
#include "server/rpc/worker_pool.h"

#include <atomic>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

// A task that waits until it is told to go on.
class Gate {
 public:
  std::function<void()> Task() {
    return [this] {
      entered_.Notify();
      open_.WaitForNotification();
    };
  }
  void WaitEntered() { entered_.WaitForNotification(); }
  void Open() { open_.Notify(); }

 private:
  absl::Notification entered_, open_;
};

// What ran, in order; for pools of one thread.
std::vector<std::string> RunBehindGate(
    const WorkerPool::Options& options,
    const std::function<void(const std::function<void(std::string, size_t)>&)>& submit) {
  std::vector<std::string> order;
  {
    Gate gate;  // before the pool, whose thread still looks at it when it is opened
    WorkerPool pool(options);
    EXPECT_TRUE(pool.TrySubmit(gate.Task()));
    gate.WaitEntered();
    submit([&](std::string name, size_t bytes) {
      EXPECT_TRUE(pool.TrySubmit([&order, name] { order.push_back(name); }, bytes));
    });
    gate.Open();
  }  // runs what is queued
  return order;
}

TEST(WorkerPool, EqualSizesAreFirstComeFirstServed) {
  EXPECT_THAT(RunBehindGate({.name = "test"},
                            [](const auto& submit) {
                              for (const char* name : {"a", "b", "c", "d"}) submit(name, 0);
                            }),
              ElementsAre("a", "b", "c", "d"));
}

TEST(WorkerPool, ASmallTaskOvertakesLargeOnes) {
  EXPECT_THAT(RunBehindGate({.name = "test"},
                            [](const auto& submit) {
                              submit("large 1", 2 << 20);
                              submit("large 2", 2 << 20);
                              submit("middle", 100 << 10);
                              submit("small 1", 100);
                              submit("small 2", 100);
                            }),
              ElementsAre("small 1", "small 2", "middle", "large 1", "large 2"));
}

TEST(WorkerPool, ALargeTaskIsOvertakenForABoundedTimeOnly) {
  // Due two seconds after it came.
  const WorkerPool::Options options{.name = "test", .bytes_per_second = 1 << 19};
  EXPECT_THAT(RunBehindGate(options,
                            [](const auto& submit) {
                              submit("large", 1 << 20);
                              submit("early", 0);
                              std::this_thread::sleep_for(std::chrono::milliseconds(2100));
                              submit("late", 0);
                            }),
              ElementsAre("early", "large", "late"));
}

TEST(WorkerPool, OneThreadIsKeptFromLargeTasks) {
  std::atomic<bool> third_ran = false;
  Gate gates[2];
  WorkerPool pool({.name = "test", .num_threads = 3});
  for (Gate& gate : gates) ASSERT_TRUE(pool.TrySubmit(gate.Task(), 1 << 20));
  for (Gate& gate : gates) gate.WaitEntered();
  ASSERT_TRUE(pool.TrySubmit([&] { third_ran = true; }, 1 << 20));
  for (int i = 0; i < 100; ++i) {
    absl::Notification ran;
    ASSERT_TRUE(pool.TrySubmit([&] { ran.Notify(); }, 10));
    ran.WaitForNotification();
  }
  EXPECT_FALSE(third_ran);
  for (Gate& gate : gates) gate.Open();
}

TEST(WorkerPool, AFullQueueTakesNoMore) {
  Gate gate;
  WorkerPool pool({.name = "test", .max_queued = 2});
  ASSERT_TRUE(pool.TrySubmit(gate.Task()));
  gate.WaitEntered();
  EXPECT_TRUE(pool.TrySubmit([] {}, 0));
  EXPECT_TRUE(pool.TrySubmit([] {}, 1 << 20));
  EXPECT_FALSE(pool.TrySubmit([] {}, 0));
  gate.Open();
}

TEST(WorkerPool, TheEndWaitsForLargeTasks) {
  std::atomic<int> ran = 0;
  {
    WorkerPool pool({.name = "test", .num_threads = 4});
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(pool.TrySubmit([&] { ++ran; }, i % 2 == 0 ? 1 << 20 : 0));
  }
  EXPECT_EQ(ran, 50);
}

}  // namespace
}  // namespace tessera
