#include "server/model/weights.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/nvfp4/nvfp4.h"

namespace tessera {
namespace {

constexpr size_t kMostProblemsShown = 20;
// Enough to be sure that the configuration is another model's, which may have any number of layers and experts.
constexpr size_t kHopeless = 1000;

// Where to find an expert's matrices, or those of any MLP, in `finder`'s checkpoint.
template <typename Finder>
class ExpertFinder {
 public:
  ExpertFinder(const ModelSpec& spec, const MlpSpec& mlp, const std::string& prefix, Finder& finder)
      : spec_(spec),
        mlp_(mlp),
        base_(absl::StrCat(prefix, spec.names.experts)),
        finder_(finder),
        stacked_(finder.Has(base_ + ".gate_up_proj")) {}

  ExpertWeights Expert(int32_t e) {
    if (!stacked_) {
      const std::string name = absl::StrCat(base_, ".", e, ".");
      const TensorNames& names = spec_.names;
      return Alone(name + names.gate, name + names.up, name + names.down, mlp_.intermediate_size);
    }
    const int64_t size = mlp_.intermediate_size;
    const bool interleaved = spec_.names.interleaved_gate_up;
    MatrixPlace gate = Place(".gate_up_proj", e);
    gate.rows = 2 * size;
    gate.row_step = interleaved ? 2 : 1;
    MatrixPlace up = gate;
    up.first_row = interleaved ? 1 : size;
    MatrixPlace down = Place(".down_proj", e);
    ExpertWeights expert;
    expert.gate = finder_.Linear(gate, size, spec_.hidden_size, true);
    expert.up = finder_.Linear(up, size, spec_.hidden_size, true);
    expert.down = finder_.Linear(down, spec_.hidden_size, size, true);
    if (mlp_.bias) {
      for (MatrixPlace* place : {&gate, &up, &down}) place->name += "_bias";
      expert.gate_bias = finder_.Vector(gate, size);
      expert.up_bias = finder_.Vector(up, size);
      expert.down_bias = finder_.Vector(down, spec_.hidden_size);
    }
    return expert;
  }

  ExpertWeights Alone(const std::string& gate, const std::string& up, const std::string& down, int64_t size) {
    ExpertWeights expert;
    expert.gate = finder_.Linear(gate, size, spec_.hidden_size, true);
    expert.up = finder_.Linear(up, size, spec_.hidden_size, true);
    expert.down = finder_.Linear(down, spec_.hidden_size, size, true);
    if (mlp_.bias) {
      expert.gate_bias = finder_.Vector(gate + ".bias", size);
      expert.up_bias = finder_.Vector(up + ".bias", size);
      expert.down_bias = finder_.Vector(down + ".bias", spec_.hidden_size);
    }
    return expert;
  }

 private:
  MatrixPlace Place(const char* suffix, int32_t e) const {
    MatrixPlace place(base_ + suffix);
    place.stack = mlp_.num_experts;
    place.index = e;
    place.transposed = spec_.names.transposed_experts;
    return place;
  }

