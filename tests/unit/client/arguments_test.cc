#include "client/cli/arguments.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Targets {
  bool flag = false;
  std::string text;
  std::vector<std::string> texts;
  std::optional<int64_t> number;
  std::optional<uint64_t> seed;
  std::optional<double> real;
  std::optional<absl::Duration> time;
};

Arguments Make(Targets& targets) {
  Arguments arguments("tessera test [OPTION...]", "About it.");
  arguments.Group("Options");
  arguments.AddFlag("flag", "A flag.", &targets.flag);
  arguments.AddString("text", "TEXT", "A text.", &targets.text);
  arguments.AddStrings("stop", "TEXT", "Texts.", &targets.texts);
  arguments.AddInt("max-tokens", "N", "A number.", 1, 10, &targets.number);
  arguments.AddUint64("seed", "N", "A seed.", &targets.seed);
  arguments.AddDouble("temperature", "X", "A real.", &targets.real);
  arguments.AddDuration("timeout", "TIME", "A time.", &targets.time);
  return arguments;
}

std::string ErrorOf(const std::vector<std::string>& words) {
  Targets targets;
  const auto rest = Make(targets).Parse(words);
  return rest.ok() ? "" : std::string(rest.status().message());
}

TEST(Arguments, OptionsStandAnywhere) {
  Targets targets;
  Arguments arguments = Make(targets);
  const auto rest = arguments.Parse({"one", "--flag", "two", "--text", "--odd", "--max-tokens=7", "--stop",
                                     "a", "-", "--stop=b", "--seed", "18446744073709551615", "--temperature",
                                     "0.5", "--timeout", "200ms", "--", "--three"});
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_THAT(*rest, ElementsAre("one", "two", "-", "--three"));
  EXPECT_TRUE(targets.flag);
  EXPECT_EQ(targets.text, "--odd") << "a value may look like an option";
  EXPECT_THAT(targets.texts, ElementsAre("a", "b"));
  EXPECT_EQ(targets.number, 7);
  EXPECT_EQ(targets.seed, UINT64_MAX);
  EXPECT_EQ(targets.real, 0.5);
  EXPECT_EQ(targets.time, absl::Milliseconds(200));
}

TEST(Arguments, DurationsTakeSecondsOrUnits) {
  for (const auto& [text, expected] : std::vector<std::pair<std::string, absl::Duration>>{
           {"30", absl::Seconds(30)}, {"0.5", absl::Milliseconds(500)}, {"1m30s", absl::Seconds(90)}}) {
    Targets targets;
    ASSERT_TRUE(Make(targets).Parse({"--timeout", text}).ok()) << text;
    EXPECT_EQ(targets.time, expected);
  }
  for (const char* bad : {"0", "-1", "soon", "", "nan", "inf"}) {
    EXPECT_THAT(ErrorOf({"--timeout", bad}), HasSubstr("--timeout: got")) << bad;
  }
}

TEST(Arguments, ErrorsNameTheOptionAndTheCure) {
  EXPECT_THAT(ErrorOf({"--max-token", "5"}), HasSubstr("did you mean '--max-tokens'?"));
  EXPECT_THAT(ErrorOf({"--temprature=1"}),
              HasSubstr("unknown option '--temprature'; did you mean '--temperature'?"));
  EXPECT_EQ(ErrorOf({"--zzzzzz"}), "unknown option '--zzzzzz'");
  EXPECT_THAT(ErrorOf({"-x"}), HasSubstr("unknown option '-x'"));
  EXPECT_THAT(ErrorOf({"--max-tokens"}), HasSubstr("needs a value: --max-tokens N"));
  EXPECT_THAT(ErrorOf({"--max-tokens", "11"}), HasSubstr("got '11'; expected a whole number from 1 to 10"));
  EXPECT_THAT(ErrorOf({"--max-tokens", "5x"}), HasSubstr("got '5x'"));
  EXPECT_THAT(ErrorOf({"--max-tokens", "99999999999999999999"}), HasSubstr("expected a whole number"));
  EXPECT_THAT(ErrorOf({"--seed", "-1"}), HasSubstr("--seed: got '-1'"));
  EXPECT_THAT(ErrorOf({"--temperature", "nan"}), HasSubstr("expected a number"));
  EXPECT_THAT(ErrorOf({"--flag=yes"}), HasSubstr("takes no value"));
  EXPECT_THAT(ErrorOf({"--text", "a", "--text", "b"}), HasSubstr("given twice"));
}

TEST(Arguments, HelpNamesEverything) {
  Targets targets;
  Arguments arguments = Make(targets);
  arguments.Epilogue("The end.");
  ASSERT_TRUE(arguments.Parse({"--help", "--nonsense"}).ok());
  EXPECT_TRUE(arguments.help_wanted());
  const std::string help = arguments.Help();
  for (const char* text : {"Usage: tessera test [OPTION...]", "About it.", "Options:", "--flag",
                           "--max-tokens N", "--timeout TIME", "A time.", "The end."}) {
    EXPECT_THAT(help, HasSubstr(text));
  }
}

TEST(Arguments, LeadingOptionsStopAtTheCommand) {
  Targets targets;
  Arguments arguments = Make(targets);
  EXPECT_EQ(*arguments.ParseLeading({"--text", "x", "command", "--unknown"}), 2);
  EXPECT_EQ(targets.text, "x");
}

TEST(ClosestWord, FindsTyposAndBeginnings) {
  const std::vector<std::string> known = {"generate", "embed", "tokenize", "detokenize", "info"};
  EXPECT_EQ(ClosestWord("generat", known), "generate");
  EXPECT_EQ(ClosestWord("gen", known), "generate");
  EXPECT_EQ(ClosestWord("emebd", known), "embed");
  EXPECT_EQ(ClosestWord("tokenise", known), "tokenize");
  EXPECT_EQ(ClosestWord("serve", known), "");
}

}  // namespace
}  // namespace tessera::cli
