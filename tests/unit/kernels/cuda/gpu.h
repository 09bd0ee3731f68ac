// What GPU tests share: device buffers and the plain skip where there is no such GPU.
#ifndef TESSERA_TESTS_UNIT_KERNELS_CUDA_GPU_H_
#define TESSERA_TESTS_UNIT_KERNELS_CUDA_GPU_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <vector_functions.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace tessera::cuda {

// Major compute capability of device 0; 0 without a GPU.
inline int GpuMajor() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return 0;
  int major = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  return major;
}

#define TESSERA_REQUIRE_BLACKWELL() \
  if (::tessera::cuda::GpuMajor() != 10) GTEST_SKIP() << "no GPU of compute capability 10.x on this machine"
#define TESSERA_REQUIRE_HOPPER() \
  if (::tessera::cuda::GpuMajor() != 9) GTEST_SKIP() << "no GPU of compute capability 9.x on this machine"
#define TESSERA_REQUIRE_GPU()                                                \
  if (::tessera::cuda::GpuMajor() != 9 && ::tessera::cuda::GpuMajor() != 10) \
  GTEST_SKIP() << "no GPU of compute capability 9.x or 10.x on this machine"

// As cudaMalloc leaves memory: the emulator stops a kernel that reads any of it before it is written.
struct Unwritten {};

// Device memory of one test, every byte 0xFF (a NaN in any float format) until written.
template <class T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, 0xFF, count * sizeof(T)), cudaSuccess);
  }
  DeviceBuffer(size_t count, Unwritten) : count_(count) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), cudaSuccess);
  }
  explicit DeviceBuffer(const std::vector<T>& host) : DeviceBuffer(host.size()) {
    EXPECT_EQ(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* get() const { return data_; }
  void Zero() { EXPECT_EQ(cudaMemset(data_, 0, count_ * sizeof(T)), cudaSuccess); }
  std::vector<T> Read() const {
    std::vector<T> host(count_);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }

 private:
  size_t count_;
  T* data_ = nullptr;
};

// Values of a standard normal distribution.
inline std::vector<float> Normal(size_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(rng);
  return values;
}

inline uint16_t ToBf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float FromBf16(uint16_t x) {
  const uint32_t bits = uint32_t{x} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

}  // namespace tessera::cuda

#endif  // TESSERA_TESTS_UNIT_KERNELS_CUDA_GPU_H_
