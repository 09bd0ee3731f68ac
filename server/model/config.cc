#include "server/model/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "server/model/config_keys.h"
#include "server/model/file_io.h"
#include "server/model/rope.h"
#include "server/model/safetensors_header.h"

namespace tessera {
namespace {

constexpr char kConfig[] = "config.json";
constexpr char kGenerationConfig[] = "generation_config.json";
constexpr char kHfQuantConfig[] = "hf_quant_config.json";
constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr char kQwen3Moe[] = "Qwen3MoeForCausalLM";

// Bounds that no real model reaches and within which products of two sizes stay far from overflow.
constexpr int64_t kMaxSize = 1 << 24;
constexpr int64_t kMaxLayers = 4096;

// "rope_theta" and "rope_scaling", or transformers 5's "rope_parameters", which holds both.
RopeSpec ReadRope(const nlohmann::json& config, ConfigKeys& keys, int32_t head_dim, int64_t max_position,
                  std::vector<std::string>* problems) {
  static const nlohmann::json kNone = nlohmann::json::object();
  const char* group = keys.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const nlohmann::json* object = keys.Find(group);
  if (object != nullptr && !object->is_object()) {
    keys.Problem(absl::StrCat("\"", group, "\": expected an object or null, found ", object->type_name()));
    object = nullptr;
  }
  ConfigKeys rope(object != nullptr ? *object : kNone, absl::StrCat(kConfig, ": ", group), problems);
  const double theta =
      rope.Has("rope_theta") ? rope.Number("rope_theta", 1.0, 1e15) : keys.Number("rope_theta", 1.0, 1e15);

  RopeScaling scaling;
  scaling.type = rope.Has("rope_type") ? rope.String("rope_type") : rope.String("type", "default");
  const std::vector<std::string> supported = SupportedRopeTypes();
  if (std::find(supported.begin(), supported.end(), scaling.type) == supported.end()) {
    rope.Problem(absl::StrCat("rope type \"", Printable(scaling.type), "\" is not supported; supported are ",
                              absl::StrJoin(supported, ", ")));
    scaling.type = "default";
  }
  if (scaling.type != "default") scaling.factor = rope.Number("factor", 1.0, 1e6);
  if (scaling.type == "llama3" || scaling.type == "yarn") {
    scaling.original_max_position_embeddings =
        rope.Number("original_max_position_embeddings", 1, 1e9, static_cast<double>(max_position));
  }
  if (scaling.type == "llama3") {
    scaling.low_freq_factor = rope.Number("low_freq_factor", 1e-6, 1e6);
    scaling.high_freq_factor = rope.Number("high_freq_factor", 1e-6, 1e6);
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      rope.Problem("\"high_freq_factor\" must be larger than \"low_freq_factor\"");
    }
  }
  if (scaling.type == "yarn") {
    scaling.beta_fast = rope.Number("beta_fast", 1e-6, 1e6, 32.0);
    scaling.beta_slow = rope.Number("beta_slow", 1e-6, 1e6, 1.0);
    scaling.attention_factor = rope.Number("attention_factor", 0, 1e6, 0.0);
    scaling.mscale = rope.Number("mscale", 0, 1e6, 0.0);
    scaling.mscale_all_dim = rope.Number("mscale_all_dim", 0, 1e6, 0.0);
    scaling.truncate = rope.Bool("truncate", true);
  }
  for (ConfigKeys* place : {&rope, &keys}) {
    if (place->Number("partial_rotary_factor", 0, 1, 1.0) != 1.0) {
      place->Problem("\"partial_rotary_factor\" other than 1 is not supported");
    }
  }
  return MakeRope(RopeStyle::kHalf, head_dim, theta, scaling);
}

// Qwen3-MoE (transformers, models/qwen3_moe): GQA with RMSNorm on each query and key head, rotate-half rope;
// a layer is MoE unless mlp_only_layers lists it or decoder_sparse_step skips it; softmax router over all
// experts.
ModelSpec ReadQwen3Moe(const nlohmann::json& config, std::vector<std::string>* problems) {
  ConfigKeys keys(config, kConfig, problems);
  ModelSpec spec;
  spec.architecture = kQwen3Moe;
  spec.vocab_size = keys.Int("vocab_size", 1, kMaxSize);
  spec.hidden_size = keys.Int("hidden_size", 1, kMaxSize);
  spec.max_context = keys.Int("max_position_embeddings", 1, 1 << 30);
  spec.rms_norm_eps = static_cast<float>(keys.Number("rms_norm_eps", 0, 1));
  spec.tied_embeddings = keys.Bool("tie_word_embeddings", false);
  if (const std::string act = keys.String("hidden_act", "silu"); act != "silu") {
    keys.Problem(
        absl::StrCat("\"hidden_act\": \"", Printable(act), "\" is not supported; supported is \"silu\""));
  }

  AttentionSpec attention;
  attention.num_query_heads = keys.Int("num_attention_heads", 1, 1 << 16);
  attention.num_kv_heads = keys.Int("num_key_value_heads", 1, 1 << 16, attention.num_query_heads);
  if (attention.num_query_heads % attention.num_kv_heads != 0) {
    keys.Problem(absl::StrCat("\"num_attention_heads\" ", attention.num_query_heads,
                              " is not a multiple of \"num_key_value_heads\" ", attention.num_kv_heads));
  }
  if (!keys.Has("head_dim") && spec.hidden_size % attention.num_query_heads != 0) {
    keys.Problem(absl::StrCat("\"head_dim\" is missing, and \"hidden_size\" ", spec.hidden_size,
                              " is not a multiple of \"num_attention_heads\" ", attention.num_query_heads));
  }
  attention.head_dim = keys.Int("head_dim", 2, 1 << 16, spec.hidden_size / attention.num_query_heads);
  if (attention.head_dim % 2 != 0) keys.Problem(absl::StrCat("head size ", attention.head_dim, " is odd"));
  attention.softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(attention.head_dim)));
  attention.qk_norm = true;
  attention.qkv_bias = attention.output_bias = keys.Bool("attention_bias", false);
  if (keys.Bool("use_sliding_window", false))
    attention.sliding_window = keys.Int("sliding_window", 1, 1 << 30);
  attention.rope = ReadRope(config, keys, attention.head_dim, spec.max_context, problems);

  const int64_t num_layers = keys.Int("num_hidden_layers", 1, kMaxLayers);
  const int64_t sparse_step = keys.Int("decoder_sparse_step", 1, kMaxLayers, 1);
  const std::vector<int32_t> dense_layers = keys.IntList("mlp_only_layers", 0, num_layers - 1);
  MlpSpec moe;
  moe.kind = MlpKind::kMoe;
  // transformers 5 may write the key under its common name.
  moe.num_experts = keys.Int(
      keys.Has("num_local_experts") && !keys.Has("num_experts") ? "num_local_experts" : "num_experts", 0,
      1 << 16);
  int num_dense = 0;
  for (int64_t i = 0; i < num_layers; ++i) {
    LayerSpec layer;
    layer.attention = attention;
    const bool is_moe = moe.num_experts > 0 && (i + 1) % sparse_step == 0 &&
                        std::find(dense_layers.begin(), dense_layers.end(), i) == dense_layers.end();
    layer.mlp.kind = is_moe ? MlpKind::kMoe : MlpKind::kDense;
    num_dense += is_moe ? 0 : 1;
    spec.layers.push_back(std::move(layer));
  }
  if (num_dense < num_layers) {
    moe.intermediate_size = keys.Int("moe_intermediate_size", 1, kMaxSize);
    moe.num_experts_per_token = keys.Int("num_experts_per_tok", 1, std::max(1, moe.num_experts));
    moe.router.score = RouterScore::kSoftmax;
    moe.router.renormalize = keys.Bool("norm_topk_prob", false);
  }
  const int64_t dense_size = num_dense > 0 ? keys.Int("intermediate_size", 1, kMaxSize) : 0;
  for (LayerSpec& layer : spec.layers) {
    if (layer.mlp.kind == MlpKind::kMoe) {
      layer.mlp = moe;
    } else {
      layer.mlp.intermediate_size = dense_size;
    }
  }
  return spec;
}

