// The methods of str.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/status_macros.h"
#include "server/tokenizer/jinja/builtins.h"
#include "server/tokenizer/jinja/format.h"
#include "server/tokenizer/unicode.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kMaxPadding = 10'000;

using Result = absl::StatusOr<Value>;

std::optional<std::string> Characters(const std::optional<Value>& argument) {
  if (!argument || !argument->is_string()) return std::nullopt;
  return argument->text()->bytes();
}

template <bool kLeft, bool kRight>
Result StripMethod(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("strip", a, {"chars"}));
  if (args[0] && !args[0]->is_none()) TESSERA_RETURN_IF_ERROR(ExpectString(*args[0], "strip arg").status());
  return in->MakeString(Strip(*v.text(), Characters(args[0]), kLeft, kRight));
}

Result MakeList(std::vector<Text> parts, Sequence::Kind kind = Sequence::Kind::kList) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (Text& part : parts) items.push_back(Value::Str(std::move(part)));
  return Value::List(std::move(items), kind);
}

// The pieces between stretches of whitespace, from the left or the right. What is left when the limit is reached
// keeps the blanks at its far end.
std::vector<Text> SplitWhitespace(const Text& text, int64_t limit, bool from_right) {
  const absl::string_view all = text.view();
  std::vector<Text> out;
  size_t begin = 0, end = all.size();  // of what is left
  // Moves the near end over blanks, or over all but blanks.
  const auto skip = [&](bool blanks) {
    while (begin < end) {
      const size_t start = from_right ? unicode::PreviousStart(all, end) : begin;
      size_t next = start;
      if (IsPythonSpace(unicode::DecodeAt(all, &next)) != blanks) break;
      (from_right ? end : begin) = from_right ? start : next;
    }
  };
  skip(true);
  while (begin < end && (limit < 0 || static_cast<int64_t>(out.size()) < limit)) {
    const size_t piece_begin = begin, piece_end = end;
    skip(false);
    out.push_back(from_right ? text.Substr(end, piece_end) : text.Substr(piece_begin, begin));
    skip(true);
  }
  if (begin < end) out.push_back(text.Substr(begin, end));
  if (from_right) std::reverse(out.begin(), out.end());
  return out;
}

std::vector<Text> SplitOn(const Text& text, const std::string& separator, int64_t limit, bool from_right) {
  std::vector<Text> out;
  size_t begin = 0, end = text.size();
  while (limit < 0 || static_cast<int64_t>(out.size()) < limit) {
    const size_t at = from_right ? absl::string_view(text.bytes()).substr(0, end).rfind(separator)
                                 : text.bytes().find(separator, begin);
    if (at == std::string::npos) break;
    out.push_back(from_right ? text.Substr(at + separator.size(), end) : text.Substr(begin, at));
    (from_right ? end : begin) = from_right ? at : at + separator.size();
  }
  out.push_back(text.Substr(begin, end));
  if (from_right) std::reverse(out.begin(), out.end());
  return out;
}

template <bool kFromRight>
Result SplitMethod(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("split", a, {"sep", "maxsplit"}));
  int64_t limit = -1;
  if (args[1]) {
    TESSERA_ASSIGN_OR_RETURN(limit, ToInteger(*args[1], "maxsplit"));
  }
  const Text& text = *v.text();
  if (!args[0] || args[0]->is_none()) {
    std::vector<Text> parts = SplitWhitespace(text, limit, kFromRight);
    TESSERA_RETURN_IF_ERROR(in->ChargeSteps(parts.size()));
    TESSERA_RETURN_IF_ERROR(in->ChargeBytes(text.size()));
    return MakeList(std::move(parts));
  }
  TESSERA_ASSIGN_OR_RETURN(const Text separator, ExpectString(*args[0], "the separator"));
  if (separator.empty()) return TemplateError("empty separator");
  std::vector<Text> parts = SplitOn(text, separator.bytes(), limit, kFromRight);
  TESSERA_RETURN_IF_ERROR(in->ChargeSteps(parts.size()));
  return MakeList(std::move(parts));
}

Result SplitLinesMethod(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("splitlines", a, {"keepends"}));
  std::vector<Text> parts = SplitLines(*v.text(), args[0] && args[0]->Truthy());
  TESSERA_RETURN_IF_ERROR(in->ChargeSteps(parts.size()));
  return MakeList(std::move(parts));
}

template <bool kFromRight>
Result Partition(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("partition", a, {"sep"}));
  if (!args[0]) return TemplateError("partition takes a separator");
  TESSERA_ASSIGN_OR_RETURN(const Text separator, ExpectString(*args[0], "the separator"));
  if (separator.empty()) return TemplateError("empty separator");
  const Text& text = *v.text();
  const size_t at = kFromRight ? text.bytes().rfind(separator.bytes()) : text.bytes().find(separator.bytes());
  if (at == std::string::npos) {
    return MakeList(
        kFromRight ? std::vector<Text>{Text(), Text(), text} : std::vector<Text>{text, Text(), Text()},
        Sequence::Kind::kTuple);
  }
  const size_t end = at + separator.size();
  return MakeList({text.Substr(0, at), text.Substr(at, end), text.Substr(end, text.size())},
                  Sequence::Kind::kTuple);
}

