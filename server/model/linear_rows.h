#ifndef TESSERA_SERVER_MODEL_LINEAR_ROWS_H_
#define TESSERA_SERVER_MODEL_LINEAR_ROWS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/model/linear_weights.h"
#include "server/model/safetensors.h"

namespace tessera {

// Some rows of a matrix in its own format, row-major without gaps, wherever and however they are stored.
struct LinearRows {
  const uint8_t* data = nullptr;    // [count, FormatRowBytes(format, in)]
  const uint8_t* scales = nullptr;  // MXFP4 and NVFP4: [count, in / FormatBlock(format)]
  const float* float_scales =
      nullptr;  // FP8: [count, scale_columns]; column c takes scale c / scale_block_columns
  int64_t scale_columns = 0;
};

// Reads rows: in place where the matrix lies that way, else gathered into a buffer that is kept for the next call.
// One thread at a time.
class RowReader {
 public:
  // Valid until the next call.
  LinearRows Read(const LinearWeights& weights, int64_t first, int64_t count);

 private:
  std::vector<uint8_t> data_, scales_;
  std::vector<float> float_scales_;
};

// Of an FP8 matrix, the scales of rows [first, first + count) as LinearRows has them.
std::vector<float> ReadFp8Scales(const LinearWeights& weights, int64_t first, int64_t count);

// Lets go of the mapped pages that only these rows lie in, for whoever has copied them: they stay in the page cache but
// no longer count as this process's memory. Reading the rows again is allowed, and slow.
void ReleaseRows(const LinearWeights& weights, int64_t first, int64_t count);
// The same of columns of a matrix that is stored by columns.
void ReleaseColumns(const LinearWeights& weights, int64_t first, int64_t count);

// Rows [first, first + count) as float, [count, in]: exact for the dense formats; else the products are computed in
// float, the block scale with the element first.
void Dequantize(const LinearWeights& weights, int64_t first, int64_t count, float* out);

// INVALID_ARGUMENT if a scale cannot be one: negative or NaN (E4M3), NaN (E8M0), negative or not finite (FP8). Names
// the tensor, the place and the byte's offset in the file. Reads all scales of the matrix.
absl::Status CheckBlockScales(const LinearWeights& weights, const SafetensorsReader& reader);

// DATA_LOSS if a file that the matrix is in changed since it was opened.
absl::Status CheckUnchanged(const LinearWeights& weights, const SafetensorsReader& reader);

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_LINEAR_ROWS_H_
