#include "server/app/flag_set.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace {

constexpr size_t kHelpColumn = 32;
constexpr size_t kHelpWidth = 110;

// Insertions, deletions and replacements that turn `a` into `b`.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

absl::Status Expected(const std::string& found, const std::string& expected) {
  return absl::InvalidArgumentError(absl::StrCat("found \"", found, "\", expected ", expected));
}

std::string EnvironmentName(const std::string& flag) {
  return absl::StrCat("TESSERA_", absl::AsciiStrToUpper(absl::StrReplaceAll(flag, {{"-", "_"}})));
}

// 1073741824 as "1G" where it comes out even.
std::string FormatBytes(int64_t bytes) {
  const char* const units[] = {"", "K", "M", "G", "T"};
  size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  return absl::StrCat(bytes, units[unit]);
}

bool ParseBytes(const std::string& text, int64_t* bytes) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  int64_t number = 0;
  if (digits == 0 || !absl::SimpleAtoi(text.substr(0, digits), &number)) return false;
  std::string unit = absl::AsciiStrToUpper(text.substr(digits));
  if (absl::EndsWith(unit, "IB")) unit.resize(unit.size() - 2);
  int shift = 0;
  if (!unit.empty()) {
    const size_t power = std::string("KMGT").find(unit);
    if (unit.size() != 1 || power == std::string::npos) return false;
    shift = 10 * static_cast<int>(power + 1);
  }
  if (number > std::numeric_limits<int64_t>::max() >> shift) return false;
  *bytes = number << shift;
  return true;
}

}  // namespace

FlagSet::FlagSet(std::string usage, std::string description)
    : usage_(std::move(usage)), description_(std::move(description)) {}

void FlagSet::Group(std::string title) { group_ = std::move(title); }

void FlagSet::Custom(std::string name, std::string value_name, std::string help, std::string default_text,
                     Parser parser) {
  flags_.push_back({std::move(name), std::move(value_name), std::move(help), std::move(default_text),
                    std::move(parser), group_});
}

void FlagSet::Switch(std::string name, bool* target, std::string help) {
  Custom(std::move(name), "", std::move(help), "", [target](const std::string& value) {
    const std::string lower = absl::AsciiStrToLower(value);
    if (lower == "true" || lower == "1" || lower == "yes") {
      *target = true;
    } else if (lower == "false" || lower == "0" || lower == "no") {
      *target = false;
    } else {
      return Expected(value, "true or false");
    }
    return absl::OkStatus();
  });
}

void FlagSet::String(std::string name, std::string* target, std::string value_name, std::string help) {
  Custom(std::move(name), std::move(value_name), std::move(help), *target,
         [target](const std::string& value) {
           *target = value;
           return absl::OkStatus();
         });
}

void FlagSet::Int(std::string name, int32_t* target, int32_t low, int32_t high, std::string help) {
  Custom(std::move(name), "N", std::move(help), absl::StrCat(*target),
         [target, low, high](const std::string& value) {
           int32_t number = 0;
           if (!absl::SimpleAtoi(value, &number) || number < low || number > high) {
             return Expected(value, high == std::numeric_limits<int32_t>::max()
                                        ? absl::StrCat("a whole number, at least ", low)
                                        : absl::StrCat("a whole number from ", low, " to ", high));
           }
           *target = number;
           return absl::OkStatus();
         });
}

void FlagSet::Bytes(std::string name, int64_t* target, int64_t low, std::string help) {
  Custom(std::move(name), "BYTES", std::move(help), *target == 0 ? "" : FormatBytes(*target),
         [target, low](const std::string& value) {
           int64_t bytes = 0;
           if (!ParseBytes(value, &bytes) || bytes < low) {
             return Expected(value,
                             absl::StrCat("bytes, at least ", FormatBytes(low), ", such as 512M or 4G"));
           }
           *target = bytes;
           return absl::OkStatus();
         });
}

