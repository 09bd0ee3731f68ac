// An operand of wgmma or tcgen05 in the shared memory of one CTA: checked when the instruction is issued, marked as in
// use by the async proxy until it is done, decoded when it completes.
#ifndef TESSERA_TESTS_PTX_TENSOR_SMEM_OPERAND_H_
#define TESSERA_TESTS_PTX_TENSOR_SMEM_OPERAND_H_

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/tensor/matmul.h"
#include "tests/ptx/tensor/smem_descriptor.h"

namespace tessera::ptx {

// Decodes a descriptor; raises kDescriptor with `name` ("A", "B", "the source").
MatrixDescriptor RequireDescriptor(DescriptorTarget target, uint64_t bits, std::string_view name);

// Bytes of shared memory that an asynchronous operation reads: sorted, joined ranges of 16-byte chunks.
class SmemRange {
 public:
  SmemRange() = default;
  SmemRange(Cta& cta, std::vector<uint32_t> chunk_addresses);

  // Raises unless every byte is inside the allocation, written, and visible to the async proxy.
  void CheckReadable() const;
  void Begin();  // ordinary stores to the bytes fault until End
  void End();

 private:
  SharedMemory* shared_ = nullptr;
  std::vector<std::pair<uint32_t, uint32_t>> ranges_;  // offset, bytes
};

class SmemOperand {
 public:
  // Raises for a bad descriptor. `rows` of M or N, `k` elements.
  SmemOperand(Cta& cta, DescriptorTarget target, uint64_t descriptor, std::string_view name, Major major,
              ElementType type, Packing packing, int rows, int k);

  // CheckReadable and Begin: when the instruction is issued.
  void Issue();
  // Decodes; raises as AsyncLoad does. Then End.
  Matrix Complete();

 private:
  Cta* cta_;
  MatrixDescriptor descriptor_;
  Major major_;
  ElementType type_;
  Packing packing_;
  int rows_;
  int k_;
  SmemRange range_;
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TENSOR_SMEM_OPERAND_H_
