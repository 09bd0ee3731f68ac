#include "server/model/family_config.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/model/safetensors_header.h"

namespace tessera {
namespace {

constexpr char kConfig[] = "config.json";

RopeScaling ReadScaling(ConfigKeys& keys, int64_t max_position) {
  RopeScaling scaling;
  scaling.type = keys.Has("rope_type") ? keys.String("rope_type") : keys.String("type", "default");
  const std::vector<std::string> supported = SupportedRopeTypes();
  if (std::find(supported.begin(), supported.end(), scaling.type) == supported.end()) {
    keys.Problem(absl::StrCat("rope type \"", Printable(scaling.type), "\" is not supported; supported are ",
                              absl::StrJoin(supported, ", ")));
    scaling.type = "default";
  }
  if (scaling.type != "default") scaling.factor = keys.Number("factor", 1.0, 1e6);
  if (scaling.type == "llama3" || scaling.type == "yarn") {
    scaling.original_max_position_embeddings =
        keys.Number("original_max_position_embeddings", 1, 1e9, static_cast<double>(max_position));
  }
  if (scaling.type == "llama3") {
    scaling.low_freq_factor = keys.Number("low_freq_factor", 1e-6, 1e6);
    scaling.high_freq_factor = keys.Number("high_freq_factor", 1e-6, 1e6);
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      keys.Problem("\"high_freq_factor\" must be larger than \"low_freq_factor\"");
    }
  }
  if (scaling.type == "yarn") {
    scaling.beta_fast = keys.Number("beta_fast", 1e-6, 1e6, 32.0);
    scaling.beta_slow = keys.Number("beta_slow", 1e-6, 1e6, 1.0);
    scaling.attention_factor = keys.Number("attention_factor", 0, 1e6, 0.0);
    scaling.mscale = keys.Number("mscale", 0, 1e6, 0.0);
    scaling.mscale_all_dim = keys.Number("mscale_all_dim", 0, 1e6, 0.0);
    scaling.truncate = keys.Bool("truncate", true);
  }
  return scaling;
}

}  // namespace

FamilyConfig::FamilyConfig(const nlohmann::json& config, std::vector<std::string>* problems)
    : problems_(problems), keys_(config, kConfig, problems) {}

ModelSpec FamilyConfig::Sizes() {
  ModelSpec spec;
  spec.vocab_size = keys_.Int("vocab_size", 1, kMaxSize);
  spec.hidden_size = keys_.Int("hidden_size", 1, kMaxSize);
  spec.max_context = keys_.Int("max_position_embeddings", 1, 1 << 30);
  spec.rms_norm_eps = static_cast<float>(keys_.Number("rms_norm_eps", 0, 1));
  spec.tied_embeddings = keys_.Bool("tie_word_embeddings", false);
  spec.layers.resize(keys_.Int("num_hidden_layers", 1, kMaxLayers));
  keys_.Only("hidden_act", "silu");
  return spec;
}

AttentionSpec FamilyConfig::GroupedAttention(const ModelSpec& spec, const RopeOptions& rope) {
  AttentionSpec attention;
  attention.num_query_heads = keys_.Int("num_attention_heads", 1, kMaxHeads);
  attention.num_kv_heads = keys_.Int("num_key_value_heads", 1, kMaxHeads, attention.num_query_heads);
  if (attention.num_query_heads % attention.num_kv_heads != 0) {
    keys_.Problem(absl::StrCat("\"num_attention_heads\" ", attention.num_query_heads,
                               " is not a multiple of \"num_key_value_heads\" ", attention.num_kv_heads));
  }
  if (!keys_.Has("head_dim") && spec.hidden_size % attention.num_query_heads != 0) {
    keys_.Problem(absl::StrCat("\"head_dim\" is missing, and \"hidden_size\" ", spec.hidden_size,
                               " is not a multiple of \"num_attention_heads\" ", attention.num_query_heads));
  }
  attention.head_dim = keys_.Int("head_dim", 2, kMaxHeadDim, spec.hidden_size / attention.num_query_heads);
  if (attention.head_dim % 2 != 0) keys_.Problem(absl::StrCat("head size ", attention.head_dim, " is odd"));
  attention.softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(attention.head_dim)));
  attention.rope = Rope(attention.head_dim, spec.max_context, rope).spec;
  return attention;
}

RopeConfig FamilyConfig::Rope(int32_t dim, int64_t max_position, const RopeOptions& options) {
  static const nlohmann::json kNone = nlohmann::json::object();
  const char* group = keys_.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const nlohmann::json* object = keys_.Find(group);
  if (object != nullptr && !object->is_object()) {
    keys_.Problem(absl::StrCat("\"", group, "\": expected an object or null, found ", object->type_name()));
    object = nullptr;
  }
  ConfigKeys rope(object != nullptr ? *object : kNone, absl::StrCat(kConfig, ": ", group), problems_);
  ConfigKeys& theta_keys = rope.Has("rope_theta") ? rope : keys_;
  const double theta = theta_keys.Number("rope_theta", 1.0, 1e15, options.default_theta);
  RopeConfig result;
  result.scaling = ReadScaling(rope, max_position);

  int32_t rotary_dim = dim;
  if (options.partial) {
    ConfigKeys& partial_keys = rope.Has("partial_rotary_factor") ? rope : keys_;
    rotary_dim = keys_.Has("rotary_dim") && !partial_keys.Has("partial_rotary_factor")
                     ? static_cast<int32_t>(keys_.Int("rotary_dim", 2, dim))
                     : static_cast<int32_t>(dim * partial_keys.Number("partial_rotary_factor", 0, 1, 1.0));
    if (rotary_dim < 2 || rotary_dim % 2 != 0) {
      partial_keys.Problem(absl::StrCat("\"partial_rotary_factor\" makes ", rotary_dim, " of ", dim,
                                        " elements of a head rotate; expected an even number above 0"));
      rotary_dim = dim;
    }
  } else {
    for (ConfigKeys* place : {&rope, &keys_}) {
      if (place->Number("partial_rotary_factor", 0, 1, 1.0) != 1.0) {
        place->Problem("\"partial_rotary_factor\" other than 1 is not supported for this architecture");
      }
    }
  }
  result.spec = MakeRope(options.style, rotary_dim, theta, result.scaling);
  return result;
}

std::vector<bool> FamilyConfig::SlidingLayers(int64_t num_layers,
                                              const std::function<bool(int64_t)>& fallback) {
  std::vector<bool> sliding(num_layers);
  const std::vector<std::string> types = keys_.StringList("layer_types");
  if (types.empty()) {
    for (int64_t i = 0; i < num_layers; ++i) sliding[i] = fallback(i);
    return sliding;
  }
  if (static_cast<int64_t>(types.size()) != num_layers) {
    keys_.Problem(absl::StrCat("\"layer_types\": expected ", num_layers,
                               " strings, one a layer of \"num_hidden_layers\", found ", types.size()));
    return sliding;
  }
  for (int64_t i = 0; i < num_layers; ++i) {
    sliding[i] = types[i] == "sliding_attention";
    if (!sliding[i] && types[i] != "full_attention") {
      keys_.Problem(absl::StrCat("\"layer_types\": \"", Printable(types[i]), "\" of layer ", i,
                                 " is not supported; supported are full_attention, sliding_attention"));
      break;
    }
  }
  return sliding;
}

int32_t FamilyConfig::PredictionLayers() {
  return static_cast<int32_t>(keys_.Int("num_nextn_predict_layers", 0, kMaxLayers, 0));
}

}  // namespace tessera