GenerationDefaults ReadGeneration(ConfigKeys& keys) {
  GenerationDefaults defaults;
  if (keys.Has("temperature")) defaults.temperature = static_cast<float>(keys.Number("temperature", 0, 100));
  if (keys.Has("do_sample") && !keys.Bool("do_sample", true)) defaults.temperature = 0.0f;
  if (keys.Has("top_p")) defaults.top_p = static_cast<float>(keys.Number("top_p", 1e-6, 1));
  if (keys.Has("min_p")) defaults.min_p = static_cast<float>(keys.Number("min_p", 0, 1));
  if (keys.Has("top_k")) defaults.top_k = std::max<int32_t>(0, keys.Int("top_k", -1, 1 << 30));
  if (keys.Has("repetition_penalty")) {
    defaults.repetition_penalty = static_cast<float>(keys.Number("repetition_penalty", 1e-3, 1e3));
  }
  if (keys.Has("max_new_tokens")) defaults.max_new_tokens = keys.Int("max_new_tokens", 1, 1 << 30);
  return defaults;
}

QuantizationHint ReadQuantizationHint(const nlohmann::json& config, const nlohmann::json& hf_quant_config) {
  // Hints: what does not read as expected is no hint.
  const auto text = [](const nlohmann::json& object, const char* key) {
    const auto it = object.find(key);
    return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  QuantizationHint hint;
  if (const auto it = config.find("quantization_config"); it != config.end() && it->is_object()) {
    hint.method = text(*it, "quant_method");
    hint.algorithm = text(*it, "quant_algo");
  }
  if (const auto it = hf_quant_config.find("quantization"); it != hf_quant_config.end() && it->is_object()) {
    if (hint.method.empty()) hint.method = "modelopt";
    if (hint.algorithm.empty()) hint.algorithm = text(*it, "quant_algo");
  }
  return hint;
}

// The file's text, or empty if there is no such file.
absl::StatusOr<std::string> ReadOptional(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::string();
  return ReadTextFile(path, kMaxConfigBytes);
}

absl::StatusOr<nlohmann::json> ParseOptional(absl::string_view text, absl::string_view path) {
  if (text.empty()) return nlohmann::json::object();
  return ParseJsonObject(text, path);
}

}  // namespace

