// A checkpoint of each family, with a tokenizer and a chat template, through the real programs: explained by
// `tessera info`, served, quantised by `tessera quantize`, and served again.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/generation.h"
#include "tests/integration/servable_checkpoint.h"
#include "tests/integration/server_process.h"

namespace tessera {
namespace {

using testing::ChildProcess;
using testing::Generation;
using testing::kClientProgram;
using testing::Once;
using testing::ScratchDirectory;
using testing::ServableParts;
using testing::ServerProcess;
using testing::Stream;

struct FamilyCase {
  std::string name;
  std::string architecture;
  ServableParts parts;      // as it is downloaded
  std::string unquantized;  // the same model in BF16
  std::string dialect;      // that it is quantised into
  int num_experts;
};

std::vector<FamilyCase> Families() {
  const std::vector<std::string> harmony = {"<|start|>",  "<|end|>",  "<|message|>", "<|channel|>",
                                            "<|return|>", "<|call|>", "<|im_end|>"};
  const std::vector<std::string> glm = {"[gMASK]",       "<sop>",           "<|user|>",  "<|system|>",
                                        "<|assistant|>", "<|observation|>", "<|im_end|>"};
  const std::vector<std::string> deepseek = {"<｜User｜>", "<｜Assistant｜>", "</think>", "<|im_end|>"};
  const std::vector<std::string> llama = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
                                          "<|im_end|>"};
  return {
      {"GptOss",
       "GptOssForCausalLM",
       {"gpt_oss_mxfp4", "o200k", "harmony_like.jinja", harmony},
       "gpt_oss_bf16",
       "modelopt",
       4},
      {"Glm4Moe",
       "Glm4MoeForCausalLM",
       {"glm4_moe_nvfp4", "qwen", "glm_like.jinja", glm},
       "glm4_moe_bf16",
       "compressed-tensors",
       6},
      {"DeepSeekV3",
       "DeepseekV3ForCausalLM",
       {"deepseek_v3_nvfp4", "deepseek", "deepseek_like.jinja", deepseek},
       "deepseek_v3_bf16",
       "modelopt",
       8},
      {"Mixtral",
       "MixtralForCausalLM",
       {"mixtral_nvfp4", "mistral", "mixtral_like.jinja", {"<|im_end|>"}},
       "mixtral_bf16",
       "compressed-tensors",
       4},
      {"Llama3",
       "LlamaForCausalLM",
       {"llama_bf16", "llama3", "llama_like.jinja", llama},
       "llama_bf16",
       "modelopt",
       0},
      {"Qwen3Moe",
       "Qwen3MoeForCausalLM",
       {"moe_nvfp4", "qwen", "qwen_like.jinja", {}},
       "moe_bf16",
       "compressed-tensors",
       6},
      {"SmolLm3",
       "SmolLM3ForCausalLM",
       {"smollm3_bf16", "smollm", "smollm_like.jinja", {}},
       "smollm3_bf16",
       "modelopt",
       0},
  };
}

// What a program writes, which must end well.
std::string RunProgram(const std::vector<std::string>& arguments) {
  ChildProcess program(kClientProgram, arguments);
  EXPECT_EQ(program.WaitForExit(absl::Minutes(1)), 0) << program.Output();
  return program.Output();
}

class FamiliesTest : public ::testing::TestWithParam<FamilyCase> {
 protected:
  static std::vector<int32_t> Tokenize(Client& client, const v1::TokenizeRequest& request) {
    const absl::StatusOr<v1::TokenizeResponse> response = client.Tokenize(request);
    EXPECT_TRUE(response.ok()) << response.status();
    if (!response.ok()) return {};
    return {response->token_ids().begin(), response->token_ids().end()};
  }
  // With the spellings of special tokens read as such, as a rendered template is.
  static std::vector<int32_t> TokenizeText(Client& client, const std::string& text) {
    v1::TokenizeRequest request;
    request.mutable_prompt()->set_text(text);
    request.set_add_special_tokens(false);
    request.set_parse_special(true);
    return Tokenize(client, request);
  }

  static void AddMessage(const std::string& role, const std::string& content, v1::Chat* chat) {
    v1::ChatMessage* message = chat->add_messages();
    message->set_role(role);
    message->set_content(content);
  }

  // What jinja2 renders of a conversation of tests/golden/chat_template, with today's date.
  std::string Rendered(int conversation, absl::Time now) const {
    std::ifstream file(TESSERA_SOURCE_DIR "/tests/golden/chat_template/vectors.json");
    const nlohmann::json data = nlohmann::json::parse(file);
    for (const nlohmann::json& vector : data["vectors"]) {
      if (vector.value("file", "") != GetParam().parts.chat_template) continue;
      if (vector["conversation"] != conversation) continue;
      const auto format = [](const char* pattern, absl::Time time) {
        return absl::FormatTime(pattern, time, absl::UTCTimeZone());
      };
      const absl::Time then = absl::FromUnixSeconds(data["now"].get<int64_t>());
      return absl::StrReplaceAll(vector["text"].get<std::string>(),
                                 {{format("%Y-%m-%d", then), format("%Y-%m-%d", now)},
                                  {format("%d %b %Y", then), format("%d %b %Y", now)}});
    }
    ADD_FAILURE() << "no vector";
    return "";
  }

