// Files cut at every place and changed at random: an error or a checkpoint that is safe to read, never a crash. Worth
// most under AddressSanitizer.
#include <random>

#include "gtest/gtest.h"
#include "server/model/checkpoint.h"
#include "server/model/config.h"
#include "server/model/safetensors.h"
#include "server/model/safetensors_header.h"
#include "tests/unit/server/model/test_files.h"

namespace tessera {
namespace {

int64_t HeaderLength(const std::string& file) {
  int64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint8_t>(file[i]);
  return length;
}

// Reads every byte that the reader says is there.
uint64_t TouchAll(const SafetensorsReader& reader) {
  uint64_t sum = 0;
  for (const auto& [name, tensor] : reader.tensors()) {
    for (const uint8_t byte : tensor.data) sum += byte;
    EXPECT_EQ(tensor.num_elements() * DTypeSize(tensor.dtype), static_cast<int64_t>(tensor.data.size()));
  }
  return sum;
}

// Changes a few bytes, with a liking for what means something in JSON; or takes some out, or doubles some.
std::string Mutate(std::string text, std::mt19937& random) {
  constexpr char kMeaningful[] = "{}[]\",:0123456789-.eE\\ \xff\x00untrfals";
  const int changes = 1 + random() % 3;
  for (int i = 0; i < changes && !text.empty(); ++i) {
    const size_t at = random() % text.size();
    switch (random() % 4) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text[at] = kMeaningful[random() % (sizeof(kMeaningful) - 1)];
        break;
      case 2:
        text.erase(at, 1 + random() % 40);
        break;
      case 3:
        text.insert(at, text.substr(at, 1 + random() % 40));
        break;
    }
  }
  return text;
}

TEST(Hostile, SafetensorsCutAtEveryPlace) {
  TemporaryDirectory directory;
  const std::string path = directory / "x.safetensors";
  const std::string whole =
      FileBytes(R"({"__metadata__":{"k":"v"},"a":{"dtype":"BF16","shape":[3,5],"data_offsets":)"
                R"([0,30]},"b":{"dtype":"F8_E4M3","shape":[7],"data_offsets":[30,37]}})",
                37);
  WriteFile(path, whole);
  ASSERT_TRUE(SafetensorsReader::OpenFile(path).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    WriteFile(path, whole.substr(0, size));
    EXPECT_FALSE(SafetensorsReader::OpenFile(path).ok()) << size;
  }
}

TEST(Hostile, CheckpointCutInItsHeaderAndData) {
  TemporaryDirectory directory;
  WriteFile(directory / "config.json", ReadFile(GoldenDirectory("moe_nvfp4") + "/config.json"));
  const std::string path = directory / "model.safetensors";
  const std::string whole = ReadFile(GoldenDirectory("moe_nvfp4") + "/model.safetensors");
  WriteFile(path, whole);
  ASSERT_TRUE(Checkpoint::Open(directory.path()).ok());
  for (size_t size = 0; size < whole.size(); size += 101) {
    std::filesystem::resize_file(path, whole.size() - size - 1);
    EXPECT_FALSE(Checkpoint::Open(directory.path()).ok()) << size;
  }
}

TEST(Hostile, MutatedHeaders) {
  const std::string whole = ReadFile(GoldenDirectory("moe_nvfp4") + "/model.safetensors");
  const std::string header = whole.substr(8, 600) + "}";  // a few tensors; the cut is one more mutation
  const std::string full = whole.substr(8, HeaderLength(whole));
  const int64_t data_bytes = whole.size() - 8 - full.size();
  std::mt19937 random(1);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string json = Mutate(i % 10 == 0 ? full : header, random);
    auto parsed = ParseSafetensorsHeader(json, data_bytes, "x");
    if (!parsed.ok()) continue;
    ++accepted;
    for (const HeaderEntry& entry : parsed->entries) {
      EXPECT_TRUE(0 <= entry.begin && entry.begin <= entry.end && entry.end <= data_bytes);
    }
  }
  EXPECT_GT(accepted, 10);  // the mutations reach past the parser
}

