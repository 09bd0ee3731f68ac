// Templates render as transformers renders them, over stored vectors; provenance is checked on each of them.
#include "nlohmann/json.hpp"
#include "server/tokenizer/chat_template.h"
#include "tests/unit/server/tokenizer/test_files.h"

namespace tessera {
namespace {

using Json = OrderedJson;

void RunVectors(const std::string& path, const std::string& folder) {
  const Json data = Json::parse(ReadFile(path));
  std::vector<std::pair<std::string, std::string>> tokens;
  for (const auto& [name, text] : data["tokens"].items()) tokens.emplace_back(name, text.get<std::string>());
  int vectors = 0, wrong = 0;
  for (const Json& v : data["vectors"]) {
    ++vectors;
    const std::string source = v.contains("file") ? ReadFile(folder + "/" + v["file"].get<std::string>())
                                                  : v["template"].get<std::string>();
    const bool small = !v.contains("conversation");
    const Json& conversation = data["conversations"][small ? data["small_conversation"].get<size_t>()
                                                           : v["conversation"].get<size_t>()];
    ChatRequest request;
    request.messages = conversation["messages"];
    if (conversation.contains("tools")) request.tools = conversation["tools"];
    if (small) {
      request.variables = data["variables"];
    } else if (conversation.contains("variables")) {
      request.variables = conversation["variables"];
    }
    request.add_generation_prompt = conversation.value("add_generation_prompt", false);
    request.now_unix_seconds = data["now"].get<int64_t>();

    absl::StatusOr<RenderedPrompt> got = absl::UnknownError("");
    const auto parsed = ChatTemplate::Parse(source, tokens);
    if (parsed.ok()) {
      got = parsed->Render(request);
    } else {
      got = parsed.status();
    }
    std::string problem;
    if (v.contains("error")) {
      if (got.ok()) {
        problem = "expected an error, got " + testing::PrintToString(got->text);
      } else if (got.status().code() != absl::StatusCode::kInvalidArgument) {
        problem = "expected INVALID_ARGUMENT, got " + got.status().ToString();
      } else if (v.contains("message") && got.status().message() != v["message"].get<std::string>()) {
        problem = "expected the message " + v["message"].dump() + ", got " + got.status().ToString();
      }
    } else if (!got.ok()) {
      problem = got.status().ToString() + "\n  expected " + v["text"].dump();
    } else if (got->text != v["text"].get<std::string>()) {
      problem = "expected " + testing::PrintToString(v["text"].get<std::string>()) + "\n       got " +
                testing::PrintToString(got->text);
    }
    if (!problem.empty() && ++wrong <= 40) {
      ADD_FAILURE() << testing::PrintToString(source.substr(0, 300)) << " conversation "
                    << (small ? -1 : v["conversation"].get<int>()) << "\n  " << problem;
    }
  }
  EXPECT_EQ(wrong, 0) << "of " << vectors;
  EXPECT_GT(vectors, 0);
}

TEST(ChatTemplateGoldenTest, RendersAsTransformers) {
  RunVectors(GoldenPath("chat_template/vectors.json"), GoldenPath("chat_template/templates"));
}

// Vectors made elsewhere: make_vectors.py --templates DIR OUT.
TEST(ChatTemplateGoldenTest, FurtherVectors) {
  const char* path = std::getenv("TESSERA_CHAT_TEMPLATE_VECTORS");
  if (path == nullptr) GTEST_SKIP() << "TESSERA_CHAT_TEMPLATE_VECTORS names no file";
  RunVectors(path, "");
}

}  // namespace
}  // namespace tessera
