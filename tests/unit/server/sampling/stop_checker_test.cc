#include "server/sampling/stop_checker.h"

#include <optional>
#include <random>

#include "gtest/gtest.h"

namespace tessera {
namespace {

std::shared_ptr<const StopRules> Rules(std::vector<std::string> stops, bool include_stop = false) {
  StoppingParams params;
  params.stop_strings = std::move(stops);
  params.include_stop = include_stop;
  return std::make_shared<StopRules>(params, std::vector<int32_t>{});
}

struct Cut {
  std::string text;
  std::optional<std::string> stop;
  bool operator==(const Cut&) const = default;
};

// The definition: byte by byte, the first position where a stop string ends, the longest one there.
Cut Reference(const std::string& text, const std::vector<std::string>& stops, bool include_stop) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string* longest = nullptr;
    for (const std::string& stop : stops) {
      const bool ends_here = stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0;
      if (ends_here && (longest == nullptr || stop.size() > longest->size())) longest = &stop;
    }
    if (longest != nullptr) return {text.substr(0, include_stop ? end : end - longest->size()), *longest};
  }
  return {text, std::nullopt};
}

Cut CutPieces(const std::shared_ptr<const StopRules>& rules, const std::vector<std::string>& pieces) {
  StopStringFilter filter(rules);
  Cut cut;
  for (const std::string& piece : pieces) {
    if (const std::string* stop = filter.Append(piece, true, &cut.text)) {
      cut.stop = *stop;
      return cut;
    }
  }
  filter.Flush(&cut.text);
  return cut;
}

TEST(StopStringFilterTest, CutsInsideAToken) {
  EXPECT_EQ(CutPieces(Rules({"DE"}), {"ABC", "DEF"}), (Cut{"ABC", "DE"}));
  EXPECT_EQ(CutPieces(Rules({"DE"}, true), {"ABC", "DEF"}), (Cut{"ABCDE", "DE"}));
}

TEST(StopStringFilterTest, HoldsBackWhatMayBecomeAStop) {
  StopStringFilter filter(Rules({"DEFG HI"}));
  std::string out;
  EXPECT_EQ(filter.Append("ABC DEF", true, &out), nullptr);
  EXPECT_EQ(out, "ABC ");
  EXPECT_EQ(filter.Append("G H", true, &out), nullptr);
  EXPECT_EQ(out, "ABC ");
  EXPECT_EQ(filter.Append("O", true, &out), nullptr);
  EXPECT_EQ(out, "ABC DEFG HO");
  EXPECT_EQ(filter.Append("DEFG HI!", true, &out) != nullptr, true);
  EXPECT_EQ(out, "ABC DEFG HO");
}

TEST(StopStringFilterTest, HoldsNoMoreThanNeeded) {
  StopStringFilter filter(Rules({"aab"}));
  std::string out;
  filter.Append("aaaa", true, &out);
  EXPECT_EQ(out, "aa");
  filter.Append("b", true, &out);
  EXPECT_EQ(out, "aa");
}

TEST(StopStringFilterTest, RandomTextsAgreeWithTheDefinitionForEveryCutIntoPieces) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 20000; ++trial) {
    const auto word = [&](int max, int letters) {
      std::string text(1 + random() % max, 'a');
      for (char& c : text) c = static_cast<char>('a' + random() % letters);
      return text;
    };
    std::vector<std::string> stops;
    for (int i = 1 + random() % 4; i > 0; --i) stops.push_back(word(6, 2));
    const bool include_stop = random() % 2;
    const std::string text = word(40, 2 + trial % 3);
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t length = random() % 7;
      pieces.push_back(text.substr(at, length));
      at += length;
    }
    ASSERT_EQ(CutPieces(Rules(stops, include_stop), pieces), Reference(text, stops, include_stop)) << text;
  }
}

TEST(StopStringFilterTest, LongPieces) {
  const std::string text(10000, 'x');
  EXPECT_EQ(CutPieces(Rules({"xy"}), {text, text}), (Cut{text + text, std::nullopt}));
  EXPECT_EQ(CutPieces(Rules({"xy"}), {text, text + "yz"}), (Cut{text + text.substr(1), "xy"}));
}

TEST(StopStringFilterTest, PiecesStayWholeCharacters) {
  StopStringFilter filter(Rules({"\u20ac\u20ad"}));  // both begin with the same bytes
  std::string out;
  filter.Append("a\u20ac", true, &out);
  EXPECT_EQ(out, "a");
  filter.Append("\u20ac", true, &out);
  EXPECT_EQ(out, "a\u20ac");
  filter.Flush(&out);
  EXPECT_EQ(out, "a\u20ac\u20ac");
}

TEST(StopStringFilterTest, UnarmedTextDoesNotStopButMayBeginAStop) {
  StopStringFilter filter(Rules({"ab"}));
  std::string out;
  EXPECT_EQ(filter.Append("ab a", false, &out), nullptr);
  EXPECT_EQ(out, "ab ");
  EXPECT_NE(filter.Append("b", true, &out), nullptr);
  EXPECT_EQ(out, "ab ");
}

TEST(StopRulesTest, Tokens) {
  StoppingParams params;
  params.stop_token_ids = {9, 3};
  StopRules rules(params, std::vector<int32_t>{7, 2});
  EXPECT_EQ(rules.CheckToken(7).kind, StoppedBy::kEos);
  EXPECT_EQ(rules.CheckToken(7).token_id, 7);
  EXPECT_EQ(rules.CheckToken(3).kind, StoppedBy::kStopToken);
  EXPECT_EQ(rules.CheckToken(4).kind, StoppedBy::kNone);
  EXPECT_EQ(rules.EndingTokens().size(), 4u);
  params.ignore_eos = true;
  StopRules ignoring(params, std::vector<int32_t>{7, 2});
  EXPECT_EQ(ignoring.CheckToken(7).kind, StoppedBy::kNone);
  EXPECT_EQ(ignoring.CheckToken(9).kind, StoppedBy::kStopToken);
  EXPECT_EQ(ignoring.EndingTokens(), (std::vector<int32_t>{3, 9}));
}

}  // namespace
}  // namespace tessera
