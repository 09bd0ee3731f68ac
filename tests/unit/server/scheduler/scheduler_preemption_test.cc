// Who gives way when blocks or places run out.

#include "tests/unit/server/scheduler/scheduler_test_util.h"

namespace tessera {
namespace {

SchedulerConfig Config(int32_t num_blocks) {
  return {.num_blocks = num_blocks,
          .block_size = 4,
          .max_running = 8,
          .max_batched_tokens = 64,
          .max_prefill_chunk = 32,
          .prefix_cache = false};
}

TEST(SchedulerPreemption, TheNewestGivesWayAndComesBackWithItsTokens) {
  SchedulerDriver driver(Config(6));
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 4), .max_tokens = 16}).ok());
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = TokensFrom(50, 4), .max_tokens = 16}).ok());
  int32_t steps = 0;
  while (driver->Stats().preemptions == 0 && ++steps < 100) driver.Step();
  EXPECT_THAT(driver.plan().preempted, testing::ElementsAre(2));
  EXPECT_EQ(driver->Stats().running, 1);
  const std::vector<int32_t> kept(driver->Tokens(2).begin(), driver->Tokens(2).end());
  EXPECT_GT(kept.size(), 4);
  while (driver.plan().admitted.empty() && ++steps < 100) driver.Step();
  // The older one ended first; then the other is recomputed from its start, and goes on where it was.
  ASSERT_EQ(driver.plan().admitted.size(), 1);
  EXPECT_EQ(driver.plan().admitted[0].id, 2);
  EXPECT_TRUE(driver.plan().admitted[0].resumed);
  EXPECT_EQ(SchedulerDriver::Describe(driver.plan()), absl::StrCat("2[0+", kept.size(), "]"));
  EXPECT_THAT(std::vector<int32_t>(driver->Tokens(2).begin(), driver->Tokens(2).begin() + kept.size()), kept);
  driver.RunToEnd();
  EXPECT_EQ(driver->Stats().preemptions, 1);
}

TEST(SchedulerPreemption, ThePrefixCacheMakesComingBackCheap) {
  SchedulerConfig config = Config(7);
  config.prefix_cache = true;
  SchedulerDriver driver(config);
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 4), .max_tokens = 10}).ok());
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = TokensFrom(50, 13), .max_tokens = 10}).ok());
  for (int32_t steps = 0; driver->Stats().preemptions == 0 && steps < 100; ++steps) driver.Step();
  for (int32_t steps = 0; driver.plan().admitted.empty() && steps < 100; ++steps) driver.Step();
  ASSERT_EQ(driver.plan().admitted.size(), 1);
  EXPECT_EQ(driver.plan().admitted[0].id, 2);
  EXPECT_GE(driver.plan().admitted[0].cached_tokens, 12);
  driver.RunToEnd();
}

TEST(SchedulerPreemption, TheLowestPriorityGivesWayFirst) {
  SchedulerDriver driver(Config(6));
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 4), .max_tokens = 16, .priority = -1}).ok());
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = TokensFrom(50, 4), .max_tokens = 16}).ok());
  for (int32_t steps = 0; driver->Stats().preemptions == 0 && steps < 100; ++steps) driver.Step();
  EXPECT_THAT(driver.plan().preempted, testing::ElementsAre(1));
  driver.RunToEnd();
}

TEST(SchedulerPreemption, AHigherPriorityTakesThePlaceOfTheLowest) {
  SchedulerConfig config = Config(64);
  config.max_running = 2;
  SchedulerDriver driver(config);
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = {1}, .max_tokens = 9}).ok());
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = {2}, .max_tokens = 9}).ok());
  driver.Step();
  ASSERT_TRUE(driver.Add({.id = 3, .prompt = {3}, .max_tokens = 2, .priority = 1}).ok());
  EXPECT_EQ(driver.Step(), "1[1+1]* 3[0+1]");
  EXPECT_THAT(driver.plan().preempted, testing::ElementsAre(2));
  // Equal ones wait.
  ASSERT_TRUE(driver.Add({.id = 4, .prompt = {4}, .max_tokens = 2}).ok());
  EXPECT_EQ(driver.Step(), "3[1+1]* 1[2+1]*");
  EXPECT_EQ(driver.Step(), "1[3+1]* 2[0+2]");
  EXPECT_TRUE(driver.plan().admitted[0].resumed);
  driver.RunToEnd();
  EXPECT_EQ(driver->Stats().preemptions, 1);
}

TEST(SchedulerPreemption, AHigherPriorityTakesBlocksOnlyIfThatIsEnough) {
  SchedulerDriver driver(Config(10));
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 20), .max_tokens = 4, .priority = 5}).ok());
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = TokensFrom(50, 4), .max_tokens = 4}).ok());
  driver.Step();
  // Needs 6 blocks and some to spare: 4 are free, and 1 would be from sequence 2.
  ASSERT_TRUE(driver.Add({.id = 3, .prompt = TokensFrom(100, 24), .max_tokens = 1, .priority = 1}).ok());
  EXPECT_EQ(driver.Step(), "1[20+1]* 2[4+1]*");
  EXPECT_TRUE(driver.plan().preempted.empty());
  // Of 2 blocks: fits with sequence 2 out of the way, but 3 is before it and not to be overtaken.
  ASSERT_TRUE(driver.Add({.id = 4, .prompt = TokensFrom(200, 8), .max_tokens = 1, .priority = 1}).ok());
  EXPECT_EQ(driver.Step(), "1[21+1]* 2[5+1]*");
  ASSERT_TRUE(driver.Add({.id = 5, .prompt = TokensFrom(300, 8), .max_tokens = 1, .priority = 2}).ok());
  EXPECT_EQ(driver.Step(), "1[22+1]* 5[0+8]");
  EXPECT_THAT(driver.plan().preempted, testing::ElementsAre(2));
  driver.RunToEnd();
}

