#ifndef TESSERA_SERVER_MODEL_QUANTIZE_CONFIG_H_
#define TESSERA_SERVER_MODEL_QUANTIZE_CONFIG_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/model/quantize.h"

namespace tessera {

// config.json of a quantised checkpoint: the text of `config_json` with "quantization_config" as ModelOpt exports it
// ("W4A16_NVFP4"), or as compressed-tensors does ("nvfp4-pack-quantized"), weights only. `ignore` names the modules
// that stay BF16, `kv_cache` is QuantizationHint's.
absl::StatusOr<std::string> QuantizedConfigJson(const std::string& config_json, QuantizeDialect dialect,
                                                const std::vector<std::string>& ignore,
                                                const std::string& kv_cache);

// hf_quant_config.json to match ModelOpt's.
std::string HfQuantConfigJson(const std::vector<std::string>& ignore, const std::string& kv_cache);

// Copies what else a checkpoint's directory may hold that a reader of it needs (tokenizer, chat template, generation
// defaults, licence), where present.
absl::Status CopySideFiles(const std::string& from, const std::string& to);

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_QUANTIZE_CONFIG_H_
