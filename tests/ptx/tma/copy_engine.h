// What bulk and tensor copies have in common: where their operands lie, and copies that take their time.
#ifndef TESSERA_TESTS_PTX_TMA_COPY_ENGINE_H_
#define TESSERA_TESTS_PTX_TMA_COPY_ENGINE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/warp.h"
#include "tests/ptx/tma/tensor_box.h"

namespace tessera::ptx {

// A place in the shared memory of a CTA of the cluster.
struct SharedPlace {
  Cta* cta = nullptr;
  uint32_t offset = 0;
};

// Where a lane's shared-memory operand points. `own` for .shared::cta: the executing CTA's memory and no other.
SharedPlace ResolveShared(Warp& warp, const Operand& operand, int lane, bool own, const char* name);

// Raises unless the value is a multiple of `alignment`.
void RequireAligned(int lane, uint64_t value, uint64_t alignment, const char* name);

// The mbarrier operand of a copy into `destination`: in the same CTA, with `pair` (.cta_group::2) or in its peer.
SharedPlace ResolveBarrier(Warp& warp, const Operand& operand, int lane, const SharedPlace& destination,
                           bool pair);

struct LoadCopy {
  std::string what;
  std::vector<BoxPiece> pieces;       // shared addresses are offsets in each destination
  std::vector<Cta*> destinations;     // several: multicast
  std::vector<SharedPlace> barriers;  // advanced by `bytes` each
  uint32_t bytes = 0;
  std::function<uint8_t(uint32_t)> fill;  // byte of a piece outside the tensor; may be empty if there is none
};

// Makes a copy go to the CTAs whose bits are set, each with an mbarrier at the same offset: its own, or with `pair` the one
// of the CTA in its pair that `barrier` is in.
void MulticastTo(Warp& warp, int lane, uint64_t mask, const SharedPlace& barrier, bool pair, LoadCopy* copy);

// Global to shared memory, completing on mbarriers. Bytes of global memory that nothing has written arrive as 0xFF. Checks what can be checked when the instruction is issued.
void PostLoad(Warp& warp, LoadCopy copy);

struct StoreCopy {
  std::string what;
  std::vector<BoxPiece> pieces;  // shared addresses are offsets in `source`
  Cta* source = nullptr;
  // How the bytes at a global address become new ones; empty for a plain copy. Calls for different copies never overlap.
  std::function<void(uint8_t* destination, const uint8_t* source, uint32_t bytes)> reduce;
  uint16_t byte_mask = 0xFFFF;  // of every 16 bytes, those that are written
};

// Shared to global memory, in the lane's bulk group. The source is read, and later the writes are made, at times of the
// scheduler's choosing.
void PostStore(Warp& warp, int lane, StoreCopy copy);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TMA_COPY_ENGINE_H_
