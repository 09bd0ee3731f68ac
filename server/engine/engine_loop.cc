#include "server/engine/engine_loop.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/engine/engine.h"
#include "server/engine/unshared_status.h"
#include "server/sampling/logits.h"
#include "spdlog/spdlog.h"

namespace tessera {
namespace {

// Nothing is planned ahead of a step with more prompt tokens: it takes long enough that the host's part after it hardly
// counts, and a request that comes meanwhile would wait for the step after it, too.
constexpr int32_t kMostPromptTokensToRunAheadOf = 256;

// What the backend throws is its failure too.
template <typename Work>
absl::Status Guarded(const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("the backend threw: ", error.what()));
  }
}

}  // namespace

EngineLoop::EngineLoop(const EngineConfig& config, Seams seams)
    : config_(config), seams_(std::move(seams)), scheduler_(config.scheduler) {
  seams_.board->SetStats(scheduler_.Stats());
}

void EngineLoop::Run() {
  Inbox::Contents contents;
  for (;;) {
    now_ = seams_.clock();
    seams_.heartbeat->BeginRound(now_);
    seams_.inbox->Take(&contents);
    TakeUp(&contents);
    if (contents.stop) break;
    if (Advance()) continue;
    PublishLoad();
    Deliver();
    device_idle_since_ = absl::InfiniteFuture();
    if (slow_readers_.empty()) Sleep();
  }
  if (at_work_ != nullptr) FinishStep(at_work_, nullptr);
  at_work_ = nullptr;
  EndAllRequests(FinishReason::kAbort, absl::UnavailableError("the server is shutting down"));
  Deliver();
  seams_.heartbeat->Stop();
}

void EngineLoop::TakeUp(Inbox::Contents* contents) {
  for (std::unique_ptr<ActiveRequest>& request : contents->submitted) Admit(std::move(request));
  const auto end = [this](uint64_t serial, const absl::Status& why) {
    const auto it = requests_.find(serial);
    if (it != requests_.end()) EndRequest(it->second.get(), FinishReason::kAbort, why);
  };
  for (const Inbox::EndOrder& order : contents->ends) end(order.serial, order.why);
  for (uint64_t serial : slow_readers_) {
    if (!requests_.contains(serial)) continue;  // ended in the step in which it fell behind
    seams_.metrics->OnSlowReaderAbort();
    spdlog::warn("Request {} is aborted: its reader does not take what is generated",
                 requests_.at(serial)->stream->request_id());
    end(serial, absl::AbortedError("the reader did not take what was generated"));
  }
  slow_readers_.clear();
}

void EngineLoop::Admit(std::unique_ptr<ActiveRequest> owned) {
  ActiveRequest* request = owned.get();
  requests_.emplace(request->serial, std::move(owned));
  for (ActiveSequence& sequence : request->sequences) sequences_.emplace(sequence.id, &sequence);
  if (!failure_.ok()) {  // it was on its way when the device failed
    EndRequest(request, FinishReason::kError, failure_);
    return;
  }
  for (ActiveSequence& sequence : request->sequences) {
    sequence.spec.runs_ahead =
        !sequence.sampler.has_value() || seams_.backend->DrawsOnDevice(*sequence.sampler);
    const absl::Status added = scheduler_.Add(std::move(sequence.spec));
    if (!added.ok()) EndSequence(&sequence, FinishReason::kError, added);
  }
}

void EngineLoop::Sleep() {
  absl::Time wake = absl::InfiniteFuture();
  if (!scheduler_.Idle()) wake = absl::Now() + (scheduler_.NextDeadline() - seams_.clock());
  seams_.heartbeat->Sleep();
  seams_.inbox->Wait(wake);
}

bool EngineLoop::Advance() {
  if (at_work_ == nullptr) {
    if (scheduler_.Idle()) return false;
    Step* first = &steps_[0];
    if (!PlanStep(first)) {
      const bool expired = !first->plan->expired.empty();
      scheduler_.Commit({});
      Deliver();
      return expired;
    }
    StartStep(first);
    DrawStep(first);
    at_work_ = first;
  }
  Step* step = at_work_;
  Step* ahead = nullptr;
  bool planned_nothing = false;
  const bool overlaps = seams_.backend->overlaps();
  if (overlaps && config_.run_ahead && step->record.prefill_tokens <= kMostPromptTokensToRunAheadOf &&
      step->status.ok() && !scheduler_.Idle()) {
    Step* next = step == &steps_[0] ? &steps_[1] : &steps_[0];
    planned_nothing = !PlanStep(next);
    if (!planned_nothing) {
      StartStep(next);
      ahead = next;
    }
  }
  Deliver();
  FinishStep(step, ahead);
  if (planned_nothing) scheduler_.Commit({});
  at_work_ = failure_.ok() ? ahead : nullptr;
  if (at_work_ != nullptr) DrawStep(at_work_);
  if (!overlaps || !failure_.ok()) Deliver();
  return true;
}

