#include "server/scheduler/scheduler_state.h"

#include <algorithm>
#include <utility>

namespace tessera {

SchedulerState::SchedulerState(const SchedulerConfig& config)
    : config(config), blocks(config.num_blocks, config.block_size, config.prefix_hash_bits) {}

Sequence* SchedulerState::Find(SequenceId id) const {
  const auto it = sequences_.find(id);
  return it == sequences_.end() ? nullptr : it->second.get();
}

void SchedulerState::Add(SequenceSpec spec) {
  auto owned = std::make_unique<Sequence>();
  Sequence* sequence = owned.get();
  sequence->id = spec.id;
  sequence->priority = spec.priority;
  sequence->arrival = ++last_arrival_;
  sequence->prompt_length = static_cast<int32_t>(spec.prompt.size());
  sequence->max_tokens = spec.max_tokens;
  sequence->tokens = std::move(spec.prompt);
  sequence->read_prefix_cache = config.prefix_cache && spec.read_prefix_cache;
  sequence->salt = blocks.AcquireSalt(spec.cache_salt);
  sequence->deadline = spec.deadline;
  sequence->runs_ahead = spec.runs_ahead;

  Sequence* leader = sequence->read_prefix_cache && spec.after != 0 ? Find(spec.after) : nullptr;
  if (leader != nullptr && !leader->prompt_computed()) {
    Block(sequence, leader);
  } else {
    waiting.Insert(sequence);
  }
  deadlines.Insert(sequence);
  sequences_.emplace(sequence->id, std::move(owned));
}

void SchedulerState::MatchPrefix(Sequence* sequence) {
  if (!sequence->read_prefix_cache) return;
  // A block that is shared is never written: the match ends before the last token, which is always computed.
  const int32_t limit = (sequence->size() - 1) / config.block_size;
  blocks.ExtendHashes(sequence->salt, sequence->tokens, limit, &sequence->hashes);
  blocks.Match(sequence->salt, sequence->tokens, absl::MakeConstSpan(sequence->hashes).first(limit),
               &sequence->match);
}

void SchedulerState::Admit(Sequence* sequence) {
  waiting.Remove(sequence);
  sequence->state = Sequence::State::kRunning;
  running.Insert(sequence);

  const int32_t matched = static_cast<int32_t>(sequence->match.blocks.size());
  const int32_t total = blocks.BlocksFor(sequence->size());
  sequence->block_table.reserve(total + 1);
  // All matched blocks are held before the first allocation, which could evict them otherwise.
  for (const PrefixMatch::Entry& entry : sequence->match.blocks) {
    blocks.Acquire(entry.block);
    sequence->block_table.push_back(entry.block);
  }
  for (int32_t i = matched; i < total; ++i) Grow(sequence);
  sequence->match = PrefixMatch();
  sequence->computed = matched * config.block_size;
  sequence->published = matched;
  sequence->publishing = config.prefix_cache;
}

bool SchedulerState::Grow(Sequence* sequence) {
  const int32_t block = blocks.Allocate();
  if (block < 0) return false;
  sequence->block_table.push_back(block);
  return true;
}

void SchedulerState::PreemptLast(uint64_t plan_number) {
  Sequence* sequence = running.last();
  running.RemoveLast();
  ReleaseBlocks(sequence);
  sequence->state = Sequence::State::kWaiting;
  sequence->share = 0;
  sequence->ran_before = true;
  sequence->preempted_in_plan = plan_number;
  waiting.Insert(sequence);
  ++preemptions;
}

void SchedulerState::Advance(Sequence* sequence, int32_t count) {
  sequence->computed += count;
  sequence->planned -= count;
  if (sequence->publishing) PublishFullBlocks(sequence);
  if (!sequence->dependents.empty() && sequence->prompt_computed()) ReleaseDependents(sequence);
}

void SchedulerState::PublishFullBlocks(Sequence* sequence) {
  const int32_t full = sequence->computed / config.block_size;
  if (full == sequence->published) return;
  blocks.ExtendHashes(sequence->salt, sequence->tokens, full, &sequence->hashes);
  for (int32_t i = sequence->published; i < full; ++i) {
    int32_t& block = sequence->block_table[i];
    const int32_t parent = i == 0 ? PrefixCache::Root(sequence->salt) : sequence->block_table[i - 1];
    const int32_t published = blocks.Publish(
        block, sequence->hashes[i], parent,
        absl::MakeConstSpan(sequence->tokens).subspan(i * config.block_size, config.block_size));
    if (published != block) {
      // Somebody else computed the same. One copy is enough, and only with the published one in its table can
      // this sequence publish what follows. One that must not read the cache keeps its own, and publishes no
      // further.
      if (!sequence->read_prefix_cache) {
        sequence->publishing = false;
        return;
      }
      blocks.Acquire(published);
      blocks.Release(block);
      block = published;
    }
    sequence->published = i + 1;
  }
}

void SchedulerState::Block(Sequence* sequence, Sequence* leader) {
  sequence->state = Sequence::State::kBlocked;
  sequence->leader = leader;
  sequence->index_at_leader = leader->dependents.size();
  leader->dependents.push_back(sequence);
}

void SchedulerState::Unblock(Sequence* sequence) {
  std::vector<Sequence*>& siblings = sequence->leader->dependents;
  siblings[sequence->index_at_leader] = siblings.back();
  siblings[sequence->index_at_leader]->index_at_leader = sequence->index_at_leader;
  siblings.pop_back();
  sequence->leader = nullptr;
}

void SchedulerState::ReleaseDependents(Sequence* leader) {
  for (Sequence* sequence : leader->dependents) {
    sequence->leader = nullptr;
    sequence->state = Sequence::State::kWaiting;
    waiting.Insert(sequence);
  }
  leader->dependents.clear();
}

void SchedulerState::ReleaseBlocks(Sequence* sequence) {
  blocks.ReleaseTable(sequence->block_table);
  sequence->block_table.clear();
  sequence->computed = 0;
  sequence->published = 0;
}

void SchedulerState::Remove(Sequence* sequence) {
  switch (sequence->state) {
    case Sequence::State::kBlocked:
      Unblock(sequence);
      break;
    case Sequence::State::kWaiting:
      waiting.Remove(sequence);
      break;
    case Sequence::State::kRunning:
      running.Remove(sequence);
      break;
  }
  Forget(sequence);
}

void SchedulerState::RemoveFinished(absl::Span<Sequence* const> finished) {
  if (finished.empty()) return;
  running.RemoveFinished();
  for (Sequence* sequence : finished) Forget(sequence);
}

void SchedulerState::Forget(Sequence* sequence) {
  open.Void(sequence);
  ReleaseBlocks(sequence);
  ReleaseDependents(sequence);
  deadlines.Remove(sequence);
  blocks.ReleaseSalt(sequence->salt);
  sequences_.erase(sequence->id);
}

void SchedulerState::ClearPrefixCache() {
  blocks.ClearPrefixCache();
  // What was computed before must never be found again, also not through those who still use it.
  for (Sequence* sequence : running) {
    sequence->published = 0;
    sequence->publishing = false;
  }
}

void SchedulerState::ReportMisuse(std::string what) {
  if (misuse_.empty()) misuse_ = std::move(what);
}

}  // namespace tessera
