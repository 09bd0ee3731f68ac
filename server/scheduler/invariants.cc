// Everything that must always hold of a scheduler's state, checked from scratch. Slow; for tests.

#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "server/scheduler/scheduler_state.h"

namespace tessera {
namespace {

template <typename... Args>
absl::Status Broken(const Args&... args) {
  return absl::InternalError(absl::StrCat(args...));
}

}  // namespace

absl::Status SchedulerState::CheckInvariants() const {
  if (!misuse_.empty()) return Broken("misuse: ", misuse_);
  if (absl::Status status = blocks.CheckInvariants(); !status.ok()) return status;

  // Lists: in order, and everybody in the one that fits its state.
  if (!std::is_sorted(running.begin(), running.end(), ServedBefore()))
    return Broken("running list out of order");
  if (!std::is_sorted(waiting.begin(), waiting.end(), ServedBefore()))
    return Broken("waiting queue out of order");
  for (const Sequence* sequence : running) {
    if (Find(sequence->id) != sequence || sequence->state != Sequence::State::kRunning) {
      return Broken("sequence ", sequence->id, " is in the running list and does not run");
    }
  }
  for (const Sequence* sequence : waiting) {
    if (Find(sequence->id) != sequence || sequence->state != Sequence::State::kWaiting) {
      return Broken("sequence ", sequence->id, " is in the waiting queue and does not wait");
    }
  }
  size_t blocked = 0, with_deadline = 0;
  std::vector<int32_t> holders(blocks.pool().num_blocks(), 0);
  for (const auto& [id, sequence] : sequences_) {
    if (id != sequence->id) return Broken("sequence ", sequence->id, " is known as ", id);
    if (absl::Status status = CheckSequence(*sequence); !status.ok()) return status;
    for (const int32_t block : sequence->block_table) ++holders[block];
    blocked += sequence->state == Sequence::State::kBlocked;
    if (sequence->deadline != absl::InfiniteFuture()) {
      ++with_deadline;
      if (!deadlines.Contains(sequence.get()))
        return Broken("the deadline of sequence ", id, " is not watched");
    }
  }
  if (running.size() + waiting.size() + blocked != sequences_.size()) {
    return Broken(running.size(), " running + ", waiting.size(), " waiting + ", blocked,
                  " blocked sequences are not ", sequences_.size());
  }
  if (absl::Status status = CheckOpenPlans(); !status.ok()) return status;
  if (with_deadline != deadlines.size()) return Broken("deadlines of sequences that are gone are watched");
  if (static_cast<int32_t>(running.size()) > config.max_running) {
    return Broken(running.size(), " sequences run, allowed ", config.max_running);
  }

  // Blocks: reference counts equal holders, and the three states partition them.
  const BlockPool& pool = blocks.pool();
  int32_t used = 0;
  for (int32_t block = 0; block < pool.num_blocks(); ++block) {
    used += holders[block] > 0;
    if (pool.references(block) != holders[block]) {
      return Broken("block ", block, " has ", holders[block], " holders, counted ", pool.references(block));
    }
  }
  if (used != pool.num_used() || used + pool.num_cached() + pool.num_free() != pool.num_blocks()) {
    return Broken(used, " used + ", pool.num_cached(), " cached + ", pool.num_free(), " free blocks are not ",
                  pool.num_blocks());
  }
  return absl::OkStatus();
}

// Rows are for sequences that run; those of one sequence follow each other from its computed tokens on, and together are
// what it has planned. A token that is not known yet is the last, and a row of the oldest plan draws it.
absl::Status SchedulerState::CheckOpenPlans() const {
  absl::flat_hash_map<const Sequence*, int32_t> planned;
  for (int32_t p = 0; p < open.size(); ++p) {
    const OpenPlan& plan = open.at(p);
    if (plan.rows.size() != plan.plan.rows.size()) return Broken("an open plan lost rows");
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      const Sequence* sequence = plan.rows[i].sequence;
      const PlannedRow& row = plan.plan.rows[i];
      if (sequence == nullptr) continue;
      if (Find(row.id) != sequence || sequence->state != Sequence::State::kRunning) {
        return Broken("a row is planned for sequence ", row.id, ", which does not run");
      }
      int32_t& so_far = planned[sequence];
      if (row.start != sequence->computed + so_far) {
        return Broken("sequence ", row.id, " has a row from ", row.start, " and computed ", sequence->computed,
                      " + ", so_far);
      }
      so_far += static_cast<int32_t>(row.tokens.size());
      if (row.token_of >= 0 && row.tokens.size() != 1) {
        return Broken("sequence ", row.id, " has a row of ", row.tokens.size(), " tokens for one that is not known");
      }
    }
  }
  for (const auto& [id, sequence] : sequences_) {
    const auto it = planned.find(sequence.get());
    const int32_t in_plans = it == planned.end() ? 0 : it->second;
    if (sequence->share != 0) return Broken("sequence ", id, " has a share and no plan is in the making");
    if (sequence->planned != in_plans) {
      return Broken("sequence ", id, " has ", sequence->planned, " tokens planned, open plans have ", in_plans);
    }
    const bool unknown = sequence->size() > 0 && sequence->tokens.back() == kUnknownToken;
    if (sequence->pending != unknown || (unknown && (open.size() < 2 || !sequence->awaits_outcome()))) {
      return Broken("sequence ", id, " has a token that is not known and no row that draws it");
    }
  }
  return absl::OkStatus();
}

