// What the prefix cache gives, to whom and when; outputs of one request.

#include "tests/unit/server/scheduler/scheduler_test_util.h"

namespace tessera {
namespace {

SchedulerConfig Config() {
  return {
      .num_blocks = 64, .block_size = 4, .max_running = 8, .max_batched_tokens = 64, .max_prefill_chunk = 32};
}

TEST(SchedulerPrefix, ALaterPromptStartsWhereTheCacheEnds) {
  SchedulerDriver driver(Config());
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 14), .max_tokens = 1}).ok());
  EXPECT_EQ(driver.Step(), "1[0+14]");
  EXPECT_EQ(driver.plan().admitted[0].cached_tokens, 0);
  EXPECT_EQ(driver.plan().admitted[0].looked_up_tokens, 14);
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = TokensFrom(0, 20), .max_tokens = 1}).ok());
  EXPECT_EQ(driver.Step(), "2[12+8]");
  EXPECT_EQ(driver.plan().admitted[0].cached_tokens, 12);
  EXPECT_EQ(driver.plan().admitted[0].looked_up_tokens, 20);
  EXPECT_FALSE(driver.plan().admitted[0].resumed);
}

TEST(SchedulerPrefix, TheLastTokenIsComputedEvenIfAllIsCached) {
  SchedulerDriver driver(Config());
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 16), .max_tokens = 1}).ok());
  driver.Step();
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = TokensFrom(0, 16), .max_tokens = 2}).ok());
  EXPECT_EQ(driver.Step(), "2[12+4]");  // in a block of its own: a cached one is never written
  EXPECT_EQ(driver.Step(), "2[16+1]*");
}

TEST(SchedulerPrefix, AConversationFindsItsOwnAnswers) {
  SchedulerDriver driver(Config());
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 6), .max_tokens = 7}).ok());
  for (int i = 0; i < 6; ++i) driver.Step();
  std::vector<int32_t> tokens(driver->Tokens(1).begin(), driver->Tokens(1).end());
  driver.Step();
  ASSERT_TRUE(driver->Idle());
  ASSERT_EQ(tokens.size(), 12);
  tokens.push_back(77);
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = tokens, .max_tokens = 1}).ok());
  EXPECT_EQ(driver.Step(), "2[12+1]");
}

TEST(SchedulerPrefix, NothingIsFoundBeforeItIsComputed) {
  SchedulerDriver driver(Config());
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 12), .max_tokens = 4}).ok());
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = TokensFrom(0, 12), .max_tokens = 4}).ok());
  EXPECT_EQ(driver.Step(), "1[0+12] 2[0+12]");
  // Both computed the same: one copy is left, and both stand on it.
  EXPECT_EQ(driver->Stats().blocks_used, 3);
  ASSERT_TRUE(driver.Add({.id = 3, .prompt = TokensFrom(0, 13), .max_tokens = 1}).ok());
  EXPECT_EQ(driver.Step(), "1[12+1]* 2[12+1]* 3[12+1]");
  driver.RunToEnd();
}

TEST(SchedulerPrefix, SaltsDoNotMeet) {
  SchedulerDriver driver(Config());
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 12), .max_tokens = 1, .cache_salt = "a"}).ok());
  driver.Step();
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = TokensFrom(0, 12), .max_tokens = 1, .cache_salt = "b"}).ok());
  EXPECT_EQ(driver.Step(), "2[0+12]");
  ASSERT_TRUE(driver.Add({.id = 3, .prompt = TokensFrom(0, 12), .max_tokens = 1}).ok());
  EXPECT_EQ(driver.Step(), "3[0+12]");
  ASSERT_TRUE(driver.Add({.id = 4, .prompt = TokensFrom(0, 12), .max_tokens = 1, .cache_salt = "a"}).ok());
  EXPECT_EQ(driver.Step(), "4[8+4]");
}

TEST(SchedulerPrefix, ABypassComputesAllAndStillPublishes) {
  SchedulerDriver driver(Config());
  ASSERT_TRUE(
      driver.Add({.id = 1, .prompt = TokensFrom(0, 12), .max_tokens = 1, .read_prefix_cache = false}).ok());
  EXPECT_EQ(driver.Step(), "1[0+12]");
  EXPECT_EQ(driver.plan().admitted[0].looked_up_tokens, 0);
  ASSERT_TRUE(
      driver.Add({.id = 2, .prompt = TokensFrom(0, 12), .max_tokens = 2, .read_prefix_cache = false}).ok());
  EXPECT_EQ(driver.Step(), "2[0+12]");
  EXPECT_EQ(driver->Stats().blocks_used, 3);  // its own, not the equal cached ones
  EXPECT_EQ(driver->Stats().blocks_cached, 3);
  driver.Step();
  ASSERT_TRUE(driver.Add({.id = 3, .prompt = TokensFrom(0, 13), .max_tokens = 1}).ok());
  EXPECT_EQ(driver.Step(), "3[12+1]");
}

