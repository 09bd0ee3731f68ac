#include "client/cli/arguments.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera::cli {
namespace {

constexpr size_t kHelpWidth = 100;
constexpr size_t kHelpColumn = 26;

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitution});
    }
  }
  return row[b.size()];
}

// Appends `text` wrapped to the help's width, its later lines indented by `indent`.
void AppendWrapped(std::string* out, absl::string_view text, size_t column, size_t indent) {
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (column + word.size() > kHelpWidth && column > indent) {
      while (out->back() == ' ') out->pop_back();
      absl::StrAppend(out, "\n", std::string(indent, ' '));
      column = indent;
    }
    absl::StrAppend(out, word, " ");
    column += word.size() + 1;
  }
  while (!out->empty() && out->back() == ' ') out->pop_back();
  out->push_back('\n');
}

absl::Status BadValue(absl::string_view name, absl::string_view value, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("--", name, ": got '", value, "'; expected ", expected));
}

}  // namespace

std::string ClosestWord(absl::string_view word, const std::vector<std::string>& known) {
  std::string best;
  size_t best_distance = word.size() < 4 ? 2 : 3;  // more edits than this are another word
  for (const std::string& candidate : known) {
    size_t distance = EditDistance(word, candidate);
    // "--max-tok": the start of one.
    if (word.size() >= 3 && absl::StartsWith(candidate, word)) distance = std::min<size_t>(distance, 1);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

void Arguments::Group(std::string heading) { headings_.push_back({std::move(heading), options_.size()}); }

void Arguments::AddFlag(const std::string& name, const std::string& help, bool* target) {
  Add({.name = name, .help = help, .set = [target](const std::string&) {
         *target = true;
         return absl::OkStatus();
       }});
}

void Arguments::AddString(const std::string& name, const std::string& value, const std::string& help,
                          std::string* target) {
  Add({.name = name, .value = value, .help = help, .set = [target](const std::string& text) {
         *target = text;
         return absl::OkStatus();
       }});
}

void Arguments::AddStrings(const std::string& name, const std::string& value, const std::string& help,
                           std::vector<std::string>* target) {
  Add({.name = name,
       .value = value,
       .help = help,
       .set =
           [target](const std::string& text) {
             target->push_back(text);
             return absl::OkStatus();
           },
       .repeatable = true});
}

void Arguments::AddInt(const std::string& name, const std::string& value, const std::string& help,
                       int64_t min, int64_t max, std::optional<int64_t>* target) {
  Add({.name = name, .value = value, .help = help, .set = [=](const std::string& text) {
         int64_t number;
         if (!absl::SimpleAtoi(text, &number) || number < min || number > max) {
           return BadValue(name, text, absl::StrCat("a whole number from ", min, " to ", max));
         }
         *target = number;
         return absl::OkStatus();
       }});
}

void Arguments::AddUint64(const std::string& name, const std::string& value, const std::string& help,
                          std::optional<uint64_t>* target) {
  Add({.name = name, .value = value, .help = help, .set = [=](const std::string& text) {
         uint64_t number;
         if (!absl::SimpleAtoi(text, &number))
           return BadValue(name, text, "a whole number from 0 to 2^64 - 1");
         *target = number;
         return absl::OkStatus();
       }});
}

void Arguments::AddDouble(const std::string& name, const std::string& value, const std::string& help,
                          std::optional<double>* target) {
  Add({.name = name, .value = value, .help = help, .set = [=](const std::string& text) {
         double number;
         if (!absl::SimpleAtod(text, &number) || !std::isfinite(number))
           return BadValue(name, text, "a number");
         *target = number;
         return absl::OkStatus();
       }});
}

void Arguments::AddDuration(const std::string& name, const std::string& value, const std::string& help,
                            std::optional<absl::Duration>* target) {
  Add({.name = name, .value = value, .help = help, .set = [=](const std::string& text) {
         double seconds;
         absl::Duration duration;
         if (absl::SimpleAtod(text, &seconds) && std::isfinite(seconds)) {
           duration = absl::Seconds(seconds);
         } else if (!absl::ParseDuration(text, &duration)) {
           return BadValue(name, text, "a time such as 30, 1.5s, 200ms or 2m");
         }
         if (duration <= absl::ZeroDuration() || duration == absl::InfiniteDuration()) {
           return BadValue(name, text, "a time above 0");
         }
         *target = duration;
         return absl::OkStatus();
       }});
}

absl::Status Arguments::Unknown(const std::string& name) const {
  std::vector<std::string> names = {"help"};
  for (const Option& option : options_) names.push_back(option.name);
  const std::string close = ClosestWord(name, names);
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown option '--", name, "'", close.empty() ? "" : absl::StrCat("; did you mean '--", close, "'?")));
}

absl::Status Arguments::ParseOption(const std::vector<std::string>& words, size_t* position) {
  const std::string& word = words[(*position)++];
  if (!absl::StartsWith(word, "--")) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown option '", word, "'; put -- before words that begin with a dash"));
  }
  const size_t equals = word.find('=');
  const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
  const auto option =
      std::find_if(options_.begin(), options_.end(), [&](const Option& known) { return known.name == name; });
  if (option == options_.end()) return Unknown(name);
  if (option->seen && !option->repeatable && !option->value.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--", name, " is given twice"));
  }
  option->seen = true;
  if (option->value.empty()) {
    if (equals != std::string::npos)
      return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
    return option->set("");
  }
  if (equals != std::string::npos) return option->set(word.substr(equals + 1));
  if (*position == words.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, " needs a value: --", name, " ", option->value));
  }
  return option->set(words[(*position)++]);
}

