#include "tests/ptx/machine/mbarrier.h"

#include "tests/ptx/machine/fault.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {

Mbarrier::Mbarrier(uint32_t count) : expected_(count), pending_(count) {
  if (count < 1 || count > kMaxCount) {
    Raise(Rule::kMbarrier, Cat("mbarrier.init with ", count, " arrivals; 1 to ", kMaxCount, " are allowed"));
  }
}

void Mbarrier::Arrive(uint32_t count) {
  if (count < 1 || count > pending_) {
    Raise(Rule::kMbarrier,
          Cat("an arrival of ", count, " where ", pending_, " of ", expected_,
              " are pending: more threads arrive in this phase than the barrier was made for"));
  }
  pending_ -= count;
  CompleteIfDone();
}

void Mbarrier::ArriveDrop(uint32_t count) {
  if (count < 1 || count > pending_ || count > expected_) {
    Raise(Rule::kMbarrier,
          Cat("arrive_drop of ", count, " where ", pending_, " of ", expected_, " are pending"));
  }
  expected_ -= count;
  pending_ -= count;
  CompleteIfDone();
}

void Mbarrier::ExpectTx(int64_t bytes) {
  if (bytes < 0 || tx_ + bytes > kMaxTx) {
    Raise(Rule::kMbarrier,
          Cat("expect_tx of ", bytes, " bytes over ", tx_, " pending; the limit of a phase is ", kMaxTx));
  }
  tx_ += bytes;
}

void Mbarrier::CompleteTx(int64_t bytes) {
  if (bytes < 0 || tx_ - bytes < -kMaxTx) {
    Raise(Rule::kMbarrier, Cat("complete_tx of ", bytes, " bytes with ", tx_, " pending"));
  }
  tx_ -= bytes;
  CompleteIfDone();
}

void Mbarrier::AddPending() {
  if (pending_ == kMaxCount) Raise(Rule::kMbarrier, "more pending arrivals than an mbarrier can count");
  ++pending_;
}

void Mbarrier::CompleteIfDone() {
  if (pending_ != 0) return;
  if (tx_ < 0) {
    Raise(Rule::kMbarrier, Cat(-tx_, " bytes completed more than expect_tx announced in phase ", phase_,
                               ": the phase can never complete"));
  }
  if (tx_ != 0) return;
  ++phase_;
  pending_ = expected_;
}

std::string Mbarrier::Describe() const {
  return Cat("phase ", phase_, " under way, ", pending_, " of ", expected_, " arrivals and ", tx_,
             " bytes pending");
}

}  // namespace tessera::ptx
