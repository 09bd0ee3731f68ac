#include "server/backend/cuda/cuda_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/thread_pool.h"
#include "server/backend/batch_checks.h"
#include "server/backend/cpu/memory.h"
#include "server/backend/cuda/cuda_forward.h"
#include "server/backend/cuda/cuda_model.h"
#include "server/backend/cuda/device_memory.h"
#include "server/backend/cuda/pinned_memory.h"
#include "server/backend/step_rows.h"

namespace tessera {
namespace cuda {
namespace {

// Logits are computed for as many positions at a time as fit in this.
constexpr int64_t kLogitsBytes = 256 << 20;
constexpr int32_t kMinBlockSize = 16;
constexpr int32_t kStrideStep = 64;  // of the block table

#define TESSERA_RETURN_IF_ERROR(expression)                                 \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

class CudaBackend : public Backend {
 public:
  CudaBackend(std::unique_ptr<CudaModel> model, int device, cudaStream_t stream, int threads, std::string device_name)
      : model_(std::move(model)), device_(device), stream_(stream), pool_(threads), forward_(*model_, stream) {
    const ModelSpec& spec = model_->spec;
    info_.device = "cuda";
    info_.device_description = std::move(device_name);
    info_.vocab_size = spec.vocab_size;
    info_.hidden_size = spec.hidden_size;
    info_.max_context = spec.max_context;
    info_.weight_bytes = model_->weight_bytes;
    for (const LayerSpec& layer : spec.layers) {
      info_.kv_bytes_per_token += int64_t{2} * 2 * layer.attention.num_kv_heads * layer.attention.head_dim;
    }
  }
  ~CudaBackend() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }

  const BackendInfo& info() const override { return info_; }

  absl::Status AllocateKvCache(const KvCacheConfig& config) override {
    if (!cache_.layers.empty()) return absl::FailedPreconditionError("the cache is allocated already");
    TESSERA_RETURN_IF_ERROR(CheckKvCacheConfig(config, kMinBlockSize));
    if (config.block_size > 256) return absl::InvalidArgumentError("block_size: the CUDA kernels take at most 256");
    const int64_t tokens = int64_t{config.num_blocks} * config.block_size;
    TESSERA_RETURN_IF_ERROR(cache_.memory.Allocate(
        tokens * info_.kv_bytes_per_token,
        absl::StrCat("the key-value cache (", config.num_blocks, " blocks of ", config.block_size, " tokens)")));
    uint8_t* next = cache_.memory.get<uint8_t>();
    for (const LayerSpec& layer : model_->spec.layers) {
      const int64_t bytes = tokens * 2 * layer.attention.num_kv_heads * layer.attention.head_dim;
      cache_.layers.emplace_back(next, next + bytes);
      next += 2 * bytes;
    }
    cache_.num_blocks = config.num_blocks;
    cache_.block_size = config.block_size;
    kv_config_ = config;
    return absl::OkStatus();
  }

  absl::Status Run(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) override {
    if (cache_.layers.empty()) return absl::FailedPreconditionError("the key-value cache is not allocated");
    TESSERA_RETURN_IF_ERROR(Device(CudaStatus(cudaSetDevice(device_), "choosing the device")));  // per thread
    rows_.Choose(rows, info_, kv_config_, results);
    const int32_t tokens = static_cast<int32_t>(rows_.num_tokens());
    if (tokens == 0) return absl::OkStatus();
    CudaStep step;
    TESSERA_RETURN_IF_ERROR(Device(UploadStep(rows, tokens, &step)));
    TESSERA_RETURN_IF_ERROR(Device(forward_.Run(step, cache_, device_step_.get())));
    TESSERA_RETURN_IF_ERROR(Device(Pool(rows)));
    return Device(ScoreAndSample(rows, results));
  }

 private:
  static absl::Status Device(const absl::Status& status) {
    if (status.ok()) return status;
    return absl::InternalError(absl::StrCat("CUDA backend: ", status.message()));
  }

