// model.safetensors.index.json.
#include <cstdint>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "server/model/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto map = tessera::ParseWeightMap({reinterpret_cast<const char*>(data), size}, "f");
  if (!map.ok()) return 0;
  for (const auto& [name, file] : *map) {
    // Never a path out of the checkpoint's directory.
    if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos) abort();
  }
  return 0;
}
