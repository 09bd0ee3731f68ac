#include "server/backend/cuda/cuda_model.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/moe/routing.h"
#include "server/backend/cuda/weight_loader.h"
#include "server/status_macros.h"

namespace tessera::cuda {
namespace {

// What the CUDA kernels do not take.
absl::Status CheckLayer(const LayerSpec& spec) {
  const AttentionSpec& attention = spec.attention;
  const std::optional<AttentionShape> shape = AttentionShapeOf(attention);
  if (attention.kind == AttentionKind::kLatent) {
    if (!shape) {
      return absl::UnimplementedError(absl::StrCat(
          "\"kv_lora_rank\" ", attention.latent.kv_rank, " and \"qk_rope_head_dim\" ",
          attention.latent.rope_dim, "; the CUDA kernels take up to 512 and 64, or 256 together"));
    }
  } else if (!shape || attention.head_dim % 2 != 0) {
    return absl::UnimplementedError(
        absl::StrCat("\"head_dim\" ", attention.head_dim, "; the CUDA kernels take even sizes up to 256"));
  }
  const MlpSpec& mlp = spec.mlp;
  if (mlp.kind != MlpKind::kMoe) return absl::OkStatus();
  if (mlp.num_experts > kMostExperts || mlp.num_experts_per_token > kMostTopK ||
      mlp.router.num_groups > kMostExpertGroups) {
    return absl::UnimplementedError(absl::StrCat(
        mlp.num_experts, " experts in ", mlp.router.num_groups, " groups, ", mlp.num_experts_per_token,
        " a token; the CUDA kernels take up to ", kMostExperts, ", ", kMostExpertGroups, " and ", kMostTopK));
  }
  return absl::OkStatus();
}

int64_t PaddedRows(const LinearWeights& weights) {
  return (weights.out + kRowTile - 1) / kRowTile * kRowTile;
}

// Whether the experts' weights and inputs can both be NVFP4.
bool HasInputScales(int64_t hidden, const MlpSpec& spec, absl::Span<const ExpertWeights> experts) {
  const ActivationSpec plain;
  const ActivationSpec& activation = spec.activation;
  if (spec.kind != MlpKind::kMoe || hidden % 16 != 0 || spec.intermediate_size % 16 != 0 ||
      activation.limit != plain.limit || activation.sigmoid_scale != plain.sigmoid_scale ||
      activation.up_offset != plain.up_offset) {
    return false;
  }
  for (const ExpertWeights& expert : experts) {
    for (const LinearWeights* weights : {&expert.gate, &expert.up, &expert.down}) {
      if (weights->format != ::tessera::WeightFormat::kNvfp4 || weights->input_scale <= 0) return false;
    }
    for (const VectorWeights* bias : {&expert.gate_bias, &expert.up_bias, &expert.down_bias}) {
      if (bias->size > 0) return false;
    }
  }
  return true;
}

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, bool nvfp4_activations,
         const std::function<void(const LoadProgress&)>& progress)
      : checkpoint_(checkpoint),
        nvfp4_activations_(nvfp4_activations),
        loader_(checkpoint, progress, &model_->memory) {}

