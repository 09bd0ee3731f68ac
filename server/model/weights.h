#ifndef TESSERA_SERVER_MODEL_WEIGHTS_H_
#define TESSERA_SERVER_MODEL_WEIGHTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/model/linear_finder.h"
#include "server/model/linear_weights.h"
#include "server/model/model_spec.h"
#include "server/model/safetensors.h"

namespace tessera {

struct ExpertWeights {
  LinearWeights gate, up, down;                 // down(act(gate x, up x))
  VectorWeights gate_bias, up_bias, down_bias;  // if the spec has them
};

// What a layer has of these follows from its spec; the rest is not present().
struct LayerWeights {
  VectorWeights input_norm, post_attention_norm;
  // Attention. kLatent: q_a is there with a query rank, and q is then applied to its normed product ("q_b_proj").
  LinearWeights q, o;
  LinearWeights k, v;             // kGrouped
  LinearWeights q_a, kv_a, kv_b;  // kLatent
  VectorWeights q_bias, k_bias, v_bias, o_bias;
  VectorWeights q_norm, k_norm;       // of each head, or of all together
  VectorWeights q_a_norm, kv_a_norm;  // kLatent
  VectorWeights sinks;
  // For a cache that is quantised (QuantizationHint::kv_cache says to what): keys and values are stored divided by
  // these, one for all or one a KV head. Finite and above 0; not present where the checkpoint has none.
  VectorWeights key_scale, value_scale;
  // MLP.
  LinearWeights router;
  VectorWeights router_bias, selection_bias;
  std::vector<ExpertWeights> experts;  // one a MoE expert; exactly one for a dense MLP
  ExpertWeights shared_expert;
};

// Everything that a ModelSpec needs, resolved and checked. Views into the reader, which must outlive it.
struct ModelWeights {
  LinearWeights embeddings;  // [vocab, hidden]; never NVFP4
  VectorWeights final_norm;
  LinearWeights lm_head;  // [vocab, hidden]; the embeddings again when they are tied
  std::vector<LayerWeights> layers;
};

// For GetModelInfo and the log.
struct CheckpointFacts {
  int64_t num_parameters = 0;
  // Those that one token uses: its experts, and one row of the embeddings unless tied.
  int64_t num_active_parameters = 0;
  int64_t weight_bytes = 0;           // in the file
  std::vector<FormatUse> formats;     // most bytes first
  std::vector<std::string> warnings;  // one line each
};

// Finds every tensor that `spec` needs and checks type and shape. One INVALID_ARGUMENT names all that is
// missing, misshapen, of a wrong type or not asked for (the first 20 and how many more). Block scales are
// checked separately, as reading them touches the file: see linear_rows.h. Tensors that another part of an
// engine uses (rotary tables) are passed over with a warning.
absl::StatusOr<ModelWeights> ResolveWeights(const ModelSpec& spec, const SafetensorsReader& reader,
                                            CheckpointFacts* facts);

// The matrices and vectors of `spec` without a checkpoint: sizes alone, nothing is present().
ModelWeights WeightShapes(const ModelSpec& spec);

// Facts of `spec` without a checkpoint, every matrix NVFP4 but routers, embeddings and output.
CheckpointFacts DummyFacts(const ModelSpec& spec);

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_WEIGHTS_H_
