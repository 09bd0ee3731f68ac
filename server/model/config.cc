#include "server/model/config.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "server/model/config_keys.h"
#include "server/model/family_config.h"
#include "server/model/file_io.h"
#include "server/model/safetensors_header.h"

namespace tessera {
namespace {

constexpr char kConfig[] = "config.json";
constexpr char kGenerationConfig[] = "generation_config.json";
constexpr char kHfQuantConfig[] = "hf_quant_config.json";
constexpr int64_t kMaxConfigBytes = 16 << 20;

const Family* FindFamily(const std::string& architecture) {
  for (const std::vector<Family>* families : {&DenseFamilies(), &MoeFamilies(), &DeepSeekFamilies()}) {
    for (const Family& family : *families) {
      if (family.architecture == architecture) return &family;
    }
  }
  return nullptr;
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
  const auto names = [&hint](const nlohmann::json& object, const char* key) {
    const auto it = object.find(key);
    if (it == object.end() || !it->is_array()) return;
    for (const nlohmann::json& name : *it) {
      if (name.is_string()) hint.excluded.push_back(name.get<std::string>());
    }
  };
  if (const auto it = config.find("quantization_config"); it != config.end() && it->is_object()) {
    hint.method = text(*it, "quant_method");
    hint.algorithm = text(*it, "quant_algo");
    if (hint.algorithm.empty()) hint.algorithm = text(*it, "format");  // compressed-tensors
    names(*it, "ignore");
    names(*it, "modules_to_not_convert");
    if (const auto scheme = it->find("kv_cache_scheme"); scheme != it->end() && scheme->is_object()) {
      const auto bits = scheme->find("num_bits");
      if (bits != scheme->end() && *bits == 8) hint.kv_cache = "FP8";
      if (bits != scheme->end() && *bits == 4) hint.kv_cache = "NVFP4";
    }
  }
  if (const auto it = hf_quant_config.find("quantization"); it != hf_quant_config.end() && it->is_object()) {
    if (hint.method.empty()) hint.method = "modelopt";
    if (hint.algorithm.empty()) hint.algorithm = text(*it, "quant_algo");
    if (hint.excluded.empty()) names(*it, "exclude_modules");
    if (hint.kv_cache.empty()) hint.kv_cache = text(*it, "kv_cache_quant_algo");
  }
  return hint;
}

// The file's text, or empty if there is no such file.
absl::StatusOr<std::string> ReadOptional(const std::string& path) {
  absl::StatusOr<std::string> text = ReadTextFile(path, kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) return std::string();
  // A download that broke off, not an absent file.
  if (text.ok() && text->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": 0 bytes; expected a JSON object, or no such file"));
  }
  return text;
}

absl::StatusOr<nlohmann::json> ParseOptional(absl::string_view text, absl::string_view path) {
  if (text.empty()) return nlohmann::json::object();
  return ParseJsonObject(text, path);
}

}  // namespace

std::vector<std::string> SupportedArchitectures() {
  std::vector<std::string> names;
  for (const std::vector<Family>* families : {&DenseFamilies(), &MoeFamilies(), &DeepSeekFamilies()}) {
    for (const Family& family : *families) names.push_back(family.architecture);
  }
  return names;
}

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
        absl::StrCat(kConfig, ": \"architectures\": expected a list of one name; supported are ", supported));
  }
  const std::string architecture = architectures->front().get<std::string>();
  const Family* family = FindFamily(architecture);
  if (family == nullptr) {
    return absl::UnimplementedError(absl::StrCat(kConfig, ": architecture \"", Printable(architecture),
                                                 "\" is not supported; supported are ", supported));
  }

  ModelConfig result;
  std::vector<std::string> problems;
  FamilyConfig family_config(*config, &problems);
  result.spec = family->read(family_config);
  result.spec.architecture = architecture;
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