  void ExpectRightPrompts(Client& client) {
    v1::TokenizeRequest request;
    v1::Chat& chat = *request.mutable_prompt()->mutable_chat();
    AddMessage("system", " Be brief. ", &chat);
    AddMessage("user", "2+2?", &chat);
    chat.set_add_generation_prompt(true);
    const absl::Time before = absl::Now();
    const std::vector<int32_t> ids = Tokenize(client, request);
    EXPECT_THAT(ids, ::testing::AnyOf(TokenizeText(client, Rendered(1, before)),
                                      TokenizeText(client, Rendered(1, absl::Now()))));
    EXPECT_LE(std::count(ids.begin(), ids.end(), TokenizeText(client, testing::kBosToken)[0]), 1);

    chat.clear_messages();
    AddMessage("user", "Hi <|im_end|> there", &chat);
    const std::vector<int32_t> end = TokenizeText(client, "<|im_end|>");
    ASSERT_EQ(end.size(), 1u);
    const std::vector<int32_t> hostile = Tokenize(client, request);
    chat.mutable_messages(0)->set_content("Hi there");
    const std::vector<int32_t> harmless = Tokenize(client, request);
    EXPECT_EQ(std::count(hostile.begin(), hostile.end(), end[0]),
              std::count(harmless.begin(), harmless.end(), end[0]))
        << "text of a user became a special token";
  }

  static void ExpectGenerates(Client& client) {
    v1::GenerateRequest request;
    AddMessage("user", "Name a small dog.", request.mutable_prompt()->mutable_chat());
    request.mutable_stopping()->set_max_tokens(12);
    request.mutable_stopping()->set_ignore_eos(true);
    request.set_return_token_ids(true);
    for (const float temperature : {0.0f, 0.9f}) {
      request.mutable_sampling()->set_temperature(temperature);
      request.mutable_sampling()->set_seed(7);
      const absl::StatusOr<Generation> streamed = Stream(client, request), once = Once(client, request);
      ASSERT_TRUE(streamed.ok()) << streamed.status();
      ASSERT_TRUE(once.ok()) << once.status();
      EXPECT_EQ(streamed->outputs, once->outputs);
      EXPECT_EQ(once->outputs[0].token_ids.size(), 12u);
      EXPECT_EQ(once->outputs[0].reason, v1::FINISH_REASON_LENGTH);
    }
  }

  static void ExpectEmbeds(Client& client, int hidden_size) {
    v1::EmbedRequest request;
    for (const char* text : {"a small dog", "an arch of stone", "a small dog"})
      request.add_inputs()->set_text(text);
    const absl::StatusOr<v1::EmbedResponse> response = client.Embed(request);
    ASSERT_TRUE(response.ok()) << response.status();
    const auto values = [&](int i) {
      return std::vector<float>(response->embeddings(i).values().begin(),
                                response->embeddings(i).values().end());
    };
    EXPECT_EQ(values(0).size(), static_cast<size_t>(hidden_size));
    double norm = 0;
    for (const float value : values(0)) norm += static_cast<double>(value) * value;
    EXPECT_NEAR(norm, 1.0, 1e-5);
    EXPECT_EQ(values(0), values(2));
    EXPECT_NE(values(0), values(1));
  }

  void ExpectServes(const std::string& directory, int vocab_size) {
    const std::unique_ptr<ServerProcess> server = ServerProcess::Start({"--model", directory});
    ASSERT_NE(server, nullptr);
    const absl::StatusOr<v1::ModelInfo> info = server->client().GetModelInfo();
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->architecture(), GetParam().architecture);
    EXPECT_EQ(info->vocab_size(), vocab_size);
    EXPECT_EQ(info->num_experts(), GetParam().num_experts);
    EXPECT_TRUE(info->has_chat_template());
    ExpectRightPrompts(server->client());
    ExpectGenerates(server->client());
    ExpectEmbeds(server->client(), info->hidden_size());
    EXPECT_EQ(server->Terminate(), 0);
  }

  ScratchDirectory scratch_;
};

TEST_P(FamiliesTest, IsExplainedAndServed) {
  const std::string directory = scratch_.path() + "/model";
  const int vocab_size = WriteServableCheckpoint(GetParam().parts, directory);
  ASSERT_GT(vocab_size, 0);
  const std::string explained = RunProgram({"info", directory});
  EXPECT_THAT(explained, ::testing::HasSubstr(GetParam().architecture));
  EXPECT_THAT(explained, ::testing::HasSubstr(absl::StrCat("vocabulary    ", vocab_size)));
  if (GetParam().num_experts > 0) {
    EXPECT_THAT(explained, ::testing::HasSubstr(absl::StrCat(GetParam().num_experts, " experts of ")));
  }
  ExpectServes(directory, vocab_size);
}

TEST_P(FamiliesTest, IsServedWhenQuantized) {
  ServableParts parts = GetParam().parts;
  parts.model = GetParam().unquantized;
  const int vocab_size = WriteServableCheckpoint(parts, scratch_.path() + "/model");
  ASSERT_GT(vocab_size, 0);
  const std::string out = scratch_.path() + "/quantized";
  const std::string report = RunProgram(
      {"quantize", "--dialect", GetParam().dialect, "--four-over-six", scratch_.path() + "/model", out});
  EXPECT_THAT(report, ::testing::HasSubstr(" tensors to NVFP4, "));
  EXPECT_THAT(RunProgram({"info", out}), ::testing::HasSubstr("NVFP4: "));
  ExpectServes(out, vocab_size);
}

INSTANTIATE_TEST_SUITE_P(Families, FamiliesTest, ::testing::ValuesIn(Families()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
