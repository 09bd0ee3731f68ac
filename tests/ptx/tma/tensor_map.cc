#include "tests/ptx/tma/tensor_map.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace tessera::ptx {
namespace {

constexpr uint32_t kMagic = 0x50414D54;  // "TMAP"
constexpr const char* kElementNames[] = {"UINT8",        "UINT16",       "UINT32",        "INT32",
                                         "UINT64",       "INT64",        "FLOAT16",       "FLOAT32",
                                         "FLOAT64",      "BFLOAT16",     "FLOAT32_FTZ",   "TFLOAT32",
                                         "TFLOAT32_FTZ", "16U4_ALIGN8B", "16U4_ALIGN16B", "16U6_ALIGN16B"};
constexpr int kElementBits[] = {8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6};
constexpr const char* kSwizzleNames[] = {
    "NONE", "32B", "64B", "128B", "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B"};
constexpr uint32_t kSwizzleWidth[] = {0, 32, 64, 128, 128, 128, 128};

// The bytes of an encoded map.
struct Packed {
  uint32_t magic;
  uint8_t element, rank, swizzle, fill;
  uint64_t address;
  uint64_t strides[kMaxTensorRank - 1];
  uint32_t last[kMaxTensorRank];  // sizes less one: a size may be 2^32
  uint16_t box[kMaxTensorRank];
  uint8_t steps[kMaxTensorRank];
  uint8_t unused[41];
  uint32_t checksum;  // FNV-1a of the bytes before
};
static_assert(sizeof(Packed) == kTensorMapBytes && offsetof(Packed, checksum) == kTensorMapBytes - 4);

uint32_t Checksum(const uint8_t* bytes) {
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < offsetof(Packed, checksum); ++i) hash = (hash ^ bytes[i]) * 16777619u;
  return hash;
}

bool IsPadded(TensorElement element) {
  return element == TensorElement::k16U4Align16B || element == TensorElement::k16U6Align16B;
}

bool IsFloat(TensorElement element) {
  switch (element) {
    case TensorElement::kFloat16:
    case TensorElement::kFloat32:
    case TensorElement::kFloat64:
    case TensorElement::kBfloat16:
    case TensorElement::kFloat32Ftz:
    case TensorElement::kTfloat32:
    case TensorElement::kTfloat32Ftz:
      return true;
    default:
      return false;
  }
}

template <class... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("cuTensorMapEncodeTiled: ", parts...));
}

absl::Status CheckEnums(const TiledTensorArguments& a) {
  if (a.element >= std::size(kElementNames)) {
    return Refuse("tensorDataType is ", a.element, "; expected 0 (UINT8) to 15 (16U6_ALIGN16B)");
  }
  if (a.rank < 1 || a.rank > kMaxTensorRank) return Refuse("tensorRank is ", a.rank, "; expected 1 to 5");
  if (a.interleave > 2) return Refuse("interleave is ", a.interleave, "; expected 0 (NONE) to 2 (32B)");
  if (a.swizzle >= std::size(kSwizzleNames)) {
    return Refuse("swizzle is ", a.swizzle, "; expected 0 (NONE) to 6 (128B_ATOM_64B)");
  }
  if (a.l2_promotion > 3)
    return Refuse("l2Promotion is ", a.l2_promotion, "; expected 0 (NONE) to 3 (L2_256B)");
  if (a.fill > 1) return Refuse("oobFill is ", a.fill, "; expected 0 (NONE) or 1 (NAN_REQUEST_ZERO_FMA)");
  if (a.interleave != 0) {
    if (a.rank < 3) return Refuse("tensorRank is ", a.rank, "; an interleaved layout needs 3 to 5");
    if (a.interleave == 2 && a.swizzle != 1) {
      return Refuse("swizzle is ", kSwizzleNames[a.swizzle], "; interleave 32B needs SWIZZLE_32B");
    }
    return absl::UnimplementedError("cuTensorMapEncodeTiled: interleaved layouts are not emulated");
  }
  if (a.sizes.size() != a.rank || a.box.size() != a.rank || a.steps.size() != a.rank ||
      a.strides.size() + 1 != a.rank) {
    return Refuse("globalDim, boxDim and elementStrides must have ", a.rank, " values, globalStrides ",
                  a.rank - 1);
  }
  return absl::OkStatus();
}

