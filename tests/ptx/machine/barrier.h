// The 16 CTA barriers (barrier, bar) and the cluster barrier (barrier.cluster).
#ifndef TESSERA_TESTS_PTX_MACHINE_BARRIER_H_
#define TESSERA_TESTS_PTX_MACHINE_BARRIER_H_

#include <cstdint>
#include <string>

#include "tests/ptx/machine/extension.h"
#include "tests/ptx/machine/lanes.h"
#include "tests/ptx/machine/race_detector.h"

namespace tessera::ptx {

class CtaBarriers {
 public:
  static constexpr int kCount = 16;
  struct State {
    uint64_t generation = 0;                           // completed so many times
    uint32_t arrived = 0;                              // threads
    uint32_t expected = 0;                             // threads; 0 between uses
    uint32_t ballot_and = 1, ballot_or = 0, popc = 0;  // of the generation under way
    RaceDetector::Phased known;
    uint32_t result_and = 1, result_or = 0, result_popc = 0;  // of the last completed one
  };
  State& operator[](int id) { return states_[id]; }

  // Adds `threads` arrivals to the barrier, which completes at `expected`. Raises if the uses disagree on it.
  void Arrive(int id, uint32_t threads, uint32_t expected);
  // A barrier without a thread count waits for the threads that have not exited: called when some exit.
  void OnExit(uint32_t live_threads);
  // Marks this use as one without a thread count.
  void UsesAllThreads(int id) { all_threads_[id] = true; }

 private:
  void CompleteIfDone(int id);
  State states_[kCount];
  bool all_threads_[kCount] = {};
};

class ClusterBarrier {
 public:
  void SetThreads(uint32_t live) { expected_ = live; }
  void Arrive(uint32_t threads);
  // Exited threads count as arrived for good; `arrived` of them had arrived in the phase under way.
  void OnExit(uint32_t threads, uint32_t arrived);
  uint64_t generation() const { return generation_; }
  RaceDetector::Phased& known() { return known_; }
  std::string Describe() const;

 private:
  void CompleteIfDone();
  uint64_t generation_ = 0;
  RaceDetector::Phased known_;
  uint32_t arrived_ = 0;
  uint32_t expected_ = 0;
};

// What each lane of a warp has arrived at and not yet waited for.
struct ClusterArrival : ExtensionState {
  LaneMask arrived = 0;
  uint64_t generation[kWarpSize] = {};
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_MACHINE_BARRIER_H_
