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
      info_.kv_bytes_per_token +=
          2 * int64_t{sizeof(Bf16)} * layer.attention.num_kv_heads * layer.attention.head_dim;
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
      cpu::KvCache cache;
      cache.num_blocks = config.num_blocks;
      cache.kv_heads = layer.attention.num_kv_heads;
      cache.block_size = config.block_size;
      cache.head_dim = layer.attention.head_dim;
      cache.value_dim = layer.attention.head_dim;
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
    results->assign(rows.size(), RowResult{});
    LayOut(rows, results);
    if (step_.num_tokens == 0) return absl::OkStatus();
    if (absl::Status status = forward_.Run(step_, caches_); !status.ok()) return Device(status);
    if (absl::Status status = Pool(rows, results); !status.ok()) return Device(status);
    return ScoreAndSample(rows, results);
  }

 private:
  // A position whose logits somebody wants.
  struct LogitsWanted {
    int32_t row = 0;
    int32_t token = 0;     // in the step
    int32_t position = 0;  // in the sequence
    bool last = false;     // of its row in this step
  };

  static absl::Status Device(const absl::Status& status) {
    return absl::InternalError(absl::StrCat("CPU backend: ", status.ToString()));
  }

  // Writes the rows into step_; a row that cannot be run gets its error and is left out.
  void LayOut(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) {
    first_token_.assign(rows.size(), -1);
    chosen_.clear();
    int64_t token = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      (*results)[r].status = CheckBatchRow(rows[r], info_, kv_config_);
      if (!(*results)[r].status.ok()) continue;
      chosen_.push_back(r);
      first_token_[r] = token;
      token += rows[r].tokens.size();
    }
    step_.LayOut(rows, chosen_, kv_config_.block_size);
  }

  absl::Status Pool(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) {
    pooled_rows_.clear();
    for (size_t r = 0; r < rows.size(); ++r) {
      if (first_token_[r] >= 0 && rows[r].pooler != nullptr) pooled_rows_.push_back(r);
    }
    if (pooled_rows_.empty()) return absl::OkStatus();
    const int64_t hidden_size = info_.hidden_size;
    float* normed = pooled_.Reserve(step_.num_tokens * hidden_size);
    pool_->ParallelFor(pooled_rows_.size(), [&](int64_t i) {
      const size_t r = pooled_rows_[i];
      const BatchRow& row = rows[r];
      float* first = normed + first_token_[r] * hidden_size;
      (*results)[r].status = forward_.FinalNorm(first_token_[r], row.tokens.size(), first);
      if (!(*results)[r].status.ok()) return;
      for (size_t t = 0; t < row.tokens.size(); ++t) {
        row.pooler->Add(row.start + t, absl::MakeConstSpan(first + t * hidden_size, hidden_size));
      }
    });
    return absl::OkStatus();
  }

  absl::Status ScoreAndSample(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) {
    wanted_.clear();
    for (size_t r = 0; r < rows.size(); ++r) {
      if (first_token_[r] < 0) continue;
      const int32_t count = rows[r].tokens.size();
      const int32_t from = rows[r].prompt_scorer != nullptr ? 0
                           : rows[r].sampler != nullptr     ? count - 1
                                                            : count;
      for (int32_t t = from; t < count; ++t) {
        wanted_.push_back({static_cast<int32_t>(r), static_cast<int32_t>(first_token_[r] + t),
                           rows[r].start + t, t == count - 1});
      }
    }
    const int64_t vocab = info_.vocab_size;
    const int64_t chunk = std::max<int64_t>(1, kLogitsBytes / (vocab * static_cast<int64_t>(sizeof(float))));
    for (size_t begin = 0; begin < wanted_.size(); begin += chunk) {
      const size_t end = std::min<size_t>(wanted_.size(), begin + chunk);
      float* logits = logits_.Reserve((end - begin) * vocab);
      chunk_tokens_.clear();
      chunk_rows_.clear();  // where each row's positions begin in this chunk
      for (size_t i = begin; i < end; ++i) {
        chunk_tokens_.push_back(wanted_[i].token);
        if (i == begin || wanted_[i].row != wanted_[i - 1].row) chunk_rows_.push_back(i);
      }
      if (absl::Status status = forward_.Logits(chunk_tokens_, logits); !status.ok()) return Device(status);
      // Rows in parallel, a row's positions in order.
      pool_->ParallelFor(chunk_rows_.size(), [&](int64_t g) {
        const size_t last = g + 1 < static_cast<int64_t>(chunk_rows_.size()) ? chunk_rows_[g + 1] : end;
        for (size_t i = chunk_rows_[g]; i < last; ++i) {
          Consume(rows[wanted_[i].row], wanted_[i], absl::MakeSpan(logits + (i - begin) * vocab, vocab),
                  &(*results)[wanted_[i].row]);
        }
      });
    }
    return absl::OkStatus();
  }

  static void Consume(const BatchRow& row, const LogitsWanted& wanted, absl::Span<float> logits,
                      RowResult* result) {
    if (!result->status.ok()) return;
    if (row.prompt_scorer != nullptr) {
      result->status = row.prompt_scorer->Add(wanted.position, logits);
      if (!result->status.ok()) return;
    }
    if (row.sampler != nullptr && wanted.last) {
      absl::StatusOr<SampledToken> sampled = row.sampler->Sample(logits);
      result->status = sampled.status();
      if (sampled.ok()) result->sampled = std::move(*sampled);
    }
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
  std::vector<int32_t> chosen_;       // rows in the step
  std::vector<int64_t> first_token_;  // of each row in the step; -1 for a row left out
  std::vector<size_t> pooled_rows_;
  std::vector<LogitsWanted> wanted_;
  std::vector<int32_t> chunk_tokens_;
  std::vector<size_t> chunk_rows_;
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
