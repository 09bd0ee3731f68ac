#ifndef TESSERA_CLIENT_CLI_DESCRIBE_LAYERS_H_
#define TESSERA_CLIENT_CLI_DESCRIBE_LAYERS_H_

#include <string>
#include <vector>

#include "server/model/model_spec.h"

namespace tessera::cli {

// What a model's layers are made of: one line for all that are alike.
std::vector<std::string> DescribeLayers(const ModelSpec& spec);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_DESCRIBE_LAYERS_H_
