#include "server/app/flag_set.h"

#include <cstring>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

struct Values {
  bool on = false;
  std::string text = "default";
  int32_t number = 5;
  int64_t bytes = 0;
  absl::Duration time = absl::Seconds(1);
};

FlagSet Make(Values* values) {
  FlagSet flags("usage: program", "Does things.");
  flags.Group("First");
  flags.Switch("turn-on", &values->on, "turns it on");
  flags.String("some-text", &values->text, "TEXT", "any text");
  flags.Group("Second");
  flags.Int("number", &values->number, 1, 10, "a number");
  flags.Bytes("bytes", &values->bytes, 1, "some bytes");
  flags.Duration("time", &values->time, "a time");
  return flags;
}

absl::Status Parse(Values* values, std::vector<std::string> arguments,
                   std::map<std::string, std::string> env = {}) {
  return Make(values).Parse(arguments, [&env](const char* name) {
    const auto found = env.find(name);
    return found == env.end() ? nullptr : found->second.c_str();
  });
}

TEST(FlagSet, TakesBothSpellings) {
  Values values;
  ASSERT_TRUE(Parse(&values, {"--turn-on", "--some-text", "a b", "--number=7", "--time", "250ms"}).ok());
  EXPECT_TRUE(values.on);
  EXPECT_EQ(values.text, "a b");
  EXPECT_EQ(values.number, 7);
  EXPECT_EQ(values.time, absl::Milliseconds(250));
  ASSERT_TRUE(Parse(&values, {"--turn_on=false", "--some_text=", "--time=1.5"}).ok());
  EXPECT_FALSE(values.on);
  EXPECT_EQ(values.text, "");
  EXPECT_EQ(values.time, absl::Seconds(1.5));
}

TEST(FlagSet, BytesHaveUnits) {
  const std::pair<const char*, int64_t> good[] = {
      {"1", 1}, {"1K", 1024}, {"2m", 2 << 20}, {"3GiB", 3L << 30}, {"1T", 1L << 40}, {"512MiB", 512 << 20}};
  for (const auto& [text, bytes] : good) {
    Values values;
    EXPECT_TRUE(Parse(&values, {"--bytes", text}).ok()) << text;
    EXPECT_EQ(values.bytes, bytes) << text;
  }
  for (const char* bad : {"", "0", "-1", "G", "1X", "1KB2", "1.5G", "99999999999T", "1 K"}) {
    Values values;
    EXPECT_FALSE(Parse(&values, {"--bytes", bad}).ok()) << bad;
  }
}

TEST(FlagSet, AllMistakesAtOnce) {
  Values values;
  const absl::Status status =
      Parse(&values, {"--numbr=3", "stray", "--number=11", "--time=-1s", "--turn-on=maybe", "--some-text"});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("--numbr: unknown flag; did you mean --number?\n"));
  EXPECT_THAT(status.message(), HasSubstr("\"stray\": found an argument"));
  EXPECT_THAT(status.message(), HasSubstr("--number: found \"11\", expected a whole number from 1 to 10\n"));
  EXPECT_THAT(status.message(), HasSubstr("--time: found \"-1s\""));
  EXPECT_THAT(status.message(), HasSubstr("--turn-on: found \"maybe\", expected true or false"));
  EXPECT_THAT(status.message(), HasSubstr("--some-text: needs a value (TEXT)"));
}

TEST(FlagSet, EnvironmentIsOverriddenByTheCommandLine) {
  Values values;
  ASSERT_TRUE(Parse(&values, {"--number=2"},
                    {{"TESSERA_NUMBER", "bad but not looked at"},
                     {"TESSERA_SOME_TEXT", "env"},
                     {"TESSERA_TURN_ON", "1"}})
                  .ok());
  EXPECT_EQ(values.number, 2);
  EXPECT_EQ(values.text, "env");
  EXPECT_TRUE(values.on);
  EXPECT_THAT(Parse(&values, {}, {{"TESSERA_NUMBER", "x"}}).message(),
              HasSubstr("TESSERA_NUMBER: found \"x\""));
}

TEST(FlagSet, HelpNamesEveryFlagInItsGroupWithDefaults) {
  Values values;
  const std::string help = Make(&values).Help();
  EXPECT_THAT(help, HasSubstr("usage: program"));
  EXPECT_LT(help.find("First:"), help.find("--turn-on"));
  EXPECT_LT(help.find("--some-text TEXT"), help.find("Second:"));
  EXPECT_THAT(help, HasSubstr("a number (default 5)"));
  EXPECT_THAT(help, HasSubstr("a time (default 1s)"));
  size_t start = 0;
  for (size_t end; (end = help.find('\n', start)) != std::string::npos; start = end + 1)
    EXPECT_LE(end - start, 110u);
}

}  // namespace
}  // namespace tessera
