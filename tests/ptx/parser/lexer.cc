#include "tests/ptx/parser/lexer.h"

#include "absl/strings/ascii.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

bool StartsWord(char c) { return absl::ascii_isalpha(c) || c == '_' || c == '$' || c == '%' || c == '.'; }
bool InWord(char c) { return absl::ascii_isalnum(c) || c == '_' || c == '$' || c == '.'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (true) {
      if (!SkipBlanks()) return Error("a comment that does not end");
      if (at_ >= source_.size()) break;
      const char c = source_[at_];
      const size_t begin = at_;
      Token::Kind kind = Token::Kind::kPunctuation;
      if (StartsWord(c)) {
        kind = Token::Kind::kWord;
        ++at_;
        while (at_ < source_.size()) {
          if (InWord(source_[at_])) {
            ++at_;
          } else if (source_.substr(at_, 2) == "::") {
            at_ += 2;
          } else {
            break;
          }
        }
      } else if (absl::ascii_isdigit(c)) {
        kind = Token::Kind::kNumber;
        // An exponent's sign belongs to the number unless the number is hexadecimal (0x1E-2 is a difference).
        const bool hex = source_.size() > at_ + 1 && c == '0' && !absl::ascii_isdigit(source_[at_ + 1]);
        while (at_ < source_.size() &&
               (absl::ascii_isalnum(source_[at_]) || source_[at_] == '.' ||
                (!hex && (source_[at_] == '+' || source_[at_] == '-') && (source_[at_ - 1] | 0x20) == 'e'))) {
          ++at_;
        }
      } else if (c == '"') {
        const size_t end = source_.find('"', at_ + 1);
        if (end == source_.npos) return Error("a string that does not end");
        tokens_.push_back({Token::Kind::kString, source_.substr(at_ + 1, end - at_ - 1), line_});
        at_ = end + 1;
        continue;
      } else if (absl::ascii_isprint(c)) {
        ++at_;
      } else {
        return Error(Cat("byte ", static_cast<int>(static_cast<unsigned char>(c)), " is no part of PTX"));
      }
      tokens_.push_back({kind, source_.substr(begin, at_ - begin), line_});
    }
    tokens_.push_back({Token::Kind::kEnd, source_.substr(source_.size()), line_});
    return std::move(tokens_);
  }

 private:
  bool SkipBlanks() {
    while (at_ < source_.size()) {
      const char c = source_[at_];
      if (c == '\n') {
        ++line_;
        ++at_;
      } else if (absl::ascii_isspace(c) || c == '\0') {
        ++at_;  // texts taken out of a fat binary end in zeros
      } else if (source_.substr(at_, 2) == "//") {
        at_ = std::min(source_.find('\n', at_), source_.size());
      } else if (source_.substr(at_, 2) == "/*") {
        const size_t end = source_.find("*/", at_ + 2);
        if (end == source_.npos) return false;
        for (; at_ < end + 2; ++at_) line_ += source_[at_] == '\n';
      } else {
        break;
      }
    }
    return true;
  }
  absl::Status Error(std::string_view what) const {
    return absl::InvalidArgumentError(Cat("line ", line_, ": ", what));
  }

  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace tessera::ptx
