#ifndef TESSERA_SERVER_MODEL_SAFETENSORS_HEADER_H_
#define TESSERA_SERVER_MODEL_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/model/safetensors.h"

namespace tessera {

// The largest header accepted; the reference implementation's limit.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// One tensor as the header describes it, checked.
struct HeaderEntry {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // in the data section
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<HeaderEntry> entries;  // by begin
  std::map<std::string, std::string> metadata;
  int64_t hole_bytes = 0;  // of the data section, covered by no tensor
};

// Parses and checks a header's JSON against a data section of `data_bytes` bytes. `path` is for messages
// only.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json, int64_t data_bytes,
                                                         absl::string_view path);

// "weight_map" of model.safetensors.index.json: tensor name -> file name, each a plain name in the index's own
// directory.
absl::StatusOr<std::map<std::string, std::string>> ParseWeightMap(absl::string_view json,
                                                                  const std::string& path);

// A name from a file as it may stand in a message: escaped, and cut when long.
std::string Printable(absl::string_view name);

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_SAFETENSORS_HEADER_H_
