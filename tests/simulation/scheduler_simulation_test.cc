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
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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

std::string replay;  // how to run the current seed again

void SayHowToReplay(int signal) {
  // The process is dying: a write is all that is safe.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, replay.data(), replay.size());
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

absl::Status RunSeed(Simulation& simulation) {
  try {
    return simulation.Run(kStepsOfASeed);
  } catch (const std::exception& error) {  // a span's bounds, for example
    return absl::InternalError(error.what());
  }
}

TEST(SchedulerSimulation, RandomTraces) {
  Totals totals;
  int64_t seeds = 0;
  for (uint64_t seed = options.first_seed; totals.steps < options.steps; ++seed, ++seeds) {
    if (options.only_seed != 0) seed = options.only_seed;
    Simulation simulation(seed, options.trace);
    replay = absl::StrCat("replay: ", options.program, " --seed=", seed, " --trace\n");
    const absl::Status status = RunSeed(simulation);
    totals += simulation.totals();
    ASSERT_TRUE(status.ok()) << "at step " << simulation.totals().steps << ": " << status << "\n" << replay;
    if (options.only_seed != 0) break;
  }
  absl::PrintF(
      "%d steps of %d seeds: %d sequences, of these %d completed, %d cancelled, %d expired, %d failed;\n",
      totals.steps, seeds, totals.sequences, totals.completed, totals.cancelled, totals.expired,
      totals.failed);
  absl::PrintF("%d refused, %d preemptions, %d tokens computed, %d from the prefix cache, %d times drained\n",
               totals.refused, totals.preemptions, totals.computed_tokens, totals.cached_tokens,
               totals.drains);
  absl::PrintF("%d steps planned ahead, %d rows void\n", totals.ahead, totals.void_rows);
  if (options.only_seed != 0 || options.steps < 100'000) return;
  // The traces reach what they are meant to reach.
  EXPECT_GT(totals.completed, totals.steps / 50);
  EXPECT_GT(totals.preemptions, totals.steps / 200);
  EXPECT_GT(totals.cached_tokens, totals.computed_tokens / 20);
  EXPECT_GT(totals.cancelled, totals.steps / 500);
  EXPECT_GT(totals.expired, totals.steps / 500);
  EXPECT_GT(totals.failed, totals.steps / 500);
  EXPECT_GT(totals.refused, 0);
  EXPECT_GT(totals.ahead, totals.steps / 4);
  EXPECT_GT(totals.void_rows, totals.steps / 50);
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
  for (const int signal : {SIGSEGV, SIGABRT, SIGFPE})
    std::signal(signal, tessera::simulation::SayHowToReplay);
  return RUN_ALL_TESTS();
}
