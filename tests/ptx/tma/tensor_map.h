// A tensor map: what the tensor copy engine (TMA) knows of a tensor in global memory and of the boxes that are copied
// from and to it.
//
// Rules: the documentation of cuTensorMapEncodeTiled in cuda.h (CUDA 13.0) and PTX ISA 9.0, "Tensors" and "Restrictions
// on Tensor Copy instructions". The driver writes its own bits into a CUtensorMap and does not document them; the 128
// bytes here are the emulator's own, with a mark and a checksum, so that a map that no encoder made, or that was
// overwritten, is found when it is used.
//
// Not emulated: im2col maps, interleaved layouts (16 and 32 bytes) and the 96-byte swizzle. They are refused by name.
#ifndef TESSERA_TESTS_PTX_TMA_TENSOR_MAP_H_
#define TESSERA_TESTS_PTX_TMA_TENSOR_MAP_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tessera::ptx {

// The enumerators have the values of CUtensorMapDataType, CUtensorMapInterleave, CUtensorMapSwizzle and
// CUtensorMapFloatOOBfill.
enum class TensorElement : uint8_t {
  kUint8,
  kUint16,
  kUint32,
  kInt32,
  kUint64,
  kInt64,
  kFloat16,
  kFloat32,
  kFloat64,
  kBfloat16,
  kFloat32Ftz,
  kTfloat32,
  kTfloat32Ftz,
  k16U4Align8B,   // PTX .b4x16: 16 elements are 8 bytes in both memories
  k16U4Align16B,  // PTX .b4x16_p64: 8 bytes, followed in shared memory by 8 bytes of padding
  k16U6Align16B,  // PTX .b6x16_p32: 12 bytes, followed in shared memory by 4 bytes of padding
};

enum class TensorSwizzle : uint8_t {
  kNone,
  k32B,
  k64B,
  k128B,
  k128BAtom32B,
  k128BAtom32BFlip8B,
  k128BAtom64B
};

enum class TensorFill : uint8_t { kZero, kNan };

inline constexpr int kMaxTensorRank = 5;
inline constexpr size_t kTensorMapBytes = 128;
inline constexpr size_t kTensorMapAlignment = 64;

// Dimension 0 is the innermost.
struct TensorMap {
  TensorElement element = TensorElement::kUint8;
  int rank = 0;
  uint64_t address = 0;                             // of element (0, ..., 0), in global memory
  std::array<uint64_t, kMaxTensorRank> sizes = {};  // elements
  std::array<uint64_t, kMaxTensorRank> strides =
      {};                                         // bytes, of dimensions 1, 2, ...; strides[0] is not used
  std::array<uint32_t, kMaxTensorRank> box = {};  // elements spanned, the skipped ones included
  std::array<uint32_t, kMaxTensorRank> steps =
      {};  // every steps[d]-th element is copied; steps[0] is not used
  TensorSwizzle swizzle = TensorSwizzle::kNone;
  TensorFill fill = TensorFill::kZero;

  bool operator==(const TensorMap&) const = default;

  // Elements copied in dimension d.
  uint32_t BoxElements(int d) const { return d == 0 ? box[0] : (box[d] + steps[d] - 1) / steps[d]; }
  // Rows of dimension 0 in a box.
  uint32_t BoxRows() const;
  // Bytes that the box takes from global memory, and by which the copy advances an mbarrier: elements that are filled
  // in because they lie outside the tensor count, padding does not.
  uint32_t BoxBytes() const;
  // Distance in shared memory of two rows of a box: the width of the swizzle if there is one.
  uint32_t SharedPitch() const;
};

// Bits of an element in global memory: 4, 6, 8, 16, 32 or 64.
int TensorElementBits(TensorElement element);
const char* TensorElementName(TensorElement element);
const char* TensorSwizzleName(TensorSwizzle swizzle);

// The arguments of cuTensorMapEncodeTiled, as they come.
struct TiledTensorArguments {
  uint32_t element = 0;
  uint32_t rank = 0;
  uint64_t address = 0;
  absl::Span<const uint64_t> sizes;    // [rank]
  absl::Span<const uint64_t> strides;  // [rank - 1]
  absl::Span<const uint32_t> box;      // [rank]
  absl::Span<const uint32_t> steps;    // [rank]
  uint32_t interleave = 0;
  uint32_t swizzle = 0;
  uint32_t l2_promotion = 0;
  uint32_t fill = 0;
};

// Checks every rule. INVALID_ARGUMENT names the argument, its value and what the driver asks for; UNIMPLEMENTED what the
// driver takes and the emulator does not.
absl::StatusOr<TensorMap> MakeTiledTensorMap(const TiledTensorArguments& arguments);

// The 128 bytes. A map must have come from MakeTiledTensorMap.
void EncodeTensorMap(const TensorMap& map, uint8_t (&bytes)[kTensorMapBytes]);

// INVALID_ARGUMENT: no encoder made these bytes, or they were changed since.
absl::StatusOr<TensorMap> DecodeTensorMap(const uint8_t* bytes);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TMA_TENSOR_MAP_H_