  // Lays the step out in pinned memory and copies it in one piece.
  absl::Status UploadStep(absl::Span<const BatchRow> rows, int32_t tokens, CudaStep* step) {
    const absl::Span<const int32_t> chosen = rows_.chosen();
    const absl::Span<const WantedLogits> wanted_logits = rows_.wanted();
    int32_t stride = 1;
    for (int32_t r : chosen) {
      const int32_t end = rows[r].start + rows[r].tokens.size();
      stride = std::max(stride, (end + kv_config_.block_size - 1) / kv_config_.block_size);
    }
    // Rounded up, so that a growing sequence changes the step's shape rarely.
    stride = (stride + kStrideStep - 1) / kStrideStep * kStrideStep;
    const size_t words = static_cast<size_t>(tokens) * 6 + chosen.size() * stride + wanted_logits.size();
    TESSERA_RETURN_IF_ERROR(host_step_.Reserve(words * 4));
    if (words * 4 > device_step_.bytes()) {
      TESSERA_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), "waiting before growing buffers"));
      TESSERA_RETURN_IF_ERROR(device_step_.Reserve(std::max(2 * device_step_.bytes(), words * 4), "a step's inputs"));
    }
    int64_t* slots = host_step_.get<int64_t>();  // first: it wants the alignment
    int32_t* ids = reinterpret_cast<int32_t*>(slots + tokens);
    int32_t* positions = ids + tokens;
    int32_t* lengths = positions + tokens;
    int32_t* table_rows = lengths + tokens;
    int32_t* table = table_rows + tokens;
    int32_t* wanted = table + chosen.size() * stride;
    int32_t at = 0;
    for (size_t i = 0; i < chosen.size(); ++i) {
      const BatchRow& row = rows[chosen[i]];
      const int32_t end = row.start + row.tokens.size();
      const int32_t blocks = (end + kv_config_.block_size - 1) / kv_config_.block_size;
      std::copy_n(row.block_table.begin(), blocks, table + i * stride);
      std::fill_n(table + i * stride + blocks, stride - blocks, 0);
      for (size_t t = 0; t < row.tokens.size(); ++t, ++at) {
        const int32_t position = row.start + t;
        slots[at] = int64_t{row.block_table[position / kv_config_.block_size]} * kv_config_.block_size +
                    position % kv_config_.block_size;
        ids[at] = row.tokens[t];
        positions[at] = position;
        lengths[at] = position + 1;
        table_rows[at] = i;
      }
    }
    for (size_t i = 0; i < wanted_logits.size(); ++i) wanted[i] = wanted_logits[i].token;
    TESSERA_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(device_step_.get(), host_step_.get<void>(), words * 4,
                                                       cudaMemcpyHostToDevice, stream_),
                                       "copying a step's inputs"));
    const auto on_device = [&](const int32_t* host) {
      return reinterpret_cast<const int32_t*>(device_step_.get<uint8_t>() +
                                              (reinterpret_cast<const uint8_t*>(host) - host_step_.get<uint8_t>()));
    };
    step->num_tokens = tokens;
    step->slots = device_step_.get<int64_t>();
    step->ids = on_device(ids);
    step->positions = on_device(positions);
    step->lengths = on_device(lengths);
    step->table_rows = on_device(table_rows);
    step->block_table = on_device(table);
    step->block_table_stride = stride;
    device_wanted_ = on_device(wanted);
    return absl::OkStatus();
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
        row.pooler->Add(row.start + t, absl::MakeConstSpan(host_out_.get<float>() + t * hidden_size, hidden_size));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ScoreAndSample(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) {
    const int64_t vocab = info_.vocab_size;
    const int64_t chunk = std::max<int64_t>(1, kLogitsBytes / (vocab * 4));
    for (size_t begin = 0; begin < rows_.wanted().size(); begin += chunk) {
      const size_t end = std::min<size_t>(rows_.wanted().size(), begin + chunk);
      float* logits;
      TESSERA_RETURN_IF_ERROR(forward_.Logits(device_wanted_ + begin, end - begin, &logits));
      TESSERA_RETURN_IF_ERROR(Fetch(logits, (end - begin) * vocab));
      rows_.Consume(rows, begin, end, host_out_.get<float>(), vocab, pool_, results);
    }
    // A batch without logits is waited for too: its cache writes must not fail unnoticed.
    return CudaStatus(cudaStreamSynchronize(stream_), "running a step");
  }

  // Copies floats to host_out_ and waits.
  absl::Status Fetch(const float* device, int64_t count) {
    TESSERA_RETURN_IF_ERROR(host_out_.Reserve(count * 4));
    TESSERA_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(host_out_.get<void>(), device, count * 4, cudaMemcpyDeviceToHost, stream_), "copying results"));
    return CudaStatus(cudaStreamSynchronize(stream_), "running a step");
  }

  std::unique_ptr<CudaModel> model_;
  const int device_;
  const cudaStream_t stream_;
  cpu::ThreadPool pool_;
  CudaForward forward_;
  BackendInfo info_;
  KvCacheConfig kv_config_;
  CudaKvCache cache_;

  // Of the step at work; kept for their memory.
  StepRows rows_;
  const int32_t* device_wanted_ = nullptr;
  PinnedMemory host_step_, host_out_;
  DeviceMemory device_step_;
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
  if (absl::Status status = cuda::CudaStatus(cudaGetDeviceProperties(&properties, device), "reading the device");
      !status.ok()) {
    return status;
  }
  if (properties.major == 9 && properties.minor == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("GPU ", device, " (", properties.name, ") has compute capability ",
                                             properties.major, ".", properties.minor,
                                             "; this build has kernels for 9.0 (H100, H200)"));
}

absl::StatusOr<int64_t> FreeDeviceMemory(int device) {
  size_t free = 0, total = 0;
  absl::Status status = cuda::CudaStatus(cudaSetDevice(device), "choosing the device");
  if (status.ok()) status = cuda::CudaStatus(cudaMemGetInfo(&free, &total), "reading free memory");
  if (!status.ok()) return status;
  return static_cast<int64_t>(free);
}

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const Checkpoint& checkpoint, CudaBackendOptions options) {
  if (absl::Status status = CheckCudaDevice(options.device); !status.ok()) return status;
  if (absl::Status status = cuda::CudaStatus(cudaSetDevice(options.device), "choosing the device"); !status.ok()) {
    return status;
  }
  cudaDeviceProp properties;
  if (absl::Status status = cuda::CudaStatus(cudaGetDeviceProperties(&properties, options.device), "reading the device");
      !status.ok()) {
    return status;
  }
  absl::StatusOr<std::unique_ptr<cuda::CudaModel>> model = cuda::LoadCudaModel(checkpoint, options.progress);
  if (!model.ok()) {
    return absl::Status(model.status().code(), absl::StrCat(checkpoint.directory(), ": ", model.status().message()));
  }
  cudaStream_t stream;
  if (absl::Status status = cuda::CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
      !status.ok()) {
    return status;
  }
  const int threads =
      options.sampling_threads > 0 ? options.sampling_threads : std::min(cpu::UsableCores(), 8);
  return std::make_unique<cuda::CudaBackend>(std::move(*model), options.device, stream, threads, properties.name);
}

}  // namespace tessera
