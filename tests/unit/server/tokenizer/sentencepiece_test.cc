// SentencePiece files: what the vectors do not show. Hostile files, special tokens, the files beside the model.
#include <unistd.h>

#include <random>

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "server/tokenizer/charsmap.h"
#include "server/tokenizer/incremental_detokenizer.h"
#include "server/tokenizer/sentencepiece.pb.h"
#include "server/tokenizer/tokenizer.h"
#include "tests/unit/server/tokenizer/test_files.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Proto = sentencepiece::Model;

constexpr char kSpace[] = "\xE2\x96\x81";

Proto SmallModel() {
  Proto proto;
  const auto add = [&proto](const std::string& text, float score, Proto::Piece::Type type) {
    Proto::Piece* piece = proto.add_pieces();
    piece->set_piece(text);
    piece->set_score(score);
    piece->set_type(type);
  };
  add("<unk>", 0, Proto::Piece::UNKNOWN);
  add("<s>", 0, Proto::Piece::CONTROL);
  add("</s>", 0, Proto::Piece::CONTROL);
  add(kSpace, -1, Proto::Piece::NORMAL);
  add("a", -2, Proto::Piece::NORMAL);
  add("b", -3, Proto::Piece::NORMAL);
  add("ab", -4, Proto::Piece::NORMAL);
  add(absl::StrCat(kSpace, "ab"), -5, Proto::Piece::NORMAL);
  add("<s", -6, Proto::Piece::NORMAL);
  add("[X]", 0, Proto::Piece::USER_DEFINED);
  proto.mutable_trainer()->set_model_type(Proto::Trainer::BPE);
  return proto;
}

std::shared_ptr<const Tokenizer> Parsed(const Proto& proto, absl::string_view config = "") {
  const auto t = Tokenizer::ParseSentencePiece(proto.SerializeAsString(), config);
  EXPECT_TRUE(t.ok()) << t.status();
  return t.ok() ? *t : nullptr;
}

TEST(SentencePieceTest, ControlTokensInTextStayText) {
  for (const auto type : {Proto::Trainer::BPE, Proto::Trainer::UNIGRAM}) {
    Proto proto = SmallModel();
    proto.mutable_trainer()->set_model_type(type);
    const auto t = Parsed(proto);
    EXPECT_THAT(*t->Encode("ab</s>", {.parse_special = true}), ElementsAre(7, 2));
    EXPECT_THAT(*t->Encode("ab</s>"), testing::Not(testing::Contains(2)));
    EXPECT_THAT(*t->Encode("a[X]b"), ElementsAre(3, 4, 9, 5));
  }
}

TEST(SentencePieceTest, OneBosUnlessToldOtherwise) {
  const Proto proto = SmallModel();
  const auto t = Parsed(proto);
  EXPECT_THAT(*t->Encode("ab", {.add_special_tokens = true}), ElementsAre(1, 7));
  EXPECT_THAT(*t->Encode("<s>ab", {.add_special_tokens = true, .parse_special = true}), ElementsAre(1, 7));
  EXPECT_EQ(t->bos_id(), 1);
  EXPECT_THAT(t->eos_ids(), ElementsAre(2));
  const auto other = Parsed(proto, R"({"add_bos_token": false, "add_eos_token": true})");
  EXPECT_THAT(*other->Encode("ab", {.add_special_tokens = true}), ElementsAre(7, 2));
}

TEST(SentencePieceTest, TheSpaceBehindASpecialTokenIsTheFilesChoice) {
  const Proto proto = SmallModel();
  const EncodeOptions parse{.parse_special = true};
  EXPECT_THAT(*Parsed(proto)->Encode("ab<s>ab", parse), ElementsAre(7, 1, 7));
  EXPECT_THAT(*Parsed(proto, R"({"legacy": false})")->Encode("ab<s>ab", parse), ElementsAre(7, 1, 6));
}

