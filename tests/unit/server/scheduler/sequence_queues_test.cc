#include "server/scheduler/sequence_queues.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

Sequence Make(int32_t priority, uint64_t arrival) {
  Sequence sequence;
  sequence.id = arrival;
  sequence.priority = priority;
  sequence.arrival = arrival;
  return sequence;
}

TEST(WaitingQueue, ServesByPriorityThenArrival) {
  Sequence a = Make(0, 1), b = Make(5, 2), c = Make(0, 3), d = Make(5, 4);
  WaitingQueue queue;
  EXPECT_EQ(queue.first(), nullptr);
  for (Sequence* s : {&c, &d, &a, &b}) queue.Insert(s);
  EXPECT_THAT(std::vector<Sequence*>(queue.begin(), queue.end()), testing::ElementsAre(&b, &d, &a, &c));
  queue.Remove(&b);
  EXPECT_EQ(queue.first(), &d);
  EXPECT_EQ(queue.size(), 3);
}

TEST(RunningList, StaysInOrder) {
  Sequence a = Make(0, 1), b = Make(5, 2), c = Make(0, 3), d = Make(-1, 4);
  RunningList list;
  for (Sequence* s : {&c, &d, &a, &b}) list.Insert(s);
  EXPECT_THAT(std::vector<Sequence*>(list.begin(), list.end()), testing::ElementsAre(&b, &a, &c, &d));
  EXPECT_EQ(list.last(), &d);
  list.Remove(&a);
  list.RemoveLast();
  EXPECT_THAT(std::vector<Sequence*>(list.begin(), list.end()), testing::ElementsAre(&b, &c));
  b.finished = true;
  list.RemoveFinished();
  EXPECT_THAT(std::vector<Sequence*>(list.begin(), list.end()), testing::ElementsAre(&c));
}

TEST(DeadlineQueue, KnowsTheEarliestAndSkipsThoseWithout) {
  Sequence never = Make(0, 1), late = Make(0, 2), early = Make(0, 3);
  late.deadline = absl::UnixEpoch() + absl::Seconds(20);
  early.deadline = absl::UnixEpoch() + absl::Seconds(10);
  DeadlineQueue queue;
  EXPECT_EQ(queue.earliest(), absl::InfiniteFuture());
  for (Sequence* s : {&never, &late, &early}) queue.Insert(s);
  EXPECT_EQ(queue.size(), 2);
  EXPECT_EQ(queue.earliest(), early.deadline);
  EXPECT_EQ(queue.FirstExpired(early.deadline - absl::Nanoseconds(1)), nullptr);
  EXPECT_EQ(queue.FirstExpired(early.deadline), &early);
  queue.Remove(&early);
  queue.Remove(&never);
  EXPECT_EQ(queue.FirstExpired(absl::UnixEpoch() + absl::Hours(1)), &late);
}

}  // namespace
}  // namespace tessera
