#ifndef TESSERA_SERVER_MODEL_QUANTIZE_PLAN_H_
#define TESSERA_SERVER_MODEL_QUANTIZE_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/model/model_spec.h"
#include "server/model/safetensors.h"
#include "server/model/weights.h"

namespace tessera {

// A matrix, and what it is called in the output, without ".weight". Experts that were stacked stand alone there.
struct OutputMatrix {
  std::string name;
  LinearWeights source;
};

// Something that is not quantised: a matrix or a vector, written under the tensor name `name`.
struct KeptTensor {
  std::string name;
  LinearWeights matrix;
  VectorWeights vector;
  DType dtype = DType::kBf16;

  std::vector<int64_t> shape() const;
  int64_t input_bytes() const;
  const TensorView& tensor() const { return matrix.present() ? *matrix.tensor : *vector.tensor; }
};

// What becomes of each tensor of a checkpoint. Views into its reader.
struct QuantizePlan {
  std::vector<std::vector<OutputMatrix>> groups;  // matrices that share a tensor scale: one unit of work
  std::vector<KeptTensor> kept;
  std::vector<std::string> ignore;  // modules among them, for the configuration; sorted
  std::vector<std::string> warnings;
};

// Gate and up of an expert share a tensor scale, as do q, k and v of a layer, for engines that multiply them at once.
// Routers, norms, biases, embeddings and the output matrix are kept, and with `attention` off its projections.
QuantizePlan PlanQuantization(const ModelSpec& spec, const ModelWeights& weights, bool attention);

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_QUANTIZE_PLAN_H_
