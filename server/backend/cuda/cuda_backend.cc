#include "server/backend/cuda/cuda_backend.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/thread_pool.h"
#include "server/backend/batch_checks.h"
#include "server/backend/cpu/memory.h"
#include "server/backend/cuda/cuda_forward.h"
#include "server/backend/cuda/cuda_model.h"
#include "server/backend/cuda/device_memory.h"
#include "server/backend/cuda/device_sampler.h"
#include "server/backend/cuda/pinned_memory.h"
#include "server/backend/cuda/step_upload.h"
#include "server/backend/cuda/stream.h"
#include "server/backend/step_rows.h"
#include "server/status_macros.h"

namespace tessera {
namespace cuda {
namespace {

// Logits are computed for as many positions at a time as fit in this.
constexpr int64_t kLogitsBytes = 256 << 20;
constexpr int32_t kMinBlockSize = 16;

class CudaBackend : public Backend {
 public:
  CudaBackend(std::unique_ptr<CudaModel> model, int device, Stream stream, Stream fetches, int threads,
              std::string device_name)
      : model_(std::move(model)),
        device_(device),
        stream_(std::move(stream)),
        fetches_(std::move(fetches)),
        pool_(threads),
        forward_(*model_, stream_.get()),
        upload_(stream_.get(), forward_.prefills()),
        sampler_(stream_.get(), fetches_.get()) {
    const ModelSpec& spec = model_->spec;
    info_.device = "cuda";
    info_.device_description = std::move(device_name);
    info_.vocab_size = spec.vocab_size;
    info_.hidden_size = spec.hidden_size;
    info_.max_context = spec.max_context;
    info_.weight_bytes = model_->weight_bytes;
    for (const CudaLayer& layer : model_->layers) {
      info_.kv_bytes_per_token += 2 * layer.attention.cache_elements();
    }
  }

  // Takes the memory that steps need, so that the cache can have what is left.
  absl::Status ReserveForSteps(const CudaBackendOptions& options) {
    const int32_t logits = std::min<int64_t>(options.max_step_sequences, LogitsAtOnce());
    TESSERA_RETURN_IF_ERROR(forward_.Reserve(options.max_step_tokens, logits));
    TESSERA_RETURN_IF_ERROR(sampler_.Reserve(logits, info_.vocab_size));
    for (std::optional<StartedStep>& step : steps_) {
      TESSERA_ASSIGN_OR_RETURN(Event begin, Event::Create());
      TESSERA_ASSIGN_OR_RETURN(Event ready, Event::Create());
      TESSERA_ASSIGN_OR_RETURN(Event draw, Event::Create());
      TESSERA_ASSIGN_OR_RETURN(Event end, Event::Create());
      step.emplace(StartedStep{std::move(begin), std::move(ready), std::move(draw), std::move(end)});
    }
    return upload_.Reserve(options.max_step_tokens, options.max_step_sequences,
                           (info_.max_context + kMinBlockSize - 1) / kMinBlockSize);
  }

  const BackendInfo& info() const override { return info_; }

  absl::Status AllocateKvCache(const KvCacheConfig& config) override {
    if (!cache_.layers.empty()) return absl::FailedPreconditionError("the cache is allocated already");
    TESSERA_RETURN_IF_ERROR(CheckKvCacheConfig(config, kMinBlockSize));
    if (config.block_size > 256)
      return absl::InvalidArgumentError("block_size: the CUDA kernels take at most 256");
    const int64_t tokens = int64_t{config.num_blocks} * config.block_size;
    TESSERA_RETURN_IF_ERROR(cache_.memory.Allocate(
        tokens * info_.kv_bytes_per_token, absl::StrCat("the key-value cache (", config.num_blocks,
                                                        " blocks of ", config.block_size, " tokens)")));
    uint8_t* next = cache_.memory.get<uint8_t>();
    for (const CudaLayer& layer : model_->layers) {
      const AttentionShape& shape = layer.attention;
      uint8_t* values = next + tokens * 2 * shape.kv_heads * shape.key_dim;
      // Values that are part of their keys: the MLA kernel takes none, the others take the keys once more.
      if (shape.shared_values) values = shape.key_dim == shape.value_dim ? next : nullptr;
      cache_.layers.emplace_back(next, values);
      next += tokens * 2 * shape.cache_elements();
    }
    cache_.num_blocks = config.num_blocks;
    cache_.block_size = config.block_size;
    kv_config_ = config;
    return absl::OkStatus();
  }

  absl::Status Run(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) override {
    TESSERA_RETURN_IF_ERROR(Start(rows, results));
    TESSERA_RETURN_IF_ERROR(Draw());
    return Finish();
  }

  bool overlaps() const override { return true; }
  bool DrawsOnDevice(const Sampler& sampler) const override {
    return DeviceSampler::Serves(sampler, info_.vocab_size);
  }
  absl::Duration device_idle() const override { return idle_; }

