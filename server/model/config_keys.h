#ifndef TESSERA_SERVER_MODEL_CONFIG_KEYS_H_
#define TESSERA_SERVER_MODEL_CONFIG_KEYS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tessera {

// Reads typed keys of a JSON object and gathers everything that is wrong with it, so that one error can tell
// all. A key whose value is null counts as absent.
class ConfigKeys {
 public:
  // `object` must outlive this. `where` stands before each message: a file, or a file and a key.
  ConfigKeys(const nlohmann::json& object, std::string where, std::vector<std::string>* problems)
      : object_(object), where_(std::move(where)), problems_(problems) {}

  bool Has(const char* key) const { return Find(key) != nullptr; }
  const nlohmann::json* Find(const char* key) const;

  // The value, or `fallback` if it is absent; without a fallback absence is a problem. After a problem the
  // result is the fallback, or the lower bound.
  int64_t Int(const char* key, int64_t min, int64_t max, std::optional<int64_t> fallback = std::nullopt);
  double Number(const char* key, double min, double max, std::optional<double> fallback = std::nullopt);
  bool Bool(const char* key, bool fallback);
  std::string String(const char* key, std::optional<std::string> fallback = std::nullopt);
  // A list of integers, or one integer.
  std::vector<int32_t> IntList(const char* key, int64_t min, int64_t max);

  // A list of strings; empty if absent.
  std::vector<std::string> StringList(const char* key);

  // A problem if the key is there with another value than the one that is supported.
  void Only(const char* key, const nlohmann::json& supported);

  void Problem(absl::string_view what);

 private:
  void WrongType(const char* key, absl::string_view expected, const nlohmann::json& found);

  const nlohmann::json& object_;
  std::string where_;
  std::vector<std::string>* problems_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_CONFIG_KEYS_H_
