// Ids and texts equal those of the `tokenizers` library, for each family of tokenizers, over stored vectors.
#include "server/tokenizer/tokenizer.h"

#include <cstdlib>

#include "tests/unit/server/tokenizer/test_files.h"

namespace tessera {
namespace {

// The stored vectors, or others that make_vectors.py --out has made.
std::string VectorFolder() {
  const char* folder = std::getenv("TESSERA_TOKENIZER_VECTORS");
  return folder != nullptr ? folder : GoldenPath("tokenizer");
}

// The folder with the tokenizer.json that belongs to a folder of vectors.
std::string TokenizerFolder(const std::string& family) {
  if (family == "bundled") return std::string(TESSERA_SOURCE_DIR) + "/deploy/model";
  return VectorFolder() + "/" + family;
}

std::vector<std::string> VectorFamilies() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(VectorFolder())) {
    if (std::filesystem::exists(entry.path() / "encode.bin"))
      names.push_back(entry.path().filename().string());
  }
  return names;
}

class TokenizerGoldenTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::Load(TokenizerFolder(GetParam()));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = *loaded;
  }
  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_P(TokenizerGoldenTest, EncodesAsTheLibrary) {
  const std::vector<std::string> texts = GoldenTexts(VectorFolder());
  int vectors = 0, wrong = 0;
  for (GoldenReader in(ReadFile(VectorFolder() + "/" + GetParam() + "/encode.bin")); !in.done(); ++vectors) {
    const std::string& text = texts.at(in.Varint());
    const uint8_t mode = in.Byte();
    const std::vector<int32_t> expected = in.Ids();
    const auto ids =
        tokenizer_->Encode(text, {.add_special_tokens = (mode & 2) != 0, .parse_special = (mode & 1) != 0});
    ASSERT_TRUE(ids.ok()) << ids.status();
    if (*ids != expected && ++wrong <= 5) {
      ADD_FAILURE() << "mode " << int{mode} << ", text " << testing::PrintToString(text) << "\n expected "
                    << testing::PrintToString(expected) << "\n      got " << testing::PrintToString(*ids);
    }
  }
  EXPECT_EQ(wrong, 0) << "of " << vectors;
  EXPECT_GT(vectors, 1000);
}

TEST_P(TokenizerGoldenTest, DecodesAsTheLibrary) {
  int vectors = 0, wrong = 0;
  for (GoldenReader in(ReadFile(VectorFolder() + "/" + GetParam() + "/decode.bin")); !in.done(); ++vectors) {
    const bool skip = in.Byte() != 0;
    const std::vector<int32_t> ids = in.Ids();
    const std::string expected = in.Text();
    const auto text = tokenizer_->Decode(ids, skip);
    ASSERT_TRUE(text.ok()) << text.status();
    if (*text != expected && ++wrong <= 5) {
      ADD_FAILURE() << "ids " << testing::PrintToString(ids) << ", skip " << skip << "\n expected "
                    << testing::PrintToString(expected) << "\n      got " << testing::PrintToString(*text);
    }
  }
  EXPECT_EQ(wrong, 0) << "of " << vectors;
  EXPECT_GT(vectors, 100);
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerGoldenTest, testing::ValuesIn(VectorFamilies()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera
