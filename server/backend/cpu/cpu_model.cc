#include "server/backend/cpu/cpu_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/fmha/kv_cache.h"
#include "kernels/cpu/moe/router.h"
#include "server/backend/cpu/weight_packer.h"

namespace tessera::cpu {
namespace {

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, ThreadPool& pool,
         const std::function<void(const LoadProgress&)>& progress)
      : checkpoint_(checkpoint),
        pool_(pool),
        progress_(progress),
        dummy_(checkpoint.format() == LoadFormat::kDummy),
        packer_(dummy_ ? nullptr : checkpoint.reader()) {}

  absl::StatusOr<std::unique_ptr<CpuModel>> Load() {
    model_->spec = checkpoint_.spec();
    PlanLayers();
    const ModelSpec& spec = model_->spec;
    const ModelWeights& weights = checkpoint_.weights();
    packer_.Add(weights.lm_head, WeightFormat::kBf16, spec.vocab_size, spec.hidden_size, &model_->lm_head);
    if (!spec.tied_embeddings) {
      packer_.AddTable(weights.embeddings, spec.vocab_size, spec.hidden_size, &model_->embeddings);
    }
    model_->final_norm = Vector(weights.final_norm, spec.hidden_size, true);
    if (!status_.ok()) return status_;
    absl::StatusOr<MappedMemory> memory = packer_.Run(pool_, progress_);
    if (!memory.ok()) return memory.status();
    model_->memory = std::move(*memory);
    return std::move(model_);
  }

 private:
  void PlanLayers() {
    static const LayerWeights kNone;
    const ModelSpec& spec = model_->spec;
    model_->layers.resize(spec.layers.size());
    for (size_t i = 0; i < spec.layers.size(); ++i) {
      PlanLayer(spec.layers[i], dummy_ ? kNone : checkpoint_.weights().layers[i], &model_->layers[i]);
    }
  }

  void PlanLayer(const LayerSpec& spec, const LayerWeights& weights, CpuLayer* layer) {
    const AttentionSpec& attention = spec.attention;
    const int64_t hidden = model_->spec.hidden_size;
    const int64_t query_size = int64_t{attention.num_query_heads} * attention.head_dim;
    const int64_t kv_size = int64_t{attention.num_kv_heads} * attention.head_dim;
    const int64_t intermediate = spec.mlp.intermediate_size;
    layer->input_norm = Vector(weights.input_norm, hidden, true);
    layer->post_attention_norm = Vector(weights.post_attention_norm, hidden, true);
    layer->q_norm = Vector(weights.q_norm, attention.head_dim, attention.qk_norm);
    layer->k_norm = Vector(weights.k_norm, attention.head_dim, attention.qk_norm);
    layer->q_bias = Vector(weights.q_bias, query_size, attention.qkv_bias);
    layer->k_bias = Vector(weights.k_bias, kv_size, attention.qkv_bias);
    layer->v_bias = Vector(weights.v_bias, kv_size, attention.qkv_bias);
    layer->o_bias = Vector(weights.o_bias, hidden, attention.output_bias);
    packer_.Add(weights.q, WeightFormat::kNvfp4, query_size, hidden, &layer->q);
    packer_.Add(weights.k, WeightFormat::kNvfp4, kv_size, hidden, &layer->k);
    packer_.Add(weights.v, WeightFormat::kNvfp4, kv_size, hidden, &layer->v);
    packer_.Add(weights.o, WeightFormat::kNvfp4, hidden, query_size, &layer->o);
    if (spec.mlp.kind == MlpKind::kMoe) {
      packer_.Add(weights.router, WeightFormat::kBf16, spec.mlp.num_experts, hidden, &layer->router);
      layer->experts.resize(spec.mlp.num_experts);
    } else {
      layer->experts.resize(1);
    }
    static const ExpertWeights kNone;
    for (size_t e = 0; e < layer->experts.size(); ++e) {
      const ExpertWeights& expert = dummy_ ? kNone : weights.experts[e];
      packer_.Add(expert.gate, WeightFormat::kNvfp4, intermediate, hidden, &layer->experts[e].gate);
      packer_.Add(expert.up, WeightFormat::kNvfp4, intermediate, hidden, &layer->experts[e].up);
      packer_.Add(expert.down, WeightFormat::kNvfp4, hidden, intermediate, &layer->experts[e].down);
    }
    layer->rope = FindRope(attention.rope);
  }

  int FindRope(const RopeSpec& rope) {
    for (size_t i = 0; i < model_->ropes.size(); ++i) {
      const RopeSpec& known = model_->ropes[i];
      if (known.style == rope.style && known.rotary_dim == rope.rotary_dim &&
          known.inv_freq == rope.inv_freq && known.magnitude == rope.magnitude) {
        return i;
      }
    }
    model_->ropes.push_back(rope);
    return model_->ropes.size() - 1;
  }

  std::vector<float> Vector(const VectorWeights& weights, int64_t size, bool wanted) {
    if (!wanted) return {};
    if (dummy_) return std::vector<float>(size, 1.0f);
    status_.Update(checkpoint_.reader()->CheckUnchanged(*weights.tensor));
    return status_.ok() ? weights.ToFloat() : std::vector<float>();
  }

  const Checkpoint& checkpoint_;
  ThreadPool& pool_;
  const std::function<void(const LoadProgress&)>& progress_;
  const bool dummy_;
  std::unique_ptr<CpuModel> model_ = std::make_unique<CpuModel>();
  WeightPacker packer_;
  absl::Status status_;
};

// What the kernels do not take, told before any memory is spent.
absl::Status CheckSpec(const ModelSpec& spec) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const AttentionSpec& attention = spec.layers[i].attention;
    const MlpSpec& mlp = spec.layers[i].mlp;
    if (attention.head_dim > kMaxHeadDim || attention.head_dim % 2 != 0) {
      return absl::UnimplementedError(absl::StrCat("layer ", i, ": head_dim ", attention.head_dim,
                                                   "; the CPU kernels take even sizes up to ", kMaxHeadDim));
    }
    if (attention.sinks) return absl::UnimplementedError(absl::StrCat("layer ", i, ": attention sinks"));
    if (mlp.num_experts > kMaxRouterExperts) {
      return absl::UnimplementedError(absl::StrCat(
          "layer ", i, ": ", mlp.num_experts, " experts; the CPU kernels take up to ", kMaxRouterExperts));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuModel>> LoadCpuModel(
    const Checkpoint& checkpoint, ThreadPool& pool,
    const std::function<void(const LoadProgress&)>& progress) {
  if (absl::Status status = CheckSpec(checkpoint.spec()); !status.ok()) return status;
  if (checkpoint.format() == LoadFormat::kSafetensors && checkpoint.reader() == nullptr) {
    return absl::FailedPreconditionError("the checkpoint is closed");
  }
  return Loader(checkpoint, pool, progress).Load();
}

}  // namespace tessera::cpu
