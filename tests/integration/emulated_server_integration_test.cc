// The server on an emulated GPU (tests/ptx): the real program and its real kernels, a tiny checkpoint, gRPC.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/generation.h"
#include "tests/integration/servable_checkpoint.h"
#include "tests/integration/server_process.h"

namespace tessera {
namespace {

using testing::ScratchDirectory;
using testing::ServerProcess;

constexpr char kEmulatedServer[] = TESSERA_BINARY_DIR "/tests/tessera-server-emulated";

std::string MakeCheckpoint(const std::string& directory, float input_scale) {
  testing::ServableParts parts = {"moe_nvfp4", "qwen", "qwen_like.jinja", {}};
  parts.input_scale = input_scale;
  EXPECT_GT(WriteServableCheckpoint(parts, directory), 0);
  return directory;
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // of the prompt's tokens and of the generated ones
  bool operator==(const Answer&) const = default;
};

// What a server on a device of this architecture answers.
Answer Ask(const std::string& arch, const std::string& checkpoint, std::vector<std::string> flags = {}) {
  flags.insert(flags.end(), {"--model", checkpoint, "--device", "cuda", "--threads", "1", "--kv-blocks", "16",
                             "--max-running", "4", "--max-batched-tokens", "64"});
  const std::unique_ptr<ServerProcess> server =
      ServerProcess::Start(flags, {"/usr/bin/env", "TESSERA_EMULATOR_ARCH=" + arch, kEmulatedServer});
  if (server == nullptr) return {};
  v1::GenerateRequest request = testing::Greedy("light in a case", 3);
  request.mutable_stopping()->set_ignore_eos(true);
  request.set_logprobs(0);
  request.set_prompt_logprobs(0);
  const absl::StatusOr<v1::GenerateOnceResponse> response = server->client().GenerateOnce(request);
  EXPECT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(server->Terminate(), 0);
  if (!response.ok()) return {};
  const v1::Output& output = response->outputs(0);
  Answer answer = {{output.token_ids().begin(), output.token_ids().end()}, {}};
  for (const auto& position : response->prompt_logprobs())
    answer.logprobs.push_back(position.token().logprob());
  for (const auto& position : output.logprobs()) answer.logprobs.push_back(position.token().logprob());
  EXPECT_EQ(answer.tokens.size(), 3u);
  EXPECT_GT(answer.logprobs.size(), 5u);
  return answer;
}

// Scales for the inputs of experts change what Blackwell computes, unless it is told to keep activations in BF16, and
// nothing on Hopper.
TEST(EmulatedServer, Bf16ActivationsPassesInputScalesOver) {
  ScratchDirectory scratch;
  const std::string plain = MakeCheckpoint(scratch.path() + "/plain", 0);
  const std::string scaled = MakeCheckpoint(scratch.path() + "/scaled", 20.0f / 2688.0f);
  const Answer kept = Ask("100", plain);
  EXPECT_EQ(Ask("100", scaled, {"--bf16-activations"}), kept);
  EXPECT_NE(Ask("100", scaled).logprobs, kept.logprobs);
  const Answer hopper = Ask("90", plain);
  EXPECT_EQ(Ask("90", scaled), hopper);
}

}  // namespace
}  // namespace tessera
