#include "tests/bench/kernels/ceilings.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tessera::cpu {
namespace {

constexpr size_t kChunkBytes = 256 << 10;
// What is timed at once: milliseconds, as long as a kernel's call.
constexpr size_t kSegmentBytes = 16 << 20;
constexpr size_t kPrefetchBytes = 4096;
constexpr int kPasses = 5;
constexpr int kFlopsPasses = 200;
constexpr int64_t kRounds = 200'000;  // a fraction of a millisecond: some run is undisturbed
constexpr int kAccumulators = 12;

// Touches every cache line of a chunk with as few instructions as possible.
uint64_t ReadChunk(const std::byte* data) {
  const uint64_t* words = reinterpret_cast<const uint64_t*>(data);
  uint64_t sum[4] = {};
  for (size_t i = 0; i < kChunkBytes / 8; i += 32) {
    // The hardware fetches ahead within a page only; a kernel that asks for more gets more.
    __builtin_prefetch(words + i + kPrefetchBytes / 8);
    __builtin_prefetch(words + i + kPrefetchBytes / 8 + 8);
    __builtin_prefetch(words + i + kPrefetchBytes / 8 + 16);
    __builtin_prefetch(words + i + kPrefetchBytes / 8 + 24);
    for (int j = 0; j < 4; ++j) sum[j] += words[i + 8 * j];
  }
  return sum[0] + sum[1] + sum[2] + sum[3];
}

#if defined(__x86_64__)
// The accumulators' chains hide the latency; the values stay finite.
#define TESSERA_CHAINS(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11)

__attribute__((target("avx512f,avx512bf16"))) void DotLoop() {
  __m512 sum[kAccumulators];
  for (__m512& s : sum) s = _mm512_setzero_ps();
  const __m512bh ones = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x00010001));
  for (int64_t i = 0; i < kRounds; ++i) {
#define TESSERA_DOT(j) sum[j] = _mm512_dpbf16_ps(sum[j], ones, ones);
    TESSERA_CHAINS(TESSERA_DOT)
#undef TESSERA_DOT
    asm volatile("" : "+v"(sum[0]), "+v"(sum[1]));
  }
  for (__m512& s : sum) asm volatile("" : : "v"(s));
}

__attribute__((target("avx512f"))) void FmaLoop512() {
  __m512 sum[kAccumulators];
  for (__m512& s : sum) s = _mm512_setzero_ps();
  const __m512 half = _mm512_set1_ps(0.5f);
  for (int64_t i = 0; i < kRounds; ++i) {
#define TESSERA_FMA(j) sum[j] = _mm512_fmadd_ps(sum[j], half, half);
    TESSERA_CHAINS(TESSERA_FMA)
#undef TESSERA_FMA
    asm volatile("" : "+v"(sum[0]), "+v"(sum[1]));
  }
  for (__m512& s : sum) asm volatile("" : : "v"(s));
}

__attribute__((target("avx2,fma"))) void FmaLoop256() {
  __m256 sum[kAccumulators];
  for (__m256& s : sum) s = _mm256_setzero_ps();
  const __m256 half = _mm256_set1_ps(0.5f);
  for (int64_t i = 0; i < kRounds; ++i) {
#define TESSERA_FMA(j) sum[j] = _mm256_fmadd_ps(sum[j], half, half);
    TESSERA_CHAINS(TESSERA_FMA)
#undef TESSERA_FMA
    asm volatile("" : "+x"(sum[0]), "+x"(sum[1]));
  }
  for (__m256& s : sum) asm volatile("" : : "x"(s));
}
#undef TESSERA_CHAINS
#endif

// Operations a second of all threads running loop, each of whose rounds does the given number of them.
double LoopFlops(ThreadPool& pool, void (*loop)(), double flops_per_round) {
  double best = 0;
  for (int pass = 0; pass < kFlopsPasses; ++pass) {
    const double start = MeasuredSeconds(pool);
    pool.ParallelFor(2 * pool.num_threads(), [&](int64_t) { loop(); });
    const double seconds = MeasuredSeconds(pool) - start;
    best = std::max(best, 2.0 * pool.num_threads() * kRounds * flops_per_round / seconds);
  }
  return best;
}

}  // namespace

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double MeasuredSeconds(const ThreadPool& pool) {
  if (pool.num_threads() > 1) return WallSeconds();
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double MeasureReadBandwidth(const std::byte* data, size_t size, ThreadPool& pool) {
  std::atomic<uint64_t> sink{0};
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    for (size_t segment = 0; segment + kSegmentBytes <= size; segment += kSegmentBytes) {
      const double start = MeasuredSeconds(pool);
      pool.ParallelFor(kSegmentBytes / kChunkBytes,
                       [&](int64_t i) { sink += ReadChunk(data + segment + i * kChunkBytes); });
      best = std::max(best, kSegmentBytes / (MeasuredSeconds(pool) - start));
    }
  }
  return best;
}

PeakFlops MeasurePeakFlops(ThreadPool& pool) {
  PeakFlops peak;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) peak.bf16_dot = LoopFlops(pool, DotLoop, 12 * 64);
  if (__builtin_cpu_supports("avx512f")) {
    peak.fma = LoopFlops(pool, FmaLoop512, 12 * 32);
  } else if (__builtin_cpu_supports("fma")) {
    peak.fma = LoopFlops(pool, FmaLoop256, 12 * 16);
  }
#endif
  return peak;
}

}  // namespace tessera::cpu
