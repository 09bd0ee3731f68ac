// What an earlier attempt at these kernels found strange, settled one by one.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "tests/unit/kernels/cuda/gpu.h"
#include "tests/unit/kernels/cuda/tcgen05_probe.h"

namespace tessera::cuda {
namespace {

constexpr ProbeLayout kLayouts[] = {ProbeLayout::kKMajor, ProbeLayout::kKMajorSwizzle128,
                                    ProbeLayout::kMnMajor, ProbeLayout::kMnMajorSwizzle128};

// Small integers: every sum is exact.
std::vector<uint16_t> SmallIntegers(size_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<uint16_t> values(count);
  for (uint16_t& v : values) v = ToBf16(static_cast<int>(rng() % 17) - 8);
  return values;
}

void ExpectProduct(int32_t k, ProbeLayout a_layout, ProbeLayout b_layout, int32_t offset) {
  const std::vector<uint16_t> a = SmallIntegers(size_t(kProbeRows) * k, 1),
                              b = SmallIntegers(size_t(kProbeRows) * k, 2);
  const DeviceBuffer<uint16_t> d_a(a), d_b(b);
  const DeviceBuffer<float> d(size_t(kProbeRows) * kProbeRows);
  ASSERT_EQ(ProbeProduct(d_a.get(), d_b.get(), d.get(), k, a_layout, b_layout, offset), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<float> got = d.Read();
  for (int32_t i = 0; i < kProbeRows * kProbeRows; ++i) {
    float want = 0;
    for (int32_t j = 0; j < k; ++j) {
      want += FromBf16(a[i / kProbeRows * k + j]) * FromBf16(b[i % kProbeRows * k + j]);
    }
    ASSERT_EQ(got[i], want) << "row " << i / kProbeRows << " column " << i % kProbeRows << " k " << k
                            << " layouts " << static_cast<int>(a_layout) << " " << static_cast<int>(b_layout)
                            << " offset " << offset;
  }
}

// The product of head dimension 16 is the sum of 16 products, not four times that: a ratio of sqrt(head dimension) to a
// reference means that the reference was scaled for the softmax.
TEST(Tcgen05, GivesTheRawProductAtEveryHeadDimension) {
  TESSERA_REQUIRE_BLACKWELL();
  for (int32_t k : {16, 64, 128}) ExpectProduct(k, ProbeLayout::kKMajor, ProbeLayout::kKMajor, 0);
}

// All layouts describe the same matrix.
TEST(Tcgen05, GivesTheSameProductFromEveryLayout) {
  TESSERA_REQUIRE_BLACKWELL();
  for (ProbeLayout a : kLayouts) {
    for (ProbeLayout b : kLayouts) ExpectProduct(128, a, b, 0);
  }
}

// A descriptor's 14 address bits count units of 16 bytes: they reach all of shared memory, not 128 KB.
TEST(Tcgen05, ReadsOperandsAbove128Kilobytes) {
  TESSERA_REQUIRE_BLACKWELL();
  for (ProbeLayout layout : kLayouts) ExpectProduct(64, layout, layout, 150 * 1024);
}

// Several stores in a row need no wait between them; a store of eight columns is followed by one eight columns, not eight
// bytes or registers, further on.
TEST(Tcgen05, StoresToTensorMemoryInARow) {
  TESSERA_REQUIRE_BLACKWELL();
  const DeviceBuffer<uint32_t> out(128 * 32);
  ASSERT_EQ(ProbeStores(out.get()), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<uint32_t> got = out.Read();
  for (uint32_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], i) << "lane " << i / 32 << " column " << i % 32;
}

// A launch that asks for more shared memory than there is fails and nothing runs: zeros that look like results.
TEST(Tcgen05, RefusesMoreSharedMemoryThanThereIs) {
  TESSERA_REQUIRE_BLACKWELL();
  DeviceBuffer<int32_t> out(1);
  out.Zero();
  EXPECT_EQ(ProbeSharedMemory(out.get(), 227 * 1024 + 1), cudaErrorInvalidValue);
  cudaGetLastError();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(out.Read()[0], 0);
  ASSERT_EQ(ProbeSharedMemory(out.get(), 227 * 1024), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(out.Read()[0], 1);
}

}  // namespace
}  // namespace tessera::cuda