// The bytes of [start, end), counted in characters as slices are.
absl::StatusOr<ByteRange> Window(const Text& text, const std::optional<Value>& start,
                                 const std::optional<Value>& end) {
  const auto size = static_cast<int64_t>(unicode::CountCodePoints(text.view()));
  int64_t bounds[2] = {0, size};
  const std::optional<Value>* given[2] = {&start, &end};
  for (int i = 0; i < 2; ++i) {
    if (!*given[i] || (*given[i])->is_none()) continue;
    TESSERA_ASSIGN_OR_RETURN(bounds[i], ToInteger(**given[i], "a bound"));
    if (bounds[i] < 0) bounds[i] = std::max<int64_t>(0, bounds[i] < -size ? 0 : bounds[i] + size);
  }
  if (bounds[0] > size || bounds[0] > bounds[1]) return ByteRange{1, 0};
  const auto offset = [&](int64_t characters) {
    size_t pos = 0;
    for (; characters > 0 && pos < text.size(); --characters)
      pos += unicode::SequenceLength(text.bytes()[pos]);
    return pos;
  };
  return ByteRange{offset(bounds[0]), offset(bounds[1])};
}

template <bool kEnd>
Result StartsOrEndsWith(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args,
                           Bind(kEnd ? "endswith" : "startswith", a, {"prefix", "start", "end"}));
  if (!args[0]) return TemplateError("startswith and endswith take a text");
  absl::string_view text = v.text()->view();
  if (args[1] || args[2]) {
    TESSERA_ASSIGN_OR_RETURN(const ByteRange window, Window(*v.text(), args[1], args[2]));
    if (window.begin > window.end) return Value::Bool(false);
    text = text.substr(window.begin, window.end - window.begin);
  }
  std::vector<Value> candidates = {*args[0]};
  if (const Sequence* s = args[0]->sequence(); s != nullptr && s->kind == Sequence::Kind::kTuple)
    candidates = s->items;
  for (const Value& candidate : candidates) {
    TESSERA_ASSIGN_OR_RETURN(const Text affix, ExpectString(candidate, "startswith and endswith's argument"));
    if (kEnd ? absl::EndsWith(text, affix.view()) : absl::StartsWith(text, affix.view()))
      return Value::Bool(true);
  }
  return Value::Bool(false);
}

template <bool kFromRight, bool kMustFind>
Result Find(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("find", a, {"sub", "start", "end"}));
  if (!args[0]) return TemplateError("find takes a text");
  TESSERA_ASSIGN_OR_RETURN(const Text what, ExpectString(*args[0], "the text to find"));
  TESSERA_ASSIGN_OR_RETURN(const ByteRange window, Window(*v.text(), args[1], args[2]));
  size_t at = std::string::npos;
  if (window.begin <= window.end) {
    const absl::string_view text = v.text()->view().substr(0, window.end);
    at = kFromRight ? text.rfind(what.view()) : text.find(what.view(), window.begin);
    if (at != absl::string_view::npos && at < window.begin) at = absl::string_view::npos;
  }
  if (at == absl::string_view::npos) {
    if (kMustFind) return TemplateError("substring not found");
    return Value::Int(-1);
  }
  return Value::Int(static_cast<int64_t>(unicode::CountCodePoints(v.text()->view().substr(0, at))));
}

Result Count(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("count", a, {"sub", "start", "end"}));
  if (!args[0]) return TemplateError("count takes a text");
  TESSERA_ASSIGN_OR_RETURN(const Text what, ExpectString(*args[0], "the text to count"));
  TESSERA_ASSIGN_OR_RETURN(const ByteRange window, Window(*v.text(), args[1], args[2]));
  if (window.begin > window.end) return Value::Int(0);
  const absl::string_view text = v.text()->view().substr(window.begin, window.end - window.begin);
  if (what.empty()) return Value::Int(static_cast<int64_t>(unicode::CountCodePoints(text)) + 1);
  int64_t count = 0;
  for (size_t at = text.find(what.view()); at != absl::string_view::npos;
       at = text.find(what.view(), at + what.size()))
    ++count;
  return Value::Int(count);
}

Result ReplaceMethod(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("replace", a, {"old", "new", "count"}));
  if (!args[0] || !args[1]) return TemplateError("replace takes what to replace and what with");
  TESSERA_ASSIGN_OR_RETURN(const Text from, ExpectString(*args[0], "replace() argument 1"));
  TESSERA_ASSIGN_OR_RETURN(const Text to, ExpectString(*args[1], "replace() argument 2"));
  int64_t count = -1;
  if (args[2]) {
    TESSERA_ASSIGN_OR_RETURN(count, ToInteger(*args[2], "count"));
  }
  return Replace(in, *v.text(), from, to, count);
}

template <Text (*kConvert)(const Text&)>
Result Convert(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("a method of str", a, {}).status());
  return in->MakeString(kConvert(*v.text()));
}

