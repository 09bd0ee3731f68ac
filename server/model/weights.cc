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

// Finds tensors by name, checks them, and keeps account of which were used.
class Resolver {
 public:
  Resolver(const SafetensorsReader& reader, std::vector<std::string>* problems)
      : reader_(reader), problems_(*problems) {}

  void Problem(const TensorView& tensor, absl::string_view what) {
    problems_.push_back(
        absl::StrCat("\"", Printable(tensor.name), "\": ", what, " (", reader_.path(tensor), ")"));
  }

  VectorWeights Vector(const std::string& name, int64_t size) {
    VectorWeights result;
    const TensorView* tensor = Take(name);
    if (tensor == nullptr) {
      problems_.push_back(
          absl::StrCat("\"", name, "\" is missing, expected BF16, F16 or F32 of shape [", size, "]"));
      return result;
    }
    if (!DenseFormat(tensor->dtype, &result.format) || tensor->shape != std::vector<int64_t>{size}) {
      Problem(*tensor, absl::StrCat("expected BF16, F16 or F32 of shape [", size, "], found ",
                                    DTypeName(tensor->dtype), " of ", tensor->ShapeString()));
      return result;
    }
    result.size = size;
    result.tensor = tensor;
    Count(result.format, size, tensor->data.size());
    return result;
  }

  // `name` without ".weight".
  LinearWeights Linear(const std::string& name, int64_t out, int64_t in, bool may_be_quantized) {
    LinearWeights result;
    const std::string weight_name = absl::StrCat(name, ".weight");
    const TensorView* tensor = Take(weight_name);
    if (tensor == nullptr) {
      problems_.push_back(
          absl::StrCat("\"", weight_name, "\" is missing, expected shape [", out, ", ", in, "]"));
      return result;
    }
    result.name = name;
    result.out = out;
    result.in = in;
    if (DenseFormat(tensor->dtype, &result.format)) {
      if (tensor->shape != std::vector<int64_t>{out, in}) {
        Problem(*tensor, absl::StrCat("expected shape [", out, ", ", in, "], found ",
                                      DTypeName(tensor->dtype), " of ", tensor->ShapeString()));
        return result;
      }
      if (result.format != WeightFormat::kBf16) rounded_.push_back(weight_name);
    } else if (tensor->dtype == DType::kU8 && may_be_quantized) {
      if (!Quantized(*tensor, &result)) return result;
    } else {
      Problem(*tensor, absl::StrCat("expected BF16, F16, F32", may_be_quantized ? " or U8 (NVFP4)" : "",
                                    " of shape [", out, ", ", in, "], found ", DTypeName(tensor->dtype),
                                    " of ", tensor->ShapeString()));
      return result;
    }
    result.data = tensor->data;
    result.tensor = tensor;
    Count(result.format, out * in, tensor->data.size() + result.block_scales.size());
    return result;
  }

  // Tensors that nothing asked for: passed over when their kind is known to be harmless, else problems.
  void CheckLeftovers(bool tied_embeddings, std::vector<std::string>* warnings) {
    std::vector<std::string> passed;
    for (const auto& [name, tensor] : reader_.tensors()) {
      if (used_.count(&tensor) > 0) continue;
      const bool harmless = absl::EndsWith(name, ".rotary_emb.inv_freq") ||
                            absl::EndsWith(name, ".k_scale") || absl::EndsWith(name, ".v_scale") ||
                            (tied_embeddings && name == "lm_head.weight");
      if (harmless) {
        passed.push_back(name);
      } else if (absl::EndsWith(name, ".weight_packed") || absl::EndsWith(name, ".weight_global_scale")) {
        Problem(tensor,
                "this is compressed-tensors' layout; supported is ModelOpt's (weight, weight_scale, "
                "weight_scale_2)");
      } else if (absl::EndsWith(name, ".pre_quant_scale")) {
        Problem(tensor, "AWQ input scales are not supported");
      } else {
        Problem(tensor, absl::StrCat("not a tensor of this architecture (", DTypeName(tensor.dtype), " of ",
                                     tensor.ShapeString(), ")"));
      }
    }
    if (!passed.empty()) {
      warnings->push_back(
          absl::StrCat(passed.size(), " tensors are not used, the first is \"", passed[0], "\""));
    }
    if (!rounded_.empty()) {
      warnings->push_back(absl::StrCat(rounded_.size(),
                                       " matrices in F16 or F32 are rounded to BF16, the first is \"",
                                       rounded_[0], "\""));
    }
  }

  const std::map<WeightFormat, FormatUse>& use() const { return use_; }

 private:
  static bool DenseFormat(DType dtype, WeightFormat* format) {
    if (dtype == DType::kBf16) *format = WeightFormat::kBf16;
    if (dtype == DType::kF16) *format = WeightFormat::kF16;
    if (dtype == DType::kF32) *format = WeightFormat::kF32;
    return dtype == DType::kBf16 || dtype == DType::kF16 || dtype == DType::kF32;
  }

