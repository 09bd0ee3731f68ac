// What a step costs on the host: Plan and Commit of a scheduler whose sequences all decode, against the number of
// running sequences and of waiting ones. Goals: under 100 us at 256 running sequences and 300 us at 1024, flat up to
// 100,000 waiting.
//
//   scheduler_bench [--context=N] [--steps=N]
//
// Prints medians of wall time over the steps of one run, and the tail in processor time of the thread, which a busy
// machine does not disturb. No peer and no ceiling: the figure is a budget.

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "server/scheduler/scheduler.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// Of this thread: other load on the machine does not count.
double CpuMicroseconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

double Microseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

double Quantile(std::vector<double>& values, double q) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(q * values.size()))];
}

struct Shape {
  int32_t running = 0;
  int32_t waiting = 0;
  bool with_deadlines = false;
  // One sequence in this many ends in each step, and a new one takes its place; 0: all decode on.
  int32_t ends_one_in = 0;
};

constexpr int32_t kBlockSize = 16;
constexpr int32_t kPrompt = 64;

class Bench {
 public:
  Bench(const Shape& shape, int32_t context)
      : shape_(shape),
        context_(context),
        scheduler_({.num_blocks = shape.running * (context / kBlockSize + 2),
                    .block_size = kBlockSize,
                    .max_running = shape.running,
                    .max_batched_tokens = std::max(2048, 2 * shape.running),
                    .max_prefill_chunk = 512}) {
    for (int32_t i = 0; i < shape.running; ++i) Add();
    for (int32_t i = 0; i < shape.waiting; ++i) Add();
    do {  // until all run and have their prompts behind them
      Step(/*let_end=*/false);
    } while (prefill_seen_);
    plan_.clear();
    commit_.clear();
    cpu_.clear();
  }

  void Run(int32_t steps) {
    for (int32_t i = 0; i < steps; ++i) Step(/*let_end=*/true);
    std::vector<double> totals(plan_.size());
    for (size_t i = 0; i < plan_.size(); ++i) totals[i] = plan_[i] + commit_[i];
    const double median = Quantile(totals, 0.5), p99 = Quantile(cpu_, 0.99), worst = cpu_.back();
    const std::string ends = shape_.ends_one_in > 0 ? "1 in " + std::to_string(shape_.ends_one_in) : "none";
    std::printf("%8d %8d %9s %12s %9.1f %9.1f %9.1f %9.1f %9.1f\n", shape_.running, shape_.waiting,
                shape_.with_deadlines ? "yes" : "no", ends.c_str(), Quantile(plan_, 0.5),
                Quantile(commit_, 0.5), median, p99, worst);
  }

 private:
  void Add() {
    SequenceSpec spec;
    spec.id = ++last_id_;
    spec.prompt.resize(kPrompt);
    for (int32_t i = 0; i < kPrompt; ++i) spec.prompt[i] = static_cast<int32_t>(spec.id * 131 + i * i);
    spec.max_tokens = context_ - kPrompt;
    if (shape_.with_deadlines)
      spec.deadline = now_ + absl::Hours(1) + absl::Milliseconds(last_id_ * 7919 % 100003);
    if (!scheduler_.Add(std::move(spec)).ok()) std::abort();
  }

  void Step(bool let_end) {
    const double cpu_begin = CpuMicroseconds();
    const Clock::time_point begin = Clock::now();
    const StepPlan& plan = scheduler_.Plan(now_);
    const Clock::time_point planned = Clock::now();
    const double cpu_planned = CpuMicroseconds();
    outcomes_.clear();
    prefill_seen_ = false;
    int32_t ended = 0;
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      const PlannedRow& row = plan.rows[i];
      prefill_seen_ |= row.prefill;
      RowOutcome outcome{.id = row.id};
      if (row.samples) outcome.token = static_cast<int32_t>(row.id + row.start);
      outcome.finished =
          row.samples && (row.start + 2 >= context_ ||
                          (let_end && shape_.ends_one_in > 0 && (step_ + i) % shape_.ends_one_in == 0));
      ended += outcome.finished;
      outcomes_.push_back(outcome);
    }
    const double cpu_before_commit = CpuMicroseconds();
    const Clock::time_point before_commit = Clock::now();
    scheduler_.Commit(outcomes_);
    const Clock::time_point end = Clock::now();
    cpu_.push_back(CpuMicroseconds() - cpu_before_commit + cpu_planned - cpu_begin);
    plan_.push_back(Microseconds(begin, planned));
    commit_.push_back(Microseconds(before_commit, end));
    for (; ended > 0; --ended) Add();
    ++step_;
    now_ += absl::Milliseconds(10);
  }

  const Shape shape_;
  const int32_t context_;
  Scheduler scheduler_;
  absl::Time now_ = absl::UnixEpoch();
  SequenceId last_id_ = 0;
  uint64_t step_ = 0;
  bool prefill_seen_ = false;
  std::vector<RowOutcome> outcomes_;
  std::vector<double> plan_, commit_, cpu_;
};

void RunAll(int32_t context, int32_t steps) {
  std::printf("microseconds a step; context up to %d tokens, blocks of %d\n", context, kBlockSize);
  std::printf("%8s %8s %9s %12s %9s %9s %9s %9s %9s\n", "running", "waiting", "deadlines", "ends", "plan",
              "commit", "step p50", "cpu p99", "cpu worst");
  for (const int32_t running : {1, 16, 64, 256, 1024}) Bench({running, 0}, context).Run(steps);
  for (const int32_t waiting : {0, 1000, 10000, 100000}) Bench({256, waiting, true}, context).Run(steps);
  for (const int32_t waiting : {0, 100000}) Bench({256, waiting, true, 100}, context).Run(steps);
  for (const int32_t waiting : {0, 100000}) Bench({1024, waiting, true, 100}, context).Run(steps);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  int32_t context = 4096, steps = 3000;
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    if ((absl::ConsumePrefix(&arg, "--context=") && absl::SimpleAtoi(arg, &context) && context > 128) ||
        (absl::ConsumePrefix(&arg, "--steps=") && absl::SimpleAtoi(arg, &steps) && steps > 0)) {
      continue;
    }
    std::fprintf(stderr, "usage: scheduler_bench [--context=N] [--steps=N]\n");
    return 2;
  }
  tessera::RunAll(context, steps);
  return 0;
}
