#ifndef TESSERA_SERVER_SCHEDULER_SCHEDULER_STATE_H_
#define TESSERA_SERVER_SCHEDULER_SCHEDULER_STATE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/scheduler/block_manager.h"
#include "server/scheduler/open_plans.h"
#include "server/scheduler/scheduler.h"
#include "server/scheduler/sequence.h"
#include "server/scheduler/sequence_queues.h"

namespace tessera {

// Every live sequence, the lists they stand in and the blocks they hold, with the transitions between them:
//
//            leader's prompt computed, or leader gone
//   kBlocked ----------------------------------------> kWaiting <----- Preempt ----- kRunning
//      ^                                               ^      |                       ^    |
//      +------------------- Add -----------------------+      +-------- Admit --------+    |
//                                                                                          |
//   Remove, from every state; Advance publishes what a step computed  <--------------------+
class SchedulerState {
 public:
  explicit SchedulerState(const SchedulerConfig& config);

  Sequence* Find(SequenceId id) const;

  // `spec` is already checked.
  void Add(SequenceSpec spec);

  // Looks its tokens up in the prefix cache, as far as this sequence may read it.
  void MatchPrefix(Sequence* sequence);
  // Gives a waiting sequence its matched blocks and new ones for the rest of its tokens. There must be room,
  // and its match must be up to date.
  void Admit(Sequence* sequence);
  // One block more at the end of its table. False if every block is used.
  bool Grow(Sequence* sequence);
  // Puts the last of the running list back to wait. No plan but the one in the making may have a row for it.
  void PreemptLast(uint64_t plan_number);

  // `count` more tokens have their keys and values in the cache: publishes the blocks that this fills, and
  // lets dependents go when the prompt is complete.
  void Advance(Sequence* sequence, int32_t count);

  // Takes a sequence out of every list and every open plan and forgets it.
  void Remove(Sequence* sequence);
  // Does so for each running sequence that is marked finished, in one pass; `finished` lists them.
  void RemoveFinished(absl::Span<Sequence* const> finished);

  void ClearPrefixCache();

  // The first rule that was broken by the caller is kept, to be reported by CheckInvariants.
  void ReportMisuse(std::string what);

  absl::Status CheckInvariants() const;

  const SchedulerConfig config;
  BlockManager blocks;
  WaitingQueue waiting;
  RunningList running;
  DeadlineQueue deadlines;
  OpenPlans open;
  int64_t preemptions = 0;
  int32_t num_live() const { return static_cast<int32_t>(sequences_.size()); }

 private:
  void Block(Sequence* sequence, Sequence* leader);
  void Unblock(Sequence* sequence);
  void ReleaseDependents(Sequence* leader);
  void ReleaseBlocks(Sequence* sequence);
  void PublishFullBlocks(Sequence* sequence);
  void Forget(Sequence* sequence);
  absl::Status CheckSequence(const Sequence& sequence) const;
  absl::Status CheckOpenPlans() const;

  absl::flat_hash_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  uint64_t last_arrival_ = 0;
  std::string misuse_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_SCHEDULER_SCHEDULER_STATE_H_
