#include "server/tokenizer/jinja/lexer.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/status_macros.h"
#include "server/tokenizer/unicode.h"

namespace tessera::jinja {
namespace {

bool IsNameStart(char c) { return absl::ascii_isalpha(c) || c == '_' || static_cast<uint8_t>(c) >= 0x80; }
bool IsNamePart(char c) { return IsNameStart(c) || absl::ascii_isdigit(c); }

// "\r\n" and "\r" become "\n", and one newline at the very end goes.
std::string NormalizeNewlines(absl::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (absl::EndsWith(out, "\n")) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (pos_ < source_.size()) TESSERA_RETURN_IF_ERROR(Root());
    Add(Token::kEnd, "");
    return std::move(tokens_);
  }

 private:
  absl::Status Error(absl::string_view message) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", message));
  }

  void Add(Token::Kind kind, absl::string_view text) {
    Token t;
    t.kind = kind;
    t.text.assign(text.data(), text.size());
    t.line = line_;
    tokens_.push_back(std::move(t));
  }

  // Moves on and counts lines.
  void Advance(size_t n) {
    line_ += static_cast<int>(std::count(source_.begin() + pos_, source_.begin() + pos_ + n, '\n'));
    pos_ += n;
  }

  bool LooksAt(absl::string_view what) const {
    return absl::StartsWith(absl::string_view(source_).substr(pos_), what);
  }

  void SkipWhitespace() {
    while (pos_ < source_.size()) {
      size_t next = pos_;
      if (!unicode::IsWhitespace(unicode::DecodeAt(source_, &next)) &&
          (source_[pos_] < 0x1C || source_[pos_] > 0x1F)) {
        break;
      }
      Advance(next - pos_);
    }
  }

