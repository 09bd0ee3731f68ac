// Random traces against the scheduler, each from a seed.
//
//   scheduler_simulation_test                  200,000 steps
//   scheduler_simulation_test --long           10,000,000 steps
//   scheduler_simulation_test --steps=N --first-seed=S
//   scheduler_simulation_test --seed=S [--trace]   one seed again, as far as a failure of it got
//
// The environment variables TESSERA_SIM_STEPS and TESSERA_SIM_FIRST_SEED do the same where no flags can be
// given.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "tests/simulation/simulation.h"

namespace tessera::simulation {
namespace {

constexpr int64_t kStepsOfASeed = 500;

struct Options {
  int64_t steps = 200'000;
  uint64_t first_seed = 1;
  uint64_t only_seed = 0;
  bool trace = false;
  std::string program;
};
Options options;

TEST(SchedulerSimulation, RandomTraces) {
  Totals totals;
  int64_t seeds = 0;
  for (uint64_t seed = options.first_seed; totals.steps < options.steps; ++seed, ++seeds) {
    if (options.only_seed != 0) seed = options.only_seed;
    Simulation simulation(seed, options.trace);
    const absl::Status status = simulation.Run(kStepsOfASeed);
    totals += simulation.totals();
    ASSERT_TRUE(status.ok()) << "at step " << simulation.totals().steps << ": " << status
                             << "\nreplay: " << options.program << " --seed=" << seed << " --trace";
    if (options.only_seed != 0) break;
  }
  std::printf(
      "%lld steps of %lld seeds: %lld sequences, of these %lld completed, %lld cancelled, %lld expired, %lld "
      "failed;\n"
      "%lld refused, %lld preemptions, %lld tokens computed, %lld from the prefix cache, %lld times "
      "drained\n",
      static_cast<long long>(totals.steps), static_cast<long long>(seeds),
      static_cast<long long>(totals.sequences), static_cast<long long>(totals.completed),
      static_cast<long long>(totals.cancelled), static_cast<long long>(totals.expired),
      static_cast<long long>(totals.failed), static_cast<long long>(totals.refused),
      static_cast<long long>(totals.preemptions), static_cast<long long>(totals.computed_tokens),
      static_cast<long long>(totals.cached_tokens), static_cast<long long>(totals.drains));
  if (options.only_seed != 0 || options.steps < 100'000) return;
  // The traces reach what they are meant to reach.
  EXPECT_GT(totals.completed, totals.steps / 50);
  EXPECT_GT(totals.preemptions, totals.steps / 100);
  EXPECT_GT(totals.cached_tokens, totals.computed_tokens / 20);
  EXPECT_GT(totals.cancelled, totals.steps / 500);
  EXPECT_GT(totals.expired, totals.steps / 500);
  EXPECT_GT(totals.failed, totals.steps / 500);
  EXPECT_GT(totals.refused, 0);
}

bool Number(absl::string_view arg, absl::string_view flag, int64_t* value) {
  return absl::ConsumePrefix(&arg, flag) && absl::SimpleAtoi(arg, value);
}

}  // namespace
}  // namespace tessera::simulation

int main(int argc, char** argv) {
  using tessera::simulation::Number;
  using tessera::simulation::options;
  testing::InitGoogleTest(&argc, argv);
  options.program = argv[0];
  int64_t value = 0;
  if (const char* steps = std::getenv("TESSERA_SIM_STEPS"); steps != nullptr && Number(steps, "", &value)) {
    options.steps = value;
  }
  if (const char* seed = std::getenv("TESSERA_SIM_FIRST_SEED"); seed != nullptr && Number(seed, "", &value)) {
    options.first_seed = static_cast<uint64_t>(value);
  }
  for (int i = 1; i < argc; ++i) {
    const absl::string_view arg = argv[i];
    if (arg == "--long") {
      options.steps = 10'000'000;
    } else if (arg == "--trace") {
      options.trace = true;
    } else if (Number(arg, "--steps=", &value)) {
      options.steps = value;
    } else if (Number(arg, "--first-seed=", &value)) {
      options.first_seed = static_cast<uint64_t>(value);
    } else if (Number(arg, "--seed=", &value)) {
      options.only_seed = static_cast<uint64_t>(value);
    } else {
      std::fprintf(stderr, "unknown argument %s; known: --long --steps=N --first-seed=S --seed=S --trace\n",
                   argv[i]);
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
