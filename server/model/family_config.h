#ifndef TESSERA_SERVER_MODEL_FAMILY_CONFIG_H_
#define TESSERA_SERVER_MODEL_FAMILY_CONFIG_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "server/model/config_keys.h"
#include "server/model/model_spec.h"
#include "server/model/rope.h"

namespace tessera {

// Bounds that no real model reaches and within which products of two sizes stay far from overflow.
inline constexpr int64_t kMaxSize = 1 << 24;
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxHeads = 1 << 16;
inline constexpr int64_t kMaxHeadDim = 1 << 12;  // each layer has half as many angles
inline constexpr int64_t kMaxExperts = 1 << 16;

struct RopeOptions {
  RopeStyle style = RopeStyle::kHalf;
  std::optional<double> default_theta;  // where the family may leave "rope_theta" out
  bool partial = false;  // "partial_rotary_factor" may be less than 1, or "rotary_dim" than the head
};

struct RopeConfig {
  RopeSpec spec;
  RopeScaling scaling;
};

// The parts of config.json that families have in common, each read on demand; a family's reader puts them together.
// What is wrong goes into `problems`.
class FamilyConfig {
 public:
  // `config` must outlive this.
  FamilyConfig(const nlohmann::json& config, std::vector<std::string>* problems);

  ConfigKeys& keys() { return keys_; }

  // Vocabulary, widths, context, norm, tied output matrix; num_hidden_layers empty layers.
  ModelSpec Sizes();

  // Heads of grouped attention with rotary positions and no biases, norms or window.
  AttentionSpec GroupedAttention(const ModelSpec& spec, const RopeOptions& rope);

  // "rope_theta" and "rope_scaling", or transformers 5's "rope_parameters", which holds both: the rotation of a
  // head of `dim` elements.
  RopeConfig Rope(int32_t dim, int64_t max_position, const RopeOptions& options);

  // The layers that "layer_types" calls sliding_attention; without it those of which `fallback` says so. Others are
  // full_attention.
  std::vector<bool> SlidingLayers(int64_t num_layers, const std::function<bool(int64_t)>& fallback);

  // "num_nextn_predict_layers".
  int32_t PredictionLayers();

 private:
  std::vector<std::string>* problems_;
  ConfigKeys keys_;
};

// A model family: what config.json calls it, and its reader.
struct Family {
  const char* architecture;
  ModelSpec (*read)(FamilyConfig& config);
};

// One list a file of readers.
const std::vector<Family>& DenseFamilies();
const std::vector<Family>& MoeFamilies();
const std::vector<Family>& DeepSeekFamilies();

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_FAMILY_CONFIG_H_
