// A caller that breaks the rules does no harm, and is told.

#include "tests/unit/server/scheduler/scheduler_test_util.h"

namespace tessera {
namespace {

SchedulerConfig Config() { return {.num_blocks = 8, .block_size = 4, .max_running = 4}; }

class SchedulerMisuseTest : public testing::Test {
 protected:
  SchedulerMisuseTest() : scheduler_(Config()) {}

  void Add(SequenceId id, int32_t prompt, int32_t max_tokens) {
    ASSERT_TRUE(scheduler_.Add({.id = id, .prompt = TokensFrom(0, prompt), .max_tokens = max_tokens}).ok());
  }
  const StepPlan& Plan() { return scheduler_.Plan(absl::UnixEpoch()); }
  std::string Misuse() { return std::string(scheduler_.CheckInvariants().message()); }

  Scheduler scheduler_;
};

TEST_F(SchedulerMisuseTest, ASequencePastItsEndIsEnded) {
  Add(1, 4, 2);
  Plan();
  scheduler_.Commit({{.id = 1, .token = 7}});
  EXPECT_EQ(Misuse(), "");
  Plan();
  scheduler_.Commit({{.id = 1, .token = 8}});
  EXPECT_EQ(Misuse(), "misuse: sequence 1 is at its end but was not marked finished");
  EXPECT_TRUE(scheduler_.Idle());
  EXPECT_EQ(scheduler_.Stats().blocks_used, 0);
}

TEST_F(SchedulerMisuseTest, AnEmbeddingThatIsDoneIsEnded) {
  Add(1, 4, 0);
  Plan();
  scheduler_.Commit({{.id = 1}});
  EXPECT_EQ(Misuse(), "misuse: sequence 1 is at its end but was not marked finished");
  EXPECT_TRUE(scheduler_.Idle());
}

TEST_F(SchedulerMisuseTest, ARowWithoutOutcomeIsPlannedAgain) {
  Add(1, 4, 2);
  EXPECT_EQ(SchedulerDriver::Describe(Plan()), "1[0+4]");
  scheduler_.Commit({});
  EXPECT_EQ(Misuse(), "misuse: no outcome for the row of sequence 1");
  EXPECT_EQ(SchedulerDriver::Describe(Plan()), "1[0+4]");
  scheduler_.Commit({{.id = 1}});  // no token, goes on
  EXPECT_EQ(SchedulerDriver::Describe(Plan()), "1[0+4]");
}

TEST_F(SchedulerMisuseTest, OutcomesForNobodyAreIgnored) {
  Add(1, 4, 5);
  Plan();
  scheduler_.Commit({{.id = 1, .token = 7}, {.id = 1, .token = 8}, {.id = 99, .token = 9}});
  EXPECT_EQ(Misuse(), "misuse: an outcome for sequence 1, which has no row left");
  EXPECT_EQ(scheduler_.Tokens(1).size(), 5);
}

TEST_F(SchedulerMisuseTest, ATokenWhereNoneIsDrawnIsIgnored) {
  Add(1, 4, 0);
  Plan();
  scheduler_.Commit({{.id = 1, .token = 7, .finished = true}});
  EXPECT_EQ(Misuse(), "misuse: a token for sequence 1, whose row draws none");
}

TEST_F(SchedulerMisuseTest, AtMostTwoPlansAreOpen) {
  Add(1, 4, 5);
  Plan();
  EXPECT_EQ(SchedulerDriver::Describe(Plan()), "1[4+1]*");
  EXPECT_EQ(Misuse(), "");
  EXPECT_EQ(SchedulerDriver::Describe(Plan()), "1[0+4]");
  EXPECT_EQ(Misuse(), "misuse: Plan without Commit of the plans before");
  scheduler_.Commit({{.id = 1, .token = 7}});  // of the second, whose row went with the first
  EXPECT_EQ(scheduler_.Tokens(1).size(), 4);
  scheduler_.Commit({{.id = 1, .token = 7}});
  scheduler_.Commit({{.id = 1, .token = 7}});
  EXPECT_EQ(scheduler_.Tokens(1).size(), 5);
}

TEST_F(SchedulerMisuseTest, ARowWithoutOutcomeTakesTheNextWithIt) {
  Add(1, 4, 5);
  Plan();
  Plan();
  scheduler_.Commit({{.id = 1}});  // no token, goes on
  EXPECT_EQ(Misuse(), "misuse: no token for sequence 1, which goes on");
  scheduler_.Commit({});
  EXPECT_EQ(SchedulerDriver::Describe(Plan()), "1[0+4]");
}

TEST_F(SchedulerMisuseTest, UnknownIdsAreHarmless) {
  EXPECT_FALSE(scheduler_.Remove(5));
  EXPECT_TRUE(scheduler_.Tokens(5).empty());
  EXPECT_EQ(Misuse(), "");
}

}  // namespace
}  // namespace tessera
