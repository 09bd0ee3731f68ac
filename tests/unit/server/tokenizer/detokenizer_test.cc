// A stream of deltas is valid UTF-8 piece by piece and joins to what Decode gives, for any ids.
#include "server/tokenizer/incremental_detokenizer.h"

#include <random>
#include <set>

#include "server/tokenizer/unicode.h"
#include "tests/unit/server/tokenizer/test_files.h"

namespace tessera {
namespace {

std::shared_ptr<const Tokenizer> LoadFamily(const std::string& family) {
  auto loaded = Tokenizer::Load(GoldenPath("tokenizer/" + family));
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? *loaded : nullptr;
}

class DetokenizerTest : public testing::TestWithParam<std::string> {};

void ExpectStreamEqualsDecode(const std::shared_ptr<const Tokenizer>& tokenizer,
                              const std::vector<int32_t>& ids, bool skip, std::mt19937* rng) {
  const auto whole = tokenizer->Decode(ids, skip);
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_EQ(unicode::FindInvalid(*whole), absl::string_view::npos);
  IncrementalDetokenizer stream(tokenizer, skip);
  std::string joined;
  for (size_t i = 0; i < ids.size();) {
    const size_t n = std::min<size_t>(1 + (*rng)() % 3, ids.size() - i);
    const std::string delta = stream.Append(absl::MakeSpan(ids).subspan(i, n));
    ASSERT_EQ(unicode::FindInvalid(delta), absl::string_view::npos);
    joined += delta;
    i += n;
  }
  joined += stream.Flush();
  ASSERT_EQ(joined, *whole) << testing::PrintToString(ids);
  ASSERT_FALSE(stream.pending());
  // After a flush the object is as new.
  joined = stream.Append(ids);
  joined += stream.Flush();
  ASSERT_EQ(joined, *whole);
}

TEST_P(DetokenizerTest, RandomIds) {
  const auto tokenizer = LoadFamily(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  std::mt19937 rng(1);
  // Tokens of a single byte or a part of a character, where boundaries matter most.
  std::vector<int32_t> broken;
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    if (unicode::FindInvalid(tokenizer->TokenBytes(id)) != absl::string_view::npos) broken.push_back(id);
  }
  static const auto* const kWithoutBytes =
      new std::set<std::string>{"metaspace", "unigram", "spm_unigram", "spm_bpe_rules"};
  EXPECT_EQ(broken.empty(), kWithoutBytes->contains(GetParam()));
  for (int round = 0; round < 4000; ++round) {
    std::vector<int32_t> ids(rng() % 20);
    for (int32_t& id : ids) {
      id = !broken.empty() && rng() % 2 == 0 ? broken[rng() % broken.size()]
                                             : static_cast<int32_t>(rng() % tokenizer->vocab_size());
    }
    ExpectStreamEqualsDecode(tokenizer, ids, round % 2 == 0, &rng);
    if (HasFatalFailure()) return;
  }
}

TEST_P(DetokenizerTest, RealText) {
  const auto tokenizer = LoadFamily(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  std::mt19937 rng(2);
  for (const std::string& text : GoldenTexts()) {
    const auto ids = tokenizer->Encode(text, {.add_special_tokens = true, .parse_special = true});
    ASSERT_TRUE(ids.ok()) << ids.status();
    ExpectStreamEqualsDecode(tokenizer, *ids, rng() % 2 == 0, &rng);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DetokenizerTest, testing::ValuesIn(TokenizerFamilies()),
                         [](const auto& info) { return info.param; });

// The ids of single bytes in a byte-level vocabulary.
std::vector<int32_t> ByteIds(const Tokenizer& tokenizer, const std::string& bytes) {
  std::vector<int32_t> ids;
  for (const char b : bytes) {
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      if (tokenizer.TokenBytes(id) == absl::string_view(&b, 1)) {
        ids.push_back(id);
        break;
      }
    }
  }
  EXPECT_EQ(ids.size(), bytes.size());
  return ids;
}

TEST(DetokenizerByteLevelTest, HoldsBackAnIncompleteCharacter) {
  const auto tokenizer = LoadFamily("qwen");
  const std::vector<int32_t> ids = ByteIds(*tokenizer, "a\xF0\x9F\x98\x80!");
  IncrementalDetokenizer stream(tokenizer);
  EXPECT_EQ(stream.Append(ids[0]), "a");
  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(stream.Append(ids[i]), "");
    EXPECT_TRUE(stream.pending());
  }
  EXPECT_EQ(stream.Append(ids[4]), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.Append(ids[5]), "!");
  EXPECT_EQ(stream.Flush(), "");
}

TEST(DetokenizerByteLevelTest, ReplacesWhatCanBeNoCharacterOnlyOnceThatIsCertain) {
  const auto tokenizer = LoadFamily("qwen");
  IncrementalDetokenizer stream(tokenizer);
  const std::vector<int32_t> ids = ByteIds(*tokenizer, "\xE4\xBD\x61");
  EXPECT_EQ(stream.Append(ids[0]), "");
  EXPECT_EQ(stream.Append(ids[1]), "");
  EXPECT_EQ(stream.Append(ids[2]),
            "\xEF\xBF\xBD"
            "a");  // one for the maximal ill-formed part
  EXPECT_EQ(stream.Append(ids[0]), "");
  EXPECT_EQ(stream.Flush(), "\xEF\xBF\xBD");
}

TEST(DetokenizerByteLevelTest, ACopyGoesOnByItself) {
  const auto tokenizer = LoadFamily("qwen");
  const std::vector<int32_t> ids = ByteIds(*tokenizer, "\xC3\xA9\xA8");
  IncrementalDetokenizer a(tokenizer);
  EXPECT_EQ(a.Append(ids[0]), "");
  IncrementalDetokenizer b = a;
  EXPECT_EQ(a.Append(ids[1]), "\xC3\xA9");
  EXPECT_EQ(b.Append(ids[2]), "\xC3\xA8");
}

TEST(DetokenizerByteFallbackTest, OnlyBytesJoinAndEachIllFormedOneIsReplaced) {
  const auto tokenizer = LoadFamily("llama2");
  const auto byte = [&](const char* name) { return *tokenizer->TokenToId(name); };
  IncrementalDetokenizer stream(tokenizer);
  EXPECT_EQ(stream.Append(*tokenizer->TokenToId("\xE2\x96\x81the")), "the");  // the first space goes
  EXPECT_EQ(stream.Append(*tokenizer->TokenToId("\xE2\x96\x81the")), " the");
  EXPECT_EQ(stream.Append(byte("<0xE4>")), "");
  EXPECT_EQ(stream.Append(byte("<0xBD>")), "");
  EXPECT_EQ(stream.Append(*tokenizer->TokenToId("a")),
            "\xEF\xBF\xBD\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(stream.Append({byte("<0xE4>"), byte("<0xBD>"), byte("<0xA0>")}), "\xE4\xBD\xA0");
}

TEST(DetokenizerSpecialTest, SkipsSpecialTokensOnlyWhenAsked) {
  const auto tokenizer = LoadFamily("qwen");
  const int32_t end = *tokenizer->TokenToId("<|im_end|>");
  const int32_t think = *tokenizer->TokenToId("<think>");
  EXPECT_EQ(*tokenizer->Decode({think, end}, true), "<think>");
  EXPECT_EQ(*tokenizer->Decode({think, end}, false), "<think><|im_end|>");
  EXPECT_EQ(IncrementalDetokenizer(tokenizer, true).Append({-1, 1 << 30, end}), "");
}

}  // namespace
}  // namespace tessera
