#include "server/model/checkpoint.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/model/quantization_label.h"

namespace tessera {
absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& dir, LoadFormat format) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->directory_ = dir;
  checkpoint->format_ = format;
  absl::StatusOr<ModelConfig> config = ReadModelConfig(dir);
  if (!config.ok()) return config.status();
  checkpoint->config_ = std::move(*config);
  if (format == LoadFormat::kDummy) {
    checkpoint->facts_ = DummyFacts(checkpoint->spec());
    checkpoint->weights_ = WeightShapes(checkpoint->spec());
    return checkpoint;
  }

  absl::StatusOr<std::unique_ptr<SafetensorsReader>> reader = SafetensorsReader::OpenDirectory(dir);
  if (!reader.ok()) return reader.status();
  checkpoint->reader_ = std::move(*reader);
  absl::StatusOr<ModelWeights> weights =
      ResolveWeights(checkpoint->spec(), *checkpoint->reader_, &checkpoint->facts_);
  if (!weights.ok()) {
    return absl::Status(weights.status().code(), absl::StrCat(dir, ": ", weights.status().message()));
  }
  checkpoint->weights_ = std::move(*weights);

  std::vector<std::string>& warnings = checkpoint->facts_.warnings;
  for (std::string& warning : CompareWithLabel(checkpoint->config_.quantization, checkpoint->weights_)) {
    warnings.push_back(std::move(warning));
  }
  if (checkpoint->reader_->hole_bytes() > 0) {
    warnings.push_back(absl::StrCat(checkpoint->reader_->hole_bytes(),
                                    " bytes of the safetensors files belong to no tensor"));
  }
  return checkpoint;
}

void Checkpoint::Close() {
  weights_ = ModelWeights{};
  reader_.reset();
}

}  // namespace tessera
