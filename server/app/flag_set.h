#ifndef TESSERA_SERVER_APP_FLAG_SET_H_
#define TESSERA_SERVER_APP_FLAG_SET_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tessera {

// The flags of a program: `--name value`, `--name=value`, and `--name` alone for switches, each also from an environment
// variable (TESSERA_NAME, dashes as underscores), which the command line overrides. Unlike absl::flags it has names with
// dashes, help in groups, and reports every mistake at once.
class FlagSet {
 public:
  // Parses a value; an error says what was found and what was expected.
  using Parser = std::function<absl::Status(const std::string& value)>;

  FlagSet(std::string usage, std::string description);

  // Flags added from here on stand under this title in the help.
  void Group(std::string title);
  void Custom(std::string name, std::string value_name, std::string help, std::string default_text,
              Parser parser);
  void Switch(std::string name, bool* target, std::string help);
  void String(std::string name, std::string* target, std::string value_name, std::string help);
  void Int(std::string name, int32_t* target, int32_t low, int32_t high, std::string help);
  // Plain numbers or with a unit: K, M, G, T (powers of 1024; KiB and so on mean the same).
  void Bytes(std::string name, int64_t* target, int64_t low, std::string help);
  // As in "30s", "1m30s", "250ms", "inf"; a plain number means seconds.
  void Duration(std::string name, absl::Duration* target, std::string help);

  // `getenv` reads the environment (null: none). INVALID_ARGUMENT lists all mistakes, one a line.
  absl::Status Parse(const std::vector<std::string>& arguments,
                     const std::function<const char*(const char*)>& getenv);

  std::string Help() const;

 private:
  struct Flag {
    std::string name;
    std::string value_name;  // empty for a switch
    std::string help;
    std::string default_text;
    Parser parser;
    std::string group;
  };

  const Flag* Find(const std::string& name) const;
  std::string Nearest(const std::string& name) const;

  std::string usage_;
  std::string description_;
  std::string group_;
  std::vector<Flag> flags_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_APP_FLAG_SET_H_