absl::Status SchedulerState::CheckSequence(const Sequence& s) const {
  const int32_t table_size = static_cast<int32_t>(s.block_table.size());
  if (s.planned != 0 && s.state != Sequence::State::kRunning)
    return Broken("sequence ", s.id, " is planned and waits");
  for (size_t i = 0; i < s.dependents.size(); ++i) {
    const Sequence* dependent = s.dependents[i];
    if (dependent->leader != &s || dependent->index_at_leader != i ||
        dependent->state != Sequence::State::kBlocked || Find(dependent->id) != dependent) {
      return Broken("dependent ", i, " of sequence ", s.id, " is not linked back");
    }
  }
  if (!s.dependents.empty() && s.prompt_computed()) {
    return Broken("sequences still wait for the prompt of ", s.id, ", which is computed");
  }
  if ((s.state == Sequence::State::kBlocked) != (s.leader != nullptr)) {
    return Broken("sequence ", s.id, " is blocked without a leader, or has one and is not blocked");
  }
  if (s.leader != nullptr &&
      (s.index_at_leader >= s.leader->dependents.size() || s.leader->dependents[s.index_at_leader] != &s)) {
    return Broken("sequence ", s.id, " is not among its leader's dependents");
  }
  if (blocks.salts().references(s.salt) <= 0) return Broken("the cache salt of sequence ", s.id, " is gone");

  if (s.state != Sequence::State::kRunning) {
    if (table_size != 0 || s.computed != 0 || s.published != 0) {
      return Broken("sequence ", s.id, " holds blocks and does not run");
    }
    return absl::OkStatus();
  }
  if (s.computed + s.planned > s.size()) return Broken("sequence ", s.id, " computes past its end");
  if (s.computed >= s.size()) return Broken("sequence ", s.id, " runs and has nothing to compute");
  if (table_size < blocks.BlocksFor(s.size() - 1) || table_size > blocks.BlocksFor(s.size())) {
    return Broken("sequence ", s.id, " of ", s.size(), " tokens holds ", table_size, " blocks");
  }
  // Published blocks are full, are one chain from the root, and hold this sequence's tokens. Computed ones
  // that are not published can't be found; those still to be written are nobody else's.
  const int32_t computed_blocks = s.computed / config.block_size;
  if (s.published > computed_blocks) return Broken("sequence ", s.id, " published before computing");
  if (s.publishing && s.published != computed_blocks) {
    return Broken("sequence ", s.id, " has computed blocks that are not published");
  }
  for (int32_t i = 0; i < table_size; ++i) {
    const int32_t block = s.block_table[i];
    if (block < 0 || block >= blocks.pool().num_blocks())
      return Broken("sequence ", s.id, " holds block ", block);
    if (i >= s.published) {
      if (blocks.cache().Contains(block))
        return Broken("block ", block, " of sequence ", s.id, " can be found");
      if (i >= computed_blocks && blocks.pool().references(block) != 1) {
        return Broken("block ", block, " of sequence ", s.id, " is to be written and is shared");
      }
      continue;
    }
    const int32_t parent = i == 0 ? PrefixCache::Root(s.salt) : s.block_table[i - 1];
    if (!blocks.cache().Contains(block) || blocks.cache().parent(block) != parent) {
      return Broken("block ", block, " of sequence ", s.id, " is published under another parent");
    }
    const absl::Span<const int32_t> tokens = blocks.cache().tokens(block);
    if (!std::equal(tokens.begin(), tokens.end(),
                    s.tokens.begin() + static_cast<size_t>(i) * config.block_size)) {
      return Broken("block ", block, " is published with other tokens than those of sequence ", s.id);
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
