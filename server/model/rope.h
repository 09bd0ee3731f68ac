#ifndef TESSERA_SERVER_MODEL_ROPE_H_
#define TESSERA_SERVER_MODEL_ROPE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/model/model_spec.h"

namespace tessera {

// How a checkpoint stretches rotary embeddings past the length it was trained on. Field names as in
// config.json's rope_scaling / rope_parameters; formulae as transformers has them (modeling_rope_utils.py),
// here in double.
struct RopeScaling {
  std::string type = "default";  // one of SupportedRopeTypes()
  double factor = 1.0;
  double original_max_position_embeddings = 0;
  // llama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // yarn (arXiv 2309.00071)
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double attention_factor = 0.0;  // 0: from factor, mscale and mscale_all_dim
  double mscale = 0.0;
  double mscale_all_dim = 0.0;
  bool truncate = true;  // round the ramp's ends to whole dimensions
};

std::vector<std::string> SupportedRopeTypes();

// YaRN's 0.1 * mscale * ln(factor) + 1, what a stretched context's scores grow by.
double YarnMagnitude(double factor, double mscale);

// The rotation of `rotary_dim` (even) dimensions with base `theta`. `scaling.type` must be a supported one.
RopeSpec MakeRope(RopeStyle style, int32_t rotary_dim, double theta, const RopeScaling& scaling);

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_ROPE_H_
