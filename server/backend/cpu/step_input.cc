#include "server/backend/cpu/step_input.h"

#include <algorithm>

namespace tessera::cpu {

void StepInput::LayOut(absl::Span<const BatchRow> rows, absl::Span<const int32_t> chosen,
                       int32_t block_size) {
  num_tokens = 0;
  num_sequences = chosen.size();
  max_kv_len = 0;
  for (const int32_t r : chosen) {
    const int64_t count = rows[r].tokens.size();
    num_tokens += count;
    max_kv_len = std::max(max_kv_len, rows[r].start + count);
  }
  block_table_stride = (max_kv_len + block_size - 1) / block_size;
  tokens.Reserve(num_tokens);
  positions.Reserve(num_tokens);
  slots.Reserve(num_tokens);
  q_start.Reserve(num_sequences + 1);
  kv_len.Reserve(num_sequences);
  block_table.Reserve(num_sequences * block_table_stride);

  int64_t token = 0;
  q_start[0] = 0;
  for (int64_t s = 0; s < num_sequences; ++s) {
    const BatchRow& row = rows[chosen[s]];
    const int64_t end = row.start + static_cast<int64_t>(row.tokens.size());
    for (int64_t position = row.start; position < end; ++position, ++token) {
      tokens[token] = row.tokens[position - row.start];
      positions[token] = position;
      slots[token] = int64_t{row.block_table[position / block_size]} * block_size + position % block_size;
    }
    int32_t* table = block_table.data() + s * block_table_stride;
    const int64_t blocks = (end + block_size - 1) / block_size;
    std::copy_n(row.block_table.begin(), blocks, table);
    std::fill(table + blocks, table + block_table_stride, 0);  // never looked up
    kv_len[s] = end;
    q_start[s + 1] = token;
  }
}

}  // namespace tessera::cpu
