// `tessera quantize` is interrupted in the middle of its work.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// A BF16 checkpoint of zeros that takes seconds to quantise and no room on the disk.
void MakeSparseCheckpoint(const fs::path& directory) {
  constexpr int kHidden = 1024, kIntermediate = 4096, kExperts = 16, kVocabulary = 128, kHeads = 64,
                kHeadDim = 16;
  fs::create_directory(directory);
  const nlohmann::json config = {{"architectures", {"Qwen3MoeForCausalLM"}},
                                 {"model_type", "qwen3_moe"},
                                 {"vocab_size", kVocabulary},
                                 {"hidden_size", kHidden},
                                 {"max_position_embeddings", 128},
                                 {"rms_norm_eps", 1e-6},
                                 {"rope_theta", 10000.0},
                                 {"num_attention_heads", kHeads},
                                 {"num_key_value_heads", kHeads},
                                 {"head_dim", kHeadDim},
                                 {"num_hidden_layers", 1},
                                 {"num_experts", kExperts},
                                 {"num_experts_per_tok", 2},
                                 {"norm_topk_prob", true},
                                 {"moe_intermediate_size", kIntermediate},
                                 {"hidden_act", "silu"},
                                 {"tie_word_embeddings", true}};
  std::ofstream(directory / "config.json") << config;
  nlohmann::json header;
  int64_t offset = 0;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    int64_t bytes = 2;
    for (const int64_t size : shape) bytes *= size;
    header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  };
  const std::string layer = "model.layers.0.";
  add("model.embed_tokens.weight", {kVocabulary, kHidden});
  add("model.norm.weight", {kHidden});
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
    add(absl::StrCat(layer, norm, ".weight"), {kHidden});
  }
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    add(absl::StrCat(layer, "self_attn.", name, ".weight"), {kHeads * kHeadDim, kHidden});
  }
  for (const char* name : {"q_norm", "k_norm"})
    add(absl::StrCat(layer, "self_attn.", name, ".weight"), {kHeadDim});
  add(layer + "mlp.gate.weight", {kExperts, kHidden});
  for (int e = 0; e < kExperts; ++e) {
    const std::string expert = absl::StrCat(layer, "mlp.experts.", e, ".");
    add(expert + "gate_proj.weight", {kIntermediate, kHidden});
    add(expert + "up_proj.weight", {kIntermediate, kHidden});
    add(expert + "down_proj.weight", {kHidden, kIntermediate});
  }
  const std::string json = header.dump();
  std::string head;
  for (int i = 0; i < 8; ++i) head.push_back(static_cast<char>(json.size() >> (8 * i)));
  head += json;
  const fs::path file = directory / "model.safetensors";
  std::ofstream(file, std::ios::binary) << head;
  fs::resize_file(file, head.size() + offset);
}

std::vector<std::string> NamesIn(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  return names;
}

TEST(CliQuantize, ASignalLeavesNothingBehind) {
  std::string pattern = testing::TempDir() + "/tessera_cli_quantize_XXXXXX";
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  const fs::path directory = pattern;
  MakeSparseCheckpoint(directory / "in");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t child = fork();
    if (child == 0) {
      ::signal(signal, SIG_DFL);  // whatever this test was started under
      const int null = open("/dev/null", O_RDWR);
      dup2(null, STDOUT_FILENO);
      dup2(null, STDERR_FILENO);
      execl(TESSERA_BINARY_DIR "/tessera", "tessera", "quantize", (directory / "in").c_str(),
            (directory / "out").c_str(), nullptr);
      _exit(127);
    }
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (NamesIn(directory).size() < 2 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(NamesIn(directory).size(), 2u) << "the hidden directory did not appear";
    // Twice: impatience must not leave it behind either.
    kill(child, signal);
    kill(child, signal);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 128 + signal) << signal << ": " << status;
    EXPECT_EQ(NamesIn(directory), std::vector<std::string>{"in"}) << signal;
  }
  fs::remove_all(directory);
}

}  // namespace
}  // namespace tessera
