#include "tests/ptx/cudart/fat_binary.h"

#include <fatbinary_section.h>

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera::ptx {
namespace {

constexpr uint32_t kContainerMagic = 0xBA55ED50;
constexpr uint16_t kKindPtx = 1;
constexpr uint64_t kCompressed = 0xF000;  // flags of the known compressions

struct ContainerHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t bytes;  // of the entries
};
static_assert(sizeof(ContainerHeader) == 16);

struct EntryHeader {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t payload_bytes;
  uint32_t compressed_bytes;
  uint32_t options_offset;
  uint16_t minor, major;  // of the PTX
  uint32_t arch;
  uint32_t name_offset, name_bytes;
  uint64_t flags;
  uint64_t reserved;
  uint64_t uncompressed_bytes;
};
static_assert(sizeof(EntryHeader) == 64);

}  // namespace

absl::StatusOr<std::vector<PtxImage>> ReadFatBinary(const void* wrapper) {
  const auto* outer = static_cast<const __fatBinC_Wrapper_t*>(wrapper);
  if (outer->magic != FATBINC_MAGIC)
    return absl::InvalidArgumentError("no fat binary: the wrapper's mark is missing");
  if (outer->version != FATBINC_VERSION) {
    return absl::UnimplementedError("a fat binary of relocatable device code (nvcc -rdc) is not supported");
  }
  const auto* bytes = reinterpret_cast<const uint8_t*>(outer->data);
  ContainerHeader container;
  std::memcpy(&container, bytes, sizeof(container));
  if (container.magic != kContainerMagic || container.version != 1 ||
      container.header_bytes < sizeof(container)) {
    return absl::InvalidArgumentError("the fat binary's header is not one that nvcc 13 writes");
  }
  std::vector<PtxImage> images;
  const uint8_t* at = bytes + container.header_bytes;
  const uint8_t* const end = at + container.bytes;
  while (at < end) {
    EntryHeader entry;
    if (end - at < static_cast<ptrdiff_t>(sizeof(entry)))
      return absl::InvalidArgumentError("a fat binary entry is cut off");
    std::memcpy(&entry, at, sizeof(entry));
    if (entry.header_bytes < sizeof(entry) || entry.header_bytes + entry.payload_bytes > uint64_t(end - at)) {
      return absl::InvalidArgumentError("a fat binary entry reaches past the fat binary");
    }
    if (entry.kind == kKindPtx) {
      if ((entry.flags & kCompressed) != 0) {
        return absl::UnimplementedError(
            "the fat binary's PTX is compressed: compile with nvcc --compress-mode=none");
      }
      PtxImage image;
      image.arch = static_cast<int>(entry.arch);
      if (entry.name_offset + entry.name_bytes <= entry.header_bytes) {
        image.name.assign(reinterpret_cast<const char*>(at) + entry.name_offset, entry.name_bytes);
        image.name.resize(std::strlen(image.name.c_str()));
      }
      const char* text = reinterpret_cast<const char*>(at) + entry.header_bytes;
      image.text.assign(text, strnlen(text, entry.payload_bytes));  // padded with zeros
      images.push_back(std::move(image));
    }
    at += entry.header_bytes + entry.payload_bytes;
  }
  return images;
}

}  // namespace tessera::ptx
