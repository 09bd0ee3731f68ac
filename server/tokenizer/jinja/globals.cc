// The global functions of Jinja, and those that transformers adds.
#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/status_macros.h"
#include "server/tokenizer/jinja/builtins.h"
#include "server/tokenizer/jinja/format.h"

namespace tessera::jinja {
namespace {

using Result = absl::StatusOr<Value>;

constexpr int64_t kMaxRange = 100'000;  // as Jinja's sandbox has it

Result Range(Interpreter* in, const Arguments& a) {
  if (!a.named.empty() || a.positional.empty() || a.positional.size() > 3)
    return TemplateError("range takes one to three integers");
  int64_t bounds[3] = {0, 0, 1};
  for (size_t i = 0; i < a.positional.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(bounds[a.positional.size() == 1 ? 1 : i],
                             ToInteger(a.positional[i], "range's argument"));
  }
  const auto [start, stop, step] = bounds;
  if (step == 0) return TemplateError("range() arg 3 must not be zero");
  std::vector<Value> items;
  for (__int128 i = start; step > 0 ? i < stop : i > stop; i += step) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      return TemplateError(
          absl::StrCat("Range too big. The sandbox blocks ranges larger than MAX_RANGE (", kMaxRange, ")."));
    }
    items.push_back(Value::Int(static_cast<int64_t>(i)));
  }
  TESSERA_RETURN_IF_ERROR(in->ChargeSteps(items.size()));
  return Value::List(std::move(items));
}

absl::StatusOr<Dict> MakeDict(const Arguments& a) {
  Dict dict;
  if (a.positional.size() > 1) return TemplateError("dict expected at most 1 argument");
  if (!a.positional.empty()) {
    const Value& from = a.positional[0];
    if (from.dict() != nullptr) {
      dict = *from.dict();
    } else {
      TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<const Sequence> pairs, Iterate(from));
      for (const Value& pair : pairs->items) {
        TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<const Sequence> entry, Iterate(pair));
        if (entry->items.size() != 2 || !dict.Set(entry->items[0], entry->items[1])) {
          return TemplateError("dict takes pairs of a key and a value");
        }
      }
    }
  }
  for (const auto& [name, value] : a.named) dict.Set(Value::Str(name), value);
  return dict;
}

Result MakeDictValue(Interpreter*, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(Dict dict, MakeDict(a));
  return Value::FromDict(std::move(dict));
}

Result MakeNamespace(Interpreter* in, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(Dict dict, MakeDict(a));
  for (const Dict::Entry& e : dict.entries()) {
    if (e.key.is_string() && !e.key.text()->empty() && e.key.text()->bytes()[0] == '_') {
      return TemplateError(
          absl::StrCat("a namespace cannot have an attribute '", e.key.text()->bytes(), "'"));
    }
  }
  return in->NewNamespace(std::move(dict));
}

// joiner(sep): empty the first time, the separator from then on.
Result MakeJoiner(Interpreter*, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("joiner", a, {"sep"}));
  const Value separator = args[0].value_or(Value::Str(", "));
  auto used = std::make_shared<bool>(false);
  return Value::MakeFunction("joiner", [separator, used](Interpreter*, const Arguments&) -> Result {
    if (*used) return separator;
    *used = true;
    return Value::Str("");
  });
}

// cycler(a, b, ...): an object with next(), reset() and current.
Result MakeCycler(Interpreter* in, const Arguments& a) {
  if (a.positional.empty()) return TemplateError("at least one item has to be provided");
  const Value cycler = in->NewNamespace({});
  // The functions must not own the namespace that owns them.
  Namespace* self = cycler.ns();
  auto position = std::make_shared<size_t>(0);
  const std::vector<Value> items = a.positional;
  self->attributes.Set(Value::Str("current"), items[0]);
  const auto move = [self, position, items](bool reset) {
    const Value value = items[*position];
    *position = reset ? 0 : (*position + 1) % items.size();
    self->attributes.Set(Value::Str("current"), items[*position]);
    return value;
  };
  self->attributes.Set(
      Value::Str("next"),
      Value::MakeFunction("next", [move](Interpreter*, const Arguments&) -> Result { return move(false); }));
  self->attributes.Set(Value::Str("reset"),
                       Value::MakeFunction("reset", [move](Interpreter*, const Arguments&) -> Result {
                         move(true);
                         return Value::MakeNone();
                       }));
  return cycler;
}

Result RaiseException(Interpreter*, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("raise_exception", a, {"message"}));
  absl::Status raised = TemplateError(args[0] ? ToText(*args[0]).bytes() : "");
  raised.SetPayload(kRaisedPayload, absl::Cord("1"));
  return raised;
}

