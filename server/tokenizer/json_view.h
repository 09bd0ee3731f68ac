// A JSON value together with where it stands, so that every complaint about a file names the place.
#ifndef TESSERA_SERVER_TOKENIZER_JSON_VIEW_H_
#define TESSERA_SERVER_TOKENIZER_JSON_VIEW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tessera {

// Refers to the document, which must outlive it.
class JsonView {
 public:
  JsonView(const nlohmann::json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  // Parses a whole document; INVALID_ARGUMENT with `name` and the byte offset if it is not JSON.
  static absl::StatusOr<nlohmann::json> ParseDocument(absl::string_view text, absl::string_view name);

  const nlohmann::json& json() const { return *value_; }
  const std::string& path() const { return path_; }
  // Absent members read as null.
  bool is_null() const { return value_->is_null(); }

  // A member of an object; null if this is no object or has no such member.
  JsonView operator[](const char* key) const;
  // The elements; an error if this is no array.
  absl::StatusOr<std::vector<JsonView>> Elements() const;
  absl::Status ExpectObject() const;

  absl::StatusOr<std::string> String() const;
  absl::StatusOr<std::string> StringOr(absl::string_view absent) const;
  absl::StatusOr<bool> BoolOr(bool absent) const;
  // An integer within [low, high].
  absl::StatusOr<int64_t> Int(int64_t low, int64_t high) const;
  // The "type" member of a component, which names its kind.
  absl::StatusOr<std::string> Kind() const;

  // INVALID_ARGUMENT: "<path>: <message>".
  absl::Status Error(absl::string_view message) const;
  // "<path>: expected <what>, found <type of the value>".
  absl::Status Expected(absl::string_view what) const;
  // UNIMPLEMENTED: "<path>: <what> is not supported".
  absl::Status Unsupported(absl::string_view what) const;

 private:
  const nlohmann::json* value_;
  std::string path_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_JSON_VIEW_H_
