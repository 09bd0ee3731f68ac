// Asynchronous work of one cluster: bulk copies, wgmma, tcgen05, cp.async, remote mbarrier arrivals. The issuing
// instruction posts an operation; the scheduler chooses when it completes, as early or as late as the rules allow.
#ifndef TESSERA_TESTS_PTX_MACHINE_ASYNC_QUEUE_H_
#define TESSERA_TESTS_PTX_MACHINE_ASYNC_QUEUE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <random>
#include <string>

#include "tests/ptx/machine/lanes.h"

namespace tessera::ptx {

class Warp;
struct Instruction;

// How long operations stay under way.
enum class AsyncPolicy {
  kLazy,    // until nothing else in the cluster can run: shows every missing wait
  kEager,   // complete when issued
  kRandom,  // a random number of instructions, by the seed
};

struct AsyncOperation {
  std::string what;    // for the deadlock report and faults: "cp.async.bulk of 4096 bytes"
  uint64_t chain = 0;  // operations of one chain complete in order; 0: no order
  std::function<void()>
      complete;  // does the work and signals (mbarrier complete_tx, group counts, ...); may Raise
};

// A chain key that no other family uses: the object that stands for the order (a warp's state, a CTA's, ...).
inline uint64_t ChainOf(const void* object, uint64_t n = 0) {
  return reinterpret_cast<uintptr_t>(object) + n;
}

class AsyncQueue {
 public:
  AsyncQueue(AsyncPolicy policy, uint64_t seed) : policy_(policy), random_(seed) {}

  // `warp` is the issuer: its present instruction names the operation in faults. kEager completes it here.
  void Post(Warp& warp, AsyncOperation operation);
  // Posted from a completion, for the same issuer as `completing_`.
  void PostFollowUp(AsyncOperation operation);

  bool empty() const { return pending_.empty(); }
  size_t size() const { return pending_.size(); }
  // Completes what is due at this time (a count of the cluster's instructions). Returns how many.
  int CompleteDue(uint64_t now);
  // Completes one operation (by policy: the oldest, or a random one whose chain allows it). False if there is none.
  bool CompleteOne();
  // What is under way, for the deadlock report.
  std::string Describe() const;

 private:
  struct Pending {
    AsyncOperation operation;
    uint64_t due;
    Warp* warp;  // the issuer, its instruction and lanes, to name in a fault
    const Instruction* instruction;
    LaneMask lanes;
  };
  void Complete(size_t index);
  bool IsFirstOfChain(size_t index) const;

  AsyncPolicy policy_;
  std::mt19937_64 random_;
  std::deque<Pending> pending_;
  uint64_t now_ = 0;
  const Pending* completing_ = nullptr;
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_MACHINE_ASYNC_QUEUE_H_
