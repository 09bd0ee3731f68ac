#include "tests/simulation/simulation.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::simulation {
namespace {

template <typename... Args>
absl::Status Wrong(const Args&... args) {
  return absl::InternalError(absl::StrCat(args...));
}

}  // namespace

#define RETURN_IF_ERROR(expr) \
  if (absl::Status status = (expr); !status.ok()) return status

Totals& Totals::operator+=(const Totals& o) {
  steps += o.steps;
  sequences += o.sequences;
  completed += o.completed;
  cancelled += o.cancelled;
  expired += o.expired;
  failed += o.failed;
  refused += o.refused;
  preemptions += o.preemptions;
  computed_tokens += o.computed_tokens;
  cached_tokens += o.cached_tokens;
  drains += o.drains;
  ahead += o.ahead;
  void_rows += o.void_rows;
  return *this;
}

Simulation::Simulation(uint64_t seed, bool trace)
    : random_(seed),
      profile_(RandomProfile(random_)),
      workload_(profile_, &random_),
      scheduler_(profile_.scheduler),
      backend_(profile_.scheduler.num_blocks, profile_.scheduler.block_size),
      trace_(trace) {
  if (trace_) std::printf("%s\n", Describe(profile_).c_str());
}

absl::Status Simulation::Run(int64_t steps) {
  while (totals_.steps < steps) {
    for (int32_t left = random_.Uniform(20, 300); left > 0; --left) {
      double arrivals = profile_.arrival_rate;
      for (; arrivals > 0 && static_cast<int32_t>(clients_.size()) < profile_.max_live; arrivals -= 1) {
        if (random_.Chance(arrivals)) RETURN_IF_ERROR(Arrive());
      }
      if (random_.Chance(profile_.cancel_rate)) RETURN_IF_ERROR(CancelOne());
      if (random_.Chance(profile_.clear_rate)) scheduler_.ClearPrefixCache();
      RETURN_IF_ERROR(Advance());
    }
    RETURN_IF_ERROR(RunUntilIdle());
  }
  totals_.preemptions = scheduler_.Stats().preemptions;
  return absl::OkStatus();
}

// Nothing arrives any more: everybody finishes, within a number of steps that is known beforehand, and gives
// back what it held.
absl::Status Simulation::RunUntilIdle() {
  int64_t bound = 1;
  for (const auto& [id, client] : clients_) bound += client.prompt_length + client.max_tokens + 1;
  if (profile_.late_rate > 0) bound *= 2;  // rows that run again
  while (!clients_.empty() || at_work_.has_value()) {
    if (bound-- < 0) return Wrong(clients_.size(), " sequences do not finish");
    RETURN_IF_ERROR(Advance());
  }
  if (!scheduler_.Idle()) return Wrong("the scheduler is not idle and has nobody to serve");
  const SchedulerStats stats = scheduler_.Stats();
  if (stats.blocks_used != 0 || stats.blocks_cached + stats.blocks_free != stats.blocks_total) {
    return Wrong("of ", stats.blocks_total, " blocks ", stats.blocks_cached, " are cached and ",
                 stats.blocks_free, " free after the last sequence");
  }
  if (!profile_.scheduler.prefix_cache && stats.blocks_cached != 0)
    return Wrong("blocks are cached without a cache");
  ++totals_.drains;
  return absl::OkStatus();
}

