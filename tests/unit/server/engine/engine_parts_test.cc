// The small classes of the engine, each by itself.
#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/engine/heartbeat.h"
#include "server/engine/inbox.h"
#include "server/engine/rate_window.h"
#include "server/engine/request_progress.h"
#include "server/engine/request_stream.h"

namespace tessera {
namespace {

OutputDelta Delta(int32_t index, std::string text, std::vector<int32_t> tokens) {
  OutputDelta delta;
  delta.index = index;
  delta.text = std::move(text);
  delta.token_ids = std::move(tokens);
  return delta;
}

TEST(RequestStreamTest, WakesOnceAndMergesPerOutput) {
  int wakes = 0;
  RequestStream stream("a", [&] { ++wakes; });
  const absl::Time now = absl::Now();
  stream.Push(Delta(0, "a", {1}), now);
  stream.Push(Delta(1, "x", {7}), now + absl::Seconds(1));
  stream.Push(Delta(0, "b", {2}), now + absl::Seconds(2));
  const RequestStream::Backlog backlog = stream.Push(Delta(1, "y", {8}), now + absl::Seconds(3));
  EXPECT_EQ(wakes, 1);
  EXPECT_EQ(backlog.tokens, 4);
  EXPECT_EQ(backlog.since, now);
  std::vector<RequestEvent> events = {Delta(9, "old", {})};
  EXPECT_TRUE(stream.Take(&events));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(std::get<OutputDelta>(events[0]).text, "ab");
  EXPECT_EQ(std::get<OutputDelta>(events[0]).token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(std::get<OutputDelta>(events[1]).text, "xy");
  EXPECT_EQ(stream.backlog().tokens, 0);
  EXPECT_EQ(stream.backlog().since, absl::InfiniteFuture());
  EXPECT_TRUE(stream.Take(&events));
  EXPECT_TRUE(events.empty());
  stream.Push(Delta(0, "c", {3}));
  EXPECT_EQ(wakes, 2);
}

TEST(RequestStreamTest, NothingAfterTheLast) {
  int wakes = 0;
  RequestStream stream("a", [&] { ++wakes; });
  stream.PushLast(OutputFinished{});
  stream.Push(Delta(0, "late", {1}));
  stream.PushLast(OutputFinished{});
  stream.Close();
  EXPECT_EQ(wakes, 1);
  std::vector<RequestEvent> events;
  EXPECT_FALSE(stream.Take(&events));
  EXPECT_EQ(events.size(), 1u);
  EXPECT_FALSE(stream.Take(&events));
  EXPECT_TRUE(events.empty());
}

TEST(RequestStreamTest, ClosingAnEmptyStreamWakes) {
  int wakes = 0;
  RequestStream stream("a", [&] { ++wakes; });
  stream.Close();
  EXPECT_EQ(wakes, 1);
}

TEST(RequestStreamTest, CancelIsToldOnce) {
  int cancels = 0;
  RequestStream stream("a", nullptr, [&] { ++cancels; });
  EXPECT_FALSE(stream.cancelled());
  stream.Cancel();
  stream.Cancel();
  EXPECT_TRUE(stream.cancelled());
  EXPECT_EQ(cancels, 1);
}

TEST(RateWindowTest, ForgetsAfterTenSeconds) {
  RateWindow window;
  const absl::Time start = absl::FromUnixSeconds(1000);
  for (int second = 0; second < 60; ++second) {
    for (int part = 0; part < 10; ++part) {
      window.Add(start + absl::Seconds(second) + absl::Milliseconds(100 * part), 5);
    }
  }
  EXPECT_NEAR(window.PerSecond(start + absl::Seconds(60) - absl::Milliseconds(1)), 50, 0.1);
  EXPECT_NEAR(window.PerSecond(start + absl::Seconds(65)), 50 * 4 / 9.0, 0.1);
  EXPECT_EQ(window.PerSecond(start + absl::Seconds(75)), 0);
}

TEST(HeartbeatTest, SleepIsHealthyAndALongRoundIsNot) {
  Heartbeat heartbeat;
  const absl::Time now = absl::Now();
  EXPECT_FALSE(heartbeat.Healthy(now, absl::Seconds(1)));
  heartbeat.Start();
  EXPECT_TRUE(heartbeat.Healthy(now, absl::Seconds(1)));
  heartbeat.BeginRound(now);
  EXPECT_TRUE(heartbeat.Healthy(now + absl::Seconds(1), absl::Seconds(1)));
  EXPECT_FALSE(heartbeat.Healthy(now + absl::Seconds(2), absl::Seconds(1)));
  heartbeat.Sleep();
  EXPECT_TRUE(heartbeat.Healthy(now + absl::Seconds(1000), absl::Seconds(1)));
  heartbeat.Stop();
  EXPECT_FALSE(heartbeat.Healthy(now, absl::Seconds(1)));
}

TEST(RequestProgressTest, IntervalsAddUp) {
  const absl::Time arrival = absl::FromUnixSeconds(1000);
  RequestProgress progress(arrival);
  progress.prompt_tokens = 7;
  progress.n = 2;
  progress.OnStep(arrival + absl::Seconds(1));
  progress.OnStep(arrival + absl::Seconds(2));  // after a preemption: the first counts
  EXPECT_TRUE(progress.OnToken(arrival + absl::Seconds(3)));
  EXPECT_FALSE(progress.OnToken(arrival + absl::Seconds(7)));
  progress.OnFinish(FinishReason::kStop);
  progress.OnFinish(FinishReason::kAbort);
  const RequestTimings timings = progress.Timings(arrival + absl::Seconds(8));
  EXPECT_EQ(timings.queue, absl::Seconds(1));
  EXPECT_EQ(timings.prefill, absl::Seconds(2));
  EXPECT_EQ(timings.decode, absl::Seconds(4));
  EXPECT_EQ(timings.total, absl::Seconds(8));
  EXPECT_EQ(*timings.time_to_first_token, absl::Seconds(3));
  const RequestRecord record = progress.Record(RequestRecord::Kind::kGenerate, arrival + absl::Seconds(8));
  EXPECT_EQ(record.finish_reasons, (std::vector<std::string>{"stop", "abort"}));
  EXPECT_EQ(record.completion_tokens, 2);
}

TEST(RequestProgressTest, NeverInAStep) {
  const absl::Time arrival = absl::FromUnixSeconds(1000);
  RequestProgress progress(arrival);
  const RequestTimings timings = progress.Timings(arrival + absl::Seconds(4));
  EXPECT_EQ(timings.queue, absl::Seconds(4));
  EXPECT_EQ(timings.prefill, absl::ZeroDuration());
  EXPECT_FALSE(timings.time_to_first_token.has_value());
  EXPECT_FALSE(progress.Record(RequestRecord::Kind::kGenerate, arrival).prefill.has_value());
  // A clock that was set back makes no negative durations.
  EXPECT_EQ(progress.Timings(arrival - absl::Seconds(4)).total, absl::ZeroDuration());
}

std::unique_ptr<ActiveRequest> MakeRequest(const std::string& id, uint64_t serial, int sequences) {
  auto request = std::make_unique<ActiveRequest>(RequestRecord::Kind::kGenerate, absl::Now());
  request->serial = serial;
  request->stream = std::make_shared<RequestStream>(id, nullptr);
  request->sequences.resize(sequences);
  for (ActiveSequence& sequence : request->sequences) sequence.prompt_tokens = 10;
  return request;
}

TEST(InboxTest, BoundsIdsAndOrders) {
  Inbox inbox(3, 1000);
  int accepted = 0;
  const auto submit = [&](const std::string& id, uint64_t serial, int sequences) {
    return inbox.Submit(MakeRequest(id, serial, sequences), [&] { ++accepted; });
  };
  EXPECT_TRUE(submit("a", 1, 2).ok());
  EXPECT_EQ(submit("a", 2, 1).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(submit("b", 3, 2).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(submit("b", 4, 1).ok());
  EXPECT_EQ(accepted, 2);
  EXPECT_EQ(inbox.submitted_sequences(), 3);
  EXPECT_FALSE(inbox.End("c", absl::AbortedError("")));
  EXPECT_TRUE(inbox.End("b", absl::AbortedError("x")));

  Inbox::Contents contents;
  inbox.Wait(absl::InfiniteFuture());
  inbox.Take(&contents);
  EXPECT_EQ(contents.submitted.size(), 2u);
  ASSERT_EQ(contents.ends.size(), 1u);
  EXPECT_EQ(contents.ends[0].serial, 4u);
  EXPECT_EQ(inbox.submitted_sequences(), 0);
  EXPECT_EQ(submit("c", 5, 1).code(), absl::StatusCode::kResourceExhausted);  // still queued
  inbox.LeaveQueue(1, 10);
  EXPECT_TRUE(submit("c", 5, 1).ok());

  inbox.ReleaseId("a");
  EXPECT_EQ(inbox.EndAll(absl::AbortedError("all")), (std::vector<std::string>{"b", "c"}));
  EXPECT_FALSE(inbox.WaitUntilNoneLive(absl::Now()));
  inbox.Delivered(3);
  EXPECT_TRUE(inbox.WaitUntilNoneLive(absl::InfiniteFuture()));
  inbox.Refuse(absl::UnavailableError("first"));
  inbox.Refuse(absl::UnavailableError("second"));
  EXPECT_EQ(submit("d", 6, 1).message(), "first");
}

TEST(InboxTest, WaitEndsAtWakeAndAtItsDeadline) {
  Inbox inbox(3, 1000);
  const absl::Time start = absl::Now();
  inbox.Wait(start + absl::Milliseconds(20));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(20));
  std::thread waker([&] {
    absl::SleepFor(absl::Milliseconds(5));
    inbox.Wake();
  });
  inbox.Wait(absl::InfiniteFuture());
  waker.join();
}

}  // namespace
}  // namespace tessera