TEST(SchedulerPreemption, SharedBlocksOfVictimsCountOnce) {
  // Two outputs of low priority share a prompt of 8 blocks; only with both gone are its blocks free.
  SchedulerConfig config = Config(12);
  config.prefix_cache = true;
  SchedulerDriver driver(config);
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 32), .max_tokens = 4}).ok());
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = TokensFrom(0, 32), .max_tokens = 4, .after = 1}).ok());
  driver.Step();
  driver.Step();
  ASSERT_EQ(driver->Stats().running, 2);
  ASSERT_TRUE(driver.Add({.id = 3, .prompt = TokensFrom(100, 40), .max_tokens = 1, .priority = 1}).ok());
  EXPECT_EQ(driver.Step(), "3[0+32]");
  EXPECT_THAT(driver.plan().preempted, testing::ElementsAre(2, 1));
  driver.RunToEnd();
}

TEST(SchedulerPreemption, APlanDoesNotPreemptAndAdmitTheSame) {
  SchedulerConfig config = Config(25);
  config.prefix_cache = true;
  config.max_batched_tokens = 8;
  config.max_prefill_chunk = 7;
  SchedulerDriver driver(config);
  ASSERT_TRUE(driver.Add({.id = 3, .prompt = TokensFrom(500, 16), .max_tokens = 1}).ok());
  driver.RunToEnd();
  // Two with one prompt, the second far behind and with blocks of its own for the rest.
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 40), .max_tokens = 9}).ok());
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = TokensFrom(0, 40), .max_tokens = 9}).ok());
  for (int i = 0; i < 6; ++i) driver.Step();
  EXPECT_EQ(driver->Tokens(1).size(), 41);
  // It gives way. What the first has computed since would let it in again at once, for less than it held.
  ASSERT_TRUE(driver.Add({.id = 4, .prompt = TokensFrom(500, 16), .max_tokens = 9, .priority = 1}).ok());
  EXPECT_EQ(driver.Step(), "1[40+1]* 4[12+4]");
  EXPECT_THAT(driver.plan().preempted, testing::ElementsAre(2));
  EXPECT_EQ(driver.Step(), "4[16+1]* 1[41+1]* 2[36+4]");
  driver.RunToEnd();
}

TEST(SchedulerPreemption, EqualPrioritiesDoNotPingPong) {
  // Eight that could only ever run three or four at a time to their end.
  SchedulerConfig config = Config(40);
  config.prefix_cache = true;
  SchedulerDriver driver(config);
  for (SequenceId id = 1; id <= 8; ++id) {
    ASSERT_TRUE(driver.Add({.id = id, .prompt = TokensFrom(id * 1000, 8), .max_tokens = 40}).ok());
  }
  const int32_t steps = driver.RunToEnd();
  EXPECT_LE(driver->Stats().preemptions, 16);
  EXPECT_LE(steps, 160);
}

TEST(SchedulerPreemption, ACacheForJustOneServesAllInTurn) {
  SchedulerDriver driver(Config(5));
  for (SequenceId id = 1; id <= 20; ++id) {
    ASSERT_TRUE(driver.Add({.id = id, .prompt = TokensFrom(id * 100, 8), .max_tokens = 13}).ok());
  }
  driver.RunToEnd(20 * 25);
}

TEST(SchedulerPreemption, ALeaderThatIsPreemptedStillComesFirst) {
  SchedulerConfig config = Config(12);
  config.prefix_cache = true;
  config.max_prefill_chunk = 4;
  SchedulerDriver driver(config);
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 20), .max_tokens = 4}).ok());
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = TokensFrom(0, 20), .max_tokens = 4, .after = 1}).ok());
  driver.Step();
  ASSERT_TRUE(driver.Add({.id = 3, .prompt = TokensFrom(100, 40), .max_tokens = 4, .priority = 1}).ok());
  EXPECT_EQ(driver.Step(), "3[0+4]");
  EXPECT_THAT(driver.plan().preempted, testing::ElementsAre(1));
  bool second_ran = false;
  while (!driver->Idle()) {
    driver.Plan();
    for (const PlannedRow& row : driver.plan().rows) {
      if (row.id == 2) second_ran = true;
      if (row.id == 1 && row.start < 16) {
        EXPECT_FALSE(second_ran);
      }
    }
    driver->Commit(driver.Outcomes());
    ASSERT_TRUE(driver->CheckInvariants().ok());
  }
  EXPECT_TRUE(second_ran);
}

}  // namespace
}  // namespace tessera