TEST(SentencePieceTest, AddedTokensBesideTheModel) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / absl::StrCat("sp_", getpid());
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.model", std::ios::binary) << SmallModel().SerializeAsString();
  std::ofstream(folder / "added_tokens.json") << R"({"<|end|>": 10, "<|x|>": 12})";
  std::ofstream(folder / "tokenizer_config.json")
      << R"({"eos_token": {"content": "<|end|>"}, "added_tokens_decoder": {"10": {"content": "<|end|>", "special": true},
             "1": {"content": "<s>", "special": true, "rstrip": true}}})";
  const auto t = Tokenizer::Load(folder.string());
  ASSERT_TRUE(t.ok()) << t.status();
  EXPECT_EQ((*t)->eos_id(), 10);
  EXPECT_EQ((*t)->vocab_size(), 13);
  EXPECT_TRUE((*t)->IsSpecial(10));
  EXPECT_FALSE((*t)->IsSpecial(12));
  EXPECT_THAT(*(*t)->Encode("<s>  ab<|end|><|x|>", {.parse_special = true}), ElementsAre(1, 7, 10, 12));
  std::ofstream(folder / "added_tokens.json") << R"({"<|end|>": 4})";
  EXPECT_THAT(Tokenizer::Load(folder.string()).status().message(),
              HasSubstr("the id 4 of \"<|end|>\" is that of \"a\""));
  std::filesystem::remove_all(folder);
}

TEST(SentencePieceTest, TheUnknownTokenReadsAsItsSurface) {
  const auto t = Parsed(SmallModel());
  EXPECT_THAT(*t->Encode("axyb"), ElementsAre(3, 4, 0, 5));
  EXPECT_EQ(*t->Decode({3, 4, 0, 5}), "a \xE2\x81\x87 b");
}

struct BadModel {
  const char* name;
  void (*edit)(Proto*);
  absl::StatusCode code;
  const char* message;
};

class BadModelTest : public testing::TestWithParam<BadModel> {};

