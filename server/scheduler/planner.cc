#include "server/scheduler/planner.h"

#include <algorithm>

namespace tessera {

Planner::Planner(SchedulerState* state) : state_(*state), freed_holds_(state->config.num_blocks, 0) {}

const StepPlan& Planner::Plan(absl::Time now) {
  ++plan_number_;
  ahead_ = state_.open.size() > 0;
  open_ = &state_.open.Open();
  budget_ = state_.config.max_batched_tokens;

  Expire(now);
  if (!ahead_ || CanPlanAhead()) {
    PlanDecodes();
    PlanPrefills();
    WriteRows();
  }
  return open_->plan;
}

void Planner::Expire(absl::Time now) {
  while (Sequence* sequence = state_.deadlines.FirstExpired(now)) {
    open_->plan.expired.push_back(sequence->id);
    state_.Remove(sequence);
  }
}

// A row planned ahead computes a token that is still to be drawn. Everybody who goes on gets one or nobody does, so that
// none falls behind; and where blocks lack, the step at work may end somebody who has them.
bool Planner::CanPlanAhead() {
  const int64_t block_size = state_.config.block_size;
  int32_t needed = 0;
  for (const Sequence* sequence : state_.running) {
    const bool awaits = sequence->awaits_outcome();
    if (awaits && !sequence->goes_on()) continue;
    if (awaits && !sequence->runs_ahead) return false;
    needed += static_cast<int64_t>(sequence->block_table.size()) * block_size < sequence->size() + awaits;
  }
  if (needed > state_.blocks.available()) return false;
  Sequence* first = state_.waiting.first();
  if (first == nullptr) return true;
  state_.MatchPrefix(first);
  return VictimsFor(*first) <= 0;
}

// Every running sequence that decodes gets its token. There are no more of them than the budget has tokens:
// the scheduler keeps max_running within max_batched_tokens.
void Planner::PlanDecodes() {
  prefills_.clear();
  const int32_t block_size = state_.config.block_size;
  for (size_t i = 0; i < state_.running.size(); ++i) {
    Sequence* sequence = state_.running[i];
    if (sequence->awaits_outcome()) {
      if (!sequence->goes_on()) continue;
      sequence->tokens.push_back(kUnknownToken);
      sequence->pending = true;
    }
    if (!sequence->decoding()) {
      prefills_.push_back(sequence);
      continue;
    }
    const bool full = static_cast<int64_t>(sequence->block_table.size()) * block_size < sequence->size();
    if (full) {
      // Served in order and preempted from the end, so a victim is never one that was already planned.
      while (!state_.Grow(sequence)) {
        const bool itself = state_.running.last() == sequence;
        PreemptLast();
        if (itself) return;
      }
    }
    sequence->share = 1;
    --budget_;
  }
}

// Running sequences that still prefill and waiting ones, merged in serving order, share the rest of the
// budget. The first waiting one that can't be admitted closes admission: nobody overtakes it.
void Planner::PlanPrefills() {
  bool admitting = true;
  size_t next = 0;
  while (budget_ > 0) {
    while (next < prefills_.size() && prefills_[next]->state != Sequence::State::kRunning) ++next;
    Sequence* running = next < prefills_.size() ? prefills_[next] : nullptr;
    Sequence* waiting = admitting ? state_.waiting.first() : nullptr;
    if (waiting != nullptr && (running == nullptr || ServedBefore()(waiting, running))) {
      admitting = TryAdmit(waiting);
      if (admitting) PlanChunk(waiting);
    } else if (running != nullptr) {
      PlanChunk(running);
      ++next;
    } else {
      break;
    }
  }
}

bool Planner::TryAdmit(Sequence* candidate) {
  // Its blocks were just taken; with a better match it might fit again at once, but a plan says one thing of each.
  if (candidate->preempted_in_plan == plan_number_) return false;
  state_.MatchPrefix(candidate);
  const int32_t victims = VictimsFor(*candidate);
  if (victims < 0 || (ahead_ && victims > 0)) return false;
  for (int32_t i = 0; i < victims; ++i) PreemptLast();

  Admission& admission = open_->plan.admitted.emplace_back();
  admission.id = candidate->id;
  admission.cached_tokens = static_cast<int32_t>(candidate->match.blocks.size()) * state_.config.block_size;
  admission.looked_up_tokens = candidate->read_prefix_cache ? candidate->size() : 0;
  admission.resumed = candidate->ran_before;
  state_.Admit(candidate);
  return true;
}

int32_t Planner::VictimsFor(const Sequence& candidate) {
  const RunningList& running = state_.running;
  const std::vector<PrefixMatch::Entry>& match = candidate.match.blocks;
  int32_t remaining = static_cast<int32_t>(running.size());
  int32_t available = state_.blocks.available();
  int32_t needed = state_.blocks.BlocksFor(candidate.size()) - state_.blocks.CountUsed(candidate.match);
  // A block to spare for each that runs, so that what is admitted now is not preempted at the next block
  // boundary.
  const auto fits = [&] {
    const int32_t spare = remaining == 0 ? 0 : remaining + 1;
    return remaining < state_.config.max_running && needed + spare <= available;
  };
  if (fits()) return 0;

  // Would it fit without the last ones of lower priority? Blocks can be shared among victims, so a block
  // counts once all its holders are victims.
  touched_blocks_.clear();
  int32_t victims = -1;
  while (remaining > 0 && running[remaining - 1]->priority < candidate.priority) {
    const Sequence& victim = *running[--remaining];
    for (size_t i = 0; i < victim.block_table.size(); ++i) {
      const int32_t block = victim.block_table[i];
      if (freed_holds_[block]++ == 0) touched_blocks_.push_back(block);
      if (freed_holds_[block] < state_.blocks.pool().references(block)) continue;
      ++available;
      // A matched block stands at the same place in every table. Without holders it has to be paid for.
      if (i < match.size() && match[i].block == block) ++needed;
    }
    if (fits()) {
      victims = static_cast<int32_t>(running.size()) - remaining;
      break;
    }
  }
  for (const int32_t block : touched_blocks_) freed_holds_[block] = 0;
  return victims;
}

void Planner::PreemptLast() {
  const Sequence* victim = state_.running.last();
  open_->plan.preempted.push_back(victim->id);
  budget_ += victim->share;
  state_.PreemptLast(plan_number_);
}

void Planner::PlanChunk(Sequence* sequence) {
  sequence->share = std::min({sequence->size() - sequence->next(), state_.config.max_prefill_chunk, budget_});
  budget_ -= sequence->share;
}

void Planner::WriteRows() {
  prefills_.clear();
  for (Sequence* sequence : state_.running) {
    if (sequence->share == 0) continue;
    if (sequence->decoding()) {
      WriteRow(sequence);
    } else {
      prefills_.push_back(sequence);
    }
  }
  for (Sequence* sequence : prefills_) WriteRow(sequence);
}

void Planner::WriteRow(Sequence* sequence) {
  const int32_t start = sequence->next(), end = start + sequence->share;
  PlannedRow& row = open_->plan.rows.emplace_back();
  row.id = sequence->id;
  row.start = start;
  row.tokens = absl::MakeConstSpan(sequence->tokens).subspan(start, sequence->share);
  if (sequence->pending) row.token_of = sequence->row;
  row.block_table = absl::MakeConstSpan(sequence->block_table).first(state_.blocks.BlocksFor(end));
  row.samples = end == sequence->size() && sequence->max_tokens > 0;
  row.prefill = !sequence->decoding();
  sequence->row = static_cast<int32_t>(open_->rows.size());
  open_->rows.push_back({sequence});
  sequence->planned += sequence->share;
  sequence->share = 0;
}

}  // namespace tessera