  // Text up to the next tag, and the tag's opening.
  absl::Status Root() {
    size_t open = pos_;
    while (true) {
      open = source_.find('{', open);
      if (open == std::string::npos || open + 1 >= source_.size()) {
        open = source_.size();
        break;
      }
      const char kind = source_[open + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
      ++open;
    }
    if (open == source_.size()) {
      Add(Token::kData, absl::string_view(source_).substr(pos_));
      Advance(source_.size() - pos_);
      return absl::OkStatus();
    }
    const char kind = source_[open + 1];
    const char sign = open + 2 < source_.size() ? source_[open + 2] : ' ';
    AddData(pos_, open, sign, /*is_variable=*/kind == '{');
    Advance(open - pos_);
    const bool signed_tag = sign == '-' || sign == '+';
    if (kind == '#') {
      Advance(2 + (signed_tag ? 1 : 0));
      return Comment();
    }
    if (kind == '%') {
      const size_t after = RawTagLength("raw");
      if (after != 0) {
        Advance(after);
        return Raw();
      }
    }
    Advance(2 + (signed_tag ? 1 : 0));
    Add(kind == '{' ? Token::kVariableBegin : Token::kBlockBegin, "");
    return Expression(kind == '{');
  }

  // Text before a tag that opens with this sign.
  void AddData(size_t begin, size_t end, char sign, bool is_variable) {
    absl::string_view text = absl::string_view(source_).substr(begin, end - begin);
    if (sign == '-') {
      text = StripRight(text);
    } else if (sign != '+' && !is_variable) {
      const size_t line = text.rfind('\n') == absl::string_view::npos ? 0 : text.rfind('\n') + 1;
      // Blank between the start of the line and the tag.
      if ((line > 0 || line_starting_) && line < text.size() && StripRight(text.substr(line)).empty()) {
        text = text.substr(0, line);
      }
    }
    if (!text.empty()) Add(Token::kData, text);
  }

  static absl::string_view StripRight(absl::string_view text) {
    size_t end = text.size();
    while (end > 0) {
      const size_t start = unicode::PreviousStart(text, end);
      size_t p = start;
      const char32_t c = unicode::DecodeAt(text, &p);
      if (!unicode::IsWhitespace(c) && (c < 0x1C || c > 0x1F)) break;
      end = start;
    }
    return text.substr(0, end);
  }

  // The end of a block or comment, with its sign: "-" eats all whitespace behind it, none eats one newline.
  void CloseTag(absl::string_view close) {
    const size_t begin = pos_;
    const char sign = source_[pos_];
    if (sign == '-' || sign == '+') Advance(1);
    Advance(close.size());
    if (sign == '-') {
      SkipWhitespace();
    } else if (sign != '+' && close != "}}" && LooksAt("\n")) {
      Advance(1);
    }
    line_starting_ = pos_ > begin && source_[pos_ - 1] == '\n';
  }

  absl::Status Comment() {
    const size_t close = source_.find("#}", pos_);
    if (close == std::string::npos) return Error("Missing end of comment tag");
    const size_t end =
        close > pos_ && (source_[close - 1] == '-' || source_[close - 1] == '+') ? close - 1 : close;
    Advance(end - pos_);
    CloseTag("#}");
    return absl::OkStatus();
  }

  // The length of "{% raw %}" (or endraw) at pos_, its own whitespace control included in the case of "-%}"; 0 if
  // there is something else.
  size_t RawTagLength(absl::string_view name) const {
    size_t p = pos_ + 2;
    if (p < source_.size() && (source_[p] == '-' || source_[p] == '+')) ++p;
    while (p < source_.size() && absl::ascii_isspace(source_[p])) ++p;
    if (!absl::StartsWith(absl::string_view(source_).substr(p), name)) return 0;
    p += name.size();
    while (p < source_.size() && absl::ascii_isspace(source_[p])) ++p;
    const bool minus = p < source_.size() && source_[p] == '-';
    if (minus || (name == "endraw" && p < source_.size() && source_[p] == '+')) ++p;
    if (!absl::StartsWith(absl::string_view(source_).substr(p), "%}")) return 0;
    p += 2;
    while (minus && p < source_.size() && absl::ascii_isspace(source_[p])) ++p;
    if (name == "endraw" && source_[p - 3] != '-' && source_[p - 3] != '+' && p < source_.size() &&
        source_[p] == '\n') {
      ++p;
    }
    return p - pos_;
  }

  absl::Status Raw() {
    line_starting_ = source_[pos_ - 1] == '\n';
    const size_t begin = pos_;
    for (size_t at = source_.find("{%", begin); at != std::string::npos; at = source_.find("{%", at + 1)) {
      const size_t saved = pos_;
      pos_ = at;
      const size_t length = RawTagLength("endraw");
      pos_ = saved;
      if (length == 0) continue;
      AddData(begin, at, at + 2 < source_.size() ? source_[at + 2] : ' ', /*is_variable=*/false);
      Advance(at + length - pos_);
      line_starting_ = source_[pos_ - 1] == '\n';
      return absl::OkStatus();
    }
    return Error("Missing end of raw directive");
  }

  absl::Status Expression(bool is_variable) {
    const absl::string_view close = is_variable ? "}}" : "%}";
    std::string open;  // brackets that wait for their partner
    while (true) {
      SkipWhitespace();
      if (pos_ >= source_.size())
        return Error(absl::StrCat("unexpected end of template, expected '", close, "'"));
      if (open.empty()) {
        const size_t sign = source_[pos_] == '-' || (source_[pos_] == '+' && !is_variable) ? 1 : 0;
        if (absl::string_view(source_).substr(pos_ + sign, 2) == close) {
          Add(is_variable ? Token::kVariableEnd : Token::kBlockEnd, "");
          CloseTag(close);
          return absl::OkStatus();
        }
      }
      const char c = source_[pos_];
      if (absl::ascii_isdigit(c)) {
        TESSERA_RETURN_IF_ERROR(Number());
      } else if (IsNameStart(c)) {
        size_t end = pos_;
        while (end < source_.size() && IsNamePart(source_[end])) ++end;
        Add(Token::kName, absl::string_view(source_).substr(pos_, end - pos_));
        Advance(end - pos_);
      } else if (c == '"' || c == '\'') {
        TESSERA_RETURN_IF_ERROR(String());
      } else {
        TESSERA_RETURN_IF_ERROR(Operator(&open));
      }
    }
  }

  absl::Status Operator(std::string* open) {
    static constexpr absl::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                       "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                       ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const absl::string_view op : kOperators) {
      if (!LooksAt(op)) continue;
      const char c = op[0];
      if (c == '(' || c == '[' || c == '{') {
        open->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
      } else if (c == ')' || c == ']' || c == '}') {
        if (open->empty() || open->back() != c) return Error(absl::StrCat("unexpected '", op, "'"));
        open->pop_back();
      }
      Add(Token::kOperator, op);
      Advance(op.size());
      return absl::OkStatus();
    }
    return Error(
        absl::StrCat("unexpected char '", source_.substr(pos_, unicode::SequenceLength(source_[pos_])), "'"));
  }

