#ifndef TESSERA_SERVER_SCHEDULER_SEQUENCE_QUEUES_H_
#define TESSERA_SERVER_SCHEDULER_SEQUENCE_QUEUES_H_

#include <cstddef>
#include <tuple>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/scheduler/sequence.h"

namespace tessera {

// Sequences that could be admitted, first the one to be served first. Only the first is ever looked at, so
// what waits behind it costs nothing; insertion and removal anywhere take O(log n).
class WaitingQueue {
 public:
  bool empty() const { return queue_.empty(); }
  size_t size() const { return queue_.size(); }
  Sequence* first() const { return queue_.empty() ? nullptr : *queue_.begin(); }
  void Insert(Sequence* sequence) { queue_.insert(sequence); }
  void Remove(Sequence* sequence) { queue_.erase(sequence); }
  auto begin() const { return queue_.begin(); }
  auto end() const { return queue_.end(); }

 private:
  absl::btree_set<Sequence*, ServedBefore> queue_;
};

// Running sequences in the order in which they are served, as a plain array: every step walks all of it.
class RunningList {
 public:
  bool empty() const { return list_.empty(); }
  size_t size() const { return list_.size(); }
  Sequence* operator[](size_t i) const { return list_[i]; }
  Sequence* last() const { return list_.back(); }
  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }

  void Insert(Sequence* sequence);
  void RemoveLast() { list_.pop_back(); }
  void Remove(Sequence* sequence);
  // Drops every sequence that is marked finished.
  void RemoveFinished();

 private:
  std::vector<Sequence*> list_;
};

// Live sequences that have a deadline, by deadline.
class DeadlineQueue {
 public:
  void Insert(Sequence* sequence);
  void Remove(Sequence* sequence);
  // The sequence with the earliest deadline if that is `now` or earlier; null otherwise.
  Sequence* FirstExpired(absl::Time now) const;
  absl::Time earliest() const {
    return queue_.empty() ? absl::InfiniteFuture() : std::get<0>(*queue_.begin());
  }
  size_t size() const { return queue_.size(); }
  bool Contains(Sequence* sequence) const { return queue_.contains(Key(sequence)); }

 private:
  using Entry = std::tuple<absl::Time, uint64_t, Sequence*>;
  static Entry Key(Sequence* sequence) { return {sequence->deadline, sequence->arrival, sequence}; }
  absl::btree_set<Entry> queue_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_SCHEDULER_SEQUENCE_QUEUES_H_
