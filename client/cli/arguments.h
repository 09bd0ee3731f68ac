#ifndef TESSERA_CLIENT_CLI_ARGUMENTS_H_
#define TESSERA_CLIENT_CLI_ARGUMENTS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tessera::cli {

// Options of a command: `--name VALUE`, `--name=VALUE`, `--flag`. Options may stand anywhere among the other words;
// `--` ends them, and a lone `-` is a word. Each Add function names the option, describes it for --help, and says
// where the value goes; the targets outlive the parser.
class Arguments {
 public:
  // `usage`: for example "tessera embed [OPTION...] [TEXT...]". `about`: what the command does.
  Arguments(std::string usage, std::string about) : usage_(std::move(usage)), about_(std::move(about)) {}

  // Starts a group of options under a heading of its own.
  void Group(std::string heading);
  void AddFlag(const std::string& name, const std::string& help, bool* target);
  void AddString(const std::string& name, const std::string& value, const std::string& help,
                 std::string* target);
  // May be given more than once.
  void AddStrings(const std::string& name, const std::string& value, const std::string& help,
                  std::vector<std::string>* target);
  void AddInt(const std::string& name, const std::string& value, const std::string& help, int64_t min,
              int64_t max, std::optional<int64_t>* target);
  void AddUint64(const std::string& name, const std::string& value, const std::string& help,
                 std::optional<uint64_t>* target);
  void AddDouble(const std::string& name, const std::string& value, const std::string& help,
                 std::optional<double>* target);
  // "30" (seconds), "1.5s", "200ms", "2m". Above 0.
  void AddDuration(const std::string& name, const std::string& value, const std::string& help,
                   std::optional<absl::Duration>* target);
  // Text after the options: examples, exit codes.
  void Epilogue(std::string text) { epilogue_ = std::move(text); }

  // The words that are no options. INVALID_ARGUMENT names the option that is unknown (and one that is spelled
  // alike), lacks its value, has one too many, or has a bad one.
  absl::StatusOr<std::vector<std::string>> Parse(const std::vector<std::string>& words);
  // As Parse, but stops before the first word that is no option; the second of the pair is where it stopped.
  absl::StatusOr<size_t> ParseLeading(const std::vector<std::string>& words);
  // --help or -h was among the words; nothing else was checked then.
  bool help_wanted() const { return help_wanted_; }
  std::string Help() const;
  // The usage's words before the first bracket or placeholder: "tessera embed".
  std::string program() const { return usage_.substr(0, usage_.find(" [")); }

 private:
  struct Option {
    std::string name;
    std::string value;  // placeholder; empty for a flag
    std::string help;
    std::function<absl::Status(const std::string&)> set;
    bool repeatable = false;
    bool seen = false;
  };
  struct Heading {
    std::string text;
    size_t first_option;
  };

  void Add(Option option) { options_.push_back(std::move(option)); }
  absl::Status ParseOption(const std::vector<std::string>& words, size_t* position);
  absl::Status Unknown(const std::string& name) const;

  std::string usage_, about_, epilogue_;
  std::vector<Option> options_;
  std::vector<Heading> headings_;
  bool help_wanted_ = false;
};

// The entry of `known` that differs from `word` by the fewest edits, if they are few; else empty.
std::string ClosestWord(absl::string_view word, const std::vector<std::string>& known);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_ARGUMENTS_H_
