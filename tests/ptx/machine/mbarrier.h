// mbarrier objects (PTX ISA, "mbarrier"). The opaque 64 bits in shared memory are kept beside it, keyed by offset;
// ordinary loads and stores that touch a live object fault.
#ifndef TESSERA_TESTS_PTX_MACHINE_MBARRIER_H_
#define TESSERA_TESTS_PTX_MACHINE_MBARRIER_H_

#include <cstdint>
#include <string>

namespace tessera::ptx {

class Mbarrier {
 public:
  static constexpr uint32_t kMaxCount = (1u << 20) - 1;
  static constexpr int64_t kMaxTx = (1 << 20) - 1;

  explicit Mbarrier(uint32_t count);  // raises unless 1 <= count <= kMaxCount

  // Each completes the phase when nothing is pending any more. Counts beyond what is pending fault.
  void Arrive(uint32_t count);
  void ArriveDrop(uint32_t count);
  void ExpectTx(int64_t bytes);
  void CompleteTx(int64_t bytes);
  // One more arrival pending in this phase: cp.async.mbarrier.arrive without .noinc.
  void AddPending();

  // True once the phase of this parity has completed: the current phase has the other parity.
  bool TestParity(uint32_t parity) const { return (phase_ & 1) != (parity & 1); }
  // The token that arrive returns: identifies the phase that was current before the arrival.
  uint64_t Token() const { return (phase_ << 20) | pending_; }
  // True once the phase of a token has completed.
  bool TestToken(uint64_t token) const { return (token >> 20) != phase_; }

  uint64_t phase() const { return phase_; }
  uint32_t pending() const { return pending_; }
  uint32_t expected() const { return expected_; }
  int64_t tx() const { return tx_; }
  std::string Describe() const;  // "phase 3, 1 of 2 arrivals pending, 4096 bytes pending"

 private:
  void CompleteIfDone();

  uint64_t phase_ = 0;
  uint32_t expected_;
  uint32_t pending_;
  int64_t tx_ = 0;
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_MACHINE_MBARRIER_H_
