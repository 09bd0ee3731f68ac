#include "tests/integration/servable_checkpoint.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/model/safetensors.h"

namespace tessera::testing {
namespace {

using nlohmann::ordered_json;

constexpr char kGolden[] = TESSERA_SOURCE_DIR "/tests/golden/";

ordered_json ReadJson(const std::string& path) {
  std::ifstream file(path);
  ordered_json json = ordered_json::parse(file, nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(json.is_discarded()) << path;
  return json;
}

void WriteJson(const std::string& path, const ordered_json& json) { std::ofstream(path) << json.dump(2); }

// Adds the special tokens that are missing. Returns the size of the vocabulary.
int AddSpecialTokens(const std::vector<std::string>& tokens, ordered_json* tokenizer) {
  int size = 0;
  std::vector<std::string> known;
  for (const auto& [text, id] : (*tokenizer)["model"]["vocab"].items())
    size = std::max(size, id.get<int>() + 1);
  for (const ordered_json& token : (*tokenizer)["added_tokens"]) {
    size = std::max(size, token["id"].get<int>() + 1);
    known.push_back(token["content"]);
  }
  for (const std::string& token : tokens) {
    if (std::find(known.begin(), known.end(), token) != known.end()) continue;
    known.push_back(token);
    (*tokenizer)["added_tokens"].push_back({{"id", size++},
                                            {"content", token},
                                            {"single_word", false},
                                            {"lstrip", false},
                                            {"rstrip", false},
                                            {"normalized", false},
                                            {"special", true}});
  }
  return size;
}

bool IsVocabulary(const std::string& name) {
  return name == "model.embed_tokens.weight" || name == "lm_head.weight";
}

// Copies the weights, the rows of the vocabulary's matrices repeated, and adds scales for inputs where there is one.
absl::Status WriteWeights(const std::string& from, int vocab_size, float input_scale,
                          const std::string& path) {
  const auto reader = SafetensorsReader::OpenDirectory(from);
  if (!reader.ok()) return reader.status();
  std::vector<SafetensorsWriter::Entry> entries, scales;
  for (const auto& [name, tensor] : (*reader)->tensors()) {
    entries.push_back({name, tensor.dtype, tensor.shape});
    if (IsVocabulary(name)) entries.back().shape[0] = vocab_size;
    absl::string_view matrix = name;
    if (input_scale > 0 && absl::ConsumeSuffix(&matrix, ".weight_scale_2")) {
      scales.push_back({absl::StrCat(matrix, ".input_scale"), DType::kF32, {}});
    }
  }
  entries.insert(entries.end(), scales.begin(), scales.end());
  const auto writer = SafetensorsWriter::Create(path, entries, {{"format", "pt"}});
  if (!writer.ok()) return writer.status();
  for (const auto& [name, tensor] : (*reader)->tensors()) {
    std::vector<uint8_t> data(tensor.data.begin(), tensor.data.end());
    if (IsVocabulary(name)) {
      data.resize(data.size() / tensor.shape[0] * vocab_size);
      for (size_t i = tensor.data.size(); i < data.size(); ++i) data[i] = data[i - tensor.data.size()];
    }
    if (absl::Status status = (*writer)->Write(name, data); !status.ok()) return status;
  }
  std::vector<uint8_t> scale(sizeof(input_scale));
  std::memcpy(scale.data(), &input_scale, sizeof(input_scale));
  for (const SafetensorsWriter::Entry& entry : scales) {
    if (absl::Status status = (*writer)->Write(entry.name, scale); !status.ok()) return status;
  }
  return (*writer)->Finish();
}

}  // namespace

int WriteServableCheckpoint(const ServableParts& parts, const std::string& directory) {
  const std::string model = kGolden + ("model/" + parts.model);
  std::filesystem::create_directories(directory);
  ordered_json tokenizer = ReadJson(kGolden + ("tokenizer/" + parts.tokenizer + "/tokenizer.json"));
  std::vector<std::string> special = {kBosToken, kEosToken};
  special.insert(special.end(), parts.special_tokens.begin(), parts.special_tokens.end());
  const int vocab_size = AddSpecialTokens(special, &tokenizer);
  WriteJson(directory + "/tokenizer.json", tokenizer);
  WriteJson(directory + "/tokenizer_config.json", {{"bos_token", kBosToken}, {"eos_token", kEosToken}});

  ordered_json config = ReadJson(model + "/config.json");
  config["vocab_size"] = vocab_size;
  WriteJson(directory + "/config.json", config);
  std::error_code error;
  std::filesystem::copy_file(kGolden + ("chat_template/templates/" + parts.chat_template),
                             directory + "/chat_template.jinja", error);
  const absl::Status status =
      WriteWeights(model, vocab_size, parts.input_scale, directory + "/model.safetensors");
  if (!status.ok() || error) {
    ADD_FAILURE() << status << " " << error.message();
    return 0;
  }
  return vocab_size;
}

}  // namespace tessera::testing