TEST_P(BadModelTest, IsRefusedWithTheCause) {
  Proto proto = SmallModel();
  GetParam().edit(&proto);
  const auto t = Tokenizer::ParseSentencePiece(proto.SerializeAsString());
  EXPECT_EQ(t.status().code(), GetParam().code) << t.status();
  EXPECT_THAT(t.status().message(), HasSubstr(absl::StrCat("tokenizer.model: ", GetParam().message)));
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
const BadModel kBadModels[] = {
    {"Empty", [](Proto* p) { p->Clear(); }, kInvalid, "not a SentencePiece model"},
    {"EmptyPiece", [](Proto* p) { p->mutable_pieces(5)->set_piece(""); }, kInvalid, "piece 5: it is empty"},
    {"Utf8", [](Proto* p) { p->mutable_pieces(5)->set_piece("\xFF"); }, kInvalid, "piece 5: not valid UTF-8"},
    {"Twice", [](Proto* p) { p->mutable_pieces(5)->set_piece("a"); }, kInvalid,
     "piece 5: \"a\" is piece 4 too"},
    {"Score", [](Proto* p) { p->mutable_pieces(5)->set_score(NAN); }, kInvalid, "piece 5: its score"},
    {"NoUnknown", [](Proto* p) { p->mutable_pieces(0)->set_type(Proto::Piece::NORMAL); }, kInvalid,
     "no piece is of"},
    {"TwoUnknown", [](Proto* p) { p->mutable_pieces(4)->set_type(Proto::Piece::UNKNOWN); }, kInvalid,
     "piece 4: piece 0"},
    {"NoBytes", [](Proto* p) { p->mutable_trainer()->set_byte_fallback(true); }, kInvalid,
     "byte_fallback is set"},
    {"Words", [](Proto* p) { p->mutable_trainer()->set_model_type(Proto::Trainer::WORD); }, kUnimplemented,
     "the model type WORD"},
    {"Denormalizer", [](Proto* p) { p->mutable_denormalizer()->set_precompiled_charsmap("x"); },
     kUnimplemented, "a denormalizer"},
    {"LongPiece", [](Proto* p) { p->mutable_pieces(5)->set_piece(std::string(5000, 'x')); }, kInvalid,
     "piece 5: found 5000 bytes"},
    {"Charsmap", [](Proto* p) { p->mutable_normalizer()->set_precompiled_charsmap("abc"); }, kInvalid,
     "the charsmap is shorter"},
    {"CharsmapSize",
     [](Proto* p) { p->mutable_normalizer()->set_precompiled_charsmap("\xFF\xFF\xFF\x7Fxx"); }, kInvalid,
     "the charsmap's trie has"},
};

INSTANTIATE_TEST_SUITE_P(Models, BadModelTest, testing::ValuesIn(kBadModels),
                         [](const auto& info) { return info.param.name; });

TEST(SentencePieceTest, ATiktokenFileIsCalledByItsName) {
  const auto t = Tokenizer::ParseSentencePiece("IQ== 0\nIg== 1\n");
  EXPECT_EQ(t.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(t.status().message(), HasSubstr("tiktoken"));
}

// Any bytes as the charsmap's array, whose offsets then lead anywhere.
TEST(CharsmapTest, RandomTriesStayWithinTheirArray) {
  std::mt19937 rng(4);
  for (int round = 0; round < 2000; ++round) {
    const uint32_t units = rng() % 300;
    std::string blob;
    const auto number = [&blob](uint32_t n) {
      for (int i = 0; i < 4; ++i) blob += static_cast<char>(n >> (8 * i));
    };
    number(units * 4);
    for (uint32_t i = 0; i < units; ++i) number(rng() & (rng() % 2 == 0 ? 0xFFFFFFFFu : 0x3FFFFu));
    blob += "one";
    blob += '\0';
    blob += "two";
    const auto map = Charsmap::Parse(blob);
    ASSERT_TRUE(map.ok()) << map.status();
    for (int k = 0; k < 20; ++k) {
      std::string text;
      for (int n = 0; n < 8; ++n) text += static_cast<char>(rng() % 128);
      if (const auto match = map->Longest(text)) {
        EXPECT_LE(match->length, text.size());
        EXPECT_LE(match->replacement.size(), 3u);
      }
    }
  }
}

TEST(SentencePieceTest, MutatedFilesNeverCrash) {
  std::mt19937 rng(6);
  const std::vector<std::string> texts = GoldenTexts();
  int loaded = 0;
  for (const std::string& family : FamiliesIn("tokenizer.model")) {
    const std::string original = ReadFile(GoldenPath("tokenizer/" + family + "/tokenizer.model"));
    for (int round = 0; round < 300; ++round) {
      std::string mutated = original;
      for (uint32_t n = rng() % 4 + 1; n > 0; --n) {
        // Half of them in the charsmap and the settings, which stand last.
        const size_t at =
            rng() % 2 == 0 ? rng() % mutated.size() : mutated.size() - 1 - rng() % (mutated.size() / 4);
        if (rng() % 4 == 0) {
          mutated.erase(at, rng() % 5);
        } else {
          mutated[at] = static_cast<char>(rng());
        }
      }
      const auto t = Tokenizer::ParseSentencePiece(mutated);
      if (!t.ok()) {
        EXPECT_FALSE(t.status().message().empty());
        continue;
      }
      ++loaded;
      for (int k = 0; k < 5; ++k) {
        const auto ids =
            (*t)->Encode(texts[rng() % texts.size()], {.add_special_tokens = true, .parse_special = true});
        if (ids.ok()) {
          EXPECT_TRUE((*t)->Decode(*ids).ok());
        }
      }
    }
  }
  EXPECT_GT(loaded, 100);
}

}  // namespace
}  // namespace tessera
