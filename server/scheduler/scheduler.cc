#include "server/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/scheduler/planner.h"
#include "server/scheduler/scheduler_state.h"

namespace tessera {
namespace {

// Limits that make sense together: every running sequence can have a token in each step.
SchedulerConfig Sanitize(SchedulerConfig config) {
  config.num_blocks = std::max(config.num_blocks, 0);
  config.block_size = std::max(config.block_size, 1);
  config.max_batched_tokens = std::max(config.max_batched_tokens, 1);
  config.max_prefill_chunk = std::clamp(config.max_prefill_chunk, 1, config.max_batched_tokens);
  config.max_running = std::clamp(config.max_running, 1, config.max_batched_tokens);
  return config;
}

}  // namespace

class Scheduler::Impl {
 public:
  explicit Impl(const SchedulerConfig& config) : state(Sanitize(config)), planner(&state) {}

  void Commit(absl::Span<const RowOutcome> outcomes);
  void CommitRow(Sequence* sequence, int32_t planned, const RowOutcome& outcome);

  SchedulerState state;
  Planner planner;
  std::vector<Sequence*> finished;  // scratch of Commit
};

Scheduler::Scheduler(const SchedulerConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Scheduler::~Scheduler() = default;

absl::Status Scheduler::CheckFits(int64_t prompt_tokens, int64_t max_tokens) const {
  const SchedulerConfig& config = impl_->state.config;
  if (prompt_tokens < 1)
    return absl::InvalidArgumentError("the prompt has no tokens; at least one is needed");
  if (max_tokens < 0)
    return absl::InvalidArgumentError(absl::StrCat("max_tokens is ", max_tokens, "; not negative"));
  const int64_t context = config.max_context > 0 ? config.max_context : INT32_MAX;
  // Each number is compared first, so that their sum can't overflow.
  if (prompt_tokens > context || max_tokens > context || prompt_tokens + max_tokens > context) {
    return absl::InvalidArgumentError(absl::StrCat("a prompt of ", prompt_tokens, " tokens and max_tokens ",
                                                   max_tokens, " are more than the context of ", context,
                                                   " tokens"));
  }
  // The last token is only drawn, never computed.
  const int64_t stored = prompt_tokens + std::max<int64_t>(max_tokens - 1, 0);
  const int64_t needed = (stored + config.block_size - 1) / config.block_size;
  if (needed > config.num_blocks) {
    return absl::InvalidArgumentError(absl::StrCat("a prompt of ", prompt_tokens, " tokens and max_tokens ",
                                                   max_tokens, " need ", needed,
                                                   " blocks of the key-value cache, which has ",
                                                   config.num_blocks, " of ", config.block_size, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status Scheduler::Add(SequenceSpec spec) {
  if (spec.id == 0) return absl::InvalidArgumentError("sequence id 0 means none");
  if (impl_->state.Find(spec.id) != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("sequence id ", spec.id, " is in use"));
  }
  if (absl::Status status = CheckFits(static_cast<int64_t>(spec.prompt.size()), spec.max_tokens);
      !status.ok()) {
    return status;
  }
  impl_->state.Add(std::move(spec));
  return absl::OkStatus();
}

bool Scheduler::Remove(SequenceId id) {
  Sequence* sequence = impl_->state.Find(id);
  if (sequence == nullptr) return false;
  impl_->state.Remove(sequence);
  return true;
}

const StepPlan& Scheduler::Plan(absl::Time now) {
  if (impl_->state.open.size() == OpenPlans::kMost) {
    impl_->state.ReportMisuse("Plan without Commit of the plans before");
    impl_->Commit({});
  }
  return impl_->planner.Plan(now);
}

void Scheduler::Commit(absl::Span<const RowOutcome> outcomes) {
  if (impl_->state.open.size() == 0) {
    impl_->state.ReportMisuse("Commit without a plan");
    return;
  }
  impl_->Commit(outcomes);
}

void Scheduler::Impl::Commit(absl::Span<const RowOutcome> outcomes) {
  finished.clear();
  OpenPlan& open = state.open.oldest();
  const size_t num_rows = open.rows.size();
  size_t next = 0;  // outcomes usually come in the order of the rows
  for (const RowOutcome& outcome : outcomes) {
    size_t tried = 0;
    while (tried < num_rows && open.plan.rows[next % num_rows].id != outcome.id) ++next, ++tried;
    if (tried == num_rows || !open.rows[next % num_rows].open) {
      state.ReportMisuse(absl::StrCat("an outcome for sequence ", outcome.id, ", which has no row left"));
      continue;
    }
    const size_t i = next++ % num_rows;
    open.rows[i].open = false;
    Sequence* sequence = open.rows[i].sequence;
    if (sequence != nullptr) {
      CommitRow(sequence, static_cast<int32_t>(open.plan.rows[i].tokens.size()), outcome);
    }
  }
  for (size_t i = 0; i < num_rows; ++i) {
    Sequence* sequence = open.rows[i].sequence;
    if (sequence == nullptr || !open.rows[i].open) continue;
    state.ReportMisuse(absl::StrCat("no outcome for the row of sequence ", sequence->id));
    state.open.VoidAhead(sequence);
    sequence->planned = 0;
  }
  state.open.CloseOldest();
  state.RemoveFinished(finished);
}

void Scheduler::Impl::CommitRow(Sequence* sequence, int32_t planned, const RowOutcome& outcome) {
  const bool completes = sequence->computed + planned == sequence->known_size();
  const bool samples = completes && sequence->max_tokens > 0;
  const bool drawn = samples && outcome.token >= 0;
  if (!samples && outcome.token >= 0) {
    state.ReportMisuse(absl::StrCat("a token for sequence ", sequence->id, ", whose row draws none"));
  }
  if (samples && !drawn && !outcome.finished) {
    state.ReportMisuse(absl::StrCat("no token for sequence ", sequence->id, ", which goes on"));
    state.open.VoidAhead(sequence);
    sequence->planned = 0;
    return;  // the row is planned again
  }

  // An error leaves unknown contents in the row's blocks: these are released without being published.
  const bool computed = drawn || outcome.computed || !outcome.finished;
  if (computed) {
    state.Advance(sequence, planned);
  } else {
    sequence->planned -= planned;
  }
  if (drawn) {
    if (!sequence->pending) sequence->tokens.push_back(kUnknownToken);
    sequence->tokens.back() = outcome.token;
    sequence->pending = false;
    if (outcome.late) state.open.VoidAhead(sequence);
  }

  const bool at_end =
      sequence->max_tokens > 0 ? sequence->output_length() >= sequence->max_tokens : completes;
  if (at_end && !outcome.finished) {
    state.ReportMisuse(absl::StrCat("sequence ", sequence->id, " is at its end but was not marked finished"));
  }
  if (at_end || outcome.finished) {
    sequence->finished = true;
    finished.push_back(sequence);
  }
}

absl::Span<const int32_t> Scheduler::Tokens(SequenceId id) const {
  const Sequence* sequence = impl_->state.Find(id);
  return sequence == nullptr ? absl::Span<const int32_t>() : absl::MakeConstSpan(sequence->tokens).first(sequence->known_size());
}

bool Scheduler::Idle() const { return impl_->state.num_live() == 0; }

absl::Time Scheduler::NextDeadline() const { return impl_->state.deadlines.earliest(); }

SchedulerStats Scheduler::Stats() const {
  const SchedulerState& state = impl_->state;
  const BlockPool& pool = state.blocks.pool();
  SchedulerStats stats;
  stats.running = static_cast<int32_t>(state.running.size());
  stats.waiting = state.num_live() - stats.running;
  stats.blocks_total = pool.num_blocks();
  stats.blocks_used = pool.num_used();
  stats.blocks_cached = pool.num_cached();
  stats.blocks_free = pool.num_free();
  stats.preemptions = state.preemptions;
  return stats;
}

void Scheduler::ClearPrefixCache() { impl_->state.ClearPrefixCache(); }

absl::Status Scheduler::CheckInvariants() const { return impl_->state.CheckInvariants(); }

}  // namespace tessera