absl::Status CheckGlobal(const TiledTensorArguments& a, TensorElement element) {
  const uint64_t alignment = IsPadded(element) ? 32 : 16;
  if (a.address % alignment != 0) {
    return Refuse("globalAddress 0x", absl::Hex(a.address), " is not a multiple of ", alignment, " bytes");
  }
  for (uint32_t d = 0; d < a.rank; ++d) {
    if (a.sizes[d] < 1 || a.sizes[d] > uint64_t{1} << 32) {
      return Refuse("globalDim[", d, "] is ", a.sizes[d], "; expected 1 to 2^32");
    }
  }
  if (IsPadded(element) && a.sizes[0] % 128 != 0) {
    return Refuse("globalDim[0] is ", a.sizes[0], "; ", TensorElementName(element),
                  " needs a multiple of 128");
  }
  if (element == TensorElement::k16U4Align8B && a.sizes[0] % 2 != 0) {
    return Refuse("globalDim[0] is ", a.sizes[0], "; 16U4_ALIGN8B needs a multiple of 2");
  }
  for (uint32_t i = 0; i + 1 < a.rank; ++i) {
    if (a.strides[i] % alignment != 0 || a.strides[i] >= uint64_t{1} << 40) {
      return Refuse("globalStrides[", i, "] is ", a.strides[i], " bytes; expected a multiple of ", alignment,
                    " below 2^40");
    }
    // The documentation derives each stride from the one before it. Zero and overlapping strides (broadcasts, sliding
    // windows) are taken by the driver all the same and are in use, so they are no error here.
  }
  return absl::OkStatus();
}

absl::Status CheckBox(const TiledTensorArguments& a, TensorElement element) {
  for (uint32_t d = 0; d < a.rank; ++d) {
    if (a.box[d] < 1 || a.box[d] > 256) return Refuse("boxDim[", d, "] is ", a.box[d], "; expected 1 to 256");
    if (a.steps[d] < 1 || a.steps[d] > 8) {
      return Refuse("elementStrides[", d, "] is ", a.steps[d], "; expected 1 to 8");
    }
  }
  if (IsPadded(element) && a.box[0] != 128) {
    return Refuse("boxDim[0] is ", a.box[0], "; ", TensorElementName(element), " needs 128");
  }
  const uint32_t bits = a.box[0] * TensorElementBits(element);
  if (bits % 128 != 0) {
    return Refuse("boxDim[0] is ", a.box[0], " elements, ", bits, " bits; expected a multiple of 16 bytes");
  }
  const TensorSwizzle swizzle = static_cast<TensorSwizzle>(a.swizzle);
  const uint32_t inner = IsPadded(element) ? 128 : bits / 8;
  if (swizzle != TensorSwizzle::kNone && inner > kSwizzleWidth[a.swizzle]) {
    return Refuse("boxDim[0] is ", a.box[0], " elements, ", inner, " bytes; swizzle ",
                  TensorSwizzleName(swizzle), " takes at most ", kSwizzleWidth[a.swizzle], " bytes");
  }
  if (IsPadded(element) && swizzle != TensorSwizzle::kNone && swizzle != TensorSwizzle::k128B &&
      swizzle != TensorSwizzle::k128BAtom32B &&
      !(element == TensorElement::k16U6Align16B && swizzle == TensorSwizzle::k128BAtom64B)) {
    return Refuse("swizzle ", TensorSwizzleName(swizzle), " is not supported with ",
                  TensorElementName(element));
  }
  if (a.fill == 1 && !IsFloat(element)) {
    return Refuse("oobFill NAN_REQUEST_ZERO_FMA needs a floating-point type, not ",
                  TensorElementName(element));
  }
  return absl::OkStatus();
}

}  // namespace

