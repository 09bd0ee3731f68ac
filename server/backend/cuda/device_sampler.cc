#include "server/backend/cuda/device_sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "server/sampling/logits.h"
#include "server/status_macros.h"

namespace tessera::cuda {
namespace {

size_t InputBytes(size_t jobs, size_t edits) { return jobs * sizeof(SampleJob) + edits * sizeof(LogitEdit); }
size_t OutputBytes(size_t jobs) {
  return jobs * (sizeof(SampleResult) + kMostTopLogprobs * sizeof(TopLogit));
}

PositionLogprobs MakeLogprobs(const SampleResult& result, const TopLogit* top, int32_t count) {
  const double log_sum = std::log(result.sum);
  PositionLogprobs logprobs;
  logprobs.token = {result.token, LogprobOf(result.logit, result.largest, log_sum), result.rank};
  logprobs.top.reserve(std::max(count, 0));
  for (int32_t i = 0; i < count; ++i) {
    logprobs.top.push_back({top[i].token, LogprobOf(top[i].logit, result.largest, log_sum), i + 1});
  }
  return logprobs;
}

}  // namespace

bool DeviceSampler::Serves(const Sampler& sampler, int32_t vocab) {
  const int32_t top_k = sampler.params().top_k;
  return (top_k <= kMostSampledTopK || top_k >= vocab) && sampler.num_logprobs() <= kMostTopLogprobs;
}

absl::Status DeviceSampler::Reserve(int64_t positions, int32_t vocab) {
  const size_t count = std::clamp<int64_t>(positions, 1, kMostPositions);
  TESSERA_RETURN_IF_ERROR(host_in_.Reserve(InputBytes(count, 0)));
  TESSERA_RETURN_IF_ERROR(host_out_.Reserve(OutputBytes(count)));
  TESSERA_RETURN_IF_ERROR(in_.Reserve(InputBytes(count, 0), "sampling parameters"));
  TESSERA_RETURN_IF_ERROR(out_.Reserve(OutputBytes(count), "sampled tokens"));
  return workspace_.Reserve(SampleWorkspaceBytes(count, vocab, 0), "the workspace of sampling");
}

absl::Status DeviceSampler::Start(absl::Span<const BatchRow> rows, const StepRows& step, size_t begin,
                                  size_t end, float* logits, int32_t vocab) {
  begin_ = begin;
  logits_ = logits;
  vocab_ = vocab;
  AddJobs(rows, step, end);
  return jobs_.empty() ? absl::OkStatus() : Launch();
}

absl::Status DeviceSampler::Finish(absl::Span<const BatchRow> rows, StepRows& step, cpu::ThreadPool& pool,
                                   std::vector<RowResult>* results) {
  for (size_t i = 0; i < jobs_.size(); ++i) Take(rows, step, static_cast<int32_t>(i), results);
  return on_host_.empty() ? absl::OkStatus() : SampleOnHost(rows, step, pool, results);
}

void DeviceSampler::AddJobs(absl::Span<const BatchRow> rows, const StepRows& step, size_t end) {
  jobs_.clear();
  takers_.clear();
  edits_.clear();
  on_host_.clear();
  draws_.assign(rows.size(), -1);
  for (size_t i = begin_; i < end; ++i) {
    const WantedLogits& wanted = step.wanted()[i];
    const BatchRow& row = rows[wanted.row];
    SampleJob job;
    job.row = static_cast<int32_t>(i - begin_);
    const int32_t scored = row.prompt_scorer != nullptr ? row.prompt_scorer->TokenAfter(wanted.position) : -1;
    const bool scores = scored != -1;
    const bool draws = row.sampler != nullptr && wanted.last;
    const bool serves = scores ? scored >= 0 && scored < vocab_ && row.prompt_scorer->num_top() >= 0 &&
                                     row.prompt_scorer->num_top() <= kMostTopLogprobs && !draws
                               : !draws || Serves(*row.sampler, vocab_);
    if (!serves) {
      on_host_.push_back(i);
    } else if (scores) {
      job.token = scored;
      job.num_logprobs = row.prompt_scorer->num_top();
      AddJob(job, {i, /*scores=*/true});
    } else if (draws) {
      const SamplingParams& params = row.sampler->params();
      job.temperature = params.temperature;
      job.top_k = params.top_k;
      job.top_p = params.top_p;
      job.min_p = params.min_p;
      job.uniform = row.sampler->Uniform();
      job.num_logprobs = row.sampler->num_logprobs();
      job.first_edit = static_cast<int32_t>(edits_.size());
      row.sampler->AppendEdits(&edits_);
      job.num_edits = static_cast<int32_t>(edits_.size()) - job.first_edit;
      draws_[wanted.row] = static_cast<int32_t>(jobs_.size());
      AddJob(job, {i, /*scores=*/false});
    }
  }
}

void DeviceSampler::AddJob(const SampleJob& job, Taker taker) {
  jobs_.push_back(job);
  takers_.push_back(taker);
}

absl::Status DeviceSampler::Launch() {
  const size_t count = jobs_.size(), in_bytes = InputBytes(count, edits_.size());
  SampleParams p;
  p.logits = logits_;
  p.vocab = vocab_;
  p.count = static_cast<int32_t>(count);
  p.num_edits = static_cast<int32_t>(edits_.size());
  for (const SampleJob& job : jobs_) {
    p.any_logprobs |= job.num_logprobs >= 0;
    p.any_sums |= job.token < 0 && job.temperature != 0.0f && (job.top_k <= 0 || job.top_k >= vocab_);
  }
  TESSERA_RETURN_IF_ERROR(host_in_.Reserve(in_bytes));
  TESSERA_RETURN_IF_ERROR(host_out_.Reserve(OutputBytes(count)));
  TESSERA_RETURN_IF_ERROR(in_.Reserve(in_bytes, "sampling parameters", stream_));
  TESSERA_RETURN_IF_ERROR(out_.Reserve(OutputBytes(count), "sampled tokens", stream_));
  TESSERA_RETURN_IF_ERROR(workspace_.Reserve(SampleWorkspaceBytes(count, vocab_, edits_.size()),
                                             "the workspace of sampling", stream_));
  std::memcpy(host_in_.get<void>(), jobs_.data(), count * sizeof(SampleJob));
  if (!edits_.empty()) {
    std::memcpy(host_in_.get<uint8_t>() + InputBytes(count, 0), edits_.data(),
                edits_.size() * sizeof(LogitEdit));
  }
  TESSERA_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(in_.get(), host_in_.get<void>(), in_bytes, cudaMemcpyHostToDevice, stream_),
                 "copying sampling parameters"));
  p.jobs = in_.get<SampleJob>();
  p.edits = reinterpret_cast<const LogitEdit*>(in_.get<SampleJob>() + count);
  p.workspace = workspace_.get();
  p.results = out_.get<SampleResult>();
  p.top = reinterpret_cast<TopLogit*>(p.results + count);
  // Not all of a position's top logits are written.
  if (p.any_logprobs) {
    TESSERA_RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(p.top, 0, count * kMostTopLogprobs * sizeof(TopLogit), stream_),
                   "clearing log-probabilities"));
  }
  TESSERA_RETURN_IF_ERROR(KernelStatus(SampleTokens(p, stream_)));
  const size_t out_bytes = p.any_logprobs ? OutputBytes(count) : count * sizeof(SampleResult);
  return CudaStatus(
      cudaMemcpyAsync(host_out_.get<void>(), out_.get(), out_bytes, cudaMemcpyDeviceToHost, stream_),
      "copying sampled tokens");
}