  const ModelSpec& spec_;
  const MlpSpec& mlp_;
  const std::string base_;
  Finder& finder_;
  const bool stacked_;
};

template <typename Finder>
void FindMlp(const ModelSpec& spec, const MlpSpec& mlp, const std::string& prefix, Finder& finder,
             LayerWeights* layer) {
  ExpertFinder<Finder> experts(spec, mlp, prefix, finder);
  const auto plain = [&](const std::string& name, int64_t size) {
    return experts.Alone(name + ".gate_proj", name + ".up_proj", name + ".down_proj", size);
  };
  if (mlp.kind == MlpKind::kDense) {
    layer->experts.push_back(plain(prefix + "mlp", mlp.intermediate_size));
    return;
  }
  const std::string router = prefix + spec.names.router;
  layer->router = finder.Linear(router, mlp.num_experts, spec.hidden_size, true);
  if (mlp.router.bias) layer->router_bias = finder.Vector(router + ".bias", mlp.num_experts);
  if (mlp.router.selection_bias) {
    layer->selection_bias = finder.Vector(prefix + spec.names.selection_bias, mlp.num_experts);
  }
  for (int32_t e = 0; e < mlp.num_experts; ++e) layer->experts.push_back(experts.Expert(e));
  if (mlp.shared_intermediate_size > 0) {
    layer->shared_expert = plain(prefix + spec.names.shared_expert, mlp.shared_intermediate_size);
  }
}

template <typename Finder>
void FindGrouped(const AttentionSpec& attention, int64_t hidden, const std::string& attn, Finder& finder,
                 LayerWeights* layer) {
  const int64_t query_size = int64_t{attention.num_query_heads} * attention.head_dim;
  const int64_t kv_size = int64_t{attention.num_kv_heads} * attention.head_dim;
  layer->q = finder.Linear(attn + "q_proj", query_size, hidden, true);
  layer->k = finder.Linear(attn + "k_proj", kv_size, hidden, true);
  layer->v = finder.Linear(attn + "v_proj", kv_size, hidden, true);
  if (attention.qkv_bias) {
    layer->q_bias = finder.Vector(attn + "q_proj.bias", query_size);
    layer->k_bias = finder.Vector(attn + "k_proj.bias", kv_size);
    layer->v_bias = finder.Vector(attn + "v_proj.bias", kv_size);
  }
  if (attention.qk_norm) {
    const bool all = attention.qk_norm_all_heads;
    layer->q_norm = finder.Vector(attn + "q_norm.weight", all ? query_size : attention.head_dim);
    layer->k_norm = finder.Vector(attn + "k_norm.weight", all ? kv_size : attention.head_dim);
  }
}

template <typename Finder>
void FindLatent(const AttentionSpec& attention, int64_t hidden, const std::string& attn, Finder& finder,
                LayerWeights* layer) {
  const LatentSpec& latent = attention.latent;
  const int64_t heads = attention.num_query_heads;
  const int64_t query_size = heads * attention.head_dim;
  if (latent.query_rank > 0) {
    layer->q_a = finder.Linear(attn + "q_a_proj", latent.query_rank, hidden, true);
    layer->q_a_norm = finder.Vector(attn + "q_a_layernorm.weight", latent.query_rank);
    layer->q = finder.Linear(attn + "q_b_proj", query_size, latent.query_rank, true);
  } else {
    layer->q = finder.Linear(attn + "q_proj", query_size, hidden, true);
  }
  layer->kv_a = finder.Linear(attn + "kv_a_proj_with_mqa", latent.kv_rank + latent.rope_dim, hidden, true);
  layer->kv_a_norm = finder.Vector(attn + "kv_a_layernorm.weight", latent.kv_rank);
  layer->kv_b =
      finder.Linear(attn + "kv_b_proj", heads * (latent.nope_dim + latent.value_dim), latent.kv_rank, true);
}

template <typename Finder>
LayerWeights FindLayer(const ModelSpec& spec, size_t index, Finder& finder) {
  const LayerSpec& layer_spec = spec.layers[index];
  const AttentionSpec& attention = layer_spec.attention;
  const int64_t hidden = spec.hidden_size;
  const std::string prefix = absl::StrCat("model.layers.", index, ".");
  const std::string attn = prefix + "self_attn.";
  LayerWeights layer;
  layer.input_norm = finder.Vector(prefix + "input_layernorm.weight", hidden);
  layer.post_attention_norm = finder.Vector(prefix + "post_attention_layernorm.weight", hidden);
  if (attention.kind == AttentionKind::kLatent) {
    FindLatent(attention, hidden, attn, finder, &layer);
  } else {
    FindGrouped(attention, hidden, attn, finder, &layer);
  }
  const int64_t result_size = int64_t{attention.num_query_heads} * attention.value_dim();
  layer.o = finder.Linear(attn + "o_proj", hidden, result_size, true);
  if (attention.output_bias) layer.o_bias = finder.Vector(attn + "o_proj.bias", hidden);
  if (attention.sinks) layer.sinks = finder.Vector(attn + "sinks", attention.num_query_heads);
  layer.key_scale = finder.KvScale(attn, 'k', attention.cache_heads());
  layer.value_scale = finder.KvScale(attn, 'v', attention.cache_heads());
  FindMlp(spec, layer_spec.mlp, prefix, finder, &layer);
  return layer;
}

template <typename Finder>
ModelWeights FindModel(const ModelSpec& spec, Finder& finder) {
  ModelWeights weights;
  weights.embeddings = finder.Linear("model.embed_tokens", spec.vocab_size, spec.hidden_size, false);
  for (size_t i = 0; i < spec.layers.size() && finder.num_problems() < kHopeless; ++i) {
    weights.layers.push_back(FindLayer(spec, i, finder));
  }
  weights.final_norm = finder.Vector("model.norm.weight", spec.hidden_size);
  weights.lm_head = spec.tied_embeddings ? weights.embeddings
                                         : finder.Linear("lm_head", spec.vocab_size, spec.hidden_size, true);
  return weights;
}

// In LinearFinder's place where there is no checkpoint.
class ShapeFinder {
 public:
  bool Has(const std::string&) const { return false; }
  size_t num_problems() const { return 0; }
  LinearWeights Linear(const MatrixPlace& place, int64_t out, int64_t in, bool) const {
    LinearWeights result;
    result.name = place.name;
    result.out = out;
    result.in = in;
    return result;
  }
  VectorWeights KvScale(const std::string&, char, int64_t) const { return {}; }
  VectorWeights Vector(const MatrixPlace&, int64_t size) const {
    VectorWeights result;
    result.size = size;
    return result;
  }
};

struct Parameters {
  int64_t matrices = 0;  // those that a quantiser takes
  int64_t rest = 0;      // routers, norms, biases

