#ifndef TESSERA_SERVER_MODEL_CHECKPOINT_H_
#define TESSERA_SERVER_MODEL_CHECKPOINT_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/model/config.h"
#include "server/model/model_spec.h"
#include "server/model/safetensors.h"
#include "server/model/weights.h"

namespace tessera {

enum class LoadFormat {
  kSafetensors,  // config.json and safetensors
  kDummy,        // config.json alone; the backend makes random NVFP4 weights up, to time shapes
};

// A model directory in the Hugging Face layout: config.json, generation_config.json, *.safetensors. The
// tokenizer's files are not read here. Immutable once open; any thread may read.
class Checkpoint {
 public:
  // Maps and checks everything but the values. Errors name file, tensor or key, what was expected and what
  // was found.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& dir,
                                                          LoadFormat format = LoadFormat::kSafetensors);

  const std::string& directory() const { return directory_; }
  LoadFormat format() const { return format_; }
  const ModelSpec& spec() const { return config_.spec; }
  const ModelConfig& config() const { return config_; }
  const GenerationDefaults& generation_defaults() const { return config_.generation; }
  const CheckpointFacts& facts() const { return facts_; }

  // Null for kDummy, and after Close().
  const SafetensorsReader* reader() const { return reader_.get(); }
  // Of kDummy: sizes alone. Empty after Close().
  const ModelWeights& weights() const { return weights_; }

  // Unmaps the files once the backend has its own copy of the weights.
  void Close();

 private:
  Checkpoint() = default;

  std::string directory_;
  LoadFormat format_ = LoadFormat::kSafetensors;
  ModelConfig config_;
  CheckpointFacts facts_;
  std::unique_ptr<SafetensorsReader> reader_;
  ModelWeights weights_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_CHECKPOINT_H_