absl::StatusOr<std::vector<std::string>> Arguments::Parse(const std::vector<std::string>& words) {
  std::vector<std::string> rest;
  size_t position = 0;
  while (position < words.size()) {
    const std::string& word = words[position];
    if (word == "--") {
      rest.insert(rest.end(), words.begin() + position + 1, words.end());
      break;
    }
    if (word == "--help" || word == "-h") {
      help_wanted_ = true;
      return rest;
    }
    if (word.size() < 2 || word[0] != '-') {
      rest.push_back(word);
      ++position;
      continue;
    }
    const absl::Status status = ParseOption(words, &position);
    if (!status.ok()) return status;
  }
  return rest;
}

absl::StatusOr<size_t> Arguments::ParseLeading(const std::vector<std::string>& words) {
  size_t position = 0;
  while (position < words.size() && words[position].size() > 1 && words[position][0] == '-') {
    if (words[position] == "--help" || words[position] == "-h") {
      help_wanted_ = true;
      return position;
    }
    const absl::Status status = ParseOption(words, &position);
    if (!status.ok()) return status;
  }
  return position;
}

std::string Arguments::Help() const {
  std::string out = absl::StrCat("Usage: ", usage_, "\n\n");
  for (const absl::string_view paragraph : absl::StrSplit(about_, '\n')) AppendWrapped(&out, paragraph, 0, 0);
  size_t heading = 0;
  for (size_t i = 0; i < options_.size(); ++i) {
    for (; heading < headings_.size() && headings_[heading].first_option == i; ++heading) {
      absl::StrAppend(&out, "\n", headings_[heading].text, ":\n");
    }
    std::string left = absl::StrCat("  --", options_[i].name);
    if (!options_[i].value.empty()) absl::StrAppend(&left, " ", options_[i].value);
    if (left.size() + 2 > kHelpColumn) {
      absl::StrAppend(&out, left, "\n", std::string(kHelpColumn, ' '));
    } else {
      absl::StrAppend(&out, left, std::string(kHelpColumn - left.size(), ' '));
    }
    AppendWrapped(&out, options_[i].help, kHelpColumn, kHelpColumn);
  }
  if (!epilogue_.empty()) absl::StrAppend(&out, "\n", epilogue_, "\n");
  return out;
}

}  // namespace tessera::cli
