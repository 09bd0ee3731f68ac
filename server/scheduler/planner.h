#ifndef TESSERA_SERVER_SCHEDULER_PLANNER_H_
#define TESSERA_SERVER_SCHEDULER_PLANNER_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/scheduler/scheduler.h"
#include "server/scheduler/scheduler_state.h"
#include "server/scheduler/sequence.h"

namespace tessera {

// Decides what one step computes. First everything is decided (who expires, who runs, how many tokens each),
// then the rows are written: whoever is preempted half-way leaves no trace in the plan.
//
// The cost of a plan is in what runs: what waits is looked at one by one from the front, until one can't be
// admitted.
class Planner {
 public:
  explicit Planner(SchedulerState* state);

  // The plan becomes the latest of the open ones; there must be room for it.
  const StepPlan& Plan(absl::Time now);

 private:
  void Expire(absl::Time now);
  // Whether rows can be planned while another plan is open.
  bool CanPlanAhead();
  void PlanDecodes();
  void PlanPrefills();
  bool TryAdmit(Sequence* candidate);
  // How many of the last running sequences have to be preempted before the candidate can be admitted; -1 if
  // it can't.
  int32_t VictimsFor(const Sequence& candidate);
  void PreemptLast();
  void PlanChunk(Sequence* sequence);
  void WriteRows();
  void WriteRow(Sequence* sequence);

  SchedulerState& state_;
  uint64_t plan_number_ = 0;
  int32_t budget_ = 0;  // tokens that may still be planned
  OpenPlan* open_ = nullptr;  // in the making
  bool ahead_ = false;        // of another one
  std::vector<Sequence*> prefills_;   // of this plan: running ones that do not decode yet, in serving order
  std::vector<int32_t> freed_holds_;  // scratch, one a block: holders that the victims so far would take away
  std::vector<int32_t> touched_blocks_;  // scratch: where freed_holds_ is not 0
};

}  // namespace tessera

#endif  // TESSERA_SERVER_SCHEDULER_PLANNER_H_
