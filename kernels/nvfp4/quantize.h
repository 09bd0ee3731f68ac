// Quantising a row of floats to NVFP4, as NVIDIA ModelOpt does it, and back.
//
// Formulae (ModelOpt, modelopt/torch/quantization/qtensor/nvfp4_tensor.py), all in float:
//   tensor_scale = amax(tensor) / (6 * 448)
//   scale        = E4M3(clamp(amax(block) / (6 * tensor_scale), 2^-9, 448)); 1.0 for an all-zero block
//   code         = E2M1(weight / (float(scale) * tensor_scale))
// Four-over-six (arXiv 2512.02010) uses 256 in place of 448 for the tensor scale, tries for each block the
// scale that maps its largest magnitude to 6 and the one that maps it to 4 (1.5 times the first), and keeps
// the one with the smaller squared error; the result is ordinary NVFP4.
//
// Functions are pure and thread-safe; they allocate nothing. Inputs must be finite (QuantizeRow says so in
// its result when they are not).
#ifndef TESSERA_KERNELS_NVFP4_QUANTIZE_H_
#define TESSERA_KERNELS_NVFP4_QUANTIZE_H_

#include <cstdint>

#include "kernels/nvfp4/bf16.h"
#include "kernels/nvfp4/nvfp4.h"

namespace tessera::nvfp4 {

enum class BlockScaleRule {
  kModelOpt,     // scale maps the block's largest magnitude to 6
  kFourOverSix,  // the better of 6 and 4
};

// Largest magnitude of count values; NaN if any is NaN, +inf if any is infinite.
float AbsMax(const float* values, int64_t count);

// The tensor scale for a tensor whose largest magnitude is amax. An all-zero tensor (amax 0) gets 1.0, so
// that every quotient below is defined and every code is zero.
float TensorScaleFromAmax(float amax, BlockScaleRule rule = BlockScaleRule::kModelOpt);

// What quantising did to values, for reports. Sums are in double; add rows with Merge.
struct ErrorStats {
  int64_t count = 0;
  double sum_squared_error = 0;
  double sum_squared_value = 0;
  double max_abs_error = 0;
  int64_t zero_blocks = 0;       // blocks whose values are all zero
  int64_t four_blocks = 0;       // blocks for which four-over-six chose 4
  int64_t non_finite_count = 0;  // inputs that were NaN or infinite; the codes are then meaningless

  void Merge(const ErrorStats& other);
  // 10 log10(signal / noise) in dB; +infinity when there is no error.
  double SignalToNoiseDb() const;
};

// Quantises one row of k values (k a multiple of 16).
//   codes:  k/2 bytes; byte j holds element 2j in the low nibble and 2j+1 in the high one
//   scales: k/16 E4M3FN codes
ErrorStats QuantizeRow(const float* row, int64_t k, float tensor_scale, BlockScaleRule rule, uint8_t* codes,
                       uint8_t* scales);

// Inverse of QuantizeRow: row[i] = (E2M1 * E4M3) * tensor_scale, the product of the first two exact.
void DequantizeRow(const uint8_t* codes, const uint8_t* scales, int64_t k, float tensor_scale, float* row);
void DequantizeRow(const uint8_t* codes, const uint8_t* scales, int64_t k, float tensor_scale, Bf16* row);

}  // namespace tessera::nvfp4

#endif  // TESSERA_KERNELS_NVFP4_QUANTIZE_H_
