#ifndef TESSERA_TESTS_UNIT_SERVER_SCHEDULER_SCHEDULER_TEST_UTIL_H_
#define TESSERA_TESTS_UNIT_SERVER_SCHEDULER_SCHEDULER_TEST_UTIL_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/scheduler/scheduler.h"

namespace tessera {

// `count` tokens that follow each other from `first`.
inline std::vector<int32_t> TokensFrom(int32_t first, int32_t count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A scheduler and the caller that drives it: ends a sequence at its max_tokens or with its prompt, and checks the
// invariants after each step.
class SchedulerDriver {
 public:
  explicit SchedulerDriver(const SchedulerConfig& config) : scheduler_(config) {}

  Scheduler& operator*() { return scheduler_; }
  Scheduler* operator->() { return &scheduler_; }

  absl::Status Add(SequenceSpec spec) {
    absl::Status status = scheduler_.Add(spec);
    if (status.ok()) limits_[spec.id] = {static_cast<int32_t>(spec.prompt.size()), spec.max_tokens};
    return status;
  }

  const StepPlan& Plan() { return plan_ = &scheduler_.Plan(now), *plan_; }

  std::vector<RowOutcome> Outcomes() {
    std::vector<RowOutcome> outcomes;
    for (const PlannedRow& row : plan_->rows) {
      const auto [prompt, max_tokens] = limits_[row.id];
      const int32_t end = row.start + static_cast<int32_t>(row.tokens.size());
      RowOutcome outcome{.id = row.id};
      if (row.samples) outcome.token = next_token_++;
      outcome.finished = max_tokens == 0 ? end == prompt : row.samples && end + 1 - prompt >= max_tokens;
      outcome.computed = true;
      outcomes.push_back(outcome);
    }
    return outcomes;
  }

  // A whole step. What it planned, as text: "1[0+4] 2[7+1]*" for a prefill row and a decode row.
  std::string Step() {
    std::string text = Describe(Plan());
    scheduler_.Commit(Outcomes());
    const absl::Status status = scheduler_.CheckInvariants();
    EXPECT_TRUE(status.ok()) << status;
    return text;
  }

  static std::string Describe(const StepPlan& plan) {
    std::string text;
    for (const PlannedRow& row : plan.rows) {
      absl::StrAppend(&text, text.empty() ? "" : " ", row.id, "[", row.start, "+", row.tokens.size(), "]",
                      row.prefill ? "" : "*");
    }
    return text;
  }

  // Steps until nothing is live; fails after `limit`.
  int32_t RunToEnd(int32_t limit = 10000) {
    int32_t steps = 0;
    while (!scheduler_.Idle() && steps < limit) {
      Step();
      ++steps;
    }
    EXPECT_TRUE(scheduler_.Idle()) << "not idle after " << limit << " steps";
    const SchedulerStats stats = scheduler_.Stats();
    EXPECT_EQ(stats.blocks_used, 0);
    EXPECT_EQ(stats.blocks_cached + stats.blocks_free, stats.blocks_total);
    return steps;
  }

  const StepPlan& plan() const { return *plan_; }

  absl::Time now = absl::UnixEpoch();

 private:
  Scheduler scheduler_;
  std::map<SequenceId, std::pair<int32_t, int32_t>> limits_;
  int32_t next_token_ = 1000000;
  const StepPlan* plan_ = nullptr;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_UNIT_SERVER_SCHEDULER_SCHEDULER_TEST_UTIL_H_
