#ifndef TESSERA_SERVER_SCHEDULER_SCHEDULER_H_
#define TESSERA_SERVER_SCHEDULER_SCHEDULER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tessera {

using SequenceId = uint64_t;

struct SchedulerConfig {
  int32_t num_blocks = 0;             // of the key-value cache
  int32_t block_size = 16;            // tokens
  int32_t max_running = 256;          // sequences in one step; at most max_batched_tokens, each has its token
  int32_t max_batched_tokens = 2048;  // tokens in one step, decode and prefill together
  int32_t max_prefill_chunk = 512;    // prompt tokens of one sequence in one step
  int32_t max_context = 0;            // tokens of one sequence, prompt and output; 0: what the cache holds
  bool prefix_cache = true;
  int32_t prefix_hash_bits = 64;  // tests narrow it, to make hash collisions common
};

// A sequence to be served: one output of a generation, or one input of an embedding call.
struct SequenceSpec {
  SequenceId id = 0;  // unique among live sequences, never 0
  std::vector<int32_t> prompt;
  int32_t max_tokens = 0;  // tokens to generate; 0 computes the prompt alone (embedding)
  int32_t priority = 0;    // higher is sooner; ties in order of Add
  absl::Time deadline = absl::InfiniteFuture();
  std::string cache_salt;         // prefixes are shared within a salt only
  bool read_prefix_cache = true;  // false: compute everything, still publish
  // Not started before this sequence's prompt is in the cache (or it is gone): outputs 1.. of a request wait
  // for output 0 and then share its prompt's blocks. 0: none. Without a prefix cache to read there is nothing
  // to wait for.
  SequenceId after = 0;
  // Whether a row may be planned for it before the token is known that it takes (Scheduler::Plan).
  bool runs_ahead = true;
};

// Stands for a token that is not known yet.
inline constexpr int32_t kUnknownToken = -1;

// One row of a step.
struct PlannedRow {
  SequenceId id = 0;
  int32_t start = 0;                      // first position to compute
  absl::Span<const int32_t> tokens;       // the tokens there; valid until the scheduler is next changed
  // The row's only token is kUnknownToken: the one that this row of the plan before draws. -1: all are known.
  int32_t token_of = -1;
  absl::Span<const int32_t> block_table;  // covers start + tokens.size() tokens; valid likewise
  bool samples = false;                   // the row's last token is the sequence's last: a new token is drawn
  bool prefill = false;                   // computes prompt (or, after a preemption, earlier output) tokens
};

// A sequence that this plan took up, first or again.
struct Admission {
  SequenceId id = 0;
  int32_t cached_tokens = 0;     // tokens whose keys and values came from the prefix cache
  int32_t looked_up_tokens = 0;  // tokens that were looked for there
  bool resumed = false;          // it ran before and was preempted
};

struct StepPlan {
  std::vector<PlannedRow> rows;  // decode rows first; empty when there is nothing to do
  std::vector<Admission> admitted;
  std::vector<SequenceId> preempted;  // put back to wait; their blocks are free, their tokens kept
  std::vector<SequenceId> expired;    // past their deadline: removed, the caller ends them
};

// How one row of the last plan came out.
struct RowOutcome {
  SequenceId id = 0;
  int32_t token = -1;     // the token drawn, for a row that samples
  bool finished = false;  // the sequence ends here: a stop, or an error in the row
  // The row's keys and values are in the cache. Taken for granted when a token was drawn or the sequence goes
  // on, so it matters for an embedding that ends well: set, its last blocks are published too. Left false for
  // an error, so that nothing of that row is ever found again.
  bool computed = false;
  // The token came too late for the row that the plan after this one has for the sequence: it got another one, so it is
  // void, and is planned again.
  bool late = false;
};

struct SchedulerStats {
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t blocks_total = 0;
  int32_t blocks_used = 0;    // held by sequences
  int32_t blocks_cached = 0;  // held by the prefix cache alone, free when needed
  int32_t blocks_free = 0;    // used + cached + free = total, always
  int64_t preemptions = 0;
};