absl::Status Simulation::Arrive() {
  SequenceSpec spec;
  const bool embedding = random_.Chance(profile_.embedding_share);
  spec.prompt = workload_.Prompt();
  const int32_t room = profile_.max_sequence - static_cast<int32_t>(spec.prompt.size());
  if (!embedding) spec.max_tokens = random_.Chance(0.2) ? room : std::min(room, random_.Uniform(1, 30));
  if (spec.max_tokens < 0) spec.max_tokens = 0;
  if (random_.Chance(profile_.priority_share)) spec.priority = random_.Uniform(-2, 2);
  if (random_.Chance(profile_.deadline_share)) {
    spec.deadline = now_ + absl::Milliseconds(random_.Chance(0.1) ? -1 : random_.Uniform(0, 3000));
  }
  spec.read_prefix_cache = !random_.Chance(profile_.bypass_share);
  spec.runs_ahead = !random_.Chance(profile_.behind_share);
  const int32_t salt = random_.Uniform(0, profile_.num_salts - 1);
  spec.cache_salt = Workload::SaltName(salt);

  if (random_.Chance(0.02)) {
    SequenceSpec bad = spec;
    bad.id = last_id_ + 1;
    bad.prompt = random_.Chance(0.3) ? std::vector<int32_t>() : workload_.TooLong();
    if (!absl::IsInvalidArgument(scheduler_.Add(bad))) return Wrong("a sequence that can't fit was accepted");
    ++totals_.refused;
  }
  if (!clients_.empty() && random_.Chance(0.02)) {
    SequenceSpec bad = spec;
    bad.id = clients_.begin()->first;
    if (!absl::IsAlreadyExists(scheduler_.Add(bad))) return Wrong("an id in use was accepted");
    ++totals_.refused;
  }

  const int32_t outputs = random_.Chance(profile_.group_share) ? random_.Uniform(2, 5) : 1;
  const uint64_t seed = random_.Next();
  SequenceId first = 0;
  for (int32_t i = 0; i < outputs; ++i) {
    SequenceSpec output = spec;
    output.id = ++last_id_;
    if (!dead_.empty() && random_.Chance(0.1)) {  // an id may come back once it is not in use
      output.id = dead_.back();
      dead_.pop_back();
    }
    if (i > 0) {
      output.after = first;
      if (random_.Chance(0.1)) output.priority = random_.Uniform(-2, 2);
      if (random_.Chance(0.05)) output.read_prefix_cache = !output.read_prefix_cache;
    } else {
      first = output.id;
      if (random_.Chance(0.02)) output.after = random_.Uniform(1, static_cast<int32_t>(last_id_) + 3);
    }
    RETURN_IF_ERROR(Add(std::move(output), salt, seed + i));
  }
  return absl::OkStatus();
}

absl::Status Simulation::Add(SequenceSpec spec, int32_t salt, uint64_t seed) {
  Client client;
  client.id = spec.id;
  client.prompt_length = static_cast<int32_t>(spec.prompt.size());
  client.max_tokens = spec.max_tokens;
  client.priority = spec.priority;
  client.arrival = ++last_arrival_;
  client.seed = seed;
  client.salt = salt;
  client.reads_cache = spec.read_prefix_cache && profile_.scheduler.prefix_cache;
  client.deadline = spec.deadline;
  client.runs_ahead = spec.runs_ahead;
  for (const int32_t token : spec.prompt) Append(client, token);
  const auto leader = clients_.find(spec.after);
  if (client.reads_cache && leader != clients_.end() &&
      leader->second.computed < leader->second.prompt_length) {
    client.leader = spec.after;
  }
  if (trace_) {
    std::printf("add %lld prompt %d max %d priority %d after %lld salt %d reads %d\n",
                static_cast<long long>(client.id), client.prompt_length, client.max_tokens, client.priority,
                static_cast<long long>(client.leader), salt, client.reads_cache);
  }
  RETURN_IF_ERROR(scheduler_.Add(std::move(spec)));
  clients_[client.id] = std::move(client);
  ++totals_.sequences;
  return absl::OkStatus();
}

absl::Status Simulation::CancelOne() {
  if (clients_.empty()) return absl::OkStatus();
  auto it = clients_.begin();
  std::advance(it, random_.Uniform(0, static_cast<int32_t>(clients_.size()) - 1));
  const SequenceId id = it->first;
  if (trace_) std::printf("cancel %lld\n", static_cast<long long>(id));
  if (!scheduler_.Remove(id)) return Wrong("sequence ", id, " is live and can't be removed");
  ++totals_.cancelled;
  Gone(id);
  if (scheduler_.Remove(id)) return Wrong("sequence ", id, " was removed twice");
  return absl::OkStatus();
}

