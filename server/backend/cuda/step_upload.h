#ifndef TESSERA_SERVER_BACKEND_CUDA_STEP_UPLOAD_H_
#define TESSERA_SERVER_BACKEND_CUDA_STEP_UPLOAD_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/backend/backend.h"
#include "server/backend/cuda/cuda_forward.h"
#include "server/backend/cuda/device_memory.h"
#include "server/backend/cuda/pinned_memory.h"
#include "server/backend/step_rows.h"

namespace tessera::cuda {

// Lays a step's inputs out in pinned memory and copies them to the device in one piece. One step at a time: the arrays
// of the last call hold until the next, and the step must have been waited for before that.
class StepUpload {
 public:
  // `run_length`: CudaForward::run_length().
  StepUpload(cudaStream_t stream, int32_t run_length) : stream_(stream), run_length_(run_length) {}

  // Memory for steps of up to this many tokens and sequences, each of at most `blocks` blocks. Larger steps make it
  // grow.
  absl::Status Reserve(int64_t tokens, int64_t sequences, int64_t blocks);

  absl::Status Copy(absl::Span<const BatchRow> rows, const StepRows& chosen, int32_t block_size,
                    CudaStep* step);

  // Of the last step, on the device: the tokens of StepRows::wanted().
  const int32_t* wanted() const { return wanted_; }
  // Changes when the arrays have moved.
  const void* memory() const { return device_.get(); }

 private:
  // The first token of a run, as an index into the step's tokens, and the run's row of the block table.
  struct RunStart {
    int32_t token, table_row;
  };

  absl::Status ReserveWords(size_t words);
  // Chooses the query tokens that attention takes in runs, and those it takes one by one.
  void CutIntoRuns(absl::Span<const BatchRow> rows, const StepRows& chosen);

  const cudaStream_t stream_;
  const int32_t run_length_;
  PinnedMemory host_;
  DeviceMemory device_;
  std::vector<RunStart> singles_, runs_;
  const int32_t* wanted_ = nullptr;
};

}  // namespace tessera::cuda

#endif  // TESSERA_SERVER_BACKEND_CUDA_STEP_UPLOAD_H_