// Decides what each step computes: continuous batching over a paged key-value cache. A pure state machine:
// no threads, no clock, no I/O. Same calls, same decisions.
//
// Rules:
//  - Running sequences decode first; prefill chunks use what is left of the token budget, so a long prompt
//    never stops the others. Prefills share it by priority, then by order of Add.
//  - Waiting sequences are taken up by priority, then by order of Add; no lower one overtakes a higher one
//    that does not fit yet.
//  - When blocks run out, the lowest-priority, newest running sequence is preempted: its blocks go back, its
//    tokens stay, it keeps its place in the order and is recomputed later (through the prefix cache as far
//    as that reaches). No sequence is preempted for one of equal priority that came later, so no two evict
//    each other in turn.
//  - A waiting sequence may preempt running ones of lower priority when a slot or blocks lack, and only if
//    that is enough to take it up. Equal priorities wait.
//  - A sequence is taken up when its whole prompt (and earlier output) fits with a block to spare for each
//    running sequence, so that it is not preempted at the next step; alone it needs nothing to spare.
//  - The prefix cache holds full blocks whose contents are computed (never merely planned), found by a
//    chained hash and then compared token for token, within a salt. At least the last token of a prompt is
//    always computed. When two sequences compute the same block, one copy stays and both hold it.
//  - Blocks are reference counted; when the last sequence is gone, free + cached = total.
//  - A step can be planned while the one before is at work, one step ahead. Steps run in the order of their plans, so a
//    sequence that ends gives its blocks back at once, though a row of it may still be at work: whoever gets them next
//    writes them in a later step. What such a row computes stands behind the sequence's computed tokens, in a block that
//    is not published. Nobody is preempted ahead of a step at work.
//  - The cost of a step is in what runs, not in what waits.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Whether a sequence of this length could ever run: INVALID_ARGUMENT with the numbers if it could not (more
  // tokens than the context, or more blocks than the whole cache). Thread-safe: reads the configuration
  // alone.
  absl::Status CheckFits(int64_t prompt_tokens, int64_t max_tokens) const;

  // Puts a sequence into the queue. Errors: as CheckFits, an empty prompt, an id in use (ALREADY_EXISTS).
  absl::Status Add(SequenceSpec spec);

  // Takes a sequence out, whatever its state. False if there is none of this id. Rows that open plans have for it are
  // void.
  bool Remove(SequenceId id);

  // Plans the next step. Each plan must be committed, also when rows is empty, and at most two are open at a time: the
  // second is planned ahead of the first's outcome, as if no row of it ended its sequence or failed. It has no rows where
  // that can't be: a sequence whose token the first draws does not run ahead, or somebody would have to be preempted.
  // Valid until it is committed.
  const StepPlan& Plan(absl::Time now);

  // Takes the outcome of the oldest open plan: one for each of its rows, in any order; those of void rows are ignored
  // and may be left out. A sequence that reaches its max_tokens, or an embedding whose prompt is computed, must be marked
  // finished by the caller; its blocks then go to the prefix cache or free, and its row in the plan after this one is
  // void. A caller that breaks these rules does no harm (a row without an outcome is planned again, a sequence past its
  // end is ended), but CheckInvariants reports it from then on.
  void Commit(absl::Span<const RowOutcome> outcomes);

  // Prompt and output so far, as far as known; empty for an id that is not live. Valid until the scheduler is next
  // changed.
  absl::Span<const int32_t> Tokens(SequenceId id) const;

  bool Idle() const;  // nothing running, nothing waiting
  // The earliest deadline of any live sequence, for a caller that sleeps.
  absl::Time NextDeadline() const;
  SchedulerStats Stats() const;

  // Forgets all cached prefixes.
  void ClearPrefixCache();

  // Every invariant of the state, checked; an INTERNAL error names the first that is broken. For tests.
  absl::Status CheckInvariants() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_SCHEDULER_SCHEDULER_H_
