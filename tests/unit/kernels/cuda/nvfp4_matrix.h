// NVFP4 matrices and activations on the host, and their packed form on the device.
#ifndef TESSERA_TESTS_UNIT_KERNELS_CUDA_NVFP4_MATRIX_H_
#define TESSERA_TESTS_UNIT_KERNELS_CUDA_NVFP4_MATRIX_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/cuda/linear/nvfp4_gemm.h"
#include "kernels/cuda/linear/nvfp4_tiles.h"
#include "kernels/nvfp4/nvfp4.h"
#include "kernels/nvfp4/quantize.h"
#include "tests/unit/kernels/cuda/gpu.h"

namespace tessera::cuda {

// One matrix in the checkpoint's layout.
struct Matrix {
  int32_t n, k;
  std::vector<uint8_t> codes, scales;
  float tensor_scale;

  // Every code and every non-negative finite scale occurs, zero and subnormal scales included.
  Matrix(int32_t n, int32_t k, std::mt19937& rng)
      : n(n), k(k), codes(size_t(n) * k / 2), scales(size_t(n) * k / 16) {
    tensor_scale = 0.001f + (rng() % 1000) * 1e-6f;
    for (uint8_t& c : codes) c = rng() & 255;
    for (uint8_t& s : scales) s = rng() % 127;  // 0x7F is NaN
  }

  // Without the tensor scale.
  float Value(int32_t row, int32_t i) const {
    const uint8_t code = codes[(size_t(row) * k + i) / 2] >> (i % 2 * 4) & 15;
    return nvfp4::DequantizeUnscaled(code, scales[size_t(row) * (k / 16) + i / 16]);
  }
};

// Matrices packed on the device, with `ups` (empty, or one each) as gate and up.
struct Packed {
  Nvfp4Weights weights;
  DeviceBuffer<uint8_t> data;
  DeviceBuffer<float> sum_scales;

  explicit Packed(const std::vector<Matrix>& matrices, const std::vector<Matrix>& ups = {})
      : data(matrices.size() * Nvfp4WeightBytes(Features(matrices, ups), matrices[0].k), Unwritten()),
        sum_scales(matrices.size() * Features(matrices, ups) / 8) {
    const Matrix& m = matrices[0];
    weights.n = Features(matrices, ups);
    weights.k = Nvfp4PaddedK(m.k);
    weights.num_matrices = matrices.size();
    weights.data = data.get();
    weights.sum_scales = sum_scales.get();
    std::vector<float> scales;
    for (size_t i = 0; i < matrices.size(); ++i) {
      const Matrix& first = matrices[i];
      const Matrix* up = ups.empty() ? nullptr : &ups[i];
      for (int32_t group = 0; group < weights.n / 8; ++group) {
        scales.push_back(up && group % 16 >= 8 ? up->tensor_scale : first.tensor_scale);
      }
      const DeviceBuffer<uint8_t> c(first.codes), s(first.scales), uc(up ? up->codes : first.codes),
          us(up ? up->scales : first.scales);
      const char* error = PackNvfp4Tiles(c.get(), s.get(), up ? uc.get() : nullptr, up ? us.get() : nullptr,
                                         first.n, first.k, up ? RowOrder::kGateUp : RowOrder::kPlain,
                                         data.get() + i * Nvfp4WeightBytes(weights.n, weights.k), nullptr);
      EXPECT_EQ(error, nullptr) << error;
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    EXPECT_EQ(cudaMemcpy(sum_scales.get(), scales.data(), scales.size() * 4, cudaMemcpyHostToDevice),
              cudaSuccess);
  }

  static int32_t Features(const std::vector<Matrix>& matrices, const std::vector<Matrix>& ups) {
    return Nvfp4PackedFeatures(matrices[0].n, ups.empty() ? RowOrder::kPlain : RowOrder::kGateUp);
  }
};

inline std::vector<uint16_t> RandomActivations(size_t count, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<uint16_t> x(count);
  for (uint16_t& v : x) v = ToBf16(normal(rng));
  return x;
}

// The values that a row of bf16 has after quantisation with `scale`.
struct QuantizedRow {
  std::vector<uint8_t> codes, scales;
  std::vector<float> values;  // without the tensor scale

  QuantizedRow(const uint16_t* x, int32_t k, float scale) : codes(k / 2), scales(k / 16), values(k) {
    std::vector<float> row(k);
    for (int32_t i = 0; i < k; ++i) row[i] = FromBf16(x[i]);
    nvfp4::QuantizeRow(row.data(), k, scale, nvfp4::BlockScaleRule::kModelOpt, codes.data(), scales.data());
    for (int32_t i = 0; i < k; ++i) {
      values[i] = nvfp4::DequantizeUnscaled(codes[i / 2] >> (i % 2 * 4) & 15, scales[i / 16]);
    }
  }
};

// The tensor scale of a row that has its own.
inline float RowScale(const uint16_t* x, int32_t k) {
  float amax = 0;
  for (int32_t i = 0; i < k; ++i) amax = std::max(amax, std::abs(FromBf16(x[i])));
  return nvfp4::TensorScaleFromAmax(amax);
}

}  // namespace tessera::cuda

#endif  // TESSERA_TESTS_UNIT_KERNELS_CUDA_NVFP4_MATRIX_H_
