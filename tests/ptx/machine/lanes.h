// Lane masks and loops over them.
#ifndef TESSERA_TESTS_PTX_MACHINE_LANES_H_
#define TESSERA_TESTS_PTX_MACHINE_LANES_H_

#include <bit>
#include <cstdint>

namespace tessera::ptx {

inline constexpr int kWarpSize = 32;
using LaneMask = uint32_t;
inline constexpr LaneMask kAllLanes = ~LaneMask{0};

inline bool InMask(LaneMask mask, int lane) { return (mask >> lane) & 1; }

// Calls f(lane) for each lane of the mask. The full mask is a plain loop, which compilers vectorise.
template <class F>
inline void ForLanes(LaneMask mask, F&& f) {
  if (mask == kAllLanes) {
    for (int lane = 0; lane < kWarpSize; ++lane) f(lane);
    return;
  }
  for (; mask != 0; mask &= mask - 1) f(std::countr_zero(mask));
}

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t Count() const { return uint64_t{x} * y * z; }
  friend bool operator==(const Dim3&, const Dim3&) = default;
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_MACHINE_LANES_H_
