// What the machine can do at best: measured, not looked up.
#ifndef TESSERA_TESTS_BENCH_KERNELS_CEILINGS_H_
#define TESSERA_TESTS_BENCH_KERNELS_CEILINGS_H_

#include <cstddef>

#include "kernels/cpu/thread_pool.h"

namespace tessera::cpu {

double WallSeconds();
// What measurements use: processor time of the calling thread when the pool is that thread alone, else wall time.
double MeasuredSeconds(const ThreadPool& pool);

// Bytes a second that the pool's threads read from memory together: best of many segments of data, which should
// be larger than all caches, in several passes.
double MeasureReadBandwidth(const std::byte* data, size_t size, ThreadPool& pool);

// Floating-point operations a second of all threads together, from registers, best of several runs: BF16 pair
// dot products (vdpbf16ps; 0 where there is none) and the widest float FMA.
struct PeakFlops {
  double bf16_dot = 0;
  double fma = 0;
};
PeakFlops MeasurePeakFlops(ThreadPool& pool);

}  // namespace tessera::cpu

#endif  // TESSERA_TESTS_BENCH_KERNELS_CEILINGS_H_
