// Plans made while the step before them is at work.

#include "tests/unit/server/scheduler/scheduler_test_util.h"

namespace tessera {
namespace {

class SchedulerAheadTest : public testing::Test {
 protected:
  explicit SchedulerAheadTest(SchedulerConfig config = {.num_blocks = 8, .block_size = 4, .max_running = 4,
                                                        .max_batched_tokens = 16, .max_prefill_chunk = 6})
      : scheduler_(config) {}

  void Add(SequenceSpec spec) { ASSERT_TRUE(scheduler_.Add(std::move(spec)).ok()); }
  const StepPlan& Plan() {
    const StepPlan& plan = scheduler_.Plan(now_);
    Check();
    return plan;
  }
  std::string Rows() { return SchedulerDriver::Describe(Plan()); }
  void Commit(std::vector<RowOutcome> outcomes) {
    scheduler_.Commit(outcomes);
    Check();
  }
  void Check() {
    const absl::Status status = scheduler_.CheckInvariants();
    EXPECT_TRUE(status.ok()) << status;
  }
  std::vector<int32_t> Tokens(SequenceId id) {
    const absl::Span<const int32_t> tokens = scheduler_.Tokens(id);
    return {tokens.begin(), tokens.end()};
  }

  Scheduler scheduler_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(SchedulerAheadTest, ARowTakesTheTokenThatTheOneBeforeDraws) {
  Add({.id = 1, .prompt = {1, 2, 3}, .max_tokens = 3});
  Add({.id = 2, .prompt = {4, 5}, .max_tokens = 3});
  EXPECT_EQ(Rows(), "1[0+3] 2[0+2]");
  const StepPlan& ahead = Plan();
  EXPECT_EQ(SchedulerDriver::Describe(ahead), "1[3+1]* 2[2+1]*");
  EXPECT_EQ(ahead.rows[0].token_of, 0);
  EXPECT_EQ(ahead.rows[1].token_of, 1);
  EXPECT_EQ(ahead.rows[1].tokens[0], kUnknownToken);
  EXPECT_TRUE(ahead.rows[0].samples);
  EXPECT_EQ(Tokens(1), std::vector<int32_t>({1, 2, 3}));
  Commit({{.id = 1, .token = 11}, {.id = 2, .token = 21}});
  EXPECT_EQ(Tokens(1), std::vector<int32_t>({1, 2, 3, 11}));
  EXPECT_EQ(Rows(), "1[4+1]* 2[3+1]*");
  Commit({{.id = 1, .token = 12}, {.id = 2, .token = 22}});
  EXPECT_EQ(Rows(), "");  // both end with the tokens that are being drawn
  Commit({{.id = 1, .token = 13, .finished = true}, {.id = 2, .token = 23, .finished = true}});
  Commit({});
  EXPECT_TRUE(scheduler_.Idle());
  EXPECT_EQ(scheduler_.Stats().blocks_used, 0);
}

TEST_F(SchedulerAheadTest, PromptsGoOnChunkAfterChunk) {
  Add({.id = 1, .prompt = TokensFrom(0, 15), .max_tokens = 2});
  EXPECT_EQ(Rows(), "1[0+6]");
  EXPECT_EQ(Rows(), "1[6+6]");
  Commit({{.id = 1}});
  EXPECT_EQ(Rows(), "1[12+3]");
  Commit({{.id = 1}});
  const StepPlan& ahead = Plan();
  EXPECT_EQ(SchedulerDriver::Describe(ahead), "1[15+1]*");
  EXPECT_EQ(ahead.rows[0].token_of, 0);
}

TEST_F(SchedulerAheadTest, TheRowOfOneThatEndedIsVoidAndItsBlocksAreFree) {
  Add({.id = 1, .prompt = TokensFrom(0, 8), .max_tokens = 9});
  Add({.id = 2, .prompt = {1}, .max_tokens = 9});
  Plan();
  Plan();
  EXPECT_EQ(scheduler_.Stats().blocks_used, 3);
  Commit({{.id = 1}, {.id = 2, .token = 21}});  // 6 of 8
  EXPECT_EQ(Rows(), "1[8+1]* 2[2+1]*");
  EXPECT_EQ(scheduler_.Stats().blocks_used, 4);  // one more for the ninth token of 1
  Commit({{.id = 1, .token = 11, .finished = true}, {.id = 2, .token = 22}});
  EXPECT_EQ(scheduler_.Stats().blocks_used, 1);
  EXPECT_EQ(scheduler_.Stats().running, 1);
  EXPECT_EQ(scheduler_.Stats().blocks_cached, 2);  // the prompt's
}

TEST_F(SchedulerAheadTest, OutcomesOfVoidRowsAreIgnored) {
  Add({.id = 1, .prompt = {1, 2}, .max_tokens = 9});
  Add({.id = 2, .prompt = {3}, .max_tokens = 9});
  Plan();
  EXPECT_EQ(Rows(), "1[2+1]* 2[1+1]*");
  Commit({{.id = 1, .token = 11, .finished = true}, {.id = 2, .token = 21}});
  Add({.id = 1, .prompt = {7}, .max_tokens = 9});  // the id is free again
  EXPECT_EQ(Rows(), "2[2+1]* 1[0+1]");
  Commit({{.id = 1, .token = 12}, {.id = 2, .token = 22}});
  EXPECT_EQ(Tokens(1), std::vector<int32_t>({7}));
  EXPECT_EQ(Tokens(2), std::vector<int32_t>({3, 21, 22}));
}

TEST_F(SchedulerAheadTest, OneThatIsRemovedLeavesVoidRows) {
  Add({.id = 1, .prompt = {1, 2}, .max_tokens = 9});
  Add({.id = 2, .prompt = {3}, .max_tokens = 9});
  Plan();
  Plan();
  EXPECT_TRUE(scheduler_.Remove(1));
  Check();
  EXPECT_EQ(scheduler_.Stats().blocks_used, 1);
  Commit({{.id = 2, .token = 21}});
  Commit({{.id = 1, .token = 12}, {.id = 2, .token = 22}});
  EXPECT_EQ(Tokens(2), std::vector<int32_t>({3, 21, 22}));
}

TEST_F(SchedulerAheadTest, ATokenThatComesLateHasItsRowPlannedAgain) {
  Add({.id = 1, .prompt = {1, 2}, .max_tokens = 9});
  Add({.id = 2, .prompt = {3}, .max_tokens = 9});
  Plan();
  EXPECT_EQ(Rows(), "1[2+1]* 2[1+1]*");
  Commit({{.id = 1, .token = 11, .late = true}, {.id = 2, .token = 21}});
  const StepPlan& again = Plan();
  EXPECT_EQ(SchedulerDriver::Describe(again), "1[2+1]* 2[2+1]*");
  EXPECT_EQ(again.rows[0].token_of, -1);
  EXPECT_EQ(again.rows[0].tokens[0], 11);
  EXPECT_EQ(again.rows[1].token_of, 1);
  Commit({{.id = 2, .token = 22}});
  Commit({{.id = 1, .token = 12}, {.id = 2, .token = 23}});
  EXPECT_EQ(Tokens(1), std::vector<int32_t>({1, 2, 11, 12}));
}

TEST_F(SchedulerAheadTest, NothingIsPlannedAheadOfOneThatMustNotRunAhead) {
  Add({.id = 1, .prompt = TokensFrom(0, 8), .max_tokens = 9, .runs_ahead = false});
  Add({.id = 2, .prompt = {3}, .max_tokens = 9});
  EXPECT_EQ(Rows(), "1[0+6] 2[0+1]");
  EXPECT_EQ(Rows(), "2[1+1]* 1[6+2]");  // a prompt is known
  Commit({{.id = 1}, {.id = 2, .token = 21}});
  EXPECT_EQ(Rows(), "");
  Commit({{.id = 1, .token = 11}, {.id = 2, .token = 22}});
  Commit({});
  EXPECT_EQ(Rows(), "1[8+1]* 2[2+1]*");
}

TEST_F(SchedulerAheadTest, NobodyIsPreemptedAheadOfAStepAtWork) {
  Add({.id = 1, .prompt = TokensFrom(0, 15), .max_tokens = 9});
  Add({.id = 2, .prompt = TokensFrom(100, 6), .max_tokens = 20});
  int32_t empty = 0;
  const StepPlan* plan = &Plan();
  for (int32_t step = 0; step < 40 && plan->preempted.empty(); ++step) {
    const StepPlan& ahead = Plan();
    EXPECT_TRUE(ahead.preempted.empty());
    std::vector<RowOutcome> outcomes;
    for (const PlannedRow& row : plan->rows) outcomes.push_back({.id = row.id, .token = row.samples ? 7 : -1});
    for (RowOutcome& outcome : outcomes) {
      const auto size = scheduler_.Tokens(outcome.id).size();
      outcome.finished = outcome.token >= 0 && size + 1 == (outcome.id == 1 ? 24u : 26u);
    }
    Commit(outcomes);
    plan = &ahead;
    if (!ahead.rows.empty()) continue;
    ++empty;
    Commit({});
    if (scheduler_.Idle()) break;
    plan = &Plan();
  }
  EXPECT_GT(empty, 0);
  EXPECT_EQ(plan->preempted, std::vector<SequenceId>({2}));
}

TEST_F(SchedulerAheadTest, DeadlinesEndRowsAtWork) {
  Add({.id = 1, .prompt = {1, 2}, .max_tokens = 9, .deadline = now_ + absl::Seconds(1)});
  Add({.id = 2, .prompt = {3}, .max_tokens = 9});
  Plan();
  now_ += absl::Seconds(2);
  const StepPlan& ahead = Plan();
  EXPECT_EQ(ahead.expired, std::vector<SequenceId>({1}));
  EXPECT_EQ(SchedulerDriver::Describe(ahead), "2[1+1]*");
  EXPECT_EQ(ahead.rows[0].token_of, 1);
  Commit({{.id = 1, .token = 11}, {.id = 2, .token = 21}});
  EXPECT_EQ(Tokens(2), std::vector<int32_t>({3, 21}));
}

}  // namespace
}  // namespace tessera