// Runs a step; while it is at work the next one may be planned.
absl::Status Simulation::Advance() {
  ++totals_.steps;
  now_ += absl::Milliseconds(random_.Uniform(0, 30));
  if (!at_work_.has_value()) {
    at_work_.emplace();
    RETURN_IF_ERROR(PlanStep(&*at_work_));
  }
  if (random_.Chance(profile_.ahead_rate) && !at_work_->rows.empty()) {
    now_ += absl::Milliseconds(random_.Uniform(0, 30));
    ahead_.emplace();
    RETURN_IF_ERROR(PlanStep(&*ahead_));
    RETURN_IF_ERROR(scheduler_.CheckInvariants());
  }
  if (random_.Chance(profile_.cancel_in_plan_rate)) RETURN_IF_ERROR(CancelOne());
  RETURN_IF_ERROR(RunStep(&*at_work_));
  at_work_ = std::move(ahead_);
  ahead_.reset();
  if (at_work_.has_value() && at_work_->rows.empty()) {
    scheduler_.Commit({});
    at_work_.reset();
  }
  return CheckAfterCommit();
}

absl::Status Simulation::PlanStep(Step* step) {
  const StepPlan& plan = scheduler_.Plan(now_);
  if (trace_) Trace(plan);
  RETURN_IF_ERROR(CheckExpired(plan));
  RETURN_IF_ERROR(CheckPreemptedAndAdmitted(plan));
  if (ahead_.has_value() && plan.rows.empty()) return CheckNothingAhead();
  RETURN_IF_ERROR(CheckOrder(plan));
  RETURN_IF_ERROR(CheckRows(plan));
  step->rows.resize(plan.rows.size());
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const PlannedRow& planned = plan.rows[i];
    Step::Row& row = step->rows[i];
    row.planned = planned;
    row.tokens.assign(planned.tokens.begin(), planned.tokens.end());
    row.block_table.assign(planned.block_table.begin(), planned.block_table.end());
    row.planned.tokens = row.tokens;
    row.planned.block_table = row.block_table;
    row.arrival = clients_.at(planned.id).arrival;
  }
  for (const Step::Row& row : step->rows) clients_.at(row.planned.id).planned += row.planned.tokens.size();
  totals_.ahead += ahead_.has_value();
  return absl::OkStatus();
}

absl::Status Simulation::RunStep(Step* step) {
  const bool device_fault = random_.Chance(profile_.device_fault_rate);
  std::vector<RowOutcome> outcomes;
  for (Step::Row& row : step->rows) {
    if (row.planned.token_of >= 0) row.tokens[0] = drawn_[row.planned.token_of];
    RETURN_IF_ERROR(ComputeRow(&row, device_fault, &outcomes));
  }
  drawn_.clear();
  for (const Step::Row& row : step->rows) drawn_.push_back(row.drawn);
  if (random_.Chance(0.2)) {
    for (size_t i = outcomes.size(); i > 1; --i) {
      std::swap(outcomes[i - 1], outcomes[random_.Uniform(0, static_cast<int32_t>(i) - 1)]);
    }
  }
  scheduler_.Commit(outcomes);
  return absl::OkStatus();
}

absl::Status Simulation::CheckExpired(const StepPlan& plan) {
  std::vector<SequenceId> due;
  for (const auto& [id, client] : clients_) {
    if (client.deadline <= now_) due.push_back(id);
  }
  std::vector<SequenceId> expired = plan.expired;
  std::sort(expired.begin(), expired.end());
  if (expired != due)
    return Wrong(due.size(), " sequences are past their deadline, expired ", expired.size());
  for (const SequenceId id : expired) Gone(id);
  totals_.expired += static_cast<int64_t>(expired.size());
  return absl::OkStatus();
}

