#include "server/backend/cuda/cuda_backend.h"

#include <algorithm>
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
  CudaBackend(std::unique_ptr<CudaModel> model, int device, Stream stream, int threads,
              std::string device_name)
      : model_(std::move(model)),
        device_(device),
        stream_(std::move(stream)),
        pool_(threads),
        forward_(*model_, stream_.get()),
        upload_(stream_.get(), forward_.prefills()),
        sampler_(stream_.get()) {
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
    return Finish();
  }

  bool overlaps() const override { return true; }

  absl::Status Start(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) override {
    if (cache_.layers.empty()) return absl::FailedPreconditionError("the key-value cache is not allocated");
    TESSERA_RETURN_IF_ERROR(Device(CudaStatus(cudaSetDevice(device_), "choosing the device")));  // per thread
    rows_.Choose(rows, info_, kv_config_, results);
    started_rows_ = rows;
    started_results_ = results;
    if (rows_.num_tokens() == 0) return absl::OkStatus();
    CudaStep step;
    TESSERA_RETURN_IF_ERROR(Device(upload_.Copy(rows, rows_, kv_config_.block_size, &step)));
    TESSERA_RETURN_IF_ERROR(Device(forward_.Run(step, cache_, upload_.memory())));
    TESSERA_RETURN_IF_ERROR(Device(Pool(rows)));
    return Device(StartLogits(0));
  }

  absl::Status Finish() override {
    if (rows_.num_tokens() == 0) return absl::OkStatus();
    for (size_t begin = 0; begin < rows_.wanted().size(); begin += LogitsAtOnce()) {
      if (begin > 0) TESSERA_RETURN_IF_ERROR(Device(StartLogits(begin)));
      TESSERA_RETURN_IF_ERROR(Device(sampler_.Finish(started_rows_, rows_, pool_, started_results_)));
    }
    // A batch without logits is waited for too: its cache writes must not fail unnoticed.
    return Device(CudaStatus(cudaStreamSynchronize(stream_.get()), "running a step"));
  }

 private:
  static absl::Status Device(const absl::Status& status) {
    if (status.ok()) return status;
    return absl::InternalError(absl::StrCat("CUDA backend: ", status.message()));
  }

  int64_t LogitsAtOnce() const {
    return std::clamp<int64_t>(kLogitsBytes / (int64_t{info_.vocab_size} * 4), 1,
                               DeviceSampler::kMostPositions);
  }

  absl::Status Pool(absl::Span<const BatchRow> rows) {
    const int64_t hidden_size = info_.hidden_size;
    for (int32_t r : rows_.chosen()) {
      const BatchRow& row = rows[r];
      if (row.pooler == nullptr) continue;
      const int32_t count = row.tokens.size();
      float* hidden;
      TESSERA_RETURN_IF_ERROR(forward_.Hidden(rows_.first_token(r), count, &hidden));
      TESSERA_RETURN_IF_ERROR(Fetch(hidden, count * hidden_size));
      for (int32_t t = 0; t < count; ++t) {
        row.pooler->Add(row.start + t,
                        absl::MakeConstSpan(host_out_.get<float>() + t * hidden_size, hidden_size));
      }
    }
    return absl::OkStatus();
  }

  // Enqueues the logits of the positions from `begin`, as many as there is memory for, and what is wanted of them.
  absl::Status StartLogits(size_t begin) {
    const size_t end = std::min<size_t>(rows_.wanted().size(), begin + LogitsAtOnce());
    if (begin == end) return absl::OkStatus();
    float* logits;
    TESSERA_RETURN_IF_ERROR(forward_.Logits(upload_.wanted() + begin, end - begin, &logits));
    return sampler_.Start(started_rows_, rows_, begin, end, logits, info_.vocab_size);
  }

  // Copies floats to host_out_ and waits.
  absl::Status Fetch(const float* device, int64_t count) {
    TESSERA_RETURN_IF_ERROR(host_out_.Reserve(count * 4));
    TESSERA_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(host_out_.get<void>(), device, count * 4, cudaMemcpyDeviceToHost, stream_.get()),
        "copying results"));
    return CudaStatus(cudaStreamSynchronize(stream_.get()), "running a step");
  }

  std::unique_ptr<CudaModel> model_;
  const int device_;
  const Stream stream_;
  cpu::ThreadPool pool_;
  CudaForward forward_;
  StepUpload upload_;
  DeviceSampler sampler_;
  BackendInfo info_;
  KvCacheConfig kv_config_;
  CudaKvCache cache_;

  // Of the step at work; kept for their memory.
  StepRows rows_;
  absl::Span<const BatchRow> started_rows_;
  std::vector<RowResult>* started_results_ = nullptr;
  PinnedMemory host_out_;  // hidden states
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
  absl::StatusOr<cuda::Stream> stream = cuda::Stream::Create();
  if (!stream.ok()) return stream.status();
  const int threads =
      options.sampling_threads > 0 ? options.sampling_threads : std::min(cpu::UsableCores(), 8);
  auto backend = std::make_unique<cuda::CudaBackend>(std::move(*model), options.device, *std::move(stream),
                                                     threads, properties.name);
  if (absl::Status status = backend->ReserveForSteps(options); !status.ok()) return status;
  return backend;
}

}  // namespace tessera
