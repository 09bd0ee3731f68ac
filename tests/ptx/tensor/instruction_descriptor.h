// The 32-bit instruction descriptor of tcgen05.mma, and the rules of PTX ISA table "Various combinations of .kind and
// shapes": what M, N, types and layouts each kind takes, with one CTA or with a pair.
//
//   bits    f16, tf32, f8f6f4, i8                       bits    mxf8f6f4, mxf4, mxf4nvf4
//   0-1     sparsity selector                           4-5     B scale-factor id
//   2       sparse                                      2       sparse
//   3       saturate (i8)
//   4-5     D: F16 0, F32 1, S32 2
//   7-9     A format                                    7-9     A format (E2M1 is 1 for the 4-bit kinds)
//   10-12   B format                                    10-12   B format
//   13, 14  negate A, B                                 13, 14  the same
//   15, 16  A, B are MN-major                           15, 16  the same (mxf8f6f4)
//   17-22   N / 8                                       17-22   N / 8
//   24-28   M / 16                                      23      scales: UE4M3 0, UE8M0 1
//   30-31   largest shift (.ws)                         27-28   M / 128
//                                                       29-30   A scale-factor id
//                                                       31      K = 96 (sm_103a)
// Formats: kind f16: F16 0, BF16 1; tf32: 2; f8f6f4 and mxf8f6f4: E4M3 0, E5M2 1, E2M3 3, E3M2 4, E2M1 5; i8: U8 0,
// S8 1.
#ifndef TESSERA_TESTS_PTX_TENSOR_INSTRUCTION_DESCRIPTOR_H_
#define TESSERA_TESTS_PTX_TENSOR_INSTRUCTION_DESCRIPTOR_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/ptx/tensor/formats.h"
#include "tests/ptx/tensor/smem_descriptor.h"

namespace tessera::ptx {

enum class MmaKind : uint8_t { kF16, kTF32, kF8F6F4, kI8, kMxF8F6F4, kMxF4, kMxF4NvF4 };

// "f16", "mxf4nvf4", ...: what follows ".kind::".
std::string_view Name(MmaKind kind);
absl::StatusOr<MmaKind> ParseMmaKind(std::string_view name);

// Whether A and B carry scale factors in tensor memory.
bool IsBlockScaled(MmaKind kind);

// K of a dense MMA: always 32 bytes of operand.
int KOf(MmaKind kind);

// Bits that an element occupies in shared memory: sub-byte elements of f8f6f4 and mxf8f6f4 occupy a byte on average
// (16 elements and their padding in 16 bytes), those of the 4-bit kinds four bits.
int StorageBits(MmaKind kind, ElementType type);

struct InstructionDescriptor {
  bool sparse = false;
  uint8_t sparsity_selector = 0;
  bool saturate = false;
  ElementType d_type = ElementType::kF32;
  ElementType a_type = ElementType::kBF16;
  ElementType b_type = ElementType::kBF16;
  bool negate_a = false;
  bool negate_b = false;
  Major a_major = Major::kK;
  Major b_major = Major::kK;
  int m = 128;
  int n = 64;
  uint8_t max_shift = 0;
  ElementType scale_type = ElementType::kUE8M0;  // block-scaled kinds
  uint8_t a_scale_id = 0;
  uint8_t b_scale_id = 0;
  bool k96 = false;
};

// What the instruction itself says, beside the descriptor.
struct MmaQualifiers {
  int cta_group = 1;
  bool weight_stationary = false;  // .ws
  int scale_vector = 0;            // scales a row and instruction: 1, 2, 4; 0 for kinds without scales
  bool a_in_tmem = false;
};

// The scale_vec::NX that a qualifier means: "scale_vec::4X", "block16", "block32", or "" for the kind's default.
absl::StatusOr<int> ScaleVector(MmaKind kind, std::string_view qualifier);

// InvalidArgument naming the field, what it holds and what the kind takes.
absl::StatusOr<InstructionDescriptor> DecodeInstructionDescriptor(MmaKind kind, uint32_t bits);

// InvalidArgument when a field cannot be expressed.
absl::StatusOr<uint32_t> EncodeInstructionDescriptor(MmaKind kind, const InstructionDescriptor& descriptor);

// M, N, types, majors, scale ids against the kind and the qualifiers. Unimplemented for sparse A and K = 96.
absl::Status CheckInstruction(MmaKind kind, const InstructionDescriptor& descriptor,
                              const MmaQualifiers& qualifiers);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TENSOR_INSTRUCTION_DESCRIPTOR_H_