absl::Status Simulation::CheckPreemptedAndAdmitted(const StepPlan& plan) {
  for (const SequenceId id : plan.preempted) {
    const auto it = clients_.find(id);
    if (it == clients_.end() || !it->second.running)
      return Wrong("sequence ", id, " was preempted and did not run");
    if (ahead_.has_value()) return Wrong("sequence ", id, " was preempted ahead of a step at work");
    it->second.running = false;
    it->second.ran_before = true;
    it->second.computed = 0;
  }
  const Client* previous = nullptr;
  for (const Admission& admission : plan.admitted) {
    const auto it = clients_.find(admission.id);
    if (it == clients_.end() || it->second.running)
      return Wrong("sequence ", admission.id, " was admitted, did not wait");
    Client& client = it->second;
    if (client.leader != 0)
      return Wrong("sequence ", client.id, " was admitted before its leader's prompt was done");
    if (std::count(plan.preempted.begin(), plan.preempted.end(), client.id) != 0) {
      return Wrong("sequence ", client.id, " was preempted and admitted in one plan");
    }
    if (admission.resumed != client.ran_before)
      return Wrong("sequence ", client.id, " resumed: ", admission.resumed);
    if (admission.looked_up_tokens != (client.reads_cache ? client.size() : 0)) {
      return Wrong("sequence ", client.id, " looked up ", admission.looked_up_tokens, " tokens");
    }
    if (admission.cached_tokens % profile_.scheduler.block_size != 0 ||
        admission.cached_tokens >= client.size() || (!client.reads_cache && admission.cached_tokens != 0)) {
      return Wrong("sequence ", client.id, " of ", client.size(), " tokens found ", admission.cached_tokens);
    }
    if (previous != nullptr && !ServedBefore(*previous, client)) return Wrong("admissions are out of order");
    previous = &client;
    client.running = true;
    client.computed = admission.cached_tokens;
    totals_.cached_tokens += admission.cached_tokens;
  }
  return absl::OkStatus();
}

// Nobody overtakes, nobody is preempted for one that comes later, and whoever could surely be admitted was.
absl::Status Simulation::CheckOrder(const StepPlan& plan) {
  const Client* first_waiting = nullptr;
  const Client* first_preempted = nullptr;
  const Client* last_running = nullptr;
  int32_t running = 0;
  for (const auto& [id, client] : clients_) {
    if (client.running) {
      ++running;
      if (last_running == nullptr || ServedBefore(*last_running, client)) last_running = &client;
    } else if (client.leader == 0) {
      if (first_waiting == nullptr || ServedBefore(client, *first_waiting)) first_waiting = &client;
    }
  }
  for (const SequenceId id : plan.preempted) {
    const Client& client = clients_.at(id);
    if (first_preempted == nullptr || ServedBefore(client, *first_preempted)) first_preempted = &client;
  }
  if (first_preempted != nullptr && last_running != nullptr &&
      !ServedBefore(*last_running, *first_preempted)) {
    return Wrong("sequence ", first_preempted->id, " was preempted and ", last_running->id, " was not");
  }
  // Whoever is admitted is not thrown out at the next block boundary: that would go on and on.
  if (admitted_last_step_ && !plan.preempted.empty() && plan.admitted.empty()) {
    return Wrong("sequence ", plan.preempted[0], " was preempted for blocks one step after an admission");
  }
  admitted_last_step_ = !plan.admitted.empty();
  if (first_waiting == nullptr) return absl::OkStatus();
  for (const Admission& admission : plan.admitted) {
    if (!ServedBefore(clients_.at(admission.id), *first_waiting)) {
      return Wrong("sequence ", admission.id, " was admitted and ", first_waiting->id, " before it was not");
    }
  }

  int32_t planned = 0;
  for (const PlannedRow& row : plan.rows) planned += static_cast<int32_t>(row.tokens.size());
  const SchedulerConfig& s = profile_.scheduler;
  const SchedulerStats stats = scheduler_.Stats();
  const bool preempted_now = std::count(plan.preempted.begin(), plan.preempted.end(), first_waiting->id) != 0;
  const int32_t needed = (first_waiting->size() + s.block_size - 1) / s.block_size;
  if (!preempted_now && planned < s.max_batched_tokens &&
      running < std::min(s.max_running, s.max_batched_tokens) &&
      needed + running + 1 <= stats.blocks_cached + stats.blocks_free) {
    return Wrong("sequence ", first_waiting->id, " waits and would fit: ", needed, " blocks, ",
                 stats.blocks_cached, " cached, ", stats.blocks_free, " free, ", running, " running");
  }
  return absl::OkStatus();
}

