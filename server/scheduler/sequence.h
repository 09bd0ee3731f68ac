#ifndef TESSERA_SERVER_SCHEDULER_SEQUENCE_H_
#define TESSERA_SERVER_SCHEDULER_SEQUENCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/scheduler/block_manager.h"
#include "server/scheduler/scheduler.h"

namespace tessera {

// One live sequence and where it stands. Owned by SchedulerState; the lists there point at it.
struct Sequence {
  enum class State {
    kBlocked,  // waits for its leader's prompt; in the leader's `dependents`
    kWaiting,  // in the waiting queue
    kRunning,  // in the running list; holds blocks
  };

  SequenceId id = 0;
  int32_t priority = 0;
  State state = State::kWaiting;
  uint64_t arrival = 0;  // order of Add, unique

  int32_t prompt_length = 0;
  int32_t max_tokens = 0;
  std::vector<int32_t> tokens;  // prompt, then output
  // The last of `tokens` is kUnknownToken: a row of the oldest open plan draws it, one of the latest computes it.
  bool pending = false;
  bool runs_ahead = true;

  // While it runs. The tokens at 0 .. computed - 1 have their keys and values in `block_table`, which has
  // room for all tokens at admission and grows by a block when decoding fills it.
  std::vector<int32_t> block_table;
  int32_t computed = 0;
  int32_t planned = 0;    // tokens after these that open plans compute
  int32_t share = 0;      // tokens after these that the plan in the making computes
  int32_t row = -1;       // its place in the last plan that has a row for it
  bool finished = false;  // within Commit: to be taken out at its end

  // The first `published` blocks of the table are in the prefix cache. Publishing stops when the chain to the
  // root is not the cache's own.
  int32_t published = 0;
  bool publishing = false;
  bool read_prefix_cache = true;
  int32_t salt = 0;
  std::vector<uint64_t> hashes;  // of the full blocks of `tokens`, as far as needed so far
  PrefixMatch match;             // what was found when admission was last tried

  bool ran_before = false;         // preempted since; its next admission is a resumption
  uint64_t preempted_in_plan = 0;  // number of the plan that preempted it last

  absl::Time deadline = absl::InfiniteFuture();

  Sequence* leader = nullptr;         // while kBlocked
  size_t index_at_leader = 0;         // own index in leader->dependents
  std::vector<Sequence*> dependents;  // blocked until this prompt is computed

  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  int32_t known_size() const { return size() - (pending ? 1 : 0); }
  int32_t output_length() const { return size() - prompt_length; }
  bool prompt_computed() const { return computed >= prompt_length; }
  // The first position that no open plan computes.
  int32_t next() const { return computed + planned; }
  // One token is left to plan, and it is an output: the usual state of a running generation.
  bool decoding() const { return next() >= prompt_length && size() - next() == 1; }
  // An open plan computes all its tokens, and draws the next if it generates.
  bool awaits_outcome() const { return next() == size(); }
  // While it awaits its outcome: whether there is more to compute, if nothing ends it.
  bool goes_on() const { return output_length() + 1 < max_tokens; }
};

// The order in which sequences are served: by priority, then by arrival.
struct ServedBefore {
  bool operator()(const Sequence* a, const Sequence* b) const {
    if (a->priority != b->priority) return a->priority > b->priority;
    return a->arrival < b->arrival;
  }
};

}  // namespace tessera

#endif  // TESSERA_SERVER_SCHEDULER_SEQUENCE_H_