// str.title: a word begins behind anything that has no case.
Text Title(const Text& text) {
  const absl::string_view all = text.view();
  Text out;
  for (size_t pos = 0; pos < all.size();) {
    size_t end = pos;
    const bool cased = IsCased(unicode::DecodeAt(all, &end));
    while (end < all.size()) {
      size_t next = end;
      if (IsCased(unicode::DecodeAt(all, &next)) != cased) break;
      end = next;
    }
    if (cased) {
      out.Append(Capitalize(text.Substr(pos, end)));
    } else {
      out.AppendPart(text, pos, end);
    }
    pos = end;
  }
  return out;
}

template <bool kPrefix>
Result RemoveAffix(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("removeprefix", a, {"affix"}));
  if (!args[0]) return TemplateError("removeprefix and removesuffix take a text");
  TESSERA_ASSIGN_OR_RETURN(const Text affix, ExpectString(*args[0], "the affix"));
  const Text& text = *v.text();
  if (kPrefix && absl::StartsWith(text.view(), affix.view()))
    return Value::Str(text.Substr(affix.size(), text.size()));
  if (!kPrefix && absl::EndsWith(text.view(), affix.view()))
    return Value::Str(text.Substr(0, text.size() - affix.size()));
  return v;
}

// 'l': ljust, 'r': rjust, 'c': center, 'z': zfill
template <char kHow>
Result Pad(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("a method of str", a, {"width", "fillchar"}));
  if (!args[0]) return TemplateError("a width is missing");
  TESSERA_ASSIGN_OR_RETURN(const int64_t width, ToInteger(*args[0], "width"));
  Text fill(kHow == 'z' ? "0" : " ", false);
  if (args[1]) {
    TESSERA_ASSIGN_OR_RETURN(fill, ExpectString(*args[1], "fillchar"));
    if (unicode::CountCodePoints(fill.view()) != 1)
      return TemplateError("The fill character must be exactly one character long");
  }
  if (width > kMaxPadding) return TemplateError("the width is too large");
  const Text& text = *v.text();
  const int64_t missing = width - static_cast<int64_t>(unicode::CountCodePoints(text.view()));
  if (missing <= 0) return v;
  const int64_t left = kHow == 'l' ? 0 : kHow == 'c' ? missing / 2 + (missing & width & 1) : missing;
  Text out;
  size_t sign = 0;
  if (kHow == 'z' && (text.bytes()[0] == '-' || text.bytes()[0] == '+')) sign = 1;
  out.AppendPart(text, 0, sign);
  for (int64_t i = 0; i < left; ++i) out.Append(fill);
  out.AppendPart(text, sign, text.size());
  for (int64_t i = left; i < missing; ++i) out.Append(fill);
  return in->MakeString(std::move(out));
}

Result JoinMethod(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("join", a, {"iterable"}));
  if (!args[0]) return TemplateError("join takes what to join");
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<const Sequence> items, Iterate(*args[0]));
  TESSERA_RETURN_IF_ERROR(in->ChargeSteps(items->items.size()));
  Text out;
  for (size_t i = 0; i < items->items.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(const Text part,
                             ExpectString(items->items[i], absl::StrCat("sequence item ", i)));
    if (i > 0) out.Append(*v.text());
    out.Append(part);
    if (out.size() > (size_t{1} << 20)) TESSERA_RETURN_IF_ERROR(in->ChargeBytes(out.size()));
  }
  return in->MakeString(std::move(out));
}

Result FormatMethod(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(Text out, BraceFormat(*v.text(), a));
  return in->MakeString(std::move(out));
}

}  // namespace

FilterFunction FindStringMethod(absl::string_view name) {
  static const FilterTable* const kMethods = new FilterTable({
      {"capitalize", Convert<Capitalize>},
      {"casefold", Convert<Lower>},
      {"center", Pad<'c'>},
      {"count", Count},
      {"endswith", StartsOrEndsWith<true>},
      {"find", Find<false, false>},
      {"format", FormatMethod},
      {"index", Find<false, true>},
      {"join", JoinMethod},
      {"ljust", Pad<'l'>},
      {"lower", Convert<Lower>},
      {"lstrip", StripMethod<true, false>},
      {"partition", Partition<false>},
      {"removeprefix", RemoveAffix<true>},
      {"removesuffix", RemoveAffix<false>},
      {"replace", ReplaceMethod},
      {"rfind", Find<true, false>},
      {"rindex", Find<true, true>},
      {"rjust", Pad<'r'>},
      {"rpartition", Partition<true>},
      {"rsplit", SplitMethod<true>},
      {"rstrip", StripMethod<false, true>},
      {"split", SplitMethod<false>},
      {"splitlines", SplitLinesMethod},
      {"startswith", StartsOrEndsWith<false>},
      {"strip", StripMethod<true, true>},
      {"title", Convert<Title>},
      {"upper", Convert<Upper>},
      {"zfill", Pad<'z'>},
  });
  const auto it = kMethods->find(name);
  return it == kMethods->end() ? FindStringPredicate(name) : it->second;
}

}  // namespace tessera::jinja
