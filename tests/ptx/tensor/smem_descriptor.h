// The 64-bit descriptor of a matrix in shared memory, as wgmma (sm_90) and tcgen05 (sm_100) read it.
//
// Sources: PTX ISA "Matrix Descriptor Format" of wgmma, "Shared Memory Descriptor" of tcgen05.
// The two targets share the address fields and differ in the code of the swizzle and in the constant of bits 46-48,
// so a descriptor of one is not a descriptor of the other.
//
//   bits   sm_90                    sm_100
//   0-13   start address >> 4       the same (18 address bits: 256 KB, hence all of shared memory)
//   16-29  leading dim. offset >> 4 the same
//   32-45  stride dim. offset >> 4  the same
//   46-48  0                        0b001
//   49-51  base offset              the same
//   52     0                        1: the leading offset is an absolute address (sm_103a)
//   61-63  62-63: 1 128B, 2 64B, 3 32B   0 none, 1 128B with 32B atoms, 2 128B, 4 64B, 6 32B
#ifndef TESSERA_TESTS_PTX_TENSOR_SMEM_DESCRIPTOR_H_
#define TESSERA_TESTS_PTX_TENSOR_SMEM_DESCRIPTOR_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::ptx {

enum class Swizzle : uint8_t { kNone, k32B, k64B, k128B, k128B32BAtom };

// "none", "32B", "64B", "128B", "128B with 32B atoms".
std::string_view Name(Swizzle swizzle);

// Bytes of a row of the atom: 16, 32, 64, 128, 128.
int SwizzleWidth(Swizzle swizzle);

// Bytes after which the pattern repeats, and its natural alignment: 16, 256, 512, 1024, 512.
int SwizzlePeriod(Swizzle swizzle);

enum class Major : uint8_t { kK, kMN };

std::string_view Name(Major major);

struct MatrixDescriptor {
  uint32_t start_address = 0;   // bytes, multiple of 16, below 2^18
  uint32_t leading_offset = 0;  // bytes, multiple of 16, below 2^18
  uint32_t stride_offset = 0;   // bytes, multiple of 16, below 2^18
  uint8_t base_offset = 0;      // (pattern start >> 7) & 7 where the pattern has no natural alignment
  bool leading_is_absolute = false;
  Swizzle swizzle = Swizzle::kNone;

  std::string ToString() const;
};

enum class DescriptorTarget { kSm90, kSm100 };

// InvalidArgument with the bits that are wrong and what they ought to be.
absl::StatusOr<MatrixDescriptor> DecodeDescriptor(DescriptorTarget target, uint64_t bits);

// InvalidArgument when a field does not fit or the target has no such swizzle.
absl::StatusOr<uint64_t> EncodeDescriptor(DescriptorTarget target, const MatrixDescriptor& descriptor);

// Rules that depend on the operand: `rows` of M or N, `k_chunks` 16-byte columns of K (2 for every MMA without
// K = 96), elements of `element_bits` in memory. Refuses a swizzle that the majorness does not have, a start outside
// the first row of a swizzle atom, and a stride of zero where the operand needs one (not the leading offset of swizzled
// MN-major operands: zero repeats an atom, which pads M).
absl::Status CheckOperand(const MatrixDescriptor& descriptor, Major major, int element_bits, int rows,
                          int k_chunks);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TENSOR_SMEM_DESCRIPTOR_H_