absl::Status Simulation::CheckRows(const StepPlan& plan) {
  const SchedulerConfig& s = profile_.scheduler;
  if (plan.rows.empty() && !ahead_.has_value() && !clients_.empty())
    return Wrong("nothing is planned for ", clients_.size(), " sequences");
  if (static_cast<int32_t>(plan.rows.size()) > s.max_running) return Wrong(plan.rows.size(), " rows");
  int32_t planned = 0;
  bool prefill_seen = false;
  std::vector<SequenceId> ids;
  for (const PlannedRow& row : plan.rows) {
    const auto it = clients_.find(row.id);
    if (it == clients_.end() || !it->second.running)
      return Wrong("sequence ", row.id, " has a row and does not run");
    const Client& client = it->second;
    const int32_t count = static_cast<int32_t>(row.tokens.size());
    const int32_t end = row.start + count;
    ids.push_back(row.id);
    planned += count;
    if (row.start != client.next() || count < 1 || end > client.size_to_plan()) {
      return Wrong("sequence ", row.id, " of ", client.size(), " tokens, computed ", client.computed, " + ",
                   client.planned, ", planned from ", row.start, " to ", end);
    }
    if (row.token_of >= 0) {
      if (!client.expects_token() || count != 1 || row.tokens[0] != kUnknownToken) {
        return Wrong("sequence ", row.id, " has a token that is not known in its row");
      }
      const PlannedRow& before = at_work_->rows.at(row.token_of).planned;
      if (before.id != row.id || !before.samples) return Wrong("row ", row.token_of, " does not draw for ", row.id);
    } else if (client.expects_token() ||
               !std::equal(row.tokens.begin(), row.tokens.end(), client.tokens.begin() + row.start)) {
      return Wrong("sequence ", row.id, " has other tokens in its row");
    }
    if (row.prefill == client.decoding()) return Wrong("sequence ", row.id, " prefill: ", row.prefill);
    if (row.prefill && count > s.max_prefill_chunk)
      return Wrong("sequence ", row.id, " prefills ", count, " tokens");
    if (row.samples != (end == client.size_to_plan() && client.max_tokens > 0)) {
      return Wrong("sequence ", row.id, " samples: ", row.samples);
    }
    if (static_cast<int32_t>(row.block_table.size()) != (end + s.block_size - 1) / s.block_size) {
      return Wrong("sequence ", row.id, " has ", row.block_table.size(), " blocks for ", end, " tokens");
    }
    for (const int32_t block : row.block_table) {
      if (block < 0 || block >= s.num_blocks) return Wrong("sequence ", row.id, " has block ", block);
    }
    if (!row.prefill && prefill_seen) return Wrong("a decode row stands behind a prefill row");
    prefill_seen |= row.prefill;
  }
  if (planned > s.max_batched_tokens) return Wrong(planned, " tokens in one step");
  std::sort(ids.begin(), ids.end());
  if (std::adjacent_find(ids.begin(), ids.end()) != ids.end()) return Wrong("a sequence has two rows");
  RETURN_IF_ERROR(CheckShares(plan));
  return backend_.CheckNoSharedWrites(plan.rows);
}

