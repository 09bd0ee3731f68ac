#include "server/backend/cpu/cpu_model.h"

#include <deque>
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
    const ModelSpec& spec = model_->spec;
    const ModelWeights& weights = checkpoint_.weights();
    model_->layers.resize(spec.layers.size());
    for (size_t i = 0; i < spec.layers.size(); ++i) {
      PlanLayer(spec.layers[i], weights.layers[i], &model_->layers[i]);
    }
    Matrix(weights.lm_head, WeightFormat::kBf16, &model_->lm_head);
    if (!spec.tied_embeddings) {
      packer_.AddTable(weights.embeddings, spec.vocab_size, spec.hidden_size, &model_->embeddings);
    }
    model_->final_norm = Vector(weights.final_norm);
    if (!status_.ok()) return status_;
    absl::StatusOr<MappedMemory> memory = packer_.Run(pool_, progress_);
    if (!memory.ok()) return memory.status();
    model_->memory = std::move(*memory);
    return std::move(model_);
  }

 private:
  // What a layer lacks has no elements in `weights`, and stays empty in `layer`.
  void PlanLayer(const LayerSpec& spec, const LayerWeights& weights, CpuLayer* layer) {
    layer->input_norm = Vector(weights.input_norm);
    layer->post_attention_norm = Vector(weights.post_attention_norm);
    layer->q_norm = Vector(weights.q_norm);
    layer->k_norm = Vector(weights.k_norm);
    layer->q_bias = Vector(weights.q_bias);
    layer->k_bias = Vector(weights.k_bias);
    layer->v_bias = Vector(weights.v_bias);
    layer->o_bias = Vector(weights.o_bias);
    layer->sinks = Vector(weights.sinks);
    Matrix(weights.q, WeightFormat::kNvfp4, &layer->q);
    Matrix(weights.k, WeightFormat::kNvfp4, &layer->k);
    Matrix(weights.v, WeightFormat::kNvfp4, &layer->v);
    Matrix(weights.o, WeightFormat::kNvfp4, &layer->o);
    if (spec.attention.kind == AttentionKind::kLatent) PlanLatent(spec.attention, weights, layer);
    layer->rope = FindRope(spec.attention.rope);

    Matrix(weights.router, WeightFormat::kBf16, &layer->router);
    layer->router_bias = Vector(weights.router_bias);
    layer->selection_bias = Vector(weights.selection_bias);
    layer->experts.resize(weights.experts.size());
    for (size_t e = 0; e < layer->experts.size(); ++e) Expert(weights.experts[e], layer, &layer->experts[e]);
    Expert(weights.shared_expert, layer, &layer->shared_expert);
  }

  void PlanLatent(const AttentionSpec& attention, const LayerWeights& weights, CpuLayer* layer) {
    const LatentSpec& latent = attention.latent;
    Matrix(weights.q_a, WeightFormat::kNvfp4, &layer->q_a);
    Matrix(weights.kv_a, WeightFormat::kNvfp4, &layer->kv_a);
    layer->q_a_norm = Vector(weights.q_a_norm);
    layer->kv_a_norm = Vector(weights.kv_a_norm);
    layer->key_up.resize(attention.num_query_heads);
    layer->value_up.resize(attention.num_query_heads);
    for (int32_t h = 0; h < attention.num_query_heads; ++h) {
      const int64_t first = int64_t{h} * (latent.nope_dim + latent.value_dim);
      slices_.push_back(SliceRows(weights.kv_b, first, latent.nope_dim));
      packer_.AddTransposed(slices_.back(), &layer->key_up[h]);
      slices_.push_back(SliceRows(weights.kv_b, first + latent.nope_dim, latent.value_dim));
      Matrix(slices_.back(), WeightFormat::kNvfp4, &layer->value_up[h]);
    }
  }

  void Expert(const ExpertWeights& weights, CpuLayer* layer, MoeExpert* expert) {
    Matrix(weights.gate, WeightFormat::kNvfp4, &expert->gate);
    Matrix(weights.up, WeightFormat::kNvfp4, &expert->up);
    Matrix(weights.down, WeightFormat::kNvfp4, &expert->down);
    for (const auto& [bias, pointer] :
         {std::pair(&weights.gate_bias, &expert->gate_bias), std::pair(&weights.up_bias, &expert->up_bias),
          std::pair(&weights.down_bias, &expert->down_bias)}) {
      if (bias->size == 0) continue;
      layer->expert_biases.push_back(Vector(*bias));
      *pointer = layer->expert_biases.back().data();
    }
  }

  void Matrix(const LinearWeights& weights, WeightFormat dummy_format, PackedLinear* packed) {
    if (weights.out > 0) packer_.Add(weights, dummy_format, weights.out, weights.in, packed);
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

  std::vector<float> Vector(const VectorWeights& weights) {
    if (weights.size == 0) return {};
    if (dummy_) return std::vector<float>(weights.size, 1.0f);
    status_.Update(checkpoint_.reader()->CheckUnchanged(*weights.tensor));
    return status_.ok() ? weights.ToFloat() : std::vector<float>();
  }

  const Checkpoint& checkpoint_;
  ThreadPool& pool_;
  const std::function<void(const LoadProgress&)>& progress_;
  const bool dummy_;
  std::unique_ptr<CpuModel> model_ = std::make_unique<CpuModel>();
  std::deque<LinearWeights> slices_;  // of matrices that are packed in parts
  WeightPacker packer_;
  absl::Status status_;
};

// What the kernels do not take, told before any memory is spent.
absl::Status CheckSpec(const ModelSpec& spec) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const AttentionSpec& attention = spec.layers[i].attention;
    const MlpSpec& mlp = spec.layers[i].mlp;
    const char* key =
        attention.kind == AttentionKind::kLatent ? "kv_lora_rank + qk_rope_head_dim" : "head_dim";
    if (attention.cache_key_dim() > kMaxHeadDim || attention.cache_key_dim() % 2 != 0) {
      return absl::UnimplementedError(absl::StrCat("layer ", i, ": \"", key, "\" ", attention.cache_key_dim(),
                                                   "; the CPU kernels take even sizes up to ", kMaxHeadDim));
    }
    if (mlp.num_experts > kMaxRouterExperts) {
      return absl::UnimplementedError(absl::StrCat(
          "layer ", i, ": ", mlp.num_experts, " experts; the CPU kernels take up to ", kMaxRouterExperts));
    }
  }
  return absl::OkStatus();
}

}  // namespace

KvCache KvCacheShape(const AttentionSpec& attention, const KvCacheConfig& config) {
  KvCache cache;
  cache.num_blocks = config.num_blocks;
  cache.block_size = config.block_size;
  cache.kv_heads = attention.cache_heads();
  cache.head_dim = attention.cache_key_dim();
  cache.value_dim = attention.cache_value_dim();
  cache.shared_dim = attention.kind == AttentionKind::kLatent ? cache.value_dim : 0;
  return cache;
}

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