int TensorElementBits(TensorElement element) { return kElementBits[static_cast<int>(element)]; }
const char* TensorElementName(TensorElement element) { return kElementNames[static_cast<int>(element)]; }
const char* TensorSwizzleName(TensorSwizzle swizzle) { return kSwizzleNames[static_cast<int>(swizzle)]; }

uint32_t TensorMap::BoxRows() const {
  uint32_t rows = 1;
  for (int d = 1; d < rank; ++d) rows *= BoxElements(d);
  return rows;
}

uint32_t TensorMap::BoxBytes() const { return BoxRows() * (box[0] * TensorElementBits(element) / 8); }

uint32_t TensorMap::SharedPitch() const {
  if (swizzle != TensorSwizzle::kNone) return kSwizzleWidth[static_cast<int>(swizzle)];
  return IsPadded(element) ? box[0] : box[0] * TensorElementBits(element) / 8;
}

absl::StatusOr<TensorMap> MakeTiledTensorMap(const TiledTensorArguments& a) {
  if (absl::Status status = CheckEnums(a); !status.ok()) return status;
  const TensorElement element = static_cast<TensorElement>(a.element);
  if (absl::Status status = CheckGlobal(a, element); !status.ok()) return status;
  if (absl::Status status = CheckBox(a, element); !status.ok()) return status;
  TensorMap map;
  map.element = element;
  map.rank = static_cast<int>(a.rank);
  map.address = a.address;
  for (uint32_t d = 0; d < a.rank; ++d) {
    map.sizes[d] = a.sizes[d];
    if (d > 0) map.strides[d] = a.strides[d - 1];
    map.box[d] = a.box[d];
    map.steps[d] = a.steps[d];
  }
  map.swizzle = static_cast<TensorSwizzle>(a.swizzle);
  map.fill = static_cast<TensorFill>(a.fill);
  return map;
}

void EncodeTensorMap(const TensorMap& map, uint8_t (&bytes)[kTensorMapBytes]) {
  Packed packed = {};
  packed.magic = kMagic;
  packed.element = static_cast<uint8_t>(map.element);
  packed.rank = static_cast<uint8_t>(map.rank);
  packed.swizzle = static_cast<uint8_t>(map.swizzle);
  packed.fill = static_cast<uint8_t>(map.fill);
  packed.address = map.address;
  for (int d = 0; d < map.rank; ++d) {
    packed.last[d] = static_cast<uint32_t>(map.sizes[d] - 1);
    if (d > 0) packed.strides[d - 1] = map.strides[d];
    packed.box[d] = static_cast<uint16_t>(map.box[d]);
    packed.steps[d] = static_cast<uint8_t>(map.steps[d]);
  }
  std::memcpy(bytes, &packed, sizeof(packed));
  packed.checksum = Checksum(bytes);
  std::memcpy(bytes, &packed, sizeof(packed));
}

absl::StatusOr<TensorMap> DecodeTensorMap(const uint8_t* bytes) {
  Packed packed;
  std::memcpy(&packed, bytes, sizeof(packed));
  if (packed.magic != kMagic) {
    return absl::InvalidArgumentError(
        "these 128 bytes are no tensor map: cuTensorMapEncodeTiled did not make them");
  }
  if (packed.checksum != Checksum(bytes)) {
    return absl::InvalidArgumentError("the tensor map was changed after cuTensorMapEncodeTiled made it");
  }
  TensorMap map;
  map.element = static_cast<TensorElement>(packed.element);
  map.rank = packed.rank;
  map.address = packed.address;
  map.swizzle = static_cast<TensorSwizzle>(packed.swizzle);
  map.fill = static_cast<TensorFill>(packed.fill);
  for (int d = 0; d < map.rank; ++d) {
    map.sizes[d] = uint64_t{packed.last[d]} + 1;
    if (d > 0) map.strides[d] = packed.strides[d - 1];
    map.box[d] = packed.box[d];
    map.steps[d] = packed.steps[d];
  }
  return map;
}

}  // namespace tessera::ptx