  absl::StatusOr<std::unique_ptr<CudaModel>> Load() {
    const ModelSpec& spec = checkpoint_.spec();
    const ModelWeights& weights = checkpoint_.weights();
    model_->spec = spec;
    model_->layers.resize(spec.layers.size());
    for (size_t i = 0; i < spec.layers.size(); ++i) {
      if (absl::Status status = LoadLayer(spec.layers[i], weights.layers[i], &model_->layers[i]);
          !status.ok()) {
        return absl::Status(status.code(), absl::StrCat("layer ", i, ": ", status.message()));
      }
    }
    TESSERA_RETURN_IF_ERROR(loader_.Vector(weights.final_norm, &model_->final_norm));
    TESSERA_RETURN_IF_ERROR(loader_.Table(weights.embeddings, &model_->embeddings));
    TESSERA_RETURN_IF_ERROR(loader_.Pack({{{&weights.lm_head}}}, kSmallMatrix, &model_->lm_head));
    TESSERA_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "repacking weights"));
    for (const DeviceMemory& memory : model_->memory) model_->weight_bytes += memory.bytes();
    return std::move(model_);
  }

 private:
  // Made up in BF16, as checkpoints have routers and output matrices.
  static constexpr MatrixLayout kSmallMatrix = {RowOrder::kPlain, 0, 0, WeightFormat::kBf16};

  absl::Status LoadLayer(const LayerSpec& spec, const LayerWeights& weights, CudaLayer* layer) {
    TESSERA_RETURN_IF_ERROR(loader_.Vector(weights.input_norm, &layer->input_norm));
    TESSERA_RETURN_IF_ERROR(loader_.Vector(weights.post_attention_norm, &layer->post_attention_norm));
    layer->attention = *AttentionShapeOf(spec.attention);
    TESSERA_RETURN_IF_ERROR(MakeRope(spec.attention.rope, &layer->rope));
    TESSERA_RETURN_IF_ERROR(loader_.Vector(weights.sinks, &layer->sinks));
    TESSERA_RETURN_IF_ERROR(spec.attention.kind == AttentionKind::kLatent
                                ? LoadLatent(spec.attention, weights, layer)
                                : LoadGrouped(spec.attention, weights, layer));

    if (spec.mlp.kind == MlpKind::kMoe) {
      TESSERA_RETURN_IF_ERROR(
          loader_.Pack({{{&weights.router, &weights.router_bias}}}, kSmallMatrix, &layer->router));
      TESSERA_RETURN_IF_ERROR(loader_.Vector(weights.selection_bias, &layer->selection_bias));
    }
    TESSERA_RETURN_IF_ERROR(nvfp4_activations_ &&
                                    HasInputScales(model_->spec.hidden_size, spec.mlp, weights.experts)
                                ? LoadNvfp4Experts(weights.experts, layer)
                                : LoadExperts(weights.experts, &layer->gate_up, &layer->down));
    if (spec.mlp.shared_intermediate_size == 0) return absl::OkStatus();
    return LoadExperts(absl::MakeConstSpan(&weights.shared_expert, 1), &layer->shared_gate_up,
                       &layer->shared_down);
  }

  absl::Status LoadGrouped(const AttentionSpec& spec, const LayerWeights& weights, CudaLayer* layer) {
    TESSERA_RETURN_IF_ERROR(loader_.Vector(weights.q_norm, &layer->q_norm));
    TESSERA_RETURN_IF_ERROR(loader_.Vector(weights.k_norm, &layer->k_norm));
    TESSERA_RETURN_IF_ERROR(loader_.Pack(
        {{{&weights.q, &weights.q_bias}, {&weights.k, &weights.k_bias}, {&weights.v, &weights.v_bias}}}, {},
        &layer->qkv));
    layer->k_offset = PaddedRows(weights.q);
    layer->v_offset = layer->k_offset + PaddedRows(weights.k);
    // What heads are padded with in the attention's result stands between the inputs of the output matrix.
    MatrixLayout layout;
    if (spec.head_dim != layer->attention.value_dim) {
      layout.segment = spec.head_dim;
      layout.padded_segment = layer->attention.value_dim;
    }
    return loader_.Pack({{{&weights.o, &weights.o_bias}}}, layout, &layer->o);
  }

  absl::Status LoadLatent(const AttentionSpec& spec, const LayerWeights& weights, CudaLayer* layer) {
    const LatentSpec& latent = spec.latent;
    TESSERA_RETURN_IF_ERROR(loader_.Vector(weights.q_a_norm, &layer->q_a_norm));
    TESSERA_RETURN_IF_ERROR(loader_.Vector(weights.kv_a_norm, &layer->kv_a_norm));
    const LinearWeights& first_q = latent.query_rank > 0 ? weights.q_a : weights.q;
    TESSERA_RETURN_IF_ERROR(loader_.Pack({{{&first_q}, {&weights.kv_a}}}, {}, &layer->qkv));
    layer->k_offset = PaddedRows(first_q);
    if (latent.query_rank > 0) TESSERA_RETURN_IF_ERROR(loader_.Pack({{{&weights.q}}}, {}, &layer->q_b));
    const int32_t heads = spec.num_query_heads;
    std::vector<LinearWeights> slices;
    slices.reserve(2 * heads);
    std::vector<std::vector<MatrixPart>> key_up, value_up;
    for (int32_t h = 0; h < heads; ++h) {
      const int64_t first = int64_t{h} * (latent.nope_dim + latent.value_dim);
      slices.push_back(SliceRows(weights.kv_b, first, latent.nope_dim));
      key_up.push_back({{&slices.back(), nullptr, /*transposed=*/true}});
      slices.push_back(SliceRows(weights.kv_b, first + latent.nope_dim, latent.value_dim));
      value_up.push_back({{&slices.back()}});
    }
    MatrixLayout key_layout;
    key_layout.dummy_format = WeightFormat::kBf16;
    TESSERA_RETURN_IF_ERROR(loader_.Pack(key_up, key_layout, &layer->key_up));
    MatrixLayout value_layout;
    value_layout.segment = latent.kv_rank;
    value_layout.padded_segment = layer->attention.value_dim;
    TESSERA_RETURN_IF_ERROR(loader_.Pack(value_up, value_layout, &layer->value_up));
    return loader_.Pack({{{&weights.o, &weights.o_bias}}}, {}, &layer->o);
  }

  absl::Status LoadExperts(absl::Span<const ExpertWeights> experts, PackedWeights* gate_up,
                           PackedWeights* down) {
    std::vector<std::vector<MatrixPart>> gates_and_ups, downs;
    for (const ExpertWeights& expert : experts) {
      gates_and_ups.push_back({{&expert.gate, &expert.gate_bias}, {&expert.up, &expert.up_bias}});
      downs.push_back({{&expert.down, &expert.down_bias}});
    }
    TESSERA_RETURN_IF_ERROR(loader_.Pack(gates_and_ups, {RowOrder::kGateUp}, gate_up));
    return loader_.Pack(downs, {}, down);
  }

  absl::Status LoadNvfp4Experts(absl::Span<const ExpertWeights> experts, CudaLayer* layer) {
    std::vector<std::vector<MatrixPart>> gates_and_ups, downs;
    std::vector<float> in_scales, inner_scales;
    for (const ExpertWeights& expert : experts) {
      gates_and_ups.push_back({{&expert.gate}, {&expert.up}});
      downs.push_back({{&expert.down}});
      in_scales.push_back(std::max(expert.gate.input_scale, expert.up.input_scale));
      inner_scales.push_back(expert.down.input_scale);
    }
    TESSERA_RETURN_IF_ERROR(loader_.PackTiles(gates_and_ups, RowOrder::kGateUp, &layer->nvfp4_gate_up));
    TESSERA_RETURN_IF_ERROR(loader_.PackTiles(downs, RowOrder::kPlain, &layer->nvfp4_down));
    TESSERA_RETURN_IF_ERROR(loader_.Upload(in_scales, &layer->gate_up_input_scales));
    return loader_.Upload(inner_scales, &layer->down_input_scales);
  }

  // Cosine and sine of every position, in double and rounded once; layers with the same rope share a table.
  absl::Status MakeRope(const RopeSpec& rope, const float2** table) {
    if (rope.style == RopeStyle::kNone) return absl::OkStatus();
    for (const auto& [known, known_table] : ropes_) {
      if (known.inv_freq == rope.inv_freq && known.magnitude == rope.magnitude) {
        *table = known_table;
        return absl::OkStatus();
      }
    }
    const int64_t half = rope.inv_freq.size(), positions = model_->spec.max_context;
    std::vector<float> angles(positions * half * 2);
    for (int64_t position = 0; position < positions; ++position) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = position * rope.inv_freq[i];
        angles[(position * half + i) * 2] = static_cast<float>(rope.magnitude * std::cos(angle));
        angles[(position * half + i) * 2 + 1] = static_cast<float>(rope.magnitude * std::sin(angle));
      }
    }
    const float* uploaded;
    TESSERA_RETURN_IF_ERROR(loader_.Upload(angles, &uploaded));
    *table = reinterpret_cast<const float2*>(uploaded);
    ropes_.emplace_back(rope, *table);
    return absl::OkStatus();
  }

  const Checkpoint& checkpoint_;
  const bool nvfp4_activations_;
  std::unique_ptr<CudaModel> model_ = std::make_unique<CudaModel>();
  WeightLoader loader_;
  std::vector<std::pair<RopeSpec, const float2*>> ropes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaModel>> LoadCudaModel(
    const Checkpoint& checkpoint, bool nvfp4_activations,
    const std::function<void(const LoadProgress&)>& progress) {
  if (checkpoint.format() == LoadFormat::kSafetensors && checkpoint.reader() == nullptr) {
    return absl::FailedPreconditionError("the checkpoint is closed");
  }
  // Before any memory is spent.
  const std::vector<LayerSpec>& layers = checkpoint.spec().layers;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (absl::Status status = CheckLayer(layers[i]); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("layer ", i, ": ", status.message()));
    }
  }
  if (checkpoint.reader() != nullptr) checkpoint.reader()->Prefetch();
  return Loader(checkpoint, nvfp4_activations && ThisDevice().major == 10, progress).Load();
}

}  // namespace tessera::cuda