TEST(SchedulerPrefix, WithoutACacheNothingIsKept) {
  SchedulerConfig config = Config();
  config.prefix_cache = false;
  SchedulerDriver driver(config);
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 12), .max_tokens = 1}).ok());
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = TokensFrom(0, 12), .max_tokens = 1, .after = 1}).ok());
  EXPECT_EQ(driver.Step(), "1[0+12] 2[0+12]");
  EXPECT_EQ(driver->Stats().blocks_free, 64);
}

TEST(SchedulerPrefix, ClearForgetsAlsoWhatIsInUse) {
  SchedulerDriver driver(Config());
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 12), .max_tokens = 30}).ok());
  driver.Step();
  driver->ClearPrefixCache();
  EXPECT_TRUE(driver->CheckInvariants().ok());
  for (int i = 0; i < 8; ++i) driver.Step();
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = TokensFrom(0, 12), .max_tokens = 1}).ok());
  driver.Step();
  EXPECT_EQ(driver.plan().admitted[0].cached_tokens, 0);
  driver->Remove(1);
  driver.RunToEnd();
  EXPECT_EQ(driver->Stats().blocks_cached, 3);  // those of 2, computed after
}

TEST(SchedulerPrefix, AFailedRowPublishesNothing) {
  SchedulerDriver driver(Config());
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 40), .max_tokens = 1}).ok());
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = TokensFrom(100, 8), .max_tokens = 0}).ok());
  ASSERT_TRUE(driver.Add({.id = 3, .prompt = TokensFrom(200, 8), .max_tokens = 1}).ok());
  EXPECT_EQ(driver.Step(), "1[0+32] 2[0+8] 3[0+8]");
  EXPECT_EQ(driver->Stats().blocks_cached, 4);
  ASSERT_TRUE(driver.Add({.id = 4, .prompt = TokensFrom(300, 8), .max_tokens = 0}).ok());
  ASSERT_TRUE(driver.Add({.id = 5, .prompt = TokensFrom(400, 8), .max_tokens = 1}).ok());
  EXPECT_EQ(SchedulerDriver::Describe(driver.Plan()), "1[32+8] 4[0+8] 5[0+8]");
  std::vector<RowOutcome> failed;
  for (const PlannedRow& row : driver.plan().rows) failed.push_back({.id = row.id, .finished = true});
  driver->Commit(failed);
  EXPECT_TRUE(driver->CheckInvariants().ok());
  EXPECT_TRUE(driver->Idle());
  // What 1 had computed in the step before is still good; nothing of the failed step is.
  EXPECT_EQ(driver->Stats().blocks_cached, 12);
  ASSERT_TRUE(driver.Add({.id = 6, .prompt = TokensFrom(0, 40), .max_tokens = 1}).ok());
  EXPECT_EQ(driver.Step(), "6[32+8]");
  ASSERT_TRUE(driver.Add({.id = 7, .prompt = TokensFrom(300, 9), .max_tokens = 1}).ok());
  EXPECT_EQ(driver.Step(), "7[0+9]");
}

TEST(SchedulerPrefix, OutputsOfARequestShareTheirPrompt) {
  SchedulerDriver driver(Config());
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 40), .max_tokens = 5}).ok());
  for (SequenceId id = 2; id <= 4; ++id) {
    ASSERT_TRUE(driver.Add({.id = id, .prompt = TokensFrom(0, 40), .max_tokens = 5, .after = 1}).ok());
  }
  ASSERT_TRUE(driver.Add({.id = 5, .prompt = TokensFrom(500, 3), .max_tokens = 5}).ok());
  EXPECT_EQ(driver->Stats().waiting, 5);
  EXPECT_EQ(driver.Step(), "1[0+32] 5[0+3]");
  EXPECT_EQ(driver.Step(), "5[3+1]* 1[32+8]");
  EXPECT_EQ(driver.Step(), "1[40+1]* 5[4+1]* 2[36+4] 3[36+4] 4[36+4]");
  driver.RunToEnd();
}

TEST(SchedulerPrefix, OutputsStartWhenTheFirstIsGone) {
  SchedulerDriver driver(Config());
  const absl::Time deadline = driver.now + absl::Seconds(1);
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 40), .max_tokens = 5}).ok());
  ASSERT_TRUE(
      driver.Add({.id = 2, .prompt = TokensFrom(0, 40), .max_tokens = 5, .deadline = deadline, .after = 1})
          .ok());
  ASSERT_TRUE(driver.Add({.id = 3, .prompt = TokensFrom(0, 40), .max_tokens = 5, .after = 2}).ok());
  ASSERT_TRUE(driver.Add({.id = 4, .prompt = TokensFrom(0, 40), .max_tokens = 5, .after = 99}).ok());
  EXPECT_EQ(driver.Step(), "1[0+32] 4[0+32]");
  driver->Remove(1);
  EXPECT_EQ(driver.Step(), "2[32+8] 4[32+8]");
  driver.now = deadline;
  EXPECT_EQ(driver.Step(), "4[40+1]* 3[36+4]");
  driver.RunToEnd();
}

}  // namespace
}  // namespace tessera
