// Admission, chunked prefill, decode first, limits, ends.

#include "tests/unit/server/scheduler/scheduler_test_util.h"

namespace tessera {
namespace {

SchedulerConfig Config() {
  return {
      .num_blocks = 64, .block_size = 4, .max_running = 8, .max_batched_tokens = 16, .max_prefill_chunk = 8};
}

TEST(SchedulerBatching, APromptIsComputedInChunksThenDecoded) {
  SchedulerDriver driver(Config());
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 19), .max_tokens = 3}).ok());
  EXPECT_EQ(driver.Step(), "1[0+8]");
  EXPECT_EQ(driver.Step(), "1[8+8]");
  driver.Plan();
  ASSERT_EQ(driver.plan().rows.size(), 1);
  EXPECT_TRUE(driver.plan().rows[0].samples);
  EXPECT_TRUE(driver.plan().rows[0].prefill);
  EXPECT_THAT(driver.plan().rows[0].tokens, testing::ElementsAre(16, 17, 18));
  EXPECT_EQ(driver.plan().rows[0].block_table.size(), 5);
  driver->Commit(driver.Outcomes());
  EXPECT_EQ(driver.Step(), "1[19+1]*");
  EXPECT_EQ(driver->Tokens(1).size(), 21);
  EXPECT_EQ(driver.Step(), "1[20+1]*");
  EXPECT_TRUE(driver->Idle());
  EXPECT_EQ(driver.Step(), "");
}

TEST(SchedulerBatching, DecodeNeverWaitsForPrefill) {
  SchedulerDriver driver(Config());
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = {1}, .max_tokens = 20}).ok());
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = {2}, .max_tokens = 20}).ok());
  EXPECT_EQ(driver.Step(), "1[0+1] 2[0+1]");
  // Of higher priority, and long; the decodes keep their place all the same.
  ASSERT_TRUE(driver.Add({.id = 3, .prompt = TokensFrom(0, 40), .max_tokens = 1, .priority = 9}).ok());
  ASSERT_TRUE(driver.Add({.id = 4, .prompt = TokensFrom(100, 40), .max_tokens = 1}).ok());
  EXPECT_EQ(driver.Step(), "1[1+1]* 2[1+1]* 3[0+8] 4[0+6]");
  EXPECT_EQ(driver.Step(), "1[2+1]* 2[2+1]* 3[8+8] 4[6+6]");
}

TEST(SchedulerBatching, PrefillsShareTheBudgetInServingOrder) {
  SchedulerDriver driver(Config());
  for (SequenceId id = 1; id <= 4; ++id) {
    ASSERT_TRUE(
        driver.Add({.id = id, .prompt = TokensFrom(100 * id, 12), .max_tokens = 1, .priority = id == 3})
            .ok());
  }
  EXPECT_EQ(driver.Step(), "3[0+8] 1[0+8]");
  EXPECT_EQ(driver.Step(), "3[8+4] 1[8+4] 2[0+8]");
  EXPECT_EQ(driver.Step(), "2[8+4] 4[0+8]");
  EXPECT_EQ(driver.Step(), "4[8+4]");
  EXPECT_TRUE(driver->Idle());
}

TEST(SchedulerBatching, NoMoreThanMaxRunning) {
  SchedulerConfig config = Config();
  config.max_running = 2;
  SchedulerDriver driver(config);
  for (SequenceId id = 1; id <= 3; ++id)
    ASSERT_TRUE(driver.Add({.id = id, .prompt = {1}, .max_tokens = 2}).ok());
  EXPECT_EQ(driver.Step(), "1[0+1] 2[0+1]");
  EXPECT_EQ(driver->Stats().running, 2);
  EXPECT_EQ(driver->Stats().waiting, 1);
  EXPECT_EQ(driver.Step(), "1[1+1]* 2[1+1]*");
  EXPECT_EQ(driver.Step(), "3[0+1]");
}

TEST(SchedulerBatching, EveryRunningSequenceHasATokenInEachStep) {
  SchedulerConfig config = Config();
  config.max_running = 100;  // more than tokens in a step
  SchedulerDriver driver(config);
  for (SequenceId id = 1; id <= 40; ++id)
    ASSERT_TRUE(driver.Add({.id = id, .prompt = {1}, .max_tokens = 3}).ok());
  driver.Step();
  EXPECT_EQ(driver->Stats().running, 16);
  driver.Step();
  EXPECT_EQ(driver.plan().rows.size(), 16);
  driver.RunToEnd();
}

TEST(SchedulerBatching, AnEmbeddingDrawsNothing) {
  SchedulerDriver driver(Config());
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 10), .max_tokens = 0}).ok());
  driver.Step();
  driver.Plan();
  ASSERT_EQ(driver.plan().rows.size(), 1);
  EXPECT_FALSE(driver.plan().rows[0].samples);
  driver->Commit(driver.Outcomes());
  EXPECT_TRUE(driver->Idle());
  EXPECT_EQ(driver->Stats().blocks_cached, 2);
}

