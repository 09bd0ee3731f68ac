#include "server/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/thread_pool.h"
#include "server/backend/batch_checks.h"
#include "server/backend/cpu/cpu_model.h"
#include "server/backend/cpu/forward.h"
#include "server/backend/cpu/memory.h"
#include "server/backend/cpu/step_buffers.h"
#include "server/backend/cpu/step_input.h"
#include "server/backend/step_rows.h"

namespace tessera {
namespace {

// Logits are computed for as many positions at a time as fit in this.
constexpr int64_t kLogitsBytes = 64 << 20;

class CpuBackend : public Backend {
 public:
  CpuBackend(std::unique_ptr<cpu::ThreadPool> pool, std::unique_ptr<cpu::CpuModel> model)
      : pool_(std::move(pool)), model_(std::move(model)), forward_(*model_, *pool_) {
    const ModelSpec& spec = model_->spec;
    info_.device = "cpu";
    const int threads = pool_->num_threads();
    const std::string_view isa = cpu::IsaName(cpu::ActiveIsa());
    info_.device_description =
        absl::StrCat(std::string(isa), ", ", threads, threads == 1 ? " thread" : " threads");
    info_.vocab_size = spec.vocab_size;
    info_.hidden_size = spec.hidden_size;
    info_.max_context = spec.max_context;
    info_.weight_bytes = model_->memory.size();
    for (const LayerSpec& layer : spec.layers) {
      info_.kv_bytes_per_token += int64_t{sizeof(Bf16)} * layer.attention.cache_elements();
    }
  }

  const BackendInfo& info() const override { return info_; }

  absl::Status AllocateKvCache(const KvCacheConfig& config) override {
    if (!caches_.empty()) return absl::FailedPreconditionError("the cache is allocated already");
    if (absl::Status status = CheckKvCacheConfig(config, cpu::kKvTokenRun); !status.ok()) return status;
    const int64_t tokens = int64_t{config.num_blocks} * config.block_size;
    absl::StatusOr<cpu::MappedMemory> memory = cpu::MappedMemory::Allocate(
        tokens * info_.kv_bytes_per_token, absl::StrCat("the key-value cache (", config.num_blocks,
                                                        " blocks of ", config.block_size, " tokens)"));
    if (!memory.ok()) return memory.status();
    std::vector<cpu::KvCache> caches;
    Bf16* next = reinterpret_cast<Bf16*>(memory->data());
    for (const LayerSpec& layer : model_->spec.layers) {
      cpu::KvCache cache = cpu::KvCacheShape(layer.attention, config);
      cache.k = next;
      cache.v = next + cache.k_elements();
      next += cache.k_elements() + cache.v_elements();
      if (absl::Status status = cpu::CheckKvCache(cache); !status.ok()) return status;
      caches.push_back(cache);
    }
    kv_config_ = config;
    kv_memory_ = std::move(*memory);
    caches_ = std::move(caches);
    return absl::OkStatus();
  }

  absl::Status Run(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) override {
    if (caches_.empty()) return absl::FailedPreconditionError("the key-value cache is not allocated");
    rows_.Choose(rows, info_, kv_config_, results);
    if (rows_.num_tokens() == 0) return absl::OkStatus();
    step_.LayOut(rows, rows_.chosen(), kv_config_.block_size);
    if (absl::Status status = forward_.Run(step_, caches_); !status.ok()) return Device(status);
    if (absl::Status status = Pool(rows, results); !status.ok()) return Device(status);
    return ScoreAndSample(rows, results);
  }

 private:
  static absl::Status Device(const absl::Status& status) {
    return absl::InternalError(absl::StrCat("CPU backend: ", status.ToString()));
  }

  absl::Status Pool(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) {
    pooled_rows_.clear();
    for (const int32_t r : rows_.chosen()) {
      if (rows[r].pooler != nullptr) pooled_rows_.push_back(r);
    }
    if (pooled_rows_.empty()) return absl::OkStatus();
    const int64_t hidden_size = info_.hidden_size;
    float* normed = pooled_.Reserve(step_.num_tokens * hidden_size);
    pool_->ParallelFor(pooled_rows_.size(), [&](int64_t i) {
      const int32_t r = pooled_rows_[i];
      const BatchRow& row = rows[r];
      float* first = normed + rows_.first_token(r) * hidden_size;
      (*results)[r].status = forward_.FinalNorm(rows_.first_token(r), row.tokens.size(), first);
      if (!(*results)[r].status.ok()) return;
      for (size_t t = 0; t < row.tokens.size(); ++t) {
        row.pooler->Add(row.start + t, absl::MakeConstSpan(first + t * hidden_size, hidden_size));
      }
    });
    return absl::OkStatus();
  }

  absl::Status ScoreAndSample(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) {
    const absl::Span<const WantedLogits> wanted = rows_.wanted();
    const int64_t vocab = info_.vocab_size;
    const int64_t chunk = std::max<int64_t>(1, kLogitsBytes / (vocab * static_cast<int64_t>(sizeof(float))));
    for (size_t begin = 0; begin < wanted.size(); begin += chunk) {
      const size_t end = std::min<size_t>(wanted.size(), begin + chunk);
      float* logits = logits_.Reserve((end - begin) * vocab);
      chunk_tokens_.clear();
      for (size_t i = begin; i < end; ++i) chunk_tokens_.push_back(wanted[i].token);
      if (absl::Status status = forward_.Logits(chunk_tokens_, logits); !status.ok()) return Device(status);
      rows_.Consume(rows, begin, end, logits, vocab, *pool_, results);
    }
    return absl::OkStatus();
  }

  std::unique_ptr<cpu::ThreadPool> pool_;
  std::unique_ptr<cpu::CpuModel> model_;
  cpu::Forward forward_;
  BackendInfo info_;
  KvCacheConfig kv_config_;
  cpu::MappedMemory kv_memory_;
  std::vector<cpu::KvCache> caches_;  // one a layer

  // Of the step at work; kept for their memory.
  cpu::StepInput step_;
  StepRows rows_;
  std::vector<int32_t> pooled_rows_;
  std::vector<int32_t> chunk_tokens_;
  cpu::GrowingArray<float> pooled_;  // [tokens, hidden]
  cpu::GrowingArray<float> logits_;  // [chunk, vocab]
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const Checkpoint& checkpoint,
                                                          CpuBackendOptions options) {
  const int threads = options.num_threads > 0 ? options.num_threads : cpu::UsableCores();
  auto pool = std::make_unique<cpu::ThreadPool>(threads);
  absl::StatusOr<std::unique_ptr<cpu::CpuModel>> model =
      cpu::LoadCpuModel(checkpoint, *pool, options.progress);
  if (!model.ok()) {
    return absl::Status(model.status().code(),
                        absl::StrCat(checkpoint.directory(), ": ", model.status().message()));
  }
  return std::make_unique<CpuBackend>(std::move(pool), std::move(*model));
}

}  // namespace tessera
