// What the asynchronous tcgen05 instructions (mma, cp, commit) share.
#ifndef TESSERA_TESTS_PTX_TENSOR_TCGEN05_H_
#define TESSERA_TESTS_PTX_TENSOR_TCGEN05_H_

#include <cstdint>
#include <vector>

#include "tests/ptx/machine/async_queue.h"
#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/warp.h"
#include "tests/ptx/tensor/tensor_memory.h"

namespace tessera::ptx {

// The operations of one thread complete in order; those of different threads do not, so a commit by another thread than
// the one that issued an mma says nothing about it.
inline uint64_t TensorCoreChain(Warp& warp) { return ChainOf(&warp, warp.first_active() + 1); }

// The CTAs on which an instruction acts, the even one of a pair first.
inline std::vector<Cta*> CtasOf(Cta& cta, int cta_group) {
  if (cta_group == 1) return {&cta};
  Cta& peer = PeerOf(cta);
  return cta.rank() % 2 == 0 ? std::vector<Cta*>{&cta, &peer} : std::vector<Cta*>{&peer, &cta};
}

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TENSOR_TCGEN05_H_
