#include "server/scheduler/open_plans.h"

namespace tessera {

OpenPlan& OpenPlans::Open() {
  ++size_;
  OpenPlan& open = latest();
  open.plan.rows.clear();
  open.plan.admitted.clear();
  open.plan.preempted.clear();
  open.plan.expired.clear();
  open.rows.clear();
  return open;
}

void OpenPlans::CloseOldest() {
  first_ = (first_ + 1) % kMost;
  --size_;
}

void OpenPlans::Void(Sequence* sequence) {
  for (int32_t i = 0; i < size_ && sequence->planned > 0; ++i) Void(sequence, &plans_[(first_ + i) % kMost]);
}

void OpenPlans::VoidAhead(Sequence* sequence) {
  if (size_ > 1 && sequence->planned > 0) Void(sequence, &latest());
  if (!sequence->pending) return;
  sequence->tokens.pop_back();
  sequence->pending = false;
}

void OpenPlans::Void(Sequence* sequence, OpenPlan* plan) {
  for (size_t i = 0; i < plan->rows.size(); ++i) {
    if (plan->rows[i].sequence != sequence) continue;
    plan->rows[i].sequence = nullptr;
    sequence->planned -= static_cast<int32_t>(plan->plan.rows[i].tokens.size());
    return;
  }
}

}  // namespace tessera
