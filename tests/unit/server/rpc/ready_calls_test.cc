// Who answers calls that are ready, and in which order.
#include "server/rpc/ready_calls.h"

#include <atomic>
#include <functional>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

class TestCall : public ReadyCall {
 public:
  explicit TestCall(std::function<void()> answer) : answer_(std::move(answer)) {}
  void Answer() override { answer_(); }

 private:
  const std::function<void()> answer_;
};

std::shared_ptr<ReadyCall> Call(std::function<void()> answer) {
  return std::make_shared<TestCall>(std::move(answer));
}

TEST(ReadyCalls, FirstComeFirstServed) {
  std::vector<int> order;
  {
    ReadyCalls calls(1);
    for (int i = 0; i < 100; ++i) calls.Push(Call([&order, i] { order.push_back(i); }));
  }  // answers what is queued
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(ReadyCalls, SleepingThreadsAreWokenAgainAndAgain) {
  ReadyCalls calls(2);
  for (int i = 0; i < 2000; ++i) {
    absl::Notification answered;
    calls.Push(Call([&] { answered.Notify(); }));
    answered.WaitForNotification();
  }
}

TEST(ReadyCalls, OneThatTakesLongDoesNotHoldUpTheOthers) {
  ReadyCalls calls(2);
  absl::Notification entered, open;
  calls.Push(Call([&] {
    entered.Notify();
    open.WaitForNotification();
  }));
  entered.WaitForNotification();
  for (int i = 0; i < 100; ++i) {
    absl::Notification answered;
    calls.Push(Call([&] { answered.Notify(); }));
    answered.WaitForNotification();
  }
  open.Notify();
}

TEST(ReadyCalls, ACallMayPushItself) {
  ReadyCalls calls(1);
  std::atomic<int> answers = 0;
  absl::Notification done;
  std::shared_ptr<ReadyCall> call;
  call = Call([&] {
    if (++answers < 100) return calls.Push(call);
    done.Notify();
  });
  calls.Push(call);
  done.WaitForNotification();
  call = nullptr;
}

TEST(ReadyCalls, LetsGoOfACallThatWasAnswered) {
  ReadyCalls calls(1);
  absl::Notification freed;
  std::shared_ptr<void> guard(&freed, [](void* told) { static_cast<absl::Notification*>(told)->Notify(); });
  calls.Push(Call([guard = std::move(guard)] {}));
  freed.WaitForNotification();
}

}  // namespace
}  // namespace tessera
