#ifndef TESSERA_TESTS_SIMULATION_SIMULATION_H_
#define TESSERA_TESTS_SIMULATION_SIMULATION_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/scheduler/scheduler.h"
#include "tests/simulation/model_backend.h"
#include "tests/simulation/random.h"
#include "tests/simulation/workload.h"

namespace tessera::simulation {

struct Totals {
  int64_t steps = 0;
  int64_t sequences = 0;
  int64_t completed = 0;  // ran to their own end
  int64_t cancelled = 0;
  int64_t expired = 0;
  int64_t failed = 0;
  int64_t refused = 0;
  int64_t preemptions = 0;
  int64_t computed_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t drains = 0;
  int64_t ahead = 0;  // steps that were planned while the one before was at work
  int64_t void_rows = 0;

  Totals& operator+=(const Totals& other);
};

// One seed: a scheduler of random shape under a random workload, with a model backend instead of a device.
// Keeps its own, independent account of every sequence and holds each plan against it.
class Simulation {
 public:
  explicit Simulation(uint64_t seed, bool trace = false);

  // At least `steps` steps, in rounds that end with nothing live. An error says which expectation was broken,
  // where.
  absl::Status Run(int64_t steps);

  const Totals& totals() const { return totals_; }

 private:
  // A sequence as its client knows it.
  struct Client {
    SequenceId id = 0;
    std::vector<int32_t> tokens;
    std::vector<uint64_t> prefixes;  // hash after each token
    int32_t prompt_length = 0;
    int32_t max_tokens = 0;
    int32_t priority = 0;
    uint64_t arrival = 0;
    uint64_t seed = 0;
    int32_t salt = 0;
    bool reads_cache = true;
    absl::Time deadline = absl::InfiniteFuture();
    SequenceId leader = 0;  // not to be started before this one's prompt is computed
    bool running = false;
    bool ran_before = false;
    bool runs_ahead = true;
    int32_t computed = 0;
    int32_t planned = 0;  // after these, by plans that are not committed

    int32_t size() const { return static_cast<int32_t>(tokens.size()); }
    int32_t next() const { return computed + planned; }
    // All is planned, and a token drawn that is not the last.
    bool expects_token() const { return next() == size() && size() + 1 - prompt_length < max_tokens; }
    // The size that a plan sees.
    int32_t size_to_plan() const { return size() + (expects_token() ? 1 : 0); }
    bool decoding() const { return next() >= prompt_length && size_to_plan() - next() == 1; }
  };
  // A step that was planned, with copies of what it needs, as a device gets them.
  struct Step {
    struct Row {
      PlannedRow planned;  // its spans are those below
      std::vector<int32_t> tokens, block_table;
      uint64_t arrival = 0;  // of its client: the id may be another's by now
      bool is_void = false;
      int32_t drawn = 0;  // what the device draws, once it ran
    };
    std::vector<Row> rows;
  };
  static bool ServedBefore(const Client& a, const Client& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.arrival < b.arrival;
  }

  absl::Status RunUntilIdle();
  absl::Status Arrive();
  absl::Status Add(SequenceSpec spec, int32_t salt, uint64_t seed);
  absl::Status CancelOne();
  absl::Status Advance();
  absl::Status PlanStep(Step* step);
  absl::Status RunStep(Step* step);
  absl::Status CheckExpired(const StepPlan& plan);
  absl::Status CheckPreemptedAndAdmitted(const StepPlan& plan);
  absl::Status CheckOrder(const StepPlan& plan);
  absl::Status CheckRows(const StepPlan& plan);
  absl::Status CheckShares(const StepPlan& plan);
  absl::Status CheckNothingAhead();
  absl::Status ComputeRow(Step::Row* row, bool device_fault, std::vector<RowOutcome>* outcomes);
  absl::Status CheckAfterCommit();
  absl::Status CheckOutput(const Client& client);
  void Draw(Client& client, uint64_t prefix, RowOutcome* outcome);
  Client* Owner(const Step::Row& row);
  void Append(Client& client, int32_t token);
  void Gone(SequenceId id);
  void ReleaseDependents(SequenceId leader);
  void Trace(const StepPlan& plan);

  Random random_;
  const Profile profile_;
  Workload workload_;
  Scheduler scheduler_;
  ModelBackend backend_;
  const bool trace_;
  absl::Time now_ = absl::UnixEpoch();
  std::map<SequenceId, Client> clients_;  // the live ones
  // Planned and not committed: the step at work, and the one after it.
  std::optional<Step> at_work_, ahead_;
  std::vector<int32_t> drawn_;  // by the rows of the last step that ran
  std::vector<SequenceId> dead_;
  SequenceId last_id_ = 0;
  uint64_t last_arrival_ = 0;
  bool admitted_last_step_ = false;
  Totals totals_;
};

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_SIMULATION_SIMULATION_H_