  absl::Status Number() {
    size_t end = pos_;
    const auto digits = [&] {
      while (end < source_.size() && (absl::ascii_isdigit(source_[end]) || source_[end] == '_')) ++end;
    };
    const auto digit_at = [&](size_t i) { return i < source_.size() && absl::ascii_isdigit(source_[i]); };
    const absl::string_view prefix = absl::string_view(source_).substr(pos_, 2);
    int base = 10;
    if (absl::EqualsIgnoreCase(prefix, "0x")) base = 16;
    if (absl::EqualsIgnoreCase(prefix, "0o")) base = 8;
    if (absl::EqualsIgnoreCase(prefix, "0b")) base = 2;
    bool is_float = false;
    // A number behind a dot is an index (`a.0.1`), never a fraction.
    const bool behind_dot =
        !tokens_.empty() && tokens_.back().kind == Token::kOperator && tokens_.back().text == ".";
    if (base != 10) {
      end += 2;
      while (end < source_.size() && (absl::ascii_isxdigit(source_[end]) || source_[end] == '_')) ++end;
    } else {
      digits();
      if (!behind_dot && end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
        is_float = true;
        ++end;
        digits();
      }
      if (!behind_dot && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        const size_t sign =
            end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-') ? 1 : 0;
        if (digit_at(end + 1 + sign)) {
          is_float = true;
          end += 1 + sign;
          digits();
        }
      }
    }
    const std::string text =
        absl::StrReplaceAll(absl::string_view(source_).substr(pos_, end - pos_), {{"_", ""}});
    Add(is_float ? Token::kFloat : Token::kInteger, text);
    Token& token = tokens_.back();
    if (is_float) {
      std::from_chars(text.data(), text.data() + text.size(), token.number);
    } else {
      const char* begin = text.data() + (base == 10 ? 0 : 2);
      const auto [p, error] = std::from_chars(begin, text.data() + text.size(), token.integer, base);
      if (error != std::errc() || p != text.data() + text.size())
        return Error(absl::StrCat("the number ", text, " is malformed or too large"));
    }
    Advance(end - pos_);
    return absl::OkStatus();
  }

  absl::Status String() {
    const char quote = source_[pos_];
    size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return Error("a string is not closed");
    std::string value;
    TESSERA_RETURN_IF_ERROR(Unescape(absl::string_view(source_).substr(pos_ + 1, end - pos_ - 1), &value));
    Add(Token::kString, value);
    Advance(end + 1 - pos_);
    return absl::OkStatus();
  }

  // Python's escapes; one that it does not know stands for itself.
  absl::Status Unescape(absl::string_view text, std::string* out) const {
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        out->push_back(text[i]);
        continue;
      }
      const char e = text[++i];  // the scanner made sure that there is one
      static constexpr absl::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
      if (const size_t k = kFrom.find(e); k != absl::string_view::npos) {
        out->push_back(kTo[k]);
      } else if (e == '\n') {
        continue;
      } else if (e == 'x' || e == 'u' || e == 'U') {
        const size_t n = e == 'x' ? 2 : e == 'u' ? 4 : 8;
        uint32_t c = 0;
        const absl::string_view digits = text.substr(std::min(i + 1, text.size()), n);
        const auto [p, error] = std::from_chars(digits.data(), digits.data() + digits.size(), c, 16);
        if (error != std::errc() || p != digits.data() + n)
          return Error(absl::StrCat("truncated \\", absl::string_view(&e, 1), " escape"));
        if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return Error("an escape that is no character");
        unicode::AppendUtf8(c, out);
        i += n;
      } else if (e >= '0' && e <= '7') {
        uint32_t c = 0;
        size_t n = 0;
        for (; n < 3 && i + n < text.size() && text[i + n] >= '0' && text[i + n] <= '7'; ++n)
          c = c * 8 + (text[i + n] - '0');
        unicode::AppendUtf8(c, out);
        i += n - 1;
      } else if (e == 'N') {
        return Error("\\N escapes are not supported");
      } else {
        out->push_back('\\');
        out->push_back(e);
      }
    }
    return absl::OkStatus();
  }

  std::string source_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source) {
  if (const size_t bad = unicode::FindInvalid(source); bad != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("not valid UTF-8 at byte ", bad));
  }
  return Lexer(NormalizeNewlines(source)).Run();
}

}  // namespace tessera::jinja
