#include "server/rpc/api_keys.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tessera {
namespace {

constexpr size_t kMinKeyLength = 16;

bool EqualInConstantTime(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

absl::StatusOr<ApiKeys> ApiKeys::Load(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  if (std::error_code error; !std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  std::vector<std::string> keys;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || line.front() == '#') continue;
    bool printable = true;
    for (char c : line) printable = printable && c > ' ' && c < 0x7f;
    if (!printable || line.size() < kMinKeyLength) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": a key is at least ", kMinKeyLength,
                                                     " printable ASCII characters without spaces"));
    }
    keys.push_back(line);
  }
  if (file.bad()) return absl::DataLossError(absl::StrCat(path, ": cannot read"));
  if (keys.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": holds no key"));
  return ApiKeys(std::move(keys));
}

absl::Status ApiKeys::Check(absl::string_view authorization) const {
  if (!required()) return absl::OkStatus();
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) {
    return absl::UnauthenticatedError(
        "this server requires a key: send metadata `authorization: Bearer KEY`");
  }
  authorization.remove_prefix(kScheme.size());
  bool found = false;
  for (const std::string& key : keys_) found |= EqualInConstantTime(key, authorization);
  return found ? absl::OkStatus()
               : absl::UnauthenticatedError("the key in metadata `authorization` is not known");
}

}  // namespace tessera