bool EngineLoop::PlanStep(Step* step) {
  const absl::Time start = seams_.clock();
  now_ = start;
  step->record = {};
  step->status = absl::OkStatus();
  step->follows = at_work_ != nullptr || device_idle_since_ != absl::InfiniteFuture();
  step->plan = &scheduler_.Plan(start);
  NotePlan(*step->plan, &step->record);
  if (step->plan->rows.empty()) return false;
  BuildRows(step);
  PublishLoad();
  step->planned = seams_.clock();
  step->record.plan = step->planned - start;
  return true;
}

void EngineLoop::StartStep(Step* step) {
  if (!seams_.backend->overlaps()) return;
  step->status = Guarded([&] { return seams_.backend->Start(step->rows, &step->results); });
}

void EngineLoop::DrawStep(Step* step) {
  if (!seams_.backend->overlaps() || !step->status.ok()) return;
  step->status = Guarded([&] { return seams_.backend->Draw(); });
}

absl::Status EngineLoop::WaitFor(Step* step) {
  Backend* backend = seams_.backend;
  if (!step->status.ok()) return step->status;
  const bool overlaps = backend->overlaps();
  absl::Status status =
      Guarded([&] { return overlaps ? backend->Finish() : backend->Run(step->rows, &step->results); });
  if (status.ok() && step->results.size() != step->rows.size()) {
    status = absl::InternalError(absl::StrCat("the backend gave ", step->results.size(), " results for ",
                                              step->rows.size(), " rows"));
  }
  now_ = seams_.clock();
  const absl::Time began = step->follows ? std::max(step->planned, last_step_end_) : step->planned;
  step->record.run = std::max(now_ - began, absl::ZeroDuration());
  if (step->follows) {
    step->record.device_idle =
        overlaps ? backend->device_idle() : std::max(step->planned - device_idle_since_, absl::ZeroDuration());
  }
  device_idle_since_ = last_step_end_ = now_;
  return status;
}

void EngineLoop::FinishStep(Step* step, Step* ahead) {
  const absl::Status ran = WaitFor(step);
  outcomes_.clear();
  inter_token_seconds_.clear();
  for (size_t i = 0; i < step->rows.size(); ++i) {
    ActiveSequence* sequence = step->sequences[i];
    if (sequence == nullptr || sequence->ended) continue;
    if (ran.ok()) {
      outcomes_.push_back(TakeRow(step->plan->rows[i], sequence, &step->results[i], &step->record));
    } else {
      outcomes_.push_back({.id = step->plan->rows[i].id, .finished = true});
    }
  }
  scheduler_.Commit(outcomes_);
  if (!ran.ok()) {
    Fail(ran);
    if (ahead != nullptr) scheduler_.Commit({});  // nobody is left of what was started ahead
  } else if (ahead != nullptr) {
    VoidRows(*step, ahead);
  }
  retired_.clear();
  if (!inter_token_seconds_.empty()) seams_.metrics->OnInterTokenLatencies(inter_token_seconds_);
  seams_.board->generated_tokens.Add(now_, step->record.generated_tokens);
  seams_.board->prompt_tokens.Add(now_, step->record.prefill_tokens);
  step->record.publish = seams_.clock() - now_;
  undelivered_ = step->record;
}

// Nobody wants the rows of sequences that have ended, or whose token came too late for them.
void EngineLoop::VoidRows(const Step& finished, Step* ahead) {
  for (size_t i = 0; i < ahead->rows.size(); ++i) {
    BatchRow& row = ahead->rows[i];
    const bool late = row.token_of >= 0 && finished.results[row.token_of].late;
    if (!late && !ahead->sequences[i]->ended) continue;
    row.sampler = nullptr;
    row.prompt_scorer = nullptr;
    row.pooler = nullptr;
    ahead->sequences[i] = nullptr;
  }
}

void EngineLoop::NotePlan(const StepPlan& plan, StepRecord* record) {
  for (const Admission& admission : plan.admitted) {
    record->cache_looked_up_tokens += admission.looked_up_tokens;
    record->cache_hit_tokens += admission.cached_tokens;
    if (admission.resumed) continue;
    ActiveSequence* sequence = sequences_.at(admission.id);
    LeaveQueue(sequence);
    sequence->request->progress.OnStep(now_);
    if (sequence->index == 0) sequence->request->progress.cached_tokens = admission.cached_tokens;
  }
  if (record->cache_looked_up_tokens > 0) {
    seams_.board->OnPrefixLookup(record->cache_looked_up_tokens, record->cache_hit_tokens);
  }
  record->preemptions = static_cast<int32_t>(plan.preempted.size());
  for (SequenceId id : plan.preempted) ++sequences_.at(id)->request->progress.preemptions;
  for (SequenceId id : plan.expired) {
    ActiveSequence* sequence = sequences_.at(id);
    FlushText(sequence);
    EndSequence(sequence, FinishReason::kDeadline, absl::OkStatus());
  }
}

