// wgmma in PTX that nvcc made: the strict rules on fences and registers must let ordinary kernels through.
#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/ptx/emulator.h"
#include "tests/ptx/tensor/tensor_kernel.h"

namespace tessera::ptx {
namespace {

TEST(WgmmaNvccTest, Gemm) {
#ifndef TESSERA_WGMMA_PTX
  GTEST_SKIP() << "built without nvcc, which makes the PTX of this kernel";
#else
  std::ifstream file(TESSERA_WGMMA_PTX);
  ASSERT_TRUE(file) << "cannot read " << TESSERA_WGMMA_PTX;
  const std::string ptx{std::istreambuf_iterator<char>(file), {}};
  constexpr uint32_t kK = 320;
  const auto bf16 = [](int value) {
    return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
  };
  std::vector<uint16_t> a(64 * kK), b(64 * kK);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = bf16(static_cast<int>(i * 7 % 23) - 11);
    b[i] = bf16(static_cast<int>(i * 5 % 19) - 9);
  }
  const auto value = [](uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); };
  for (const char* entry : {"gemm", "gemm_registers"}) {
    for (AsyncPolicy async : {AsyncPolicy::kLazy, AsyncPolicy::kEager, AsyncPolicy::kRandom}) {
      std::vector<float> d(64 * 64);
      GlobalMemory memory;
      memory.Add(a.data(), a.size() * 2, "a");
      memory.Add(b.data(), b.size() * 2, "b");
      memory.Add(d.data(), d.size() * 4, "d");
      std::vector<std::byte> params(28);
      const void* pointers[] = {a.data(), b.data(), d.data()};
      std::memcpy(params.data(), pointers, 24);
      std::memcpy(&params[24], &kK, 4);
      LaunchConfig config;
      config.block = {128, 1, 1};
      ExecutionOptions options;
      options.threads = 1;
      options.async = async;
      options.seed = 9;
      const absl::Status status = LaunchEntry(ptx, entry, config, params, memory, options);
      ASSERT_TRUE(status.ok()) << status;
      for (uint32_t row = 0; row < 64; ++row) {
        for (uint32_t column = 0; column < 64; ++column) {
          float sum = 0;
          for (uint32_t k = 0; k < kK; ++k) sum += value(a[row * kK + k]) * value(b[column * kK + k]);
          ASSERT_EQ(d[row * 64 + column], sum) << entry << " row " << row << " column " << column;
        }
      }
    }
  }
#endif
}

}  // namespace
}  // namespace tessera::ptx
