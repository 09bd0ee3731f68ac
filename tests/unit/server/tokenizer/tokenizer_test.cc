// The promises of tokenizer.h beyond equality with the library: trust, BOS, errors, hostile input, threads.
#include "server/tokenizer/tokenizer.h"

#include <unistd.h>

#include <ctime>
#include <random>
#include <thread>

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/unit/server/tokenizer/test_files.h"

namespace tessera {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::shared_ptr<const Tokenizer> LoadFamily(const std::string& family) {
  auto loaded = Tokenizer::Load(GoldenPath("tokenizer/" + family));
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? *loaded : nullptr;
}

json FamilyJson(const std::string& family) {
  return json::parse(ReadFile(GoldenPath("tokenizer/" + family + "/tokenizer.json")));
}

TEST(TokenizerTest, SpecialTokensInTextStayTextUnlessParsed) {
  const auto t = LoadFamily("qwen");
  const int32_t end = *t->TokenToId("<|im_end|>");
  EXPECT_THAT(*t->Encode("a<|im_end|>"), testing::Not(testing::Contains(end)));
  EXPECT_THAT(*t->Encode("a<|im_end|>", {.parse_special = true}), testing::Contains(end));
  EXPECT_EQ(*t->Decode(*t->Encode("a<|im_end|>")), "a<|im_end|>");
}

TEST(TokenizerTest, TrustedRangesDecideByWholeTokens) {
  const auto t = LoadFamily("qwen");
  const std::string text = "<|im_start|>user\n<|im_end|> hi<|im_end|>\n";
  const size_t first = text.find("<|im_end|>"), second = text.rfind("<|im_end|>");
  const std::vector<int32_t> parsed = *t->Encode(text, {.parse_special = true});
  const ByteRange all{0, text.size()};
  EXPECT_EQ(*t->EncodeTrusted(text, {&all, 1}), parsed);
  EXPECT_EQ(*t->EncodeTrusted(text, {}), *t->Encode(text));

  const int32_t end = *t->TokenToId("<|im_end|>");
  const auto count = [&](std::vector<ByteRange> trusted) {
    const std::vector<int32_t> ids = *t->EncodeTrusted(text, trusted);
    EXPECT_EQ(*t->Decode(ids, false), text);
    return std::count(ids.begin(), ids.end(), end);
  };
  EXPECT_EQ(count({{0, first}, {first + 10, text.size()}}), 1);
  // One byte from elsewhere is enough to make it text.
  EXPECT_EQ(count({{0, second + 9}}), 1);
  EXPECT_EQ(count({{0, second + 10}}), 2);
  // Neighbouring ranges are one.
  EXPECT_EQ(count({{0, second + 4}, {second + 4, text.size()}}), 2);

  EXPECT_EQ(t->EncodeTrusted(text, std::vector<ByteRange>{{5, 9}, {8, 12}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(t->EncodeTrusted(text, std::vector<ByteRange>{{0, text.size() + 1}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(TokenizerTest, TextAroundUntrustedPartsMergesAsIfItWereOnePiece) {
  const auto t = LoadFamily("qwen");
  const std::string text = "the name of the string";
  EXPECT_EQ(*t->EncodeTrusted(text, std::vector<ByteRange>{{0, 6}, {10, 13}}), *t->Encode(text));
}

TEST(TokenizerTest, NoSecondBos) {
  const auto t = LoadFamily("llama3");
  const int32_t bos = *t->TokenToId("<|begin_of_text|>");
  EXPECT_EQ((*t->Encode("a", {.add_special_tokens = true})).front(), bos);
  const std::string text = "<|begin_of_text|>a";
  std::vector<int32_t> ids = *t->Encode(text, {.add_special_tokens = true, .parse_special = true});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), bos), 1);
  EXPECT_EQ(ids, *t->Encode("a", {.add_special_tokens = true}));
  // Spelled out by a user it is text, and the real one is still added.
  ids = *t->Encode(text, {.add_special_tokens = true});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), bos), 1);
  EXPECT_EQ(*t->Decode(ids), text);
}

TEST(TokenizerTest, InvalidUtf8NamesTheByte) {
  const auto t = LoadFamily("qwen");
  const auto bad = t->Encode("abc\xFF");
  EXPECT_EQ(bad.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(bad.status().message(), HasSubstr("byte 3"));
  EXPECT_FALSE(t->Encode("\xED\xA0\x80").ok());  // a surrogate
  EXPECT_FALSE(t->Encode("\xE4\xBD").ok());
}

TEST(TokenizerTest, IdsOutsideTheVocabularyAreErrors) {
  const auto t = LoadFamily("qwen");
  for (const int32_t id : {-1, t->vocab_size(), 1 << 30}) {
    EXPECT_FALSE(t->IsValidId(id));
    EXPECT_TRUE(t->TokenBytes(id).empty());
    const auto text = t->Decode({0, id});
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(text.status().message(), HasSubstr(absl::StrCat("id ", id, " at position 1")));
  }
}

TEST(TokenizerTest, TokensAsBytes) {
  const auto t = LoadFamily("gpt2");
  const auto space_the = t->TokenToId("\xC4\xA0the");
  ASSERT_TRUE(space_the.has_value());
  EXPECT_EQ(t->TokenBytes(*space_the), " the");
  EXPECT_EQ(t->TokenString(*space_the), "\xC4\xA0the");
  const auto llama = LoadFamily("llama2");
  EXPECT_EQ(llama->TokenBytes(*llama->TokenToId("<0x0A>")), "\n");
  EXPECT_FALSE(t->TokenToId("no such token").has_value());
}

TEST(TokenizerTest, NamedTokensAndEosIds) {
  const std::string tokenizer = ReadFile(GoldenPath("tokenizer/qwen/tokenizer.json"));
  const auto plain = LoadFamily("qwen");
  const int32_t text_end = *plain->TokenToId("<|endoftext|>"), turn_end = *plain->TokenToId("<|im_end|>");
  const auto t = Tokenizer::Parse(
      tokenizer,
      R"({"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>", "bos_token": null, "add_bos_token": false})",
      absl::StrCat("{\"eos_token_id\": [", turn_end, ", ", text_end, "]}"));
  ASSERT_TRUE(t.ok()) << t.status();
  EXPECT_EQ((*t)->eos_id(), turn_end);
  EXPECT_EQ((*t)->pad_id(), text_end);
  EXPECT_EQ((*t)->bos_id(), std::nullopt);
  EXPECT_THAT((*t)->eos_ids(), testing::UnorderedElementsAre(turn_end, text_end));
  EXPECT_THAT((*t)->named_tokens(),
              testing::UnorderedElementsAre(testing::Pair("eos_token", "<|im_end|>"),
                                            testing::Pair("pad_token", "<|endoftext|>")));
}

struct BadFile {
  const char* name;
  void (*edit)(json*);
  absl::StatusCode code;
  const char* message;
};

class BadTokenizerTest : public testing::TestWithParam<BadFile> {};

TEST_P(BadTokenizerTest, IsRefusedWithThePlaceAndTheCause) {
  json file = FamilyJson("llama3");
  GetParam().edit(&file);
  const auto t = Tokenizer::Parse(file.dump());
  ASSERT_FALSE(t.ok());
  EXPECT_EQ(t.status().code(), GetParam().code) << t.status();
  EXPECT_THAT(t.status().message(), HasSubstr(GetParam().message));
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
const BadFile kBadFiles[] = {
    {"NormalizerKind",
     [](json* j) {
       (*j)["normalizer"] = {{"type", "Nmt"}};
     },
     kUnimplemented, "tokenizer.json: normalizer: the normalizer \"Nmt\" is not supported"},
    {"PreTokenizerKind",
     [](json* j) {
       (*j)["pre_tokenizer"]["pretokenizers"][0] = {{"type", "Foo"}};
     },
     kUnimplemented, "pre_tokenizer.pretokenizers[0]: the pre-tokenizer \"Foo\""},
    {"BehindByteLevel",
     [](json* j) {
       (*j)["pre_tokenizer"]["pretokenizers"].push_back({{"type", "Digits"}, {"individual_digits", true}});
     },
     kUnimplemented, "pretokenizers[2]: a pre-tokenizer behind ByteLevel"},
    {"Regex",
     [](json* j) {
       (*j)["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", "(a"}};
     },
     kInvalid, "pattern.Regex: the regular expression is malformed at offset 2"},
    {"RegexDialect",
     [](json* j) {
       (*j)["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", "[a&&b]"}};
     },
     kUnimplemented, "a class within a class"},
    {"Behavior", [](json* j) { (*j)["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Other"; },
     kUnimplemented, "behavior: the behavior \"Other\""},
    {"ModelType", [](json* j) { (*j)["model"]["type"] = "WordPiece"; }, kUnimplemented,
     "model.type: the model \"WordPiece\""},
    {"Dropout", [](json* j) { (*j)["model"]["dropout"] = 0.1; }, kUnimplemented, "model.dropout"},
    {"Merge", [](json* j) { (*j)["model"]["merges"][3] = "a b c"; }, kInvalid,
     "model.merges[3]: expected two tokens"},
    {"MergeUnknown",
     [](json* j) {
       (*j)["model"]["merges"][3] = {"qqq", "b"};
     },
     kInvalid, "model.merges[3]: the token \"qqq\" is not in the vocabulary"},
    {"NegativeId", [](json* j) { (*j)["model"]["vocab"]["!"] = -1; }, kInvalid,
     "model.vocab[\"!\"]: expected an integer"},
    {"HugeId", [](json* j) { (*j)["model"]["vocab"]["!"] = 4000000000u; }, kInvalid, "found 4000000000"},
    {"FractionalId", [](json* j) { (*j)["model"]["vocab"]["!"] = 1.5; }, kInvalid, "model.vocab[\"!\"]"},
    {"SameId", [](json* j) { (*j)["model"]["vocab"]["!"] = 5; }, kInvalid, "have the same id 5"},
    {"AddedId", [](json* j) { (*j)["added_tokens"][0]["id"] = 5; }, kInvalid, "added_tokens: the id 5"},
    {"AddedEmpty", [](json* j) { (*j)["added_tokens"][0]["content"] = ""; }, kInvalid,
     "added_tokens[0].content"},
    {"Decoder",
     [](json* j) {
       (*j)["decoder"] = {{"type", "CTC"}};
     },
     kUnimplemented, "decoder: the decoder \"CTC\""},
    {"PostProcessor",
     [](json* j) { (*j)["post_processor"]["processors"][1]["special_tokens"] = json::object(); }, kInvalid,
     "post_processor.processors[1].special_tokens.<|begin_of_text|>.ids: expected an array, found nothing"},
    {"VocabularyMissing", [](json* j) { (*j)["model"].erase("vocab"); }, kInvalid,
     "model.vocab: expected an object, found nothing"},
    {"ModelMissing", [](json* j) { j->erase("model"); }, kInvalid, "model: expected an object"},
    {"UnkMissing", [](json* j) { (*j)["model"]["unk_token"] = "<none>"; }, kInvalid,
     "model.unk_token: \"<none>\""},
};

INSTANTIATE_TEST_SUITE_P(Files, BadTokenizerTest, testing::ValuesIn(kBadFiles),
                         [](const auto& info) { return info.param.name; });

std::string Repeated(absl::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out.append(text.data(), text.size());
  return out;
}

// Far deeper than a stack is: neither the components nor anything else may recurse along with the file.
TEST(TokenizerLoadTest, DeepNestingIsRefused) {
  constexpr int kDepth = 200'000;
  json file = FamilyJson("llama3");
  file["normalizer"] = "@here@";
  std::string text = file.dump();
  const std::string deep = Repeated(R"({"type":"Sequence","normalizers":[)", kDepth) + Repeated("]}", kDepth);
  text.replace(text.find("\"@here@\""), 8, deep);
  const auto t = Tokenizer::Parse(text);
  EXPECT_EQ(t.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(t.status().message(), HasSubstr("nested too deeply"));

  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / absl::StrCat("tokenizer_deep_", getpid());
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(GoldenPath("tokenizer/llama3/tokenizer.json"), folder / "tokenizer.json");
  std::ofstream(folder / "tokenizer_config.json")
      << "{\"bos_token\": " << std::string(kDepth, '[') << std::string(kDepth, ']') << "}";
  const auto with_config = Tokenizer::Load(folder.string());
  EXPECT_THAT(with_config.status().message(),
              HasSubstr("tokenizer_config.json: bos_token: expected a string, found array"));
  std::filesystem::remove_all(folder);
}

TEST(TokenizerLoadTest, MissingFolderAndMissingFile) {
  EXPECT_EQ(Tokenizer::Load("/nonexistent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Tokenizer::Parse("{\"model\": ").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Tokenizer::Parse("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Tokenizer::Parse("[]").status().message(), "tokenizer.json: expected an object, found array");
}

// Anything may be wrong with a file, but it may not bring the process down: the outcome is a tokenizer that
// works or an error.
TEST(TokenizerLoadTest, MutatedFilesNeverCrash) {
  std::mt19937 rng(3);
  for (const std::string& family : FamiliesIn("tokenizer.json")) {
    json original = FamilyJson(family);
    // A smaller vocabulary, so that mutations hit the other parts as well.
    json& entries = original["model"][original["model"]["type"] == "Unigram" ? "vocab" : "merges"];
    entries.erase(entries.begin() + 300, entries.end());
    const std::string text = original.dump();
    int loaded = 0;
    for (int round = 0; round < 150; ++round) {
      std::string mutated = text;
      // Mostly outside the vocabulary, which stands last.
      const size_t limit = rng() % 4 == 0 ? mutated.size() : std::min<size_t>(mutated.size(), 6000);
      for (uint32_t n = rng() % 3 + 1; n > 0; --n) {
        const size_t at = rng() % limit;
        switch (rng() % 4) {
          case 0:
            mutated[at] = static_cast<char>(rng());
            break;
          case 1:
            mutated.erase(at, rng() % 20);
            break;
          case 2:
            mutated.insert(at, mutated.substr(rng() % limit, rng() % 30));
            break;
          case 3:
            mutated[at] = "0123456789{}[]\",:-"[rng() % 18];
            break;
        }
      }
      const auto t = Tokenizer::Parse(mutated);
      if (!t.ok()) {
        EXPECT_FALSE(t.status().message().empty());
        continue;
      }
      ++loaded;
      const auto ids = (*t)->Encode(" Hello <|im_end|> 123 \xE4\xBD\xA0!",
                                    {.add_special_tokens = true, .parse_special = true});
      if (ids.ok()) {
        EXPECT_TRUE((*t)->Decode(*ids).ok());
      }
    }
    EXPECT_GT(loaded, 0) << family;
  }
}

// Of this thread's processor time, the least of three times.
double SecondsToEncode(const Tokenizer& tokenizer, const std::string& text, size_t max_tokens) {
  const auto now = [] {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  };
  double least = 1e9;
  for (int i = 0; i < 3; ++i) {
    const double start = now();
    const auto ids = tokenizer.Encode(text, {.max_tokens = max_tokens});
    least = std::min(least, now() - start);
    EXPECT_EQ(ids.ok(), max_tokens == kAnyNumberOfTokens) << ids.status();
  }
  return least;
}

// Eight times the text may take about eight times as long; what is quadratic takes sixty-four times.
TEST(TokenizerHostileTest, TimeGrowsWithTheLengthOfARun) {
  for (const std::string& family : TokenizerFamilies()) {
    const auto t = LoadFamily(family);
    for (const char* unit : {"a", " ", "\n", "A", "1", ".", "\xE4\xB8\xAD", "\xCC\x81", "a\xCC\x81", " a",
                             "'", "<|im_start|", "\t ", "\r\n ", "\xE2\x96\x81", "e1"}) {
      const std::string text = Repeated(unit, 1 << 15) + "x";
      const double small = SecondsToEncode(*t, Repeated(unit, 1 << 12) + "x", kAnyNumberOfTokens);
      EXPECT_LT(SecondsToEncode(*t, text, kAnyNumberOfTokens), 24 * small + 0.01) << family << " " << unit;
    }
  }
}

TEST(TokenizerLimitTest, OneTokenTooManyIsAnError) {
  const std::vector<std::string> texts = GoldenTexts();
  for (const std::string& family : TokenizerFamilies()) {
    const auto t = LoadFamily(family);
    for (size_t i = 0; i < texts.size(); i += 5) {
      EncodeOptions options{.add_special_tokens = i % 2 == 0, .parse_special = i % 3 == 0};
      const std::vector<int32_t> ids = *t->Encode(texts[i], options);
      options.max_tokens = ids.size();
      const auto same = t->Encode(texts[i], options);
      ASSERT_TRUE(same.ok()) << family << " " << texts[i] << " " << same.status();
      EXPECT_EQ(*same, ids);
      if (ids.empty()) continue;
      options.max_tokens = ids.size() - 1;
      EXPECT_EQ(t->Encode(texts[i], options).status().code(), absl::StatusCode::kOutOfRange);
    }
  }
}

TEST(TokenizerLimitTest, TruncationKeepsTheFirstIds) {
  const std::vector<std::string> texts = GoldenTexts();
  std::string all;
  for (size_t i = 0; i < texts.size() && all.size() < 40000; ++i) absl::StrAppend(&all, texts[i], " ");
  for (const std::string& family : TokenizerFamilies()) {
    const auto t = LoadFamily(family);
    const auto expect_head = [&](const std::string& text, const EncodeOptions& options, size_t size) {
      std::vector<int32_t> head = *t->Encode(text, options);
      if (head.size() > size) head.resize(size);
      EncodeOptions cut = options;
      cut.max_tokens = size;
      cut.truncate = true;
      const auto ids = t->Encode(text, cut);
      ASSERT_TRUE(ids.ok()) << family << " " << size << " " << ids.status();
      EXPECT_EQ(*ids, head) << family << " " << size;
    };
    for (const bool special : {false, true}) {
      const EncodeOptions options{.add_special_tokens = special, .parse_special = special};
      for (size_t i = 0; i < texts.size(); i += 7) {
        const size_t size = t->Encode(texts[i], options)->size();
        for (const size_t kept :
             {size_t{0}, size_t{1}, size / 2, size - std::min<size_t>(size, 1), size, size + 1}) {
          expect_head(texts[i], options, kept);
        }
      }
      for (const size_t kept : {1, 2, 100, 2500, 5000, 7000}) expect_head(all, options, kept);
      const std::vector<ByteRange> trusted = {{0, all.size() / 8}};
      std::vector<int32_t> head = *t->EncodeTrusted(all, trusted, special);
      head.resize(300);
      EXPECT_EQ(*t->EncodeTrusted(all, trusted, special, 300, /*truncate=*/true), head) << family;
    }
  }
}

TEST(TokenizerLimitTest, WhatIsCutOffIsNotEncoded) {
  const auto t = Tokenizer::Parse(
      R"({"model":{"type":"Unigram","unk_id":null,"vocab":[["a",-1.0],["aa",-1.5],[" ",-2.0]]}})");
  ASSERT_TRUE(t.ok()) << t.status();
  const std::string text = Repeated("aa ", 10000) + "b";  // for which there is no token
  EXPECT_EQ((*t)->Encode(text).status().code(), absl::StatusCode::kInvalidArgument);
  const auto head = (*t)->Encode(text, {.max_tokens = 5, .truncate = true});
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(*head, (std::vector<int32_t>{1, 2, 1, 2, 1}));
}

// What is left then is to look at each byte once or twice, a quarter of the work. The two take turns, so that a busy machine
// slows both.
TEST(TokenizerLimitTest, ALongTextIsGivenUpEarly) {
  for (const char* family : {"qwen", "o200k", "deepseek"}) {
    const auto t = LoadFamily(family);
    for (const char* unit : {"the name of ", "1. \n"}) {
      const std::string text = Repeated(unit, 1 << 17);
      double given_up = 1e9, whole = 1e9;
      for (int turn = 0; turn < 5; ++turn) {
        given_up = std::min(given_up, SecondsToEncode(*t, text, 1000));
        whole = std::min(whole, SecondsToEncode(*t, text, kAnyNumberOfTokens));
      }
      EXPECT_LT(given_up * 1.5, whole) << family << " " << unit;
    }
  }
}

TEST(TokenizerThreadTest, ConcurrentCallsAgree) {
  const auto t = LoadFamily("qwen");
  const std::vector<std::string> texts = GoldenTexts();
  std::vector<std::vector<int32_t>> expected;
  for (const std::string& text : texts) expected.push_back(*t->Encode(text));
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int k = 0; k < 4; ++k) {
    threads.emplace_back([&, k] {
      for (size_t i = 0; i < texts.size(); ++i) {
        const size_t at = (i * 7 + k * 401) % texts.size();
        if (*t->Encode(texts[at]) != expected[at]) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tessera
