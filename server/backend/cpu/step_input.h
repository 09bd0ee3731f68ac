#ifndef TESSERA_SERVER_BACKEND_CPU_STEP_INPUT_H_
#define TESSERA_SERVER_BACKEND_CPU_STEP_INPUT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "server/backend/backend.h"
#include "server/backend/cpu/step_buffers.h"

namespace tessera::cpu {

// A batch laid out for the kernels: the rows' tokens one after the other.
struct StepInput {
  int64_t num_tokens = 0;
  int64_t num_sequences = 0;
  int64_t max_kv_len = 0;
  int64_t block_table_stride = 0;
  GrowingArray<int32_t> tokens;       // [num_tokens]
  GrowingArray<int32_t> positions;    // [num_tokens]
  GrowingArray<int64_t> slots;        // [num_tokens], where each token's key and value go
  GrowingArray<int32_t> q_start;      // [num_sequences + 1]
  GrowingArray<int32_t> kv_len;       // [num_sequences]
  GrowingArray<int32_t> block_table;  // [num_sequences, block_table_stride]

  // Lays out rows[i] for each i in `chosen`, in that order. The rows must be valid: block tables long enough, ids in
  // range. Memory is kept from step to step.
  void LayOut(absl::Span<const BatchRow> rows, absl::Span<const int32_t> chosen, int32_t block_size);
};

}  // namespace tessera::cpu

#endif  // TESSERA_SERVER_BACKEND_CPU_STEP_INPUT_H_
