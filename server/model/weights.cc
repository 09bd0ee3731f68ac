#include "server/model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/nvfp4/bf16.h"
#include "kernels/nvfp4/nvfp4.h"
#include "server/model/safetensors_header.h"

namespace tessera {
namespace {

constexpr size_t kMostProblemsShown = 20;

LayerWeights ResolveLayer(const std::string& prefix, const LayerSpec& spec, int64_t hidden,
                          LinearFinder& finder) {
  const AttentionSpec& attention = spec.attention;
  const int64_t query_size = int64_t{attention.num_query_heads} * attention.head_dim;
  const int64_t kv_size = int64_t{attention.num_kv_heads} * attention.head_dim;
  const std::string attn = absl::StrCat(prefix, "self_attn.");
  LayerWeights layer;
  layer.input_norm = finder.Vector(absl::StrCat(prefix, "input_layernorm.weight"), hidden);
  layer.post_attention_norm = finder.Vector(absl::StrCat(prefix, "post_attention_layernorm.weight"), hidden);
  layer.q = finder.Linear(absl::StrCat(attn, "q_proj"), query_size, hidden, true);
  layer.k = finder.Linear(absl::StrCat(attn, "k_proj"), kv_size, hidden, true);
  layer.v = finder.Linear(absl::StrCat(attn, "v_proj"), kv_size, hidden, true);
  layer.o = finder.Linear(absl::StrCat(attn, "o_proj"), hidden, query_size, true);
  if (attention.qkv_bias) {
    layer.q_bias = finder.Vector(absl::StrCat(attn, "q_proj.bias"), query_size);
    layer.k_bias = finder.Vector(absl::StrCat(attn, "k_proj.bias"), kv_size);
    layer.v_bias = finder.Vector(absl::StrCat(attn, "v_proj.bias"), kv_size);
  }
  if (attention.output_bias) layer.o_bias = finder.Vector(absl::StrCat(attn, "o_proj.bias"), hidden);
  if (attention.qk_norm) {
    layer.q_norm = finder.Vector(absl::StrCat(attn, "q_norm.weight"), attention.head_dim);
    layer.k_norm = finder.Vector(absl::StrCat(attn, "k_norm.weight"), attention.head_dim);
  }

  const int64_t intermediate = spec.mlp.intermediate_size;
  const auto expert = [&](const std::string& name) {
    return ExpertWeights{finder.Linear(absl::StrCat(name, "gate_proj"), intermediate, hidden, true),
                         finder.Linear(absl::StrCat(name, "up_proj"), intermediate, hidden, true),
                         finder.Linear(absl::StrCat(name, "down_proj"), hidden, intermediate, true)};
  };
  if (spec.mlp.kind == MlpKind::kDense) {
    layer.experts.push_back(expert(absl::StrCat(prefix, "mlp.")));
  } else {
    layer.router = finder.Linear(absl::StrCat(prefix, "mlp.gate"), spec.mlp.num_experts, hidden, true);
    for (int32_t e = 0; e < spec.mlp.num_experts; ++e) {
      layer.experts.push_back(expert(absl::StrCat(prefix, "mlp.experts.", e, ".")));
    }
  }
  return layer;
}

// Parameters of all, and of those that one token uses.
void CountParameters(const ModelSpec& spec, CheckpointFacts* facts) {
  const int64_t table = int64_t{spec.vocab_size} * spec.hidden_size;
  facts->num_parameters = spec.tied_embeddings ? table : 2 * table;
  facts->num_active_parameters = spec.tied_embeddings ? table : table + spec.hidden_size;
  int64_t shared = spec.hidden_size;  // the final norm
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& attention = layer.attention;
    const int64_t query_size = int64_t{attention.num_query_heads} * attention.head_dim;
    const int64_t kv_size = int64_t{attention.num_kv_heads} * attention.head_dim;
    shared += 2 * int64_t{spec.hidden_size} + 2 * (query_size + kv_size) * spec.hidden_size;
    if (attention.qkv_bias) shared += query_size + 2 * kv_size;
    if (attention.output_bias) shared += spec.hidden_size;
    if (attention.qk_norm) shared += 2 * attention.head_dim;
    const int64_t expert = 3 * int64_t{layer.mlp.intermediate_size} * spec.hidden_size;
    if (layer.mlp.kind == MlpKind::kDense) {
      shared += expert;
    } else {
      shared += int64_t{layer.mlp.num_experts} * spec.hidden_size;
      facts->num_parameters += layer.mlp.num_experts * expert;
      facts->num_active_parameters += layer.mlp.num_experts_per_token * expert;
    }
  }
  facts->num_parameters += shared;
  facts->num_active_parameters += shared;
}

}  // namespace

absl::StatusOr<ModelWeights> ResolveWeights(const ModelSpec& spec, const SafetensorsReader& reader,
                                            CheckpointFacts* facts) {
  std::vector<std::string> problems;
  LinearFinder finder(reader, &problems);
  ModelWeights weights;
  weights.embeddings = finder.Linear("model.embed_tokens", spec.vocab_size, spec.hidden_size, false);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    weights.layers.push_back(
        ResolveLayer(absl::StrCat("model.layers.", i, "."), spec.layers[i], spec.hidden_size, finder));
  }
  weights.final_norm = finder.Vector("model.norm.weight", spec.hidden_size);
  weights.lm_head = spec.tied_embeddings ? weights.embeddings
                                         : finder.Linear("lm_head", spec.vocab_size, spec.hidden_size, true);
  finder.CheckLeftovers(spec.tied_embeddings, &facts->warnings);

  if (!problems.empty()) {
    std::string message = absl::StrCat("the tensors do not fit config.json (", spec.architecture, "): ");
    const size_t shown = std::min(problems.size(), kMostProblemsShown);
    absl::StrAppend(&message, absl::StrJoin(problems.begin(), problems.begin() + shown, "; "));
    if (shown < problems.size()) absl::StrAppend(&message, "; and ", problems.size() - shown, " more");
    return absl::InvalidArgumentError(message);
  }

  CountParameters(spec, facts);
  facts->weight_bytes = 0;
  for (const auto& [format, use] : finder.use()) {
    facts->formats.push_back(use);
    facts->weight_bytes += use.bytes;
  }
  std::sort(facts->formats.begin(), facts->formats.end(),
            [](const FormatUse& a, const FormatUse& b) { return a.bytes > b.bytes; });
  return weights;
}

CheckpointFacts DummyFacts(const ModelSpec& spec) {
  CheckpointFacts facts;
  CountParameters(spec, &facts);
  int64_t dense =
      (spec.tied_embeddings ? 1 : 2) * int64_t{spec.vocab_size} * spec.hidden_size + spec.hidden_size;
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& attention = layer.attention;
    dense += 2 * int64_t{spec.hidden_size};
    if (layer.mlp.kind == MlpKind::kMoe) dense += int64_t{layer.mlp.num_experts} * spec.hidden_size;
    if (attention.qk_norm) dense += 2 * attention.head_dim;
    if (attention.qkv_bias) {
      dense += int64_t{attention.num_query_heads + 2 * attention.num_kv_heads} * attention.head_dim;
    }
    if (attention.output_bias) dense += spec.hidden_size;
  }
  const int64_t quantized = facts.num_parameters - dense;
  facts.formats = {{WeightFormat::kNvfp4, quantized, quantized / 2 + quantized / nvfp4::kBlockSize},
                   {WeightFormat::kBf16, dense, 2 * dense}};
  facts.weight_bytes = facts.formats[0].bytes + facts.formats[1].bytes;
  return facts;
}

}  // namespace tessera
