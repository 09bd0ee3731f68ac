// The mistakes that puzzles_sm100.cu can make, for the kernel and for its test.
#ifndef TESSERA_TESTS_PTX_TENSOR_PUZZLES_H_
#define TESSERA_TESTS_PTX_TENSOR_PUZZLES_H_

#include <cstdint>

namespace tessera::ptx::puzzles {

enum Mistake : uint32_t {
  kNone,
  kInstructionFromMatrix,  // the instruction descriptor is the upper half of A's matrix descriptor
  kShortAddress,           // 17 address bits in the descriptor: "14 bits are 128 KB"
  kOneThreadLoads,         // tcgen05.ld under if (threadIdx.x == 0)
  kNoExclusiveOr,          // the swizzle replaces the chunk index instead of XORing it
  kRowMajorAsNone,         // rows one after the other, described as no swizzle with zero strides
  kNoWait,                 // __syncthreads instead of commit and a wait
};

}  // namespace tessera::ptx::puzzles

#endif  // TESSERA_TESTS_PTX_TENSOR_PUZZLES_H_
