#ifndef TESSERA_SERVER_RPC_API_KEYS_H_
#define TESSERA_SERVER_RPC_API_KEYS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// The keys that callers may present as metadata `authorization: Bearer KEY`. Immutable. Without keys everybody may call.
class ApiKeys {
 public:
  ApiKeys() = default;
  explicit ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  // One key a line, at least 16 printable ASCII characters without spaces; empty lines and lines that start with '#'
  // are passed over. Errors name file and line, never a key.
  static absl::StatusOr<ApiKeys> Load(const std::string& path);

  bool required() const { return !keys_.empty(); }

  // `authorization` is the metadata's value, empty if there is none. UNAUTHENTICATED unless it holds a key. Takes the
  // same time whichever key of a length is presented.
  absl::Status Check(absl::string_view authorization) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_API_KEYS_H_
