#include "client/cli/terminal.h"

#include "gtest/gtest.h"

namespace tessera::cli {
namespace {

TEST(FirstInvalidUtf8, AcceptsWhatUnicodeDefines) {
  for (const char* text :
       {"", "plain", "\u00e9\u20ac\U0001f600", "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf", "\xee\x80\x80"}) {
    EXPECT_EQ(FirstInvalidUtf8(text), absl::string_view::npos) << text;
  }
}

TEST(FirstInvalidUtf8, FindsEveryKindOfFault) {
  // Lone continuation, overlong, surrogate, above U+10FFFF, cut short, wrong continuation, never a lead byte.
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xe0\x80\x80", "\xf0\x80\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
        "\xe2\x82", "\xf0\x9f\x98", "\xc3(", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(FirstInvalidUtf8(std::string("ok ") + bad), 3) << Escaped(bad);
  }
}

TEST(Escaped, ShowsControlCharactersAndBytes) {
  EXPECT_EQ(Escaped("a\nb\t\"c\"\\"), "a\\nb\\t\\\"c\\\"\\\\");
  EXPECT_EQ(Escaped("\x1b[2J\x7f"), "\\x1b[2J\\x7f");
  EXPECT_EQ(Escaped("caf\u00e9 \U0001f600"), "caf\u00e9 \U0001f600");
  EXPECT_EQ(Escaped("\xe2\x82"), "\\xe2\\x82") << "half a character, as a token may be";
  EXPECT_EQ(Escaped("\xc2\x9b"), "\\xc2\\x9b") << "a C1 control drives terminals too";
}

TEST(Table, AlignsColumns) {
  EXPECT_EQ(Table({{"name", "n"}, {"\u00e9t\u00e9", "10"}, {"x", "2"}}, "lr"),
            "name   n\n\u00e9t\u00e9   10\nx      2\n");
  EXPECT_EQ(Table({{"a", ""}}, "ll"), "a\n") << "no trailing spaces";
}

}  // namespace
}  // namespace tessera::cli
