#ifndef TESSERA_SERVER_BACKEND_CUDA_WEIGHT_LOADER_H_
#define TESSERA_SERVER_BACKEND_CUDA_WEIGHT_LOADER_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/linear/nvfp4_gemm.h"
#include "kernels/cuda/linear/packed_weights.h"
#include "kernels/nvfp4/bf16.h"
#include "server/backend/cuda/device_memory.h"
#include "server/backend/load_progress.h"
#include "server/model/checkpoint.h"
#include "server/model/linear_rows.h"

namespace tessera::cuda {

// One matrix of a checkpoint, and the bias of its features; null or of no size: none.
struct MatrixPart {
  const LinearWeights* weights = nullptr;
  const VectorWeights* bias = nullptr;
  bool transposed = false;
};

struct MatrixLayout {
  // kPlain: a matrix's parts stand one after the other, each beginning at a multiple of kRowTile features. kGateUp: its
  // two parts are gate and up, whose features are padded with zeros to a multiple of kGroupK, as the next matrix reads
  // them.
  RowOrder order = RowOrder::kPlain;
  // The inputs come in pieces of `segment`, each padded to `padded_segment`: a multiple of kGroupK. 0: one piece, padded
  // as little as may be.
  int64_t segment = 0;
  int64_t padded_segment = 0;
  WeightFormat dummy_format = WeightFormat::kNvfp4;
};

// Brings a checkpoint's weights to the current device in the kernels' form. Without a reader they are made up.
//
// Matrices that are packed together are NVFP4 if each is NVFP4, or MXFP4 that NVFP4 holds exactly; else BF16, which holds
// NVFP4 (its tensor scale apart), MXFP4 and BF16 exactly, and F16, F32 and FP8 rounded.
class WeightLoader {
 public:
  // Device memory goes to `memory`; all must outlive this.
  WeightLoader(const Checkpoint& checkpoint, const std::function<void(const LoadProgress&)>& progress,
               std::vector<DeviceMemory>* memory);

  // One matrix for each of `matrices`, all of the same shapes.
  absl::Status Pack(const std::vector<std::vector<MatrixPart>>& matrices, const MatrixLayout& layout,
                    PackedWeights* packed);
  // For products with activations in NVFP4 too (nvfp4_gemm.h): matrices whose parts, one or gate and up, are all NVFP4.
  absl::Status PackTiles(const std::vector<std::vector<MatrixPart>>& matrices, RowOrder order,
                         Nvfp4Weights* packed);
  // Row-major BF16, as it stands or rounded.
  absl::Status Table(const LinearWeights& source, const uint16_t** table);
  // Null for a vector of no size.
  absl::Status Vector(const VectorWeights& source, const float** vector);
  absl::Status Upload(const std::vector<float>& values, const float** vector);

 private:
  // One matrix on the device, row-major with padded rows.
  struct Staged {
    DeviceMemory data, scales;
    float tensor_scale = 1.0f;
    int64_t dummy_elements = 0;  // random contents that are there already
    WeightFormat dummy_format = WeightFormat::kBf16;
  };
  // What packing writes, on the host until all matrices are done.
  struct PackState {
    uint8_t* target = nullptr;
    std::vector<float> sum_scales, bias;
    bool has_bias = false;
  };

  absl::Status PackAs(WeightFormat format, const std::vector<std::vector<MatrixPart>>& matrices,
                      const MatrixLayout& layout, PackedWeights* packed);
  absl::Status PackPlain(const std::vector<MatrixPart>& parts, const MatrixLayout& layout,
                         WeightFormat format, PackState* state);
  absl::Status PackGateUp(const std::vector<MatrixPart>& parts, const MatrixLayout& layout,
                          WeightFormat format, int64_t features, PackState* state);
  absl::Status AddBias(const MatrixPart& part, PackState* state, int64_t first, int64_t group,
                       int64_t spacing);

  absl::Status Stage(const MatrixPart& part, const MatrixLayout& layout, WeightFormat format, Staged* staged);
  absl::Status StageNvfp4(const LinearWeights& source, const MatrixLayout& layout, Staged* staged);
  absl::Status StageBf16(const MatrixPart& part, const MatrixLayout& layout, Staged* staged);
  absl::Status StageDummy(int64_t elements, int64_t k, WeightFormat format, Staged* staged);
  // Rounds what is not BF16; block scales are multiplied in, an NVFP4 tensor scale is not.
  static std::vector<Bf16> ToBf16Rows(const LinearWeights& source);

  template <class T>
  absl::Status NewMemory(size_t bytes, T** out);
  // Copies rows of `pieces` pieces of piece_bytes into rows where each piece takes padded_bytes, zeros behind it.
  absl::Status CopyPadded(void* target, const void* source, int64_t rows, int64_t pieces, int64_t piece_bytes,
                          int64_t padded_bytes);
  static absl::Status Copy(void* target, const void* source, size_t bytes);
  void Report(int64_t bytes);

  const Checkpoint& checkpoint_;
  const std::function<void(const LoadProgress&)>& progress_;
  const bool dummy_;
  std::vector<DeviceMemory>* const memory_;
  Staged staged_[2];
  RowReader row_reader_;
  std::vector<uint8_t> padded_;
  int64_t bytes_done_ = 0, bytes_total_ = 0;
};

}  // namespace tessera::cuda

#endif  // TESSERA_SERVER_BACKEND_CUDA_WEIGHT_LOADER_H_