  const TensorView* Take(const std::string& name) {
    const TensorView* tensor = reader_.Find(name);
    if (tensor != nullptr) used_.insert(tensor);
    return tensor;
  }

  void Count(WeightFormat format, int64_t parameters, int64_t bytes) {
    FormatUse& use = use_[format];
    use.format = format;
    use.parameters += parameters;
    use.bytes += bytes;
  }

  bool Quantized(const TensorView& tensor, LinearWeights* result) {
    const int64_t out = result->out;
    const int64_t in = result->in;
    result->format = WeightFormat::kNvfp4;
    if (in % nvfp4::kBlockSize != 0) {
      Problem(tensor, absl::StrCat("NVFP4 needs an input size that is a multiple of 16, this one is ", in));
      return false;
    }
    if (tensor.shape != std::vector<int64_t>{out, in / 2}) {
      Problem(tensor,
              absl::StrCat("expected NVFP4 codes of shape [", out, ", ", in / 2, "], found ",
                           tensor.ShapeString(),
                           tensor.shape == std::vector<int64_t>{in / 2, out} ? " (transposed?)" : ""));
      return false;
    }
    const TensorView* scale = Take(absl::StrCat(result->name, ".weight_scale"));
    const TensorView* scale2 = Take(absl::StrCat(result->name, ".weight_scale_2"));
    Take(absl::StrCat(result->name, ".input_scale"));  // of W4A4; activations are BF16 here
    if (scale == nullptr || scale2 == nullptr) {
      Problem(tensor, absl::StrCat("U8 without \"", scale == nullptr ? "weight_scale" : "weight_scale_2",
                                   "\" beside it, as ModelOpt's NVFP4 has"));
      return false;
    }
    if (scale->dtype != DType::kF8E4M3 || scale->shape != std::vector<int64_t>{out, in / nvfp4::kBlockSize}) {
      Problem(*scale, absl::StrCat("expected F8_E4M3 of shape [", out, ", ", in / nvfp4::kBlockSize,
                                   "], found ", DTypeName(scale->dtype), " of ", scale->ShapeString()));
      return false;
    }
    if (scale2->dtype != DType::kF32 || scale2->data.size() != sizeof(float)) {
      Problem(*scale2, absl::StrCat("expected one F32, found ", DTypeName(scale2->dtype), " of ",
                                    scale2->ShapeString()));
      return false;
    }
    if (absl::Status status = reader_.CheckUnchanged(*scale2); !status.ok()) {
      problems_.push_back(std::string(status.message()));
      return false;
    }
    std::memcpy(&result->tensor_scale, scale2->data.data(), sizeof(float));
    if (!std::isfinite(result->tensor_scale) || result->tensor_scale <= 0) {
      Problem(*scale2, absl::StrCat("expected a finite value above 0, found ", result->tensor_scale));
      return false;
    }
    result->block_scales = scale->data;
    result->scale_tensor = scale;
    return true;
  }

  const SafetensorsReader& reader_;
  std::vector<std::string>& problems_;
  std::set<const TensorView*> used_;
  std::vector<std::string> rounded_;
  std::map<WeightFormat, FormatUse> use_;
};

