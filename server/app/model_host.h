#ifndef TESSERA_SERVER_APP_MODEL_HOST_H_
#define TESSERA_SERVER_APP_MODEL_HOST_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/app/server_options.h"
#include "server/engine/engine.h"
#include "server/metrics/metrics.h"
#include "server/rpc/served_model.h"

namespace tessera {

// A model, loaded: what the RPC layer tells of it and the engine that runs it (not yet started).
struct LoadedModel {
  ServedModel served;
  std::unique_ptr<Engine> engine;
};

// The directory of the bundled model: beside the source or install tree of this executable. NOT_FOUND lists where it
// was looked for.
absl::StatusOr<std::string> FindBundledModel();

// Loads `options.model` (or the bundled model) onto the device, allocates the cache and makes the engine. Tells
// `metrics` the labels and the time of each phase. Errors say which flag or file is wrong, and for memory how much is
// needed and free.
absl::StatusOr<LoadedModel> LoadModel(const ServerOptions& options, Metrics* metrics);

}  // namespace tessera

#endif  // TESSERA_SERVER_APP_MODEL_HOST_H_