void DeviceSampler::Take(absl::Span<const BatchRow> rows, const StepRows& step, int32_t job,
                         std::vector<RowResult>* results) {
  const Taker& taker = takers_[job];
  const WantedLogits& wanted = step.wanted()[taker.wanted];
  RowResult& result = (*results)[wanted.row];
  if (!result.status.ok()) return;
  const SampleResult& sampled = host_out_.get<SampleResult>()[job];
  if (sampled.needs_host) {
    on_host_.push_back(taker.wanted);
    result.late = true;
    return;
  }
  result.status = CheckLargestKey(sampled.key);
  if (!result.status.ok()) return;
  PositionLogprobs logprobs;
  if (jobs_[job].num_logprobs >= 0) {
    const TopLogit* top = reinterpret_cast<const TopLogit*>(host_out_.get<SampleResult>() + jobs_.size()) +
                          int64_t{job} * kMostTopLogprobs;
    logprobs = MakeLogprobs(sampled, top, std::min(jobs_[job].num_logprobs, vocab_));
  }
  if (taker.scores) {
    rows[wanted.row].prompt_scorer->Put(wanted.position, std::move(logprobs));
  } else {
    result.sampled.token = sampled.token;
    result.sampled.logprobs = std::move(logprobs);
  }
}

absl::Status DeviceSampler::SampleOnHost(absl::Span<const BatchRow> rows, StepRows& step,
                                         cpu::ThreadPool& pool, std::vector<RowResult>* results) {
  std::sort(on_host_.begin(), on_host_.end());
  const size_t row_bytes = size_t(vocab_) * sizeof(float);
  TESSERA_RETURN_IF_ERROR(host_logits_.Reserve(on_host_.size() * row_bytes));
  for (size_t i = 0; i < on_host_.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(host_logits_.get<float>() + i * vocab_, logits_ + (on_host_[i] - begin_) * vocab_,
                        row_bytes, cudaMemcpyDeviceToHost, fetches_),
        "copying logits"));
  }
  TESSERA_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(fetches_), "copying logits"));
  step.Consume(rows, on_host_, host_logits_.get<float>(), vocab_, pool, results);
  return absl::OkStatus();
}

}  // namespace tessera::cuda
