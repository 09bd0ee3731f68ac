#include "server/backend/cuda/step_upload.h"

#include <algorithm>

#include "server/status_macros.h"

namespace tessera::cuda {
namespace {

// Tokens. Shorter pieces of prompts are taken one by one: they would leave most of the prefill kernel's tiles empty.
constexpr int32_t kSmallestChunk = 16;
constexpr int32_t kStrideStep = 64;  // of the block table: a growing sequence changes the step's shape rarely

int32_t RoundUpStride(int64_t blocks) {
  return static_cast<int32_t>((blocks + kStrideStep - 1) / kStrideStep * kStrideStep);
}

}  // namespace

absl::Status StepUpload::ReserveWords(size_t words) {
  TESSERA_RETURN_IF_ERROR(hosts_[turn_].Reserve(words * 4));
  if (words * 4 <= device_.bytes()) return absl::OkStatus();
  return device_.Reserve(std::max(2 * device_.bytes(), words * 4), "a step's inputs", stream_);
}

absl::Status StepUpload::Reserve(int64_t tokens, int64_t sequences, int64_t blocks) {
  const size_t words = tokens * 8 + sequences * RoundUpStride(blocks);
  TESSERA_RETURN_IF_ERROR(hosts_[1 - turn_].Reserve(words * 4));
  return ReserveWords(words);
}

void StepUpload::DivideTokens(absl::Span<const BatchRow> rows, const StepRows& chosen) {
  singles_.clear();
  chunks_.clear();
  chunk_tokens_ = 0;
  for (size_t i = 0; i < chosen.chosen().size(); ++i) {
    const int32_t r = chosen.chosen()[i], table_row = static_cast<int32_t>(i);
    const int32_t first = static_cast<int32_t>(chosen.first_token(r));
    const int32_t count = rows[r].tokens.size();
    if (prefills_ && count >= kSmallestChunk) {
      chunks_.push_back({first, count, rows[r].start + count, table_row});
      chunk_tokens_ += count;
    } else {
      for (int32_t t = 0; t < count; ++t) singles_.push_back({first + t, table_row});
    }
  }
  // The kernel takes them in this order, and is done soonest if the long ones come first.
  std::sort(chunks_.begin(), chunks_.end(),
            [](const FmhaPrefillChunk& a, const FmhaPrefillChunk& b) { return a.length > b.length; });
}

absl::Status StepUpload::Copy(absl::Span<const BatchRow> rows, const StepRows& chosen,
                              absl::Span<const int32_t> drawn_ids, int32_t block_size, CudaStep* step) {
  turn_ = 1 - turn_;
  const int32_t tokens = static_cast<int32_t>(chosen.num_tokens());
  const size_t sequences = chosen.chosen().size();
  const auto blocks_of = [&](const BatchRow& row) {
    return (row.start + static_cast<int32_t>(row.tokens.size()) + block_size - 1) / block_size;
  };
  int32_t most_blocks = 1;
  for (const int32_t r : chosen.chosen()) most_blocks = std::max(most_blocks, blocks_of(rows[r]));
  const int32_t stride = RoundUpStride(most_blocks);
  DivideTokens(rows, chosen);

  constexpr size_t kChunkWords = sizeof(FmhaPrefillChunk) / 4;
  const size_t num_singles = singles_.size(), num_chunks = chunks_.size(),
               num_wanted = chosen.wanted().size();
  const size_t words =
      size_t(tokens) * 4 + num_singles * 3 + num_chunks * kChunkWords + sequences * stride + num_wanted;
  TESSERA_RETURN_IF_ERROR(ReserveWords(words));
  const PinnedMemory& host = hosts_[turn_];
  int64_t* slots = host.get<int64_t>();  // first: it wants the alignment
  int32_t* ids = reinterpret_cast<int32_t*>(slots + tokens);
  int32_t* positions = ids + tokens;
  int32_t* singles = positions + tokens;
  FmhaPrefillChunk* chunks = reinterpret_cast<FmhaPrefillChunk*>(singles + num_singles * 3);
  int32_t* table = singles + num_singles * 3 + num_chunks * kChunkWords;
  int32_t* wanted = table + sequences * stride;

  int32_t at = 0;
  for (size_t i = 0; i < sequences; ++i) {
    const int32_t r = chosen.chosen()[i];
    const BatchRow& row = rows[r];
    const int32_t blocks = blocks_of(row);
    std::copy_n(row.block_table.begin(), blocks, table + i * stride);
    std::fill_n(table + i * stride + blocks, stride - blocks, 0);
    for (size_t t = 0; t < row.tokens.size(); ++t, ++at) {
      const int32_t position = row.start + t;
      slots[at] = int64_t{row.block_table[position / block_size]} * block_size + position % block_size;
      ids[at] = row.token_of >= 0 ? drawn_ids[r] : row.tokens[t];
      positions[at] = position;
    }
  }
  for (size_t i = 0; i < num_singles; ++i) {
    singles[i] = singles_[i].token;
    singles[num_singles + i] = positions[singles_[i].token] + 1;
    singles[2 * num_singles + i] = singles_[i].table_row;
  }
  std::copy(chunks_.begin(), chunks_.end(), chunks);
  for (size_t i = 0; i < num_wanted; ++i) wanted[i] = chosen.wanted()[i].token;
  TESSERA_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(device_.get(), host.get<void>(), words * 4, cudaMemcpyHostToDevice, stream_),
      "copying a step's inputs"));

  const auto on_device = [&]<class T>(const T* array) {
    return reinterpret_cast<const T*>(device_.get<uint8_t>() +
                                      (reinterpret_cast<const uint8_t*>(array) - host.get<uint8_t>()));
  };
  step->num_tokens = tokens;
  step->slots = device_.get<int64_t>();
  step->ids = on_device(ids);
  step->positions = on_device(positions);
  step->uses_graph = CudaForward::SuitsGraph(tokens) && num_chunks == 0;
  // Without chunks they are in order, and reading where each one is would cost the kernel a trip to memory.
  step->singles = {static_cast<int32_t>(num_singles), num_chunks == 0 ? nullptr : on_device(singles),
                   on_device(singles) + num_singles, on_device(singles) + 2 * num_singles};
  step->chunks = on_device(chunks);
  step->num_chunks = static_cast<int32_t>(num_chunks);
  step->num_chunk_tokens = chunk_tokens_;
  step->block_table = on_device(table);
  step->block_table_stride = stride;
  wanted_ = on_device(wanted);
  return absl::OkStatus();
}

}  // namespace tessera::cuda
