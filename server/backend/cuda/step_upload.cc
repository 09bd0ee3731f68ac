#include "server/backend/cuda/step_upload.h"

#include <algorithm>

#include "server/backend/cuda/status_macros.h"

namespace tessera::cuda {
namespace {

constexpr int32_t kStrideStep = 64;  // of the block table: a growing sequence changes the step's shape rarely

int32_t RoundUpStride(int64_t blocks) {
  return static_cast<int32_t>((blocks + kStrideStep - 1) / kStrideStep * kStrideStep);
}

// A run's arrays lie one after another: first tokens, keys seen by the last token, rows of the block table.
CudaAttentionRuns RunsAt(int32_t length, int32_t count, const int32_t* arrays) {
  return {length, count, arrays, arrays + count, arrays + 2 * count};
}

}  // namespace

absl::Status StepUpload::ReserveWords(size_t words) {
  TESSERA_RETURN_IF_ERROR(host_.Reserve(words * 4));
  if (words * 4 <= device_.bytes()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), "waiting before growing buffers"));
  return device_.Reserve(std::max(2 * device_.bytes(), words * 4), "a step's inputs");
}

absl::Status StepUpload::Reserve(int64_t tokens, int64_t sequences, int64_t blocks) {
  return ReserveWords(tokens * 8 + sequences * RoundUpStride(blocks));
}

void StepUpload::CutIntoRuns(absl::Span<const BatchRow> rows, const StepRows& chosen) {
  singles_.clear();
  runs_.clear();
  const int32_t length = CudaForward::UsesGraph(chosen.num_tokens()) ? 1 : run_length_;
  for (size_t i = 0; i < chosen.chosen().size(); ++i) {
    const int32_t r = chosen.chosen()[i];
    const int32_t first = static_cast<int32_t>(chosen.first_token(r));
    const int32_t count = rows[r].tokens.size();
    for (int32_t t = 0; t < count;) {
      const bool run = length > 1 && (rows[r].start + t) % length == 0 && t + length <= count;
      (run ? runs_ : singles_).push_back({first + t, static_cast<int32_t>(i)});
      t += run ? length : 1;
    }
  }
}

absl::Status StepUpload::Copy(absl::Span<const BatchRow> rows, const StepRows& chosen, int32_t block_size,
                              CudaStep* step) {
  const int32_t tokens = static_cast<int32_t>(chosen.num_tokens());
  const size_t sequences = chosen.chosen().size();
  const auto blocks_of = [&](const BatchRow& row) {
    return (row.start + static_cast<int32_t>(row.tokens.size()) + block_size - 1) / block_size;
  };
  int32_t most_blocks = 1;
  for (const int32_t r : chosen.chosen()) most_blocks = std::max(most_blocks, blocks_of(rows[r]));
  const int32_t stride = RoundUpStride(most_blocks);
  CutIntoRuns(rows, chosen);

  const size_t num_singles = singles_.size(), num_runs = runs_.size(), num_wanted = chosen.wanted().size();
  const size_t words = size_t(tokens) * 4 + (num_singles + num_runs) * 3 + sequences * stride + num_wanted;
  TESSERA_RETURN_IF_ERROR(ReserveWords(words));
  int64_t* slots = host_.get<int64_t>();  // first: it wants the alignment
  int32_t* ids = reinterpret_cast<int32_t*>(slots + tokens);
  int32_t* positions = ids + tokens;
  int32_t* singles = positions + tokens;
  int32_t* runs = singles + num_singles * 3;
  int32_t* table = runs + num_runs * 3;
  int32_t* wanted = table + sequences * stride;

  int32_t at = 0;
  for (size_t i = 0; i < sequences; ++i) {
    const BatchRow& row = rows[chosen.chosen()[i]];
    const int32_t blocks = blocks_of(row);
    std::copy_n(row.block_table.begin(), blocks, table + i * stride);
    std::fill_n(table + i * stride + blocks, stride - blocks, 0);
    for (size_t t = 0; t < row.tokens.size(); ++t, ++at) {
      const int32_t position = row.start + t;
      slots[at] = int64_t{row.block_table[position / block_size]} * block_size + position % block_size;
      ids[at] = row.tokens[t];
      positions[at] = position;
    }
  }
  const auto lay_out = [&](const std::vector<RunStart>& starts, int32_t length, int32_t* out) {
    const size_t count = starts.size();
    for (size_t i = 0; i < count; ++i) {
      out[i] = starts[i].token;
      out[count + i] = positions[starts[i].token] + length;
      out[2 * count + i] = starts[i].table_row;
    }
  };
  lay_out(singles_, 1, singles);
  lay_out(runs_, run_length_, runs);
  for (size_t i = 0; i < num_wanted; ++i) wanted[i] = chosen.wanted()[i].token;
  TESSERA_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(device_.get(), host_.get<void>(), words * 4, cudaMemcpyHostToDevice, stream_),
      "copying a step's inputs"));

  const auto on_device = [&](const int32_t* host) {
    return reinterpret_cast<const int32_t*>(device_.get<uint8_t>() +
                                            (reinterpret_cast<const uint8_t*>(host) - host_.get<uint8_t>()));
  };
  step->num_tokens = tokens;
  step->slots = device_.get<int64_t>();
  step->ids = on_device(ids);
  step->positions = on_device(positions);
  step->singles = RunsAt(1, num_singles, on_device(singles));
  step->runs = RunsAt(run_length_, num_runs, on_device(runs));
  // They are in order, and reading where each one is would cost the kernel a trip to memory.
  if (CudaForward::UsesGraph(tokens)) step->singles.first_tokens = nullptr;
  step->block_table = on_device(table);
  step->block_table_stride = stride;
  wanted_ = on_device(wanted);
  return absl::OkStatus();
}

}  // namespace tessera::cuda