void EngineLoop::BuildRows(Step* step) {
  step->rows.clear();
  step->sequences.clear();
  StepRecord* record = &step->record;
  for (const PlannedRow& planned : step->plan->rows) {
    ActiveSequence* sequence = sequences_.at(planned.id);
    BatchRow& row = step->rows.emplace_back();
    row.tokens = planned.tokens;
    row.token_of = planned.token_of;
    row.start = planned.start;
    row.block_table = planned.block_table;
    if (planned.samples && sequence->sampler.has_value()) row.sampler = &*sequence->sampler;
    // It scores what follows the prompt's tokens but the last, and is gone when the first token is taken.
    if (sequence->prompt_scorer.has_value() && planned.start + 1 < sequence->prompt_tokens) {
      row.prompt_scorer = &*sequence->prompt_scorer;
    }
    if (sequence->pooler.has_value()) row.pooler = &*sequence->pooler;
    step->sequences.push_back(sequence);
    (planned.prefill ? record->prefill_tokens : record->decode_tokens) +=
        static_cast<int32_t>(row.tokens.size());
  }
  record->rows = static_cast<int32_t>(step->rows.size());
}

RowOutcome EngineLoop::TakeRow(const PlannedRow& row, ActiveSequence* sequence, RowResult* result,
                               StepRecord* record) {
  RowOutcome outcome;
  outcome.id = row.id;
  if (result->status.ok() && row.samples && sequence->sampler.has_value() && result->sampled.token < 0) {
    result->status = absl::InternalError("the backend drew no token");
  }
  if (!result->status.ok()) {
    if (IsInvalidLogits(result->status)) seams_.metrics->OnInvalidLogits();
    FlushText(sequence);
    EndSequence(sequence, FinishReason::kError, std::move(result->status));
    outcome.finished = true;
    return outcome;
  }
  outcome.computed = true;
  if (sequence->pooler.has_value()) {
    outcome.finished = TakeEmbedding(row, sequence, &outcome.computed);
  } else if (row.samples) {
    outcome.token = result->sampled.token;
    outcome.late = result->late;
    outcome.finished = TakeToken(sequence, std::move(result->sampled), record);
  }
  return outcome;
}

bool EngineLoop::TakeToken(ActiveSequence* sequence, SampledToken sampled, StepRecord* record) {
  ActiveRequest* request = sequence->request;
  ++record->generated_tokens;
  if (request->progress.OnToken(now_)) seams_.metrics->OnFirstToken(request->progress.TimeToFirstToken());
  if (sequence->output->num_tokens() > 0) {
    inter_token_seconds_.push_back(std::max(0.0, absl::ToDoubleSeconds(now_ - sequence->last_token)));
  }
  sequence->last_token = now_;
  sequence->sampler->Accept(sampled.token);

  OutputDelta delta;
  delta.index = sequence->index;
  delta.token_ids.push_back(sampled.token);
  if (sampled.logprobs.token.token >= 0) delta.logprobs.push_back(std::move(sampled.logprobs));
  if (sequence->prompt_scorer.has_value()) {
    delta.prompt_logprobs = sequence->prompt_scorer->Release();
    sequence->prompt_scorer.reset();
  }
  const std::optional<FinishReason> reason = sequence->output->Append(sampled.token, &delta.text);
  outgoing_.push_back({request, std::move(delta), now_});
  if (!reason.has_value()) return false;
  EndSequence(sequence, *reason, absl::OkStatus());
  return true;
}

bool EngineLoop::TakeEmbedding(const PlannedRow& row, ActiveSequence* sequence, bool* computed) {
  const auto fail = [&](absl::string_view what) {
    *computed = false;  // nothing of it may be found in the prefix cache
    EndSequence(sequence, FinishReason::kError, absl::InternalError(what));
    return true;
  };
  if (!sequence->pooler->complete()) {
    if (row.start + static_cast<int64_t>(row.tokens.size()) < sequence->prompt_tokens) return false;
    return fail("the backend left out hidden states");
  }
  std::vector<float> values = sequence->pooler->Result(sequence->request->normalize);
  if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) {
    return fail("the model's hidden states hold NaN or infinity");
  }
  sequence->request->progress.OnEmbedded(now_);
  EndSequence(sequence, FinishReason::kStop, absl::OkStatus(), std::move(values));
  return true;
}

