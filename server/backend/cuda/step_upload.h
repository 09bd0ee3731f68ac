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

// Lays a step's inputs out in pinned memory and copies them to the device in one piece. The arrays of the last call hold,
// on the stream, until the copy of the next. A step may be uploaded while the one before it is at work; the one before
// that must have been waited for.
class StepUpload {
 public:
  // `prefills`: CudaForward::prefills().
  StepUpload(cudaStream_t stream, bool prefills) : stream_(stream), prefills_(prefills) {}

  // Memory for steps of up to this many tokens and sequences, each of at most `blocks` blocks. Larger steps make it
  // grow.
  absl::Status Reserve(int64_t tokens, int64_t sequences, int64_t blocks);

  // `drawn_ids`: of each row with a token_of, the id that stands for its token (EmbedTokens), or the token.
  absl::Status Copy(absl::Span<const BatchRow> rows, const StepRows& chosen, absl::Span<const int32_t> drawn_ids,
                    int32_t block_size, CudaStep* step);

  // Of the last step, on the device: the tokens of StepRows::wanted().
  const int32_t* wanted() const { return wanted_; }
  // Changes when the arrays have moved.
  const void* memory() const { return device_.get(); }

 private:
  struct Single {
    int32_t token, table_row;  // of the step's
  };

  absl::Status ReserveWords(size_t words);
  // Chooses the tokens that attention takes in chunks, and those it takes one by one.
  void DivideTokens(absl::Span<const BatchRow> rows, const StepRows& chosen);

  const cudaStream_t stream_;
  const bool prefills_;
  PinnedMemory hosts_[2];  // in turns: the copy of the step at work may not have begun
  int32_t turn_ = 0;
  DeviceMemory device_;
  std::vector<Single> singles_;
  std::vector<FmhaPrefillChunk> chunks_;
  int32_t chunk_tokens_ = 0;
  const int32_t* wanted_ = nullptr;
};

}  // namespace tessera::cuda

#endif  // TESSERA_SERVER_BACKEND_CUDA_STEP_UPLOAD_H_