LayerWeights ResolveLayer(const std::string& prefix, const LayerSpec& spec, int64_t hidden,
                          Resolver& resolver) {
  const AttentionSpec& attention = spec.attention;
  const int64_t query_size = int64_t{attention.num_query_heads} * attention.head_dim;
  const int64_t kv_size = int64_t{attention.num_kv_heads} * attention.head_dim;
  const std::string attn = absl::StrCat(prefix, "self_attn.");
  LayerWeights layer;
  layer.input_norm = resolver.Vector(absl::StrCat(prefix, "input_layernorm.weight"), hidden);
  layer.post_attention_norm =
      resolver.Vector(absl::StrCat(prefix, "post_attention_layernorm.weight"), hidden);
  layer.q = resolver.Linear(absl::StrCat(attn, "q_proj"), query_size, hidden, true);
  layer.k = resolver.Linear(absl::StrCat(attn, "k_proj"), kv_size, hidden, true);
  layer.v = resolver.Linear(absl::StrCat(attn, "v_proj"), kv_size, hidden, true);
  layer.o = resolver.Linear(absl::StrCat(attn, "o_proj"), hidden, query_size, true);
  if (attention.qkv_bias) {
    layer.q_bias = resolver.Vector(absl::StrCat(attn, "q_proj.bias"), query_size);
    layer.k_bias = resolver.Vector(absl::StrCat(attn, "k_proj.bias"), kv_size);
    layer.v_bias = resolver.Vector(absl::StrCat(attn, "v_proj.bias"), kv_size);
  }
  if (attention.output_bias) layer.o_bias = resolver.Vector(absl::StrCat(attn, "o_proj.bias"), hidden);
  if (attention.qk_norm) {
    layer.q_norm = resolver.Vector(absl::StrCat(attn, "q_norm.weight"), attention.head_dim);
    layer.k_norm = resolver.Vector(absl::StrCat(attn, "k_norm.weight"), attention.head_dim);
  }

  const int64_t intermediate = spec.mlp.intermediate_size;
  const auto expert = [&](const std::string& name) {
    return ExpertWeights{resolver.Linear(absl::StrCat(name, "gate_proj"), intermediate, hidden, true),
                         resolver.Linear(absl::StrCat(name, "up_proj"), intermediate, hidden, true),
                         resolver.Linear(absl::StrCat(name, "down_proj"), hidden, intermediate, true)};
  };
  if (spec.mlp.kind == MlpKind::kDense) {
    layer.experts.push_back(expert(absl::StrCat(prefix, "mlp.")));
  } else {
    layer.router = resolver.Linear(absl::StrCat(prefix, "mlp.gate"), spec.mlp.num_experts, hidden, true);
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

absl::string_view WeightFormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBf16:
      return "BF16";
    case WeightFormat::kF16:
      return "F16";
    case WeightFormat::kF32:
      return "F32";
    case WeightFormat::kNvfp4:
      return "NVFP4";
  }
  return "?";
}

std::vector<float> VectorWeights::ToFloat() const {
  std::vector<float> values(size);
  for (int64_t i = 0; i < size; ++i) {
    if (format == WeightFormat::kF32) {
      std::memcpy(&values[i], tensor->data.data() + i * sizeof(float), sizeof(float));
      continue;
    }
    uint16_t bits;
    std::memcpy(&bits, tensor->data.data() + i * sizeof(bits), sizeof(bits));
    values[i] = format == WeightFormat::kF16 ? HalfBitsToFloat(bits) : ::tessera::ToFloat(Bf16{bits});
  }
  return values;
}

absl::StatusOr<ModelWeights> ResolveWeights(const ModelSpec& spec, const SafetensorsReader& reader,
                                            CheckpointFacts* facts) {
  std::vector<std::string> problems;
  Resolver resolver(reader, &problems);
  ModelWeights weights;
  weights.embeddings = resolver.Linear("model.embed_tokens", spec.vocab_size, spec.hidden_size, false);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    weights.layers.push_back(
        ResolveLayer(absl::StrCat("model.layers.", i, "."), spec.layers[i], spec.hidden_size, resolver));
  }
  weights.final_norm = resolver.Vector("model.norm.weight", spec.hidden_size);
  weights.lm_head = spec.tied_embeddings
                        ? weights.embeddings
                        : resolver.Linear("lm_head", spec.vocab_size, spec.hidden_size, true);
  resolver.CheckLeftovers(spec.tied_embeddings, &facts->warnings);

  if (!problems.empty()) {
    std::string message = absl::StrCat("the tensors do not fit config.json (", spec.architecture, "): ");
    const size_t shown = std::min(problems.size(), kMostProblemsShown);
    absl::StrAppend(&message, absl::StrJoin(problems.begin(), problems.begin() + shown, "; "));
    if (shown < problems.size()) absl::StrAppend(&message, "; and ", problems.size() - shown, " more");
    return absl::InvalidArgumentError(message);
  }

  CountParameters(spec, facts);
  facts->weight_bytes = 0;
  for (const auto& [format, use] : resolver.use()) {
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

absl::Status CheckBlockScales(const LinearWeights& weights, const SafetensorsReader& reader) {
  if (weights.format != WeightFormat::kNvfp4) return absl::OkStatus();
  if (absl::Status status = reader.CheckUnchanged(*weights.scale_tensor); !status.ok()) return status;
  const absl::Span<const uint8_t> scales = weights.block_scales;
  for (size_t i = 0; i < scales.size(); ++i) {
    if (scales[i] < nvfp4::kE4M3NaN) continue;
    const int64_t per_row = weights.in / nvfp4::kBlockSize;
    return absl::InvalidArgumentError(absl::StrCat(
        reader.path(*weights.scale_tensor), ": tensor \"", Printable(weights.scale_tensor->name), "\", row ",
        i / per_row, ", block ", i % per_row, " (byte ", weights.scale_tensor->file_offset + i,
        " of the file): a block scale must be a number of at least 0, found 0x",
        absl::Hex(scales[i], absl::kZeroPad2),
        (scales[i] & 0x7f) == nvfp4::kE4M3NaN ? " (NaN)" : " (negative)"));
  }
  return absl::OkStatus();
}

}  // namespace tessera