void EngineLoop::Fail(const absl::Status& status) {
  spdlog::error("The device failed; every request ends and new ones are refused: {}", status.ToString());
  failure_ = status;
  seams_.heartbeat->Stop();
  seams_.inbox->Refuse(absl::UnavailableError(absl::StrCat("the device failed: ", status.message())));
  EndAllRequests(FinishReason::kError, status);
}

void EngineLoop::EndSequence(ActiveSequence* sequence, FinishReason reason, absl::Status error,
                             std::vector<float> embedding) {
  ActiveRequest* request = sequence->request;
  LeaveQueue(sequence);
  sequence->ended = true;
  sequences_.erase(sequence->id);
  request->progress.OnFinish(reason);
  const bool last = --request->live_sequences == 0;
  std::vector<Outgoing>* const out = last ? &last_events_ : &outgoing_;

  if (request->kind == RequestRecord::Kind::kEmbed) {
    EmbeddingResult result;
    result.index = sequence->index;
    result.status = std::move(error);
    result.values = std::move(embedding);
    result.num_tokens = sequence->prompt_tokens;
    out->push_back({request, std::move(result), now_});
    return;
  }
  OutputFinished finished;
  finished.index = sequence->index;
  finished.reason = reason;
  if (reason == FinishReason::kStop) finished.stopped_by = sequence->output->stopped_by();
  finished.error = std::move(error);
  if (last) {
    finished.usage = request->progress.Usage();
    finished.timings = request->progress.Timings(now_);
  }
  out->push_back({request, std::move(finished), now_});
}

void EngineLoop::EndRequest(ActiveRequest* request, FinishReason reason, const absl::Status& error) {
  for (ActiveSequence& sequence : request->sequences) {
    if (sequence.ended) continue;
    scheduler_.Remove(sequence.id);
    FlushText(&sequence);
    EndSequence(&sequence, reason, Unshared(error));
  }
}

void EngineLoop::EndAllRequests(FinishReason reason, const absl::Status& error) {
  for (auto& [serial, request] : requests_) EndRequest(request.get(), reason, error);
}

void EngineLoop::FlushText(ActiveSequence* sequence) {
  if (!sequence->output.has_value()) return;
  OutputDelta delta;
  delta.index = sequence->index;
  sequence->output->Flush(&delta.text);
  if (!delta.text.empty()) outgoing_.push_back({sequence->request, std::move(delta), now_});
}

void EngineLoop::LeaveQueue(ActiveSequence* sequence) {
  if (sequence->started) return;
  sequence->started = true;
  ++left_queue_sequences_;
  left_queue_tokens_ += sequence->prompt_tokens;
}

void EngineLoop::PublishLoad() {
  if (left_queue_sequences_ > 0) {
    seams_.inbox->LeaveQueue(left_queue_sequences_, left_queue_tokens_);
    left_queue_sequences_ = 0;
    left_queue_tokens_ = 0;
  }
  seams_.board->SetStats(scheduler_.Stats());
}

void EngineLoop::Deliver() {
  if (outgoing_.empty() && last_events_.empty() && !undelivered_.has_value()) return;
  const absl::Time begin = seams_.clock();
  if (!last_events_.empty()) PublishLoad();
  for (Outgoing& outgoing : outgoing_) PushDelta(&outgoing);
  outgoing_.clear();

  if (undelivered_.has_value()) {
    undelivered_->publish += seams_.clock() - begin;
    seams_.metrics->OnStep(*undelivered_);
    undelivered_.reset();
  }
  if (last_events_.empty()) return;
  for (Outgoing& last : last_events_) {
    seams_.metrics->OnRequestFinished(last.request->progress.Record(last.request->kind, last.at));
    seams_.inbox->ReleaseId(last.request->stream->request_id());
    last.request->stream->PushLast(std::move(last.event));
    const auto it = requests_.find(last.request->serial);
    retired_.push_back(std::move(it->second));
    requests_.erase(it);
  }
  if (at_work_ == nullptr) retired_.clear();
  seams_.inbox->Delivered(static_cast<int32_t>(last_events_.size()));
  last_events_.clear();
}

void EngineLoop::PushDelta(Outgoing* outgoing) {
  ActiveRequest* request = outgoing->request;
  const RequestStream::Backlog backlog = request->stream->Push(std::move(outgoing->event), outgoing->at);
  const bool behind = backlog.tokens > config_.slow_reader_tokens ||
                      outgoing->at - backlog.since > config_.slow_reader_timeout;
  if (behind && !request->reader_too_slow) {
    request->reader_too_slow = true;
    slow_readers_.push_back(request->serial);
  }
}

}  // namespace tessera