void FlagSet::Duration(std::string name, absl::Duration* target, std::string help) {
  Custom(std::move(name), "TIME", std::move(help), absl::FormatDuration(*target),
         [target](const std::string& value) {
           double seconds = 0;
           absl::Duration duration;
           if (absl::SimpleAtod(value, &seconds) && seconds == seconds) {
             duration = absl::Seconds(seconds);
           } else if (!absl::ParseDuration(value, &duration)) {
             return Expected(value, "a time such as 30s, 250ms or inf");
           }
           if (duration < absl::ZeroDuration()) return Expected(value, "a time that is not negative");
           *target = duration;
           return absl::OkStatus();
         });
}

const FlagSet::Flag* FlagSet::Find(const std::string& name) const {
  for (const Flag& flag : flags_) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

std::string FlagSet::Nearest(const std::string& name) const {
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const Flag& flag : flags_) {
    const size_t distance = EditDistance(name, flag.name);
    if (distance < best_distance) {
      best_distance = distance;
      best = flag.name;
    }
  }
  return best;
}

absl::Status FlagSet::Parse(const std::vector<std::string>& arguments,
                            const std::function<const char*(const char*)>& getenv) {
  std::vector<std::string> mistakes;
  auto parse = [&mistakes](const Flag& flag, const std::string& source, const std::string& value) {
    const absl::Status status = flag.parser(value);
    if (!status.ok()) mistakes.push_back(absl::StrCat(source, ": ", status.message()));
  };
  std::vector<bool> on_command_line(flags_.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!absl::StartsWith(argument, "--") || argument == "--") {
      mistakes.push_back(
          absl::StrCat("\"", argument, "\": found an argument, expected flags (--name value) only"));
      continue;
    }
    const size_t equals = argument.find('=');
    const bool has_value = equals != std::string::npos;
    // Underscores are what users of other programs' flags may write.
    const std::string name =
        absl::StrReplaceAll(argument.substr(2, has_value ? equals - 2 : equals), {{"_", "-"}});
    const Flag* flag = Find(name);
    if (flag == nullptr) {
      const std::string nearest = Nearest(name);
      mistakes.push_back(
          absl::StrCat("--", name, ": unknown flag",
                       nearest.empty() ? "" : absl::StrCat("; did you mean --", nearest, "?")));
      // What follows is probably its value.
      if (!has_value && i + 1 < arguments.size() && !absl::StartsWith(arguments[i + 1], "--")) ++i;
      continue;
    }
    on_command_line[flag - flags_.data()] = true;
    if (has_value) {
      parse(*flag, absl::StrCat("--", name), argument.substr(equals + 1));
    } else if (flag->value_name.empty()) {
      parse(*flag, absl::StrCat("--", name), "true");
    } else if (i + 1 < arguments.size() && !absl::StartsWith(arguments[i + 1], "--")) {
      parse(*flag, absl::StrCat("--", name), arguments[++i]);
    } else {
      mistakes.push_back(absl::StrCat("--", name, ": needs a value (", flag->value_name, ")"));
    }
  }
  for (size_t i = 0; i < flags_.size() && getenv; ++i) {
    const std::string variable = EnvironmentName(flags_[i].name);
    const char* value = on_command_line[i] ? nullptr : getenv(variable.c_str());
    if (value != nullptr) parse(flags_[i], variable, value);
  }
  return mistakes.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(mistakes, "\n"));
}

std::string FlagSet::Help() const {
  std::string out = absl::StrCat(usage_, "\n\n", description_, "\n");
  std::string group;
  for (const Flag& flag : flags_) {
    if (flag.group != group) {
      group = flag.group;
      absl::StrAppend(&out, "\n", group, ":\n");
    }
    std::string line = absl::StrCat("  --", flag.name, flag.value_name.empty() ? "" : " ", flag.value_name);
    if (line.size() + 2 > kHelpColumn) {
      absl::StrAppend(&out, line, "\n");
      line.clear();
    }
    line.resize(kHelpColumn, ' ');
    std::string text = flag.help;
    if (!flag.default_text.empty()) absl::StrAppend(&text, " (default ", flag.default_text, ")");
    for (absl::string_view word : absl::StrSplit(text, ' ')) {
      if (line.size() > kHelpColumn && line.size() + 1 + word.size() > kHelpWidth) {
        absl::StrAppend(&out, line, "\n");
        line.assign(kHelpColumn, ' ');
      }
      if (line.size() > kHelpColumn) line += ' ';
      absl::StrAppend(&line, word);
    }
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

}  // namespace tessera
