// config.json, generation_config.json and hf_quant_config.json, one after the other with a NUL between them.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "server/model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  absl::string_view rest(reinterpret_cast<const char*>(data), size);
  absl::string_view parts[3];
  for (absl::string_view& part : parts) {
    part = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
  }
  const auto config = tessera::ParseModelConfig(parts[0], parts[1], parts[2]);
  if (!config.ok()) return 0;
  const tessera::ModelSpec& spec = config->spec;
  if (spec.vocab_size <= 0 || spec.hidden_size <= 0 || spec.max_context <= 0 || spec.layers.empty()) abort();
  for (const tessera::LayerSpec& layer : spec.layers) {
    if (layer.attention.num_query_heads <= 0 || layer.attention.cache_heads() <= 0) abort();
    if (layer.mlp.num_experts_per_token > layer.mlp.num_experts) abort();
    for (const double frequency : layer.attention.rope.inv_freq) {
      if (!std::isfinite(frequency)) abort();
    }
  }
  for (const int32_t id : spec.eos_token_ids) {
    if (id < 0 || id >= spec.vocab_size) abort();
  }
  return 0;
}