std::vector<std::string> SupportedArchitectures() { return {kQwen3Moe}; }

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view config_json,
                                             absl::string_view generation_config_json,
                                             absl::string_view hf_quant_config_json) {
  absl::StatusOr<nlohmann::json> config = ParseJsonObject(config_json, kConfig);
  if (!config.ok()) return config.status();
  absl::StatusOr<nlohmann::json> generation = ParseOptional(generation_config_json, kGenerationConfig);
  if (!generation.ok()) return generation.status();
  absl::StatusOr<nlohmann::json> hf_quant = ParseOptional(hf_quant_config_json, kHfQuantConfig);
  if (!hf_quant.ok()) return hf_quant.status();

  const std::string supported = absl::StrJoin(SupportedArchitectures(), ", ");
  const auto architectures = config->find("architectures");
  if (architectures == config->end() || !architectures->is_array() || architectures->size() != 1 ||
      !architectures->front().is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kConfig, ": \"architectures\": expected a list of one name; supported is ", supported));
  }
  const std::string architecture = architectures->front().get<std::string>();
  if (architecture != kQwen3Moe) {
    return absl::UnimplementedError(absl::StrCat(kConfig, ": architecture \"", Printable(architecture),
                                                 "\" is not supported; supported is ", supported));
  }

  ModelConfig result;
  std::vector<std::string> problems;
  result.spec = ReadQwen3Moe(*config, &problems);
  ConfigKeys config_keys(*config, kConfig, &problems);
  ConfigKeys generation_keys(*generation, kGenerationConfig, &problems);
  const int64_t last_token = result.spec.vocab_size - 1;
  ConfigKeys& eos_keys = generation_keys.Has("eos_token_id") ? generation_keys : config_keys;
  result.spec.eos_token_ids = eos_keys.IntList("eos_token_id", 0, last_token);
  ConfigKeys& bos_keys = generation_keys.Has("bos_token_id") ? generation_keys : config_keys;
  result.spec.bos_token_id = bos_keys.Int("bos_token_id", 0, last_token, -1);
  result.generation = ReadGeneration(generation_keys);
  result.quantization = ReadQuantizationHint(*config, *hf_quant);
  if (!problems.empty()) return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
  return result;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& dir) {
  absl::StatusOr<std::string> config = ReadTextFile(absl::StrCat(dir, "/", kConfig), kMaxConfigBytes);
  if (!config.ok()) return config.status();
  absl::StatusOr<std::string> generation = ReadOptional(absl::StrCat(dir, "/", kGenerationConfig));
  if (!generation.ok()) return generation.status();
  absl::StatusOr<std::string> hf_quant = ReadOptional(absl::StrCat(dir, "/", kHfQuantConfig));
  if (!hf_quant.ok()) return hf_quant.status();
  absl::StatusOr<ModelConfig> result = ParseModelConfig(*config, *generation, *hf_quant);
  if (!result.ok()) {
    return absl::Status(result.status().code(), absl::StrCat(dir, ": ", result.status().message()));
  }
  return result;
}

}  // namespace tessera
