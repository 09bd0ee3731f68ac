#include "server/scheduler/sequence_queues.h"

#include <algorithm>

namespace tessera {

void RunningList::Insert(Sequence* sequence) {
  list_.insert(std::upper_bound(list_.begin(), list_.end(), sequence, ServedBefore()), sequence);
}

void RunningList::Remove(Sequence* sequence) {
  list_.erase(std::lower_bound(list_.begin(), list_.end(), sequence, ServedBefore()));
}

void RunningList::RemoveFinished() {
  list_.erase(std::remove_if(list_.begin(), list_.end(), [](const Sequence* s) { return s->finished; }),
              list_.end());
}

void DeadlineQueue::Insert(Sequence* sequence) {
  if (sequence->deadline != absl::InfiniteFuture()) queue_.insert(Key(sequence));
}

void DeadlineQueue::Remove(Sequence* sequence) {
  if (sequence->deadline != absl::InfiniteFuture()) queue_.erase(Key(sequence));
}

Sequence* DeadlineQueue::FirstExpired(absl::Time now) const {
  return earliest() <= now ? std::get<2>(*queue_.begin()) : nullptr;
}

}  // namespace tessera
