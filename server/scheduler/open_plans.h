#ifndef TESSERA_SERVER_SCHEDULER_OPEN_PLANS_H_
#define TESSERA_SERVER_SCHEDULER_OPEN_PLANS_H_

#include <array>
#include <vector>

#include "server/scheduler/scheduler.h"
#include "server/scheduler/sequence.h"

namespace tessera {

// A plan that is not committed yet.
struct OpenPlan {
  struct Row {
    Sequence* sequence = nullptr;  // null: void, whoever it was for has no use for what it computes
    bool open = true;              // its outcome has not come
  };
  StepPlan plan;
  std::vector<Row> rows;  // of plan.rows
};

// The plans that are not committed yet: of the step at work, and of the one after it.
class OpenPlans {
 public:
  static constexpr int32_t kMost = 2;

  int32_t size() const { return size_; }
  OpenPlan& oldest() { return plans_[first_]; }
  const OpenPlan& oldest() const { return plans_[first_]; }
  OpenPlan& latest() { return plans_[(first_ + size_ - 1) % kMost]; }
  const OpenPlan& latest() const { return plans_[(first_ + size_ - 1) % kMost]; }
  const OpenPlan& at(int32_t i) const { return plans_[(first_ + i) % kMost]; }

  // A new plan, empty.
  OpenPlan& Open();
  void CloseOldest();

  // Voids all rows of a sequence.
  void Void(Sequence* sequence);
  // Voids its row in the latest plan if that is not the oldest: it was planned on top of one that came out otherwise.
  void VoidAhead(Sequence* sequence);

 private:
  static void Void(Sequence* sequence, OpenPlan* plan);

  std::array<OpenPlan, kMost> plans_;  // kept for their memory
  int32_t first_ = 0;
  int32_t size_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_SCHEDULER_OPEN_PLANS_H_
