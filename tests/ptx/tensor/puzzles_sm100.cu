// Kernels as one writes them when one meets tcgen05 for the first time, right and with the mistakes of puzzles.h. The
// test compiles them to PTX and runs them on the emulator; tests/ptx/blackwell-notes.md tells the stories.
#include <cstdint>

#include "kernels/cuda/ptx/instruction_descriptor.h"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/smem_descriptor.h"
#include "kernels/cuda/ptx/sync.cuh"
#include "kernels/cuda/ptx/tcgen05.cuh"
#include "tests/ptx/tensor/puzzles.h"

namespace {

using namespace tessera::cuda::ptx;
using namespace tessera::ptx::puzzles;

constexpr uint32_t kRows = 128;  // of Q
constexpr uint32_t kKeys = 64;   // of K
constexpr uint32_t kLine = 128;  // bytes of a row in shared memory: one swizzle atom wide
constexpr uint32_t kChunk = 16;

extern __shared__ __align__(1024) uint8_t shared_memory[];

// Copies rows of `head_dim` bf16 into a K-major tile with 128-byte swizzle.
__device__ void CopyTile(uint8_t* tile, const uint16_t* source, uint32_t rows, uint32_t head_dim,
                         uint32_t mistake) {
  const uint32_t chunks = head_dim * 2 / kChunk;
  for (uint32_t i = threadIdx.x; i < rows * chunks; i += blockDim.x) {
    const uint32_t row = i / chunks, chunk = i % chunks;
    uint32_t offset = row * kLine + (chunk ^ (row % 8)) * kChunk;
    if (mistake == kNoExclusiveOr) offset = row * kLine + row % 8 * kChunk;
    if (mistake == kRowMajorAsNone) offset = (row * chunks + chunk) * kChunk;
    *reinterpret_cast<uint4*>(tile + offset) =
        *reinterpret_cast<const uint4*>(source + row * head_dim + chunk * 8);
  }
}

__device__ uint64_t Describe(const uint8_t* tile, uint32_t mistake) {
  uint32_t address = SharedAddress(tile);
  if (mistake == kShortAddress) address &= 0x1FFFF;
  if (mistake == kRowMajorAsNone) return MakeSmemDescriptor(address, 0, 0, SmemSwizzle::kNone);
  return MakeSmemDescriptor(address, 0, 1024, SmemSwizzle::k128);
}

// s[row][key] = q[row] . k[key], without a softmax scale. `offset`: where in shared memory the tiles start.
template <uint32_t kHeadDim>
__device__ void Qk(const uint16_t* q, const uint16_t* k, float* s, uint32_t offset, uint32_t mistake) {
  __shared__ uint64_t done;
  __shared__ uint32_t tmem_address;
  uint8_t* q_tile = shared_memory + offset;
  uint8_t* k_tile = q_tile + kRows * kLine;
  CopyTile(q_tile, q, kRows, kHeadDim, mistake);
  CopyTile(k_tile, k, kKeys, kHeadDim, mistake);
  FenceProxyAsyncShared();
  if (threadIdx.x == 0) {
    MbarrierInit(&done, 1);
    FenceBarrierInit();
  }
  if (threadIdx.x < 32) {
    Tcgen05Alloc(&tmem_address, kKeys);
    Tcgen05RelinquishAllocPermit();
  }
  __syncthreads();
  const uint32_t tmem = tmem_address;

  if (threadIdx.x == 0) {
    const uint64_t q_descriptor = Describe(q_tile, mistake), k_descriptor = Describe(k_tile, mistake);
    uint32_t instruction = MakeBf16InstructionDescriptor(kRows, kKeys, Major::kK, Major::kK);
    if (mistake == kInstructionFromMatrix) instruction = static_cast<uint32_t>(q_descriptor >> 32);
    for (uint32_t step = 0; step < kHeadDim / 16; ++step) {
      Tcgen05MmaF16(tmem, AdvanceSmemDescriptor(q_descriptor, 32 * step),
                    AdvanceSmemDescriptor(k_descriptor, 32 * step), instruction, step != 0);
    }
    Tcgen05Commit(&done);
  }
  if (mistake == kNoWait) {
    __syncthreads();
  } else {
    MbarrierWait(&done, 0);
  }
  Tcgen05FenceAfterThreadSync();

  const uint32_t mine = TmemLane(tmem, threadIdx.x / 32 * 32);
  for (uint32_t column = 0; column < kKeys; column += 16) {
    uint32_t r[16] = {};
    if (mistake != kOneThreadLoads || threadIdx.x == 0) {
      Tcgen05Ld32x32b(r, mine + column);
      Tcgen05WaitLd(r);
    }
    for (uint32_t i = 0; i < 16; ++i) s[threadIdx.x * kKeys + column + i] = __uint_as_float(r[i]);
  }
  Tcgen05FenceBeforeThreadSync();
  __syncthreads();
  Tcgen05FenceAfterThreadSync();
  if (threadIdx.x < 32) Tcgen05Dealloc(tmem, kKeys);
}

}  // namespace

extern "C" __global__ void qk_16(const uint16_t* q, const uint16_t* k, float* s, uint32_t offset,
                                 uint32_t mistake) {
  Qk<16>(q, k, s, offset, mistake);
}

extern "C" __global__ void qk_64(const uint16_t* q, const uint16_t* k, float* s, uint32_t offset,
                                 uint32_t mistake) {
  Qk<64>(q, k, s, offset, mistake);
}

// `count` stores of 16 lanes by 8 columns (16x256b.x1) in a row, `step` apart in the address; then the 32 columns from
// the first on, out[thread][column].
extern "C" __global__ void stores(uint32_t* out, uint32_t columns, uint32_t step, uint32_t count) {
  __shared__ uint32_t tmem_address;
  if (threadIdx.x < 32) {
    Tcgen05Alloc(&tmem_address, columns);
    Tcgen05RelinquishAllocPermit();
  }
  __syncthreads();
  const uint32_t tmem = tmem_address;
  const uint32_t mine = TmemLane(tmem, threadIdx.x / 32 * 32);
  const uint32_t zero[16] = {};
  Tcgen05St32x32b(mine, zero);
  Tcgen05St32x32b(mine + 16, zero);
  Tcgen05WaitSt();  // stores to the same words are not ordered without it
  for (uint32_t i = 0; i < count; ++i) {
    asm volatile("tcgen05.st.sync.aligned.16x256b.x1.b32 [%0], {%1, %1, %1, %1};" ::"r"(mine + i * step),
                 "r"(i + 1)
                 : "memory");
  }
  Tcgen05WaitSt();
  for (uint32_t column = 0; column < 32; column += 16) {
    uint32_t r[16];
    Tcgen05Ld32x32b(r, mine + column);
    Tcgen05WaitLd(r);
    for (uint32_t i = 0; i < 16; ++i) out[threadIdx.x * 32 + column + i] = r[i];
  }
  Tcgen05FenceBeforeThreadSync();
  __syncthreads();
  Tcgen05FenceAfterThreadSync();
  if (threadIdx.x < 32) Tcgen05Dealloc(tmem, columns);
}
