#include "tests/ptx/machine/barrier.h"

#include "tests/ptx/machine/fault.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {

void CtaBarriers::Arrive(int id, uint32_t threads, uint32_t expected) {
  State& s = states_[id];
  if (s.expected != 0 && s.expected != expected && !all_threads_[id]) {
    Raise(Rule::kBarrier,
          Cat("barrier ", id, " is used with ", expected, " threads while others wait for ", s.expected));
  }
  s.expected = expected;
  s.arrived += threads;
  if (s.arrived > s.expected) {
    Raise(Rule::kBarrier,
          Cat("barrier ", id, ": ", s.arrived, " threads arrive where ", s.expected, " are expected"));
  }
  CompleteIfDone(id);
}

void CtaBarriers::OnExit(uint32_t live_threads) {
  for (int id = 0; id < kCount; ++id) {
    if (!all_threads_[id] || states_[id].arrived == 0) continue;
    states_[id].expected = live_threads;
    CompleteIfDone(id);
  }
}

void CtaBarriers::CompleteIfDone(int id) {
  State& s = states_[id];
  if (s.arrived < s.expected) return;
  ++s.generation;
  s.arrived = 0;
  s.expected = 0;
  all_threads_[id] = false;
  s.result_and = s.ballot_and;
  s.result_or = s.ballot_or;
  s.result_popc = s.popc;
  s.ballot_and = 1;
  s.ballot_or = 0;
  s.popc = 0;
}

void ClusterBarrier::Arrive(uint32_t threads) {
  arrived_ += threads;
  CompleteIfDone();
}

void ClusterBarrier::OnExit(uint32_t threads, uint32_t arrived) {
  expected_ -= threads;
  arrived_ -= arrived;
  if (arrived_ > 0) CompleteIfDone();
}

void ClusterBarrier::CompleteIfDone() {
  if (arrived_ < expected_) return;
  ++generation_;
  arrived_ = 0;
}

std::string ClusterBarrier::Describe() const {
  return Cat(arrived_, " of ", expected_, " threads have arrived");
}

}  // namespace tessera::ptx
