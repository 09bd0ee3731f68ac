// A safetensors header's JSON, against a data section of a size that the first two bytes give.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "server/model/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const int64_t data_bytes = int64_t{data[0]} << (data[1] % 40);
  const absl::string_view json(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto header = tessera::ParseSafetensorsHeader(json, data_bytes, "f");
  if (!header.ok()) return 0;
  int64_t covered = 0;
  for (const tessera::HeaderEntry& entry : header->entries) {
    // What the reader of the file relies on.
    if (entry.begin < 0 || entry.begin > entry.end || entry.end > data_bytes) abort();
    int64_t bytes = tessera::DTypeSize(entry.dtype);
    // A tensor of no elements may have dimensions whose product is too large.
    if (std::count(entry.shape.begin(), entry.shape.end(), 0) > 0) bytes = 0;
    for (const int64_t dimension : entry.shape) bytes = bytes == 0 ? 0 : bytes * dimension;
    if (bytes != entry.end - entry.begin) abort();
    if (entry.begin != entry.end && entry.begin < covered) abort();
    covered = entry.end > covered ? entry.end : covered;
  }
  return 0;
}
