// Random inputs, aligned buffers and comparisons for the CPU kernels' tests.
#ifndef TESSERA_TESTS_UNIT_KERNELS_CPU_TEST_UTIL_H_
#define TESSERA_TESTS_UNIT_KERNELS_CPU_TEST_UTIL_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/linear/packed_linear.h"
#include "kernels/cpu/workspace.h"
#include "kernels/nvfp4/bf16.h"
#include "kernels/nvfp4/quantize.h"

namespace tessera::cpu {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Memory aligned to 64 bytes, every byte 0xff to begin with: a NaN in float, BF16 and E4M3.
template <typename T>
class AlignedBuffer {
 public:
  explicit AlignedBuffer(size_t count)
      : size_(count),
        data_(static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 127) / 64 * 64)), std::free) {
    std::memset(static_cast<void*>(data_.get()), 0xff, (count * sizeof(T) + 127) / 64 * 64);
  }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_.get()[i]; }
  Workspace workspace() { return {reinterpret_cast<std::byte*>(data_.get()), size_ * sizeof(T)}; }

 private:
  size_t size_;
  std::unique_ptr<T, decltype(&std::free)> data_;
};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  float Normal() { return normal_(engine_); }
  int64_t Int(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  std::vector<float> Normals(int64_t count, float scale = 1.0f) {
    std::vector<float> values(count);
    for (float& v : values) v = scale * Normal();
    return values;
  }
  std::vector<Bf16> Bf16Normals(int64_t count) {
    std::vector<Bf16> values(count);
    for (Bf16& v : values) v = ToBf16(Normal());
    return values;
  }
  template <typename It>
  void Shuffle(It begin, It end) {
    std::shuffle(begin, end, engine_);
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

// A weight matrix of random normal values, packed, with its memory.
class TestWeights {
 public:
  TestWeights(WeightFormat format, int64_t n, int64_t k, uint32_t seed)
      : data_(PackedBytes(format, n, k)), dense_(Random(seed).Normals(n * k)) {
    if (format == WeightFormat::kBf16) {
      view_ = PackDense({dense_.data(), DenseType::kF32, n, k}, data_.data(), nullptr).value();
      return;
    }
    if (format == WeightFormat::kMxfp4 || format == WeightFormat::kFp8) {
      PackRandom(format, n, k, seed);
      return;
    }
    std::vector<uint8_t> codes(n * k / 2), scales(n * k / 16);
    const float tensor_scale = nvfp4::TensorScaleFromAmax(nvfp4::AbsMax(dense_.data(), n * k));
    for (int64_t i = 0; i < n; ++i) {
      nvfp4::QuantizeRow(dense_.data() + i * k, k, tensor_scale, nvfp4::BlockScaleRule::kModelOpt,
                         codes.data() + i * k / 2, scales.data() + i * k / 16);
    }
    view_ = PackNvfp4({codes.data(), scales.data(), tensor_scale, n, k}, data_.data(), nullptr).value();
  }
  const PackedLinear& view() const { return view_; }

 private:
  // Random codes, and scales over a few powers of two.
  void PackRandom(WeightFormat format, int64_t n, int64_t k, uint32_t seed) {
    Random random(seed);
    const bool fp8 = format == WeightFormat::kFp8;
    std::vector<uint8_t> codes(fp8 ? n * k : n * k / 2);
    for (uint8_t& code : codes) {
      do code = static_cast<uint8_t>(random.Int(0, 255));
      while (fp8 && (code & 0x7f) == 0x7f);
    }
    if (fp8) {
      std::vector<float> scales(n * ((k + 127) / 128));
      for (float& scale : scales) scale = std::exp2(-6.0f - static_cast<float>(random.Int(0, 3))) * 1.1f;
      view_ = PackFp8({codes.data(), scales.data(), 128, n, k}, data_.data(), nullptr).value();
      return;
    }
    std::vector<uint8_t> scales(n * k / 32);
    for (uint8_t& scale : scales) scale = static_cast<uint8_t>(random.Int(118, 127));
    view_ = PackMxfp4({codes.data(), scales.data(), n, k}, data_.data(), nullptr).value();
  }

  AlignedBuffer<std::byte> data_;
  std::vector<float> dense_;
  PackedLinear view_;
};

// Runs a test once for each instruction set of the machine.
class EachIsa : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { ASSERT_TRUE(ForceIsa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(ForceIsa(BestIsa()).ok()); }
};

inline std::string IsaTestName(const ::testing::TestParamInfo<Isa>& info) {
  return std::string(IsaName(info.param));
}

#define TESSERA_EACH_ISA(Suite) \
  INSTANTIATE_TEST_SUITE_P(Isa, Suite, ::testing::ValuesIn(SupportedIsas()), IsaTestName)

inline bool SameBits(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

}  // namespace tessera::cpu

#endif  // TESSERA_TESTS_UNIT_KERNELS_CPU_TEST_UTIL_H_
