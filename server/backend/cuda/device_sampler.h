#ifndef TESSERA_SERVER_BACKEND_CUDA_DEVICE_SAMPLER_H_
#define TESSERA_SERVER_BACKEND_CUDA_DEVICE_SAMPLER_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cuda/ops/ops.h"
#include "kernels/cuda/sampling/sampling.h"
#include "server/backend/backend.h"
#include "server/backend/cuda/device_memory.h"
#include "server/backend/cuda/pinned_memory.h"
#include "server/backend/step_rows.h"

namespace tessera::cuda {

// Gives samplers and prompt scorers what they want of logits that lie on the device: what they would have made of them
// themselves, to the bit. The few that the kernels do not serve (a top_k above kMostSampledTopK, a top_p alone that keeps
// more than kSampledTopPTokens) get their row on the host.
//
// The tokens that are drawn stay on the device until the next Start, for a step that is enqueued before they are known.
class DeviceSampler {
 public:
  static constexpr int64_t kMostPositions = 32768;  // of one call

  // `fetches`: a stream for logits that the host gets, so that these do not wait for a step started ahead.
  DeviceSampler(cudaStream_t stream, cudaStream_t fetches) : stream_(stream), fetches_(fetches) {}

  // Whether what this sampler draws is drawn on the device, but for a rare top_p.
  static bool Serves(const Sampler& sampler, int32_t vocab);

  // Memory for this many positions at a time, without edits; more makes it grow.
  absl::Status Reserve(int64_t positions, int32_t vocab);

  // Enqueues the work for step.wanted()[begin .. end), whose logits are `logits` (device, float [end - begin, vocab],
  // changed and changed back).
  absl::Status Start(absl::Span<const BatchRow> rows, const StepRows& step, size_t begin, size_t end,
                     float* logits, int32_t vocab);
  // Once that is done: gives samplers and scorers their results. Errors of a row go to its result; what is returned is
  // the device's. `rows` and `step` are those of Start.
  absl::Status Finish(absl::Span<const BatchRow> rows, StepRows& step, cpu::ThreadPool& pool,
                      std::vector<RowResult>* results);

  // Of the last Start: the tokens drawn, and which draw a row's token is; -1 if it is not drawn on the device.
  DrawnTokens drawn() const {
    return {&out_.get<SampleResult>()->token, static_cast<int32_t>(sizeof(SampleResult) / sizeof(int32_t))};
  }
  int32_t DrawOf(int32_t row) const { return draws_[row]; }

 private:
  // Who gets the result of a job.
  struct Taker {
    size_t wanted;  // index into StepRows::wanted()
    bool scores;    // the row's prompt scorer; else its sampler
  };

  void AddJobs(absl::Span<const BatchRow> rows, const StepRows& step, size_t end);
  void AddJob(const SampleJob& job, Taker taker);
  absl::Status Launch();
  void Take(absl::Span<const BatchRow> rows, const StepRows& step, int32_t job,
            std::vector<RowResult>* results);
  absl::Status SampleOnHost(absl::Span<const BatchRow> rows, StepRows& step, cpu::ThreadPool& pool,
                            std::vector<RowResult>* results);

  const cudaStream_t stream_, fetches_;
  // Of the positions at work; the vectors are kept for their memory.
  size_t begin_ = 0;
  float* logits_ = nullptr;
  int32_t vocab_ = 0;
  std::vector<SampleJob> jobs_;
  std::vector<Taker> takers_;
  std::vector<int32_t> draws_;  // of each row of the batch, its job
  std::vector<LogitEdit> edits_;
  std::vector<size_t> on_host_;  // wanted positions whose logits the host gets, ascending
  PinnedMemory host_in_, host_out_, host_logits_;
  DeviceMemory in_, workspace_, out_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_SERVER_BACKEND_CUDA_DEVICE_SAMPLER_H_
