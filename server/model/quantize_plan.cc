#include "server/model/quantize_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/nvfp4/nvfp4.h"

namespace tessera {
namespace {

class Planner {
 public:
  Planner(const ModelSpec& spec, const ModelWeights& weights, bool attention)
      : spec_(spec), weights_(weights), attention_(attention) {}

  QuantizePlan Plan() {
    Keep(weights_.embeddings);
    plan_.ignore.push_back("lm_head");
    if (!spec_.tied_embeddings) Keep(weights_.lm_head);
    Keep(weights_.final_norm);
    for (size_t i = 0; i < weights_.layers.size(); ++i) PlanLayer(i, weights_.layers[i]);
    std::sort(plan_.ignore.begin(), plan_.ignore.end());
    return std::move(plan_);
  }

 private:
  void PlanLayer(size_t index, const LayerWeights& layer) {
    for (const VectorWeights* vector :
         {&layer.input_norm, &layer.post_attention_norm, &layer.q_bias, &layer.k_bias, &layer.v_bias,
          &layer.o_bias, &layer.q_norm, &layer.k_norm, &layer.q_a_norm, &layer.kv_a_norm,
          &layer.router_bias}) {
      Keep(*vector);
    }
    // Rounded, these would change which experts are chosen, or every softmax.
    for (const VectorWeights* vector :
         {&layer.selection_bias, &layer.sinks, &layer.key_scale, &layer.value_scale})
      Keep(*vector, /*as_it_is=*/true);
    if (layer.router.present()) KeepModule({layer.router.name, layer.router});
    const std::vector<std::vector<const LinearWeights*>> attention = {
        {&layer.q_a, &layer.kv_a}, {&layer.kv_b}, {&layer.o}};
    Attention({&layer.q, &layer.k, &layer.v});
    for (const auto& group : attention) Attention(group);

    const std::string prefix = absl::StrCat("model.layers.", index, ".");
    for (size_t e = 0; e < layer.experts.size(); ++e) {
      Expert(absl::StrCat(prefix, spec_.names.experts, ".", e, "."), layer.experts[e]);
    }
    if (layer.shared_expert.gate.present() || layer.shared_expert.up.present())
      Expert("", layer.shared_expert);
  }

  void Attention(const std::vector<const LinearWeights*>& matrices) {
    std::vector<OutputMatrix> group;
    for (const LinearWeights* matrix : matrices) {
      if (matrix->present()) group.push_back({matrix->name, *matrix});
    }
    if (group.empty()) return;
    if (attention_) {
      Quantize(std::move(group));
    } else {
      for (OutputMatrix& matrix : group) KeepModule(std::move(matrix));
    }
  }

  void Expert(const std::string& prefix, const ExpertWeights& expert) {
    const auto named = [&](const LinearWeights& matrix, const std::string& own) {
      const bool stacked = !matrix.name.empty() && matrix.name.back() == ']';
      return OutputMatrix{stacked ? prefix + own : matrix.name, matrix};
    };
    OutputMatrix gate = named(expert.gate, spec_.names.gate);
    OutputMatrix up = named(expert.up, spec_.names.up);
    OutputMatrix down = named(expert.down, spec_.names.down);
    KeepBias(gate.name, expert.gate_bias);
    KeepBias(up.name, expert.up_bias);
    KeepBias(down.name, expert.down_bias);
    std::vector<OutputMatrix> group;
    if (gate.source.present()) group.push_back(std::move(gate));
    group.push_back(std::move(up));
    Quantize(std::move(group));
    Quantize({std::move(down)});
  }

  void Keep(KeptTensor tensor) {
    const DType found = tensor.tensor().dtype;
    if (tensor.dtype == DType::kBf16 && (found == DType::kF16 || found == DType::kF32) && rounded_++ == 0) {
      plan_.warnings.push_back(absl::StrCat("tensors that stay BF16 are rounded to it, the first is \"",
                                            tensor.name, "\" (", DTypeName(found), ")"));
    }
    plan_.kept.push_back(std::move(tensor));
  }

  void Keep(const LinearWeights& matrix) { KeepMatrix({matrix.name, matrix}); }

  void KeepMatrix(OutputMatrix matrix) {
    KeptTensor kept;
    kept.name = matrix.name + ".weight";
    kept.matrix = std::move(matrix.source);
    Keep(std::move(kept));
  }

  void Keep(const VectorWeights& vector, bool as_it_is = false) {
    if (!vector.present()) return;
    KeptTensor kept;
    kept.name = vector.tensor->name;
    kept.vector = vector;
    if (as_it_is) kept.dtype = vector.tensor->dtype;
    Keep(std::move(kept));
  }

  void KeepBias(const std::string& module, const VectorWeights& vector) {
    if (!vector.present()) return;
    KeptTensor kept;
    kept.name = module + ".bias";
    kept.vector = vector;
    Keep(std::move(kept));
  }

  void KeepModule(OutputMatrix matrix) {
    plan_.ignore.push_back(matrix.name);
    KeepMatrix(std::move(matrix));
  }

  void Quantize(std::vector<OutputMatrix> members) {
    if (members[0].source.in % nvfp4::kBlockSize == 0) {
      plan_.groups.push_back(std::move(members));
      return;
    }
    for (OutputMatrix& member : members) {
      plan_.warnings.push_back(absl::StrCat("\"", member.name, "\" stays BF16: its input size ",
                                            member.source.in, " is not a multiple of ", nvfp4::kBlockSize));
      KeepModule(std::move(member));
    }
  }

  const ModelSpec& spec_;
  const ModelWeights& weights_;
  const bool attention_;
  QuantizePlan plan_;
  int rounded_ = 0;
};

}  // namespace

std::vector<int64_t> KeptTensor::shape() const {
  if (matrix.present()) return {matrix.out, matrix.in};
  return {vector.size};
}

int64_t KeptTensor::input_bytes() const {
  return matrix.present() ? matrix.file_bytes() : vector.size * DTypeSize(vector.tensor->dtype);
}

QuantizePlan PlanQuantization(const ModelSpec& spec, const ModelWeights& weights, bool attention) {
  return Planner(spec, weights, attention).Plan();
}

}  // namespace tessera