TEST(Hostile, MutatedFiles) {
  TemporaryDirectory directory;
  WriteFile(directory / "config.json", ReadFile(GoldenDirectory("moe_nvfp4") + "/config.json"));
  const std::string path = directory / "model.safetensors";
  const std::string whole = ReadFile(GoldenDirectory("moe_nvfp4") + "/model.safetensors");
  const size_t header = 8 + HeaderLength(whole);
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    std::string bytes = Mutate(whole.substr(0, header), random) + whole.substr(header);
    if (i % 2 == 0) bytes = FileBytes(Mutate(whole.substr(8, header - 8), random), 0) + whole.substr(header);
    WriteFile(path, bytes);
    auto reader = SafetensorsReader::OpenFile(path);
    if (reader.ok()) TouchAll(**reader);
    (void)Checkpoint::Open(directory.path());
  }
}

TEST(Hostile, MutatedConfigurations) {
  std::mt19937 random(3);
  const std::string generation =
      R"({"eos_token_id":[1,2],"temperature":0.7,"top_k":20,"top_p":0.8,"do_sample":true})";
  int accepted = 0;
  for (const std::string name : {"moe_nvfp4", "bias_bf16", "mixed_bf16"}) {
    const std::string config = ReadFile(GoldenDirectory(name) + "/config.json");
    ASSERT_TRUE(ParseModelConfig(config, generation, "").ok())
        << ParseModelConfig(config, generation, "").status();
    for (int i = 0; i < 4000; ++i) {
      auto parsed =
          ParseModelConfig(Mutate(config, random), i % 2 ? Mutate(generation, random) : generation, "");
      if (!parsed.ok()) {
        EXPECT_LT(parsed.status().message().size(), 20000);
        continue;
      }
      ++accepted;
      const ModelSpec& spec = parsed->spec;
      EXPECT_GT(spec.vocab_size, 0);
      EXPECT_GT(spec.hidden_size, 0);
      for (const LayerSpec& layer : spec.layers) {
        EXPECT_GT(layer.mlp.intermediate_size, 0);
        EXPECT_EQ(layer.attention.num_query_heads % layer.attention.num_kv_heads, 0);
        EXPECT_EQ(layer.attention.rope.inv_freq.size(), layer.attention.head_dim / 2);
        for (const double frequency : layer.attention.rope.inv_freq) EXPECT_TRUE(std::isfinite(frequency));
        EXPECT_LE(layer.mlp.num_experts_per_token, layer.mlp.num_experts);
      }
      for (const int32_t id : spec.eos_token_ids) EXPECT_TRUE(id >= 0 && id < spec.vocab_size);
    }
  }
  EXPECT_GT(accepted, 100);
}

TEST(Hostile, AnEmptyFileIsNotAnAbsentOne) {
  TemporaryDirectory directory;
  WriteFile(directory / "config.json", ReadFile(GoldenDirectory("moe_nvfp4") + "/config.json"));
  ASSERT_TRUE(ReadModelConfig(directory.path()).ok());
  for (const char* name : {"generation_config.json", "hf_quant_config.json", "config.json"}) {
    WriteFile(directory / name, "");
    const absl::Status status = ReadModelConfig(directory.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_NE(status.message().find(name), std::string::npos) << status;
    std::filesystem::remove(directory / name);
  }
}

TEST(Hostile, DeepNestingIsRefused) {
  const std::string deep = R"({"architectures":)" + std::string(200000, '[') + std::string(200000, ']') + "}";
  EXPECT_FALSE(ParseModelConfig(deep, "", "").ok());
  EXPECT_FALSE(ParseSafetensorsHeader(deep, 0, "x").ok());
}

}  // namespace
}  // namespace tessera
