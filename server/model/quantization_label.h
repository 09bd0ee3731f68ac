#ifndef TESSERA_SERVER_MODEL_QUANTIZATION_LABEL_H_
#define TESSERA_SERVER_MODEL_QUANTIZATION_LABEL_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/model/config.h"
#include "server/model/weights.h"

namespace tessera {

// Whether `pattern`, an entry of a checkpoint's list of modules that are not quantised, covers the module `name`:
// equal, a wildcard ("model.layers.0*", "*router*"), or the name of a part that the module is in ("model.layers.3" of
// "model.layers.3.mlp.gate"). "re:..." patterns are not understood and cover nothing.
bool CoversModule(absl::string_view pattern, absl::string_view name);

// Where the configuration and the tensors contradict each other, one line a kind. The tensors are believed: lists of
// exclusions are known to lack routers, and to name what was quantised all the same.
std::vector<std::string> CompareWithLabel(const QuantizationHint& label, const ModelWeights& weights);

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_QUANTIZATION_LABEL_H_