  absl::Status Start(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) override {
    if (cache_.layers.empty()) return absl::FailedPreconditionError("the key-value cache is not allocated");
    TESSERA_RETURN_IF_ERROR(Device(CudaStatus(cudaSetDevice(device_), "choosing the device")));  // per thread
    return Device(StartStep(rows, results));
  }
  absl::Status Draw() override { return Device(DrawStep()); }
  absl::Status Finish() override { return Device(FinishStep()); }

 private:
  static absl::Status Device(const absl::Status& status) {
    if (status.ok()) return status;
    return absl::InternalError(absl::StrCat("CUDA backend: ", status.message()));
  }

  int64_t LogitsAtOnce() const {
    return std::clamp<int64_t>(kLogitsBytes / (int64_t{info_.vocab_size} * 4), 1,
                               DeviceSampler::kMostPositions);
  }

  // A step that is started and not finished; kept for its memory. The events mark, on the stream, where it begins, where
  // its logits are there, where drawing begins, and its end.
  struct StartedStep {
    Event begin, ready, draw, end;
    StepRows rows;
    absl::Span<const BatchRow> given;
    std::vector<RowResult>* results = nullptr;
    float* logits = nullptr;  // of the first positions that are wanted
    int64_t num_pooled = 0;   // hidden states on their way to the host
  };

  StartedStep& at_work() { return *steps_[at_work_]; }
  StartedStep& other() { return *steps_[1 - at_work_]; }

  absl::Status StartStep(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) {
    const bool ahead = num_started_ > 0;
    if (num_started_ > 1) return absl::InternalError("a step was started two ahead");
    const int32_t place = ahead ? 1 - at_work_ : at_work_;
    StartedStep& step = *steps_[place];
    ++num_started_;
    TESSERA_RETURN_IF_ERROR(step.begin.Record(stream_.get()));
    step.rows.Choose(rows, info_, kv_config_, results);
    step.given = rows;
    step.results = results;
    step.logits = nullptr;
    if (step.rows.num_tokens() > 0) {
      FindDrawnTokens(rows);
      CudaStep inputs;
      TESSERA_RETURN_IF_ERROR(upload_.Copy(rows, step.rows, drawn_ids_, kv_config_.block_size, &inputs));
      inputs.drawn = sampler_.drawn();
      TESSERA_RETURN_IF_ERROR(forward_.Run(inputs, cache_, upload_.memory()));
      TESSERA_RETURN_IF_ERROR(StartLogits(0, place, &step.logits));
    }
    return step.ready.Record(stream_.get());
  }

  // The ids of tokens that the step at work draws; those that it drew on the host already are known.
  void FindDrawnTokens(absl::Span<const BatchRow> rows) {
    drawn_ids_.assign(rows.size(), 0);
    for (size_t i = 0; i < rows.size(); ++i) {
      const int32_t source = rows[i].token_of;
      if (source < 0) continue;
      const int32_t known = (*at_work().results)[source].sampled.token, draw = sampler_.DrawOf(source);
      drawn_ids_[i] = known >= 0 ? known : draw >= 0 ? IdOfDraw(draw) : 0;
    }
  }

  // Enqueues the logits of a step's positions from `begin`, as many as there is memory for.
  absl::Status StartLogits(size_t begin, int32_t place, float** logits) {
    const size_t end = EndOfLogits(*steps_[place], begin);
    if (begin == end) return absl::OkStatus();
    return forward_.Logits(upload_.wanted() + begin, end - begin, place, logits);
  }
  size_t EndOfLogits(const StartedStep& step, size_t begin) const {
    return std::min<size_t>(step.rows.wanted().size(), begin + LogitsAtOnce());
  }

  // All but the last part of the logits are served here: after that a step started ahead may take the forward pass's
  // memory.
  absl::Status DrawStep() {
    StartedStep& step = at_work();
    TESSERA_RETURN_IF_ERROR(step.draw.Record(stream_.get()));
    TESSERA_RETURN_IF_ERROR(StartPooling(&step));
    size_t begin = 0;
    for (;;) {
      const size_t end = EndOfLogits(step, begin);
      TESSERA_RETURN_IF_ERROR(
          sampler_.Start(step.given, step.rows, begin, end, step.logits, info_.vocab_size));
      if (end == step.rows.wanted().size()) break;
      TESSERA_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_.get()), "running a step"));
      TESSERA_RETURN_IF_ERROR(sampler_.Finish(step.given, step.rows, pool_, step.results));
      begin = end;
      TESSERA_RETURN_IF_ERROR(StartLogits(begin, at_work_, &step.logits));
    }
    return step.end.Record(stream_.get());
  }