Result StrftimeNow(Interpreter* in, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("strftime_now", a, {"format"}));
  if (!args[0]) return TemplateError("strftime_now takes a format");
  TESSERA_ASSIGN_OR_RETURN(const Text format, ExpectString(*args[0], "the format"));
  TESSERA_ASSIGN_OR_RETURN(const std::string text, FormatTime(format.bytes(), in->now()));
  return in->MakeString(Text(text, !format.untrusted().empty()));
}

}  // namespace

std::vector<std::pair<std::string, Value>> GlobalFunctions() {
  const auto function = [](const char* name, Result (*f)(Interpreter*, const Arguments&)) {
    return std::pair<std::string, Value>(name, Value::MakeFunction(name, f));
  };
  return {function("range", Range),
          function("dict", MakeDictValue),
          function("namespace", MakeNamespace),
          function("joiner", MakeJoiner),
          function("cycler", MakeCycler),
          function("raise_exception", RaiseException),
          function("strftime_now", StrftimeNow)};
}

absl::StatusOr<std::string> FormatTime(absl::string_view format, int64_t unix_seconds) {
  static constexpr const char* kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                          "Thursday", "Friday", "Saturday"};
  static constexpr const char* kMonths[] = {"January",   "February", "March",    "April",
                                            "May",       "June",     "July",     "August",
                                            "September", "October",  "November", "December"};
  std::tm t{};
  const auto seconds = static_cast<std::time_t>(unix_seconds);
  if (gmtime_r(&seconds, &t) == nullptr) return TemplateError("the time is out of range");
  const int hour12 = t.tm_hour % 12 == 0 ? 12 : t.tm_hour % 12;
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      out += format[i];
      continue;
    }
    char c = format[++i];
    bool pad = true;
    if (c == '-' && i + 1 < format.size()) {  // glibc: without padding
      pad = false;
      c = format[++i];
    }
    const auto number = [&](int value, int width = 2) {
      out += pad ? absl::StrFormat("%0*d", width, value) : absl::StrCat(value);
    };
    switch (c) {
      case 'Y':
        absl::StrAppend(&out, t.tm_year + 1900);
        break;
      case 'y':
        number(t.tm_year % 100);
        break;
      case 'm':
        number(t.tm_mon + 1);
        break;
      case 'd':
        number(t.tm_mday);
        break;
      case 'e':
        out += pad ? absl::StrFormat("%2d", t.tm_mday) : absl::StrCat(t.tm_mday);
        break;
      case 'H':
        number(t.tm_hour);
        break;
      case 'I':
        number(hour12);
        break;
      case 'M':
        number(t.tm_min);
        break;
      case 'S':
        number(t.tm_sec);
        break;
      case 'f':
        out += "000000";
        break;
      case 'j':
        number(t.tm_yday + 1, 3);
        break;
      case 'p':
        out += t.tm_hour < 12 ? "AM" : "PM";
        break;
      case 'A':
        out += kDays[t.tm_wday];
        break;
      case 'a':
        out.append(kDays[t.tm_wday], 3);
        break;
      case 'B':
        out += kMonths[t.tm_mon];
        break;
      case 'b':
      case 'h':
        out.append(kMonths[t.tm_mon], 3);
        break;
      case 'w':
        absl::StrAppend(&out, t.tm_wday);
        break;
      case 'u':
        absl::StrAppend(&out, t.tm_wday == 0 ? 7 : t.tm_wday);
        break;
      case 'F':
        absl::StrAppendFormat(&out, "%d-%02d-%02d", t.tm_year + 1900, t.tm_mon + 1, t.tm_mday);
        break;
      case 'T':
        absl::StrAppendFormat(&out, "%02d:%02d:%02d", t.tm_hour, t.tm_min, t.tm_sec);
        break;
      case 'D':
        absl::StrAppendFormat(&out, "%02d/%02d/%02d", t.tm_mon + 1, t.tm_mday, t.tm_year % 100);
        break;
      case 'R':
        absl::StrAppendFormat(&out, "%02d:%02d", t.tm_hour, t.tm_min);
        break;
      case 's':
        absl::StrAppend(&out, unix_seconds);
        break;
      case 'z':
        break;  // a time without a zone, as datetime.now() is
      case 'Z':
        break;
      case 'n':
        out += '\n';
        break;
      case 't':
        out += '\t';
        break;
      case '%':
        out += '%';
        break;
      default:
        return TemplateError(
            absl::StrCat("the time conversion '%", absl::string_view(&c, 1), "' is not supported"));
    }
  }
  return out;
}

}  // namespace tessera::jinja
