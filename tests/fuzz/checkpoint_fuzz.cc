// A whole safetensors file, taken for the weights of small models of a few families: header, names, shapes, formats and
// scales. The first byte chooses the family.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/model/checkpoint.h"
#include "server/model/linear_rows.h"

namespace {

constexpr const char* kFamilies[] = {"moe_nvfp4", "gpt_oss_mxfp4", "glm4_moe_nvfp4", "deepseek_v3_nvfp4"};

// One directory a family, in memory where there is /dev/shm; removed at exit.
const std::vector<std::string>& Directories() {
  static const std::vector<std::string> directories = [] {
    const std::string base = std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp";
    static std::string root = absl::StrCat(base, "/tessera_checkpoint_fuzz_", getpid());
    std::vector<std::string> result;
    for (const char* family : kFamilies) {
      result.push_back(absl::StrCat(root, "/", family));
      std::filesystem::create_directories(result.back());
      std::filesystem::copy_file(
          absl::StrCat(TESSERA_SOURCE_DIR, "/tests/golden/model/", family, "/config.json"),
          result.back() + "/config.json", std::filesystem::copy_options::overwrite_existing);
    }
    std::atexit([] {
      std::error_code error;
      std::filesystem::remove_all(root, error);
    });
    return result;
  }();
  return directories;
}

void ReadAll(const tessera::LinearWeights& weights, const tessera::SafetensorsReader& reader) {
  if (!weights.present()) return;
  (void)tessera::CheckBlockScales(weights, reader);
  std::vector<float> values(weights.out * weights.in);
  tessera::Dequantize(weights, 0, weights.out, values.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string& directory = Directories()[data[0] % std::size(kFamilies)];
  std::ofstream(directory + "/model.safetensors", std::ios::binary)
      .write(reinterpret_cast<const char*>(data) + 1, static_cast<std::streamsize>(size - 1));
  const auto checkpoint = tessera::Checkpoint::Open(directory);
  if (!checkpoint.ok()) return 0;
  const tessera::SafetensorsReader& reader = *(*checkpoint)->reader();
  const tessera::ModelWeights& weights = (*checkpoint)->weights();
  ReadAll(weights.embeddings, reader);
  ReadAll(weights.lm_head, reader);
  for (const tessera::LayerWeights& layer : weights.layers) {
    for (const auto* matrix : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.kv_b, &layer.router}) {
      ReadAll(*matrix, reader);
    }
    if (layer.input_norm.present()) (void)layer.input_norm.ToFloat();
    for (const tessera::ExpertWeights& expert : layer.experts) {
      for (const auto* matrix : {&expert.gate, &expert.up, &expert.down}) ReadAll(*matrix, reader);
      if (expert.up_bias.present()) (void)expert.up_bias.ToFloat();
    }
  }
  return 0;
}