  absl::Status StartPooling(StartedStep* step) {
    const int64_t hidden_size = info_.hidden_size;
    step->num_pooled = 0;
    for (const int32_t r : step->rows.chosen()) {
      if (step->given[r].pooler != nullptr) step->num_pooled += step->given[r].tokens.size();
    }
    if (step->num_pooled == 0) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(host_hidden_.Reserve(step->num_pooled * hidden_size * 4));
    float* next = host_hidden_.get<float>();
    for (const int32_t r : step->rows.chosen()) {
      if (step->given[r].pooler == nullptr) continue;
      const int32_t count = step->given[r].tokens.size();
      float* hidden;
      TESSERA_RETURN_IF_ERROR(forward_.Hidden(step->rows.first_token(r), count, &hidden));
      TESSERA_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(next, hidden, count * hidden_size * 4,
                                                         cudaMemcpyDeviceToHost, stream_.get()),
                                         "copying hidden states"));
      next += count * hidden_size;
    }
    return absl::OkStatus();
  }

  void FinishPooling(const StartedStep& step) {
    if (step.num_pooled == 0) return;
    const float* next = host_hidden_.get<float>();
    for (const int32_t r : step.rows.chosen()) {
      const BatchRow& row = step.given[r];
      if (row.pooler == nullptr) continue;
      for (size_t t = 0; t < row.tokens.size(); ++t, next += info_.hidden_size) {
        row.pooler->Add(row.start + t, absl::MakeConstSpan(next, info_.hidden_size));
      }
    }
  }

  // A batch without logits is waited for too: its cache writes must not fail unnoticed.
  absl::Status FinishStep() {
    StartedStep& step = at_work();
    TESSERA_RETURN_IF_ERROR(step.end.Wait());
    TESSERA_RETURN_IF_ERROR(sampler_.Finish(step.given, step.rows, pool_, step.results));
    FinishPooling(step);
    idle_ = step.ready.Until(step.draw);
    if (finished_before_) idle_ += other().end.Until(step.begin);
    finished_before_ = true;
    --num_started_;
    at_work_ = 1 - at_work_;
    return absl::OkStatus();
  }

  std::unique_ptr<CudaModel> model_;
  const int device_;
  const Stream stream_, fetches_;
  cpu::ThreadPool pool_;
  CudaForward forward_;
  StepUpload upload_;
  DeviceSampler sampler_;
  BackendInfo info_;
  KvCacheConfig kv_config_;
  CudaKvCache cache_;

  std::optional<StartedStep> steps_[2];  // in turns: the one at work, the one started ahead of its end
  int32_t at_work_ = 0;
  int32_t num_started_ = 0;
  bool finished_before_ = false;
  absl::Duration idle_;
  std::vector<int32_t> drawn_ids_;
  PinnedMemory host_hidden_;
};

}  // namespace
}  // namespace cuda

absl::Status CheckCudaDevice(int device) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return absl::UnavailableError(absl::StrCat("no usable GPU: ", cudaGetErrorString(error)));
  }
  if (device >= count) return absl::UnavailableError(absl::StrCat("no GPU ", device, "; there are ", count));
  cudaDeviceProp properties;
  if (absl::Status status =
          cuda::CudaStatus(cudaGetDeviceProperties(&properties, device), "reading the device");
      !status.ok()) {
    return status;
  }
  // Code for 9.0a and 10.0a runs on these devices alone.
  if ((properties.major == 9 || properties.major == 10) && properties.minor == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("GPU ", device, " (", properties.name, ") has compute capability ", properties.major, ".",
                   properties.minor, "; this build has kernels for 9.0 (H100, H200) and 10.0 (B200)"));
}

absl::StatusOr<int64_t> FreeDeviceMemory(int device) {
  size_t free = 0, total = 0;
  absl::Status status = cuda::CudaStatus(cudaSetDevice(device), "choosing the device");
  if (status.ok()) status = cuda::CudaStatus(cudaMemGetInfo(&free, &total), "reading free memory");
  if (!status.ok()) return status;
  return static_cast<int64_t>(free);
}

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const Checkpoint& checkpoint,
                                                           CudaBackendOptions options) {
  if (absl::Status status = CheckCudaDevice(options.device); !status.ok()) return status;
  if (absl::Status status = cuda::CudaStatus(cudaSetDevice(options.device), "choosing the device");
      !status.ok()) {
    return status;
  }
  cudaDeviceProp properties;
  if (absl::Status status =
          cuda::CudaStatus(cudaGetDeviceProperties(&properties, options.device), "reading the device");
      !status.ok()) {
    return status;
  }
  absl::StatusOr<std::unique_ptr<cuda::CudaModel>> model =
      cuda::LoadCudaModel(checkpoint, options.nvfp4_activations, options.progress);
  if (!model.ok()) {
    return absl::Status(model.status().code(),
                        absl::StrCat(checkpoint.directory(), ": ", model.status().message()));
  }
  absl::StatusOr<cuda::Stream> stream = cuda::Stream::Create(), fetches = cuda::Stream::Create();
  if (!stream.ok()) return stream.status();
  if (!fetches.ok()) return fetches.status();
  const int threads =
      options.sampling_threads > 0 ? options.sampling_threads : std::min(cpu::UsableCores(), 8);
  auto backend = std::make_unique<cuda::CudaBackend>(std::move(*model), options.device, *std::move(stream),
                                                     *std::move(fetches), threads, properties.name);
  if (absl::Status status = backend->ReserveForSteps(options); !status.ok()) return status;
  return backend;
}

}  // namespace tessera