// Everybody who decodes has a row; what they leave of the step's tokens goes to the others in serving order.
absl::Status Simulation::CheckShares(const StepPlan& plan) {
  int32_t budget = profile_.scheduler.max_batched_tokens;
  std::map<SequenceId, int32_t> shares;
  std::vector<const Client*> prefilling;
  for (const auto& [id, client] : clients_) {
    if (!client.running || client.next() == client.size_to_plan()) continue;
    if (client.decoding()) {
      shares[id] = 1;
      --budget;
    } else {
      prefilling.push_back(&client);
    }
  }
  std::sort(prefilling.begin(), prefilling.end(),
            [](const Client* a, const Client* b) { return ServedBefore(*a, *b); });
  for (const Client* client : prefilling) {
    const int32_t share =
        std::min({client->size_to_plan() - client->next(), profile_.scheduler.max_prefill_chunk, budget});
    if (share > 0) shares[client->id] = share;
    budget -= share;
  }
  for (const PlannedRow& row : plan.rows) {
    if (shares[row.id] != static_cast<int32_t>(row.tokens.size())) {
      return Wrong("sequence ", row.id, " gets ", row.tokens.size(), " tokens of the step, due are ",
                   shares[row.id]);
    }
  }
  if (plan.rows.size() != shares.size())
    return Wrong(shares.size(), " rows are due, planned ", plan.rows.size());
  return absl::OkStatus();
}

// Ahead of a step at work a plan may be empty although there is work: a sequence has to wait for its token, or somebody
// may have to be preempted.
absl::Status Simulation::CheckNothingAhead() {
  const SchedulerStats stats = scheduler_.Stats();
  bool due = false;
  int32_t lowest = INT32_MAX, highest = INT32_MIN;  // priorities, of those that run and of those that wait
  for (const auto& [id, client] : clients_) {
    if (!client.running) {
      if (client.leader == 0) highest = std::max(highest, client.priority);
      continue;
    }
    if (client.expects_token() && !client.runs_ahead) return absl::OkStatus();
    lowest = std::min(lowest, client.priority);
    due |= client.next() < client.size_to_plan();
  }
  if (!due || stats.blocks_cached + stats.blocks_free < stats.running || highest > lowest) return absl::OkStatus();
  return Wrong("nothing is planned ahead for ", stats.running, " sequences");
}

Simulation::Client* Simulation::Owner(const Step::Row& row) {
  const auto it = clients_.find(row.planned.id);
  return it == clients_.end() || it->second.arrival != row.arrival ? nullptr : &it->second;
}

absl::Status Simulation::ComputeRow(Step::Row* row, bool device_fault, std::vector<RowOutcome>* outcomes) {
  const PlannedRow& planned = row->planned;
  Client* client = Owner(*row);
  if (client == nullptr || row->is_void) {
    // Nobody wants it; the device computes it all the same, from whatever token it got.
    ++totals_.void_rows;
    backend_.Poison(planned, random_.Next());
    row->drawn = random_.Uniform(0, profile_.vocabulary - 1);
    if (random_.Chance(0.5)) outcomes->push_back({.id = planned.id, .token = planned.samples ? row->drawn : -1});
    return absl::OkStatus();
  }
  RowOutcome& outcome = outcomes->emplace_back();
  outcome.id = planned.id;
  uint64_t prefix = 0;
  RETURN_IF_ERROR(backend_.Compute(
      planned, {client->id, client->salt, client->reads_cache, client->prefixes}, &prefix));
  if (device_fault || random_.Chance(profile_.row_error_rate)) {
    backend_.Poison(planned, random_.Next());
    outcome.finished = true;
    ++totals_.failed;
    Gone(planned.id);
    return absl::OkStatus();
  }
  const int32_t count = static_cast<int32_t>(planned.tokens.size());
  totals_.computed_tokens += count;
  client->computed += count;
  client->planned -= count;
  if (client->computed >= client->prompt_length) ReleaseDependents(client->id);
  if (planned.samples) {
    Draw(*client, prefix, &outcome);
    row->drawn = outcome.token;
    if (!outcome.finished && random_.Chance(profile_.late_rate)) {
      outcome.late = true;
      row->drawn = random_.Uniform(0, profile_.vocabulary - 1);
      client->planned = 0;
      if (ahead_.has_value()) {
        for (Step::Row& next : ahead_->rows) next.is_void |= Owner(next) == client;
      }
    }
  } else if (client->computed == client->size()) {  // an embedding
    outcome.finished = true;
    outcome.computed = random_.Chance(0.9);
  }
  if (outcome.finished) {
    RETURN_IF_ERROR(CheckOutput(*client));
    ++totals_.completed;
    Gone(planned.id);
  }
  return absl::OkStatus();
}

