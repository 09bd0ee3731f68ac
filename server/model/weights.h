#ifndef TESSERA_SERVER_MODEL_WEIGHTS_H_
#define TESSERA_SERVER_MODEL_WEIGHTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/model/model_spec.h"
#include "server/model/safetensors.h"

namespace tessera {

enum class WeightFormat { kBf16, kF16, kF32, kNvfp4 };
absl::string_view WeightFormatName(WeightFormat format);

// A matrix y = W x, W of shape [out, in] row-major, as a view into the mapped checkpoint.
//
// NVFP4 as ModelOpt stores it: W[r, c] = e2m1(codes) * e4m3(block_scales[r, c / 16]) * tensor_scale. Two
// codes a byte, low nibble first. `data` is [out, in / 2], `block_scales` [out, in / 16] linear row-major; in
// is a multiple of 16.
struct LinearWeights {
  std::string name;  // without ".weight"
  WeightFormat format = WeightFormat::kBf16;
  int64_t out = 0;
  int64_t in = 0;
  absl::Span<const uint8_t> data;
  absl::Span<const uint8_t> block_scales;  // NVFP4 only
  float tensor_scale = 1.0f;               // NVFP4 only; finite, > 0
  const TensorView* tensor = nullptr;
  const TensorView* scale_tensor = nullptr;

  bool present() const { return tensor != nullptr; }
};

// A vector (norm weight, bias) in BF16, F16 or F32.
struct VectorWeights {
  WeightFormat format = WeightFormat::kBf16;
  int64_t size = 0;
  const TensorView* tensor = nullptr;

  bool present() const { return tensor != nullptr; }
  // The values; exact, since float32 holds every BF16 and F16.
  std::vector<float> ToFloat() const;
};

struct ExpertWeights {
  LinearWeights gate, up, down;  // down(silu(gate x) * (up x))
};

struct LayerWeights {
  VectorWeights input_norm, post_attention_norm;
  LinearWeights q, k, v, o;
  VectorWeights q_bias, k_bias, v_bias, o_bias;  // if the spec has them
  VectorWeights q_norm, k_norm;                  // if the spec has them
  LinearWeights router;                          // MoE layers
  std::vector<ExpertWeights> experts;            // one a MoE expert; exactly one for a dense MLP
};

// Everything that a ModelSpec needs, resolved and checked. Views into the reader, which must outlive it.
struct ModelWeights {
  LinearWeights embeddings;  // [vocab, hidden]; never NVFP4
  VectorWeights final_norm;
  LinearWeights lm_head;  // [vocab, hidden]; the embeddings again when they are tied
  std::vector<LayerWeights> layers;
};

struct FormatUse {
  WeightFormat format;
  int64_t parameters = 0;
  int64_t bytes = 0;  // in the file, scales included
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
// checked separately, as reading them touches the file: see CheckBlockScales. Tensors that another part of an
// engine uses (rotary tables, KV scales) are passed over with a warning.
absl::StatusOr<ModelWeights> ResolveWeights(const ModelSpec& spec, const SafetensorsReader& reader,
                                            CheckpointFacts* facts);

// Facts of `spec` without a checkpoint, every Linear but the router NVFP4.
CheckpointFacts DummyFacts(const ModelSpec& spec);

// INVALID_ARGUMENT if a block scale is negative or NaN; names the tensor, the place and the byte's offset in
// the file.
absl::Status CheckBlockScales(const LinearWeights& weights, const SafetensorsReader& reader);

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_WEIGHTS_H_
