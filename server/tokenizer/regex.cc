#include "server/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/tokenizer/unicode.h"

namespace tessera {
namespace {

constexpr size_t kJitStackStart = 32 * 1024;
constexpr size_t kJitStackMax = 16 * 1024 * 1024;
// Backtracking steps for one match. Patterns of tokenizers stay linear in the text; this stops others.
constexpr uint32_t kMatchLimit = 200'000'000;

std::string ErrorText(int error) {
  PCRE2_UCHAR buffer[256] = {};
  pcre2_get_error_message(error, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

// What a thread needs to run matches; made on its first use of any pattern.
struct MatchState {
  pcre2_match_data* data = pcre2_match_data_create(8, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);

  MatchState() {
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_match_limit(context, kMatchLimit);
  }
  ~MatchState() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Code() { pcre2_code_free(code); }
};

absl::StatusOr<Regex> Regex::Compile(absl::string_view pattern) {
  if (unicode::FindInvalid(pattern) != absl::string_view::npos) {
    return absl::InvalidArgumentError("the pattern is not valid UTF-8");
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_shared<Code>();
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code->code == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the regular expression is malformed at offset ", offset, ": ", ErrorText(error)));
  }
  code->jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;
  return Regex(std::move(code));
}

absl::StatusOr<Regex> Regex::CompileLiteral(absl::string_view text) {
  std::string pattern;
  for (char c : text) {
    if (static_cast<uint8_t>(c) < 0x80 && !absl::ascii_isalnum(static_cast<uint8_t>(c))) pattern += '\\';
    pattern += c;
  }
  return Compile(pattern);
}

absl::Status Regex::FindAll(absl::string_view text, absl::FunctionRef<bool(ByteRange)> match) const {
  static thread_local MatchState state;
  std::string substituted;
  absl::string_view subject = text;
  if (unicode::SubstituteStandIns(text, &substituted)) subject = substituted;

  const auto* begin = reinterpret_cast<PCRE2_SPTR>(subject.data());
  if (begin == nullptr) begin = reinterpret_cast<PCRE2_SPTR>("");
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(state.data);
  size_t pos = 0;
  size_t last_end = absl::string_view::npos;
  while (pos <= subject.size()) {
    int rc;
    if (code_->jit) {
      rc = pcre2_jit_match(code_->code, begin, subject.size(), pos, 0, state.data, state.context);
      if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        rc = pcre2_match(code_->code, begin, subject.size(), pos, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         state.data, state.context);
      }
    } else {
      rc =
          pcre2_match(code_->code, begin, subject.size(), pos, PCRE2_NO_UTF_CHECK, state.data, state.context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a regular expression of the tokenizer failed at byte ", pos, ": ", ErrorText(rc)));
    }
    const ByteRange found{bounds[0], bounds[1]};
    const bool empty = found.begin >= found.end;
    // An empty match right behind a match is not one of its own.
    if (!(empty && found.begin == last_end) && !match({found.begin, std::max(found.begin, found.end)})) break;
    last_end = found.end;
    pos = found.end;
    if (empty) {
      if (pos >= subject.size()) break;
      pos += unicode::SequenceLength(subject[pos]);
    }
  }
  return absl::OkStatus();
}

bool Regex::Matches(absl::string_view text) const {
  bool found = false;
  return FindAll(text, [&](ByteRange) { return !(found = true); }).ok() && found;
}

}  // namespace tessera