void Simulation::Draw(Client& client, uint64_t prefix, RowOutcome* outcome) {
  const simulation::Draw draw = DrawAfter(prefix, client.seed, profile_.vocabulary, profile_.stop_one_in);
  outcome->token = draw.token;
  Append(client, draw.token);
  outcome->finished = draw.stops || client.size() - client.prompt_length >= client.max_tokens;
}

// The output is what the model gives when it computes this sequence alone, token by token.
absl::Status Simulation::CheckOutput(const Client& client) {
  uint64_t prefix = 0;
  for (int32_t i = 0; i < client.prompt_length; ++i) prefix = ExtendPrefix(prefix, client.tokens[i]);
  for (int32_t i = client.prompt_length; i < client.size(); ++i) {
    const simulation::Draw draw = DrawAfter(prefix, client.seed, profile_.vocabulary, profile_.stop_one_in);
    if (draw.token != client.tokens[i]) return Wrong("output ", i, " of sequence ", client.id, " is wrong");
    if (draw.stops && i + 1 != client.size()) return Wrong("sequence ", client.id, " went on after a stop");
    prefix = ExtendPrefix(prefix, draw.token);
  }
  return absl::OkStatus();
}

absl::Status Simulation::CheckAfterCommit() {
  RETURN_IF_ERROR(scheduler_.CheckInvariants());
  const SchedulerStats stats = scheduler_.Stats();
  int32_t running = 0;
  absl::Time deadline = absl::InfiniteFuture();
  for (const auto& [id, client] : clients_) {
    running += client.running;
    deadline = std::min(deadline, client.deadline);
    const absl::Span<const int32_t> tokens = scheduler_.Tokens(id);
    if (!std::equal(tokens.begin(), tokens.end(), client.tokens.begin(), client.tokens.end())) {
      return Wrong("sequence ", id, " has other tokens");
    }
  }
  if (stats.running != running || stats.running + stats.waiting != static_cast<int32_t>(clients_.size())) {
    return Wrong(stats.running, " running and ", stats.waiting, " waiting of ", clients_.size(),
                 ", expected ", running, " running");
  }
  if (stats.blocks_used + stats.blocks_cached + stats.blocks_free != stats.blocks_total)
    return Wrong("blocks are lost");
  if (scheduler_.NextDeadline() != deadline) return Wrong("the next deadline is wrong");
  if (scheduler_.Idle() != clients_.empty()) return Wrong("idle: ", scheduler_.Idle());
  return absl::OkStatus();
}

void Simulation::Append(Client& client, int32_t token) {
  client.prefixes.push_back(ExtendPrefix(client.prefixes.empty() ? 0 : client.prefixes.back(), token));
  client.tokens.push_back(token);
}

void Simulation::Gone(SequenceId id) {
  ReleaseDependents(id);
  workload_.Remember(clients_.at(id).tokens);
  clients_.erase(id);
  dead_.push_back(id);
}

void Simulation::ReleaseDependents(SequenceId leader) {
  for (auto& [id, client] : clients_) {
    if (client.leader == leader) client.leader = 0;
  }
}

void Simulation::Trace(const StepPlan& plan) {
  std::string line = absl::StrCat("step ", totals_.steps, ":");
  for (const SequenceId id : plan.expired) absl::StrAppend(&line, " expired ", id);
  for (const SequenceId id : plan.preempted) absl::StrAppend(&line, " preempted ", id);
  for (const Admission& a : plan.admitted)
    absl::StrAppend(&line, " admitted ", a.id, "(", a.cached_tokens, " cached)");
  for (const PlannedRow& row : plan.rows) {
    absl::StrAppend(&line, " ", row.id, "[", row.start, "+", row.tokens.size(), "]");
  }
  const SchedulerStats s = scheduler_.Stats();
  absl::StrAppend(&line, " | used ", s.blocks_used, " cached ", s.blocks_cached, " free ", s.blocks_free);
  std::printf("%s\n", line.c_str());
}

#undef RETURN_IF_ERROR

}  // namespace tessera::simulation
