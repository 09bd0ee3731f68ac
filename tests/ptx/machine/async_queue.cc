#include "tests/ptx/machine/async_queue.h"

#include <utility>

#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/fault.h"
#include "tests/ptx/machine/warp.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

// Even lazy operations end at some time, for kernels that poll memory for what they write.
constexpr uint64_t kLazyLimit = 1 << 16;
constexpr uint64_t kRandomLimit = 2000;

}  // namespace

void AsyncQueue::Post(Warp& warp, AsyncOperation operation) {
  if (policy_ == AsyncPolicy::kEager) {
    operation.complete();
    return;
  }
  const uint64_t delay = policy_ == AsyncPolicy::kLazy ? kLazyLimit : random_() % kRandomLimit;
  pending_.push_back({std::move(operation), now_ + delay, &warp, warp.current_instruction(), warp.active()});
}

void AsyncQueue::PostFollowUp(AsyncOperation operation) {
  if (policy_ == AsyncPolicy::kEager || completing_ == nullptr) {
    operation.complete();
    return;
  }
  pending_.push_back({std::move(operation), completing_->due, completing_->warp, completing_->instruction,
                      completing_->lanes});
}

bool AsyncQueue::IsFirstOfChain(size_t index) const {
  const uint64_t chain = pending_[index].operation.chain;
  if (chain == 0) return true;
  for (size_t i = 0; i < index; ++i) {
    if (pending_[i].operation.chain == chain) return false;
  }
  return true;
}

void AsyncQueue::Complete(size_t index) {
  const Pending done = std::move(pending_[index]);
  pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(index));
  completing_ = &done;
  RaceDetector* const races = done.warp->cluster().races();
  if (races != nullptr) races->SetActor(done.warp->cluster_index());
  try {
    done.operation.complete();
  } catch (FaultError& fault) {
    completing_ = nullptr;
    if (fault.location.empty()) {
      fault.location = Cat("in the asynchronous part of ", done.operation.what, " issued by ",
                           done.warp->Location(done.instruction, fault.lane, done.lanes));
    }
    throw;
  }
  completing_ = nullptr;
  if (races != nullptr) races->SetActor(-1);
}

int AsyncQueue::CompleteDue(uint64_t now) {
  now_ = now;
  int completed = 0;
  for (size_t i = 0; i < pending_.size();) {
    if (pending_[i].due <= now && IsFirstOfChain(i)) {
      Complete(i);
      ++completed;
    } else {
      ++i;
    }
  }
  return completed;
}

bool AsyncQueue::CompleteOne() {
  if (pending_.empty()) return false;
  size_t index = 0;
  if (policy_ == AsyncPolicy::kRandom) {
    index = random_() % pending_.size();
    while (!IsFirstOfChain(index)) --index;
  }
  Complete(index);
  return true;
}

std::string AsyncQueue::Describe() const {
  std::string text;
  for (const Pending& p : pending_) text += Cat("\n  under way: ", p.operation.what);
  return text;
}

}  // namespace tessera::ptx
