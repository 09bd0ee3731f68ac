#ifndef TESSERA_SERVER_MODEL_CONFIG_H_
#define TESSERA_SERVER_MODEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/model/model_spec.h"

namespace tessera {

// What generation_config.json suggests; each field absent where the file (or the key) is.
struct GenerationDefaults {
  std::optional<float> temperature;  // 0 when the file says do_sample: false
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<int32_t> top_k;  // 0 keeps all
  std::optional<float> repetition_penalty;
  std::optional<int32_t> max_new_tokens;
};

// What the checkpoint says of its own quantisation (config.json's quantization_config, hf_quant_config.json).
// Hints, for messages and GetModelInfo: whether a tensor is quantised is decided from the tensor.
struct QuantizationHint {
  std::string method;                 // "modelopt", ...; empty if none
  std::string algorithm;              // "NVFP4", "W4A16_NVFP4", ...
  std::vector<std::string> excluded;  // modules said not to be quantised: names, prefixes or wildcards
  std::string kv_cache;  // what keys and values were calibrated for: "FP8", "NVFP4"; empty if nothing
};

struct ModelConfig {
  ModelSpec spec;  // eos ids: generation_config.json's, else config.json's
  GenerationDefaults generation;
  QuantizationHint quantization;
};

// Architectures that config.json may name.
std::vector<std::string> SupportedArchitectures();

// Reads DIR/config.json, and generation_config.json and hf_quant_config.json if present. A missing or
// wrong-typed key, an unknown architecture, activation or rope scaling gives INVALID_ARGUMENT or
// UNIMPLEMENTED that names file, key, value and what is supported.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& dir);

// The same from text; empty texts for absent files.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view config_json,
                                             absl::string_view generation_config_json,
                                             absl::string_view hf_quant_config_json);

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_CONFIG_H_