  int64_t total() const { return matrices + rest; }
  Parameters& operator+=(const Parameters& other) {
    matrices += other.matrices;
    rest += other.rest;
    return *this;
  }
};

Parameters Count(std::initializer_list<const LinearWeights*> matrices,
                 std::initializer_list<const VectorWeights*> vectors) {
  Parameters count;
  for (const LinearWeights* matrix : matrices) count.matrices += matrix->out * matrix->in;
  for (const VectorWeights* vector : vectors) count.rest += vector->size;
  return count;
}

Parameters Count(const ExpertWeights& expert) {
  return Count({&expert.gate, &expert.up, &expert.down},
               {&expert.gate_bias, &expert.up_bias, &expert.down_bias});
}

// Without the experts among which a router chooses.
Parameters CountAlwaysUsed(const LayerWeights& layer) {
  Parameters count = Count({&layer.q, &layer.o, &layer.k, &layer.v, &layer.q_a, &layer.kv_a, &layer.kv_b},
                           {&layer.input_norm, &layer.post_attention_norm, &layer.q_bias, &layer.k_bias,
                            &layer.v_bias, &layer.o_bias, &layer.q_norm, &layer.k_norm, &layer.q_a_norm,
                            &layer.kv_a_norm, &layer.sinks, &layer.router_bias, &layer.selection_bias});
  count += Count(layer.shared_expert);
  count.rest += layer.router.out * layer.router.in;
  return count;
}

// Parameters of all, and of those that one token uses.
Parameters CountParameters(const ModelSpec& spec, const ModelWeights& weights, CheckpointFacts* facts) {
  const int64_t table = int64_t{spec.vocab_size} * spec.hidden_size;
  Parameters all = Count({}, {&weights.final_norm});
  all.rest += spec.tied_embeddings ? table : 2 * table;
  int64_t unused = spec.tied_embeddings ? 0 : table - spec.hidden_size;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    const MlpSpec& mlp = spec.layers[i].mlp;
    all += CountAlwaysUsed(layer);
    const Parameters expert = Count(layer.experts[0]);
    const int64_t experts = layer.experts.size();
    all += {experts * expert.matrices, experts * expert.rest};
    if (mlp.kind == MlpKind::kMoe) unused += (experts - mlp.num_experts_per_token) * expert.total();
  }
  facts->num_parameters = all.total();
  facts->num_active_parameters = all.total() - unused;
  return all;
}

}  // namespace

absl::StatusOr<ModelWeights> ResolveWeights(const ModelSpec& spec, const SafetensorsReader& reader,
                                            CheckpointFacts* facts) {
  std::vector<std::string> problems;
  LinearFinder finder(reader, &problems);
  ModelWeights weights = FindModel(spec, finder);
  for (int32_t i = 0; i < spec.num_prediction_layers; ++i) {
    finder.PassOver(absl::StrCat("model.layers.", spec.layers.size() + i, "."),
                    "prediction of several tokens at once");
  }
  if (problems.size() < kHopeless) finder.CheckLeftovers(spec.tied_embeddings, &facts->warnings);

  if (!problems.empty()) {
    std::string message = absl::StrCat("the tensors do not fit config.json (", spec.architecture, "): ");
    const size_t shown = std::min(problems.size(), kMostProblemsShown);
    absl::StrAppend(&message, absl::StrJoin(problems.begin(), problems.begin() + shown, "; "));
    if (shown < problems.size()) absl::StrAppend(&message, "; and ", problems.size() - shown, " more");
    return absl::InvalidArgumentError(message);
  }

  CountParameters(spec, weights, facts);
  facts->weight_bytes = 0;
  for (const auto& [format, use] : finder.use()) {
    facts->formats.push_back(use);
    facts->weight_bytes += use.bytes;
  }
  std::sort(facts->formats.begin(), facts->formats.end(),
            [](const FormatUse& a, const FormatUse& b) { return a.bytes > b.bytes; });
  return weights;
}

ModelWeights WeightShapes(const ModelSpec& spec) {
  ShapeFinder finder;
  return FindModel(spec, finder);
}

CheckpointFacts DummyFacts(const ModelSpec& spec) {
  CheckpointFacts facts;
  const Parameters count = CountParameters(spec, WeightShapes(spec), &facts);
  facts.formats = {
      {WeightFormat::kNvfp4, count.matrices, count.matrices / 2 + count.matrices / nvfp4::kBlockSize},
      {WeightFormat::kBf16, count.rest, 2 * count.rest}};
  facts.weight_bytes = facts.formats[0].bytes + facts.formats[1].bytes;
  return facts;
}

}  // namespace tessera