TEST(SchedulerBatching, WhatCanNeverFitIsRefusedWithTheNumbers) {
  SchedulerConfig config = Config();
  config.num_blocks = 4;
  config.max_context = 20;
  Scheduler scheduler(config);
  EXPECT_TRUE(scheduler.CheckFits(10, 7).ok());  // the last token is never stored
  EXPECT_EQ(
      scheduler.CheckFits(10, 8).message(),
      "a prompt of 10 tokens and max_tokens 8 need 5 blocks of the key-value cache, which has 4 of 4 tokens");
  EXPECT_EQ(scheduler.CheckFits(10, 11).message(),
            "a prompt of 10 tokens and max_tokens 11 are more than the context of 20 tokens");
  for (const auto& [prompt, max_tokens] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1}, {1, -1}, {INT64_MAX, 1}, {1, INT64_MAX}, {INT64_MAX, INT64_MAX}, {17, 0}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(scheduler.CheckFits(prompt, max_tokens)))
        << prompt << " " << max_tokens;
  }
  EXPECT_TRUE(
      absl::IsInvalidArgument(scheduler.Add({.id = 1, .prompt = TokensFrom(0, 10), .max_tokens = 8})));
  EXPECT_TRUE(absl::IsInvalidArgument(scheduler.Add({.id = 1, .prompt = {}, .max_tokens = 8})));
  EXPECT_TRUE(absl::IsInvalidArgument(scheduler.Add({.id = 0, .prompt = {1}, .max_tokens = 1})));
  EXPECT_TRUE(scheduler.Idle());
  ASSERT_TRUE(scheduler.Add({.id = 1, .prompt = {1}, .max_tokens = 1}).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(scheduler.Add({.id = 1, .prompt = {1}, .max_tokens = 1})));
  EXPECT_TRUE(scheduler.CheckInvariants().ok());
}

TEST(SchedulerBatching, ACacheWithoutBlocksRefusesEverything) {
  Scheduler scheduler(SchedulerConfig{});
  EXPECT_TRUE(absl::IsInvalidArgument(scheduler.Add({.id = 1, .prompt = {1}, .max_tokens = 1})));
  EXPECT_TRUE(scheduler.Plan(absl::UnixEpoch()).rows.empty());
  scheduler.Commit({});
  EXPECT_TRUE(scheduler.CheckInvariants().ok());
}

TEST(SchedulerBatching, RemoveWorksInEveryState) {
  SchedulerConfig config = Config();
  config.max_running = 2;
  SchedulerDriver driver(config);
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = TokensFrom(0, 9), .max_tokens = 9}).ok());
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = TokensFrom(0, 40), .max_tokens = 9}).ok());
  ASSERT_TRUE(driver.Add({.id = 3, .prompt = {1}, .max_tokens = 9}).ok());
  ASSERT_TRUE(driver.Add({.id = 4, .prompt = {1}, .max_tokens = 9, .after = 3}).ok());
  driver.Step();
  driver.Step();
  for (const SequenceId id : {4, 1, 3, 2}) {  // blocked, decoding, waiting, prefilling
    EXPECT_TRUE(driver->Remove(id));
    EXPECT_FALSE(driver->Remove(id));
    EXPECT_TRUE(driver->Tokens(id).empty());
    EXPECT_TRUE(driver->CheckInvariants().ok());
  }
  EXPECT_TRUE(driver->Idle());
  EXPECT_EQ(driver->Stats().blocks_used, 0);
}

TEST(SchedulerBatching, RemoveInAnOpenPlanTakesEffectAtOnce) {
  SchedulerDriver driver(Config());
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = {1, 2}, .max_tokens = 9}).ok());
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = {1, 2}, .max_tokens = 1}).ok());
  driver.Plan();
  EXPECT_TRUE(driver->Remove(1));
  EXPECT_TRUE(driver->Remove(2));  // ends in this step anyway
  EXPECT_TRUE(driver->Idle());
  EXPECT_EQ(driver->Stats().blocks_used, 0);
  EXPECT_EQ(driver.plan().rows[0].tokens.size(), 2);
  driver->Commit(driver.Outcomes());
  EXPECT_TRUE(driver->Idle());
  EXPECT_TRUE(driver->CheckInvariants().ok());
}

TEST(SchedulerBatching, DeadlinesEndRunningWaitingAndBlockedSequences) {
  SchedulerConfig config = Config();
  config.max_running = 1;
  SchedulerDriver driver(config);
  const absl::Time soon = driver.now + absl::Seconds(1), later = driver.now + absl::Seconds(2);
  ASSERT_TRUE(driver.Add({.id = 1, .prompt = {1}, .max_tokens = 50, .deadline = later}).ok());
  ASSERT_TRUE(driver.Add({.id = 2, .prompt = {1}, .max_tokens = 2, .deadline = soon}).ok());
  ASSERT_TRUE(driver.Add({.id = 3, .prompt = {1}, .max_tokens = 2, .deadline = soon, .after = 2}).ok());
  ASSERT_TRUE(driver.Add({.id = 4, .prompt = {1}, .max_tokens = 2, .after = 2}).ok());
  EXPECT_EQ(driver->NextDeadline(), soon);
  driver.Step();
  EXPECT_TRUE(driver.plan().expired.empty());
  driver.now = soon;
  EXPECT_EQ(driver.Step(), "1[1+1]*");
  EXPECT_THAT(driver.plan().expired, testing::ElementsAre(2, 3));
  EXPECT_EQ(driver->NextDeadline(), later);
  driver.now = later;
  EXPECT_EQ(driver.Step(), "4[0+1]");
  EXPECT_THAT(driver.plan().expired, testing::ElementsAre(1));
  EXPECT_EQ(driver->NextDeadline(), absl::InfiniteFuture());
  driver.RunToEnd();
}

TEST(SchedulerBatching, SameCallsGiveTheSamePlans) {
  std::string runs[2];
  for (std::string& run : runs) {
    SchedulerConfig config = Config();
    config.num_blocks = 12;
    SchedulerDriver driver(config);
    for (SequenceId id = 1; id <= 9; ++id) {
      ASSERT_TRUE(driver
                      .Add({.id = id,
                            .prompt = TokensFrom(id % 3, 5 + id),
                            .max_tokens = 9,
                            .priority = static_cast<int32_t>(id % 2)})
                      .ok());
    }
    while (!driver->Idle()) absl::StrAppend(&run, driver.Step(), "\n");
  }
  EXPECT_EQ(runs[0], runs[1]);
}

}  // namespace
}  // namespace tessera
