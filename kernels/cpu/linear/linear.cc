#include "kernels/cpu/linear/linear.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/checks.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/linear/panels.h"

namespace tessera::cpu {
namespace {

// Weights that one chunk of work keeps in a core's second-level cache while panels of tokens pass by.
constexpr int64_t kChunkWeightBytes = 256 << 10;
// Panels that one chunk passes over.
constexpr int64_t kChunkPanels = 16;
// Chunks a thread should find at least, so that a late or slow one does not hold up the rest.
constexpr int64_t kChunksPerThread = 4;
// Inputs smaller than this many elements are packed by the caller: a fork would cost more.
constexpr int64_t kSerialPackElements = 32 << 10;

// Products of fewer operations than this take the caller a few microseconds: a fork would cost as much.
constexpr int64_t kSerialOperations = 1 << 19;

struct Cut {
  int64_t tiles_per_chunk;
  int64_t tile_chunks;
};

Cut CutTiles(const PackedLinear& weights, int num_threads) {
  const int64_t tiles = weights.num_tiles();
  const int64_t by_cache = std::max<int64_t>(1, kChunkWeightBytes / weights.tile_bytes());
  const int64_t by_threads = std::max<int64_t>(1, tiles / (kChunksPerThread * num_threads));
  const int64_t per_chunk = num_threads == 1 ? by_cache : std::min(by_cache, by_threads);
  return {per_chunk, (tiles + per_chunk - 1) / per_chunk};
}

// One tile's result for t tokens into y.
void StoreTile(const LinearOutput& output, int64_t tile, int64_t first_token, int t, const float* result) {
  const int64_t row0 = tile * kTileRows;
  const int64_t rows = std::min(kTileRows, output.weights.n - row0);
  for (int i = 0; i < t; ++i) {
    float* y = output.y + (first_token + i) * output.y_stride + row0;
    for (int64_t r = 0; r < rows; ++r) {
      float value = result[16 * i + r];
      if (output.bias != nullptr) value += output.bias[row0 + r];
      y[r] = output.accumulate ? y[r] + value : value;
    }
  }
}

absl::Status CheckArguments(const LinearInput& input, absl::Span<const LinearOutput> outputs,
                            Workspace workspace) {
  const int64_t k = outputs[0].weights.k;
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckMatrix("Linear", "x", input.x, input.x_stride, input.tokens, k));
  for (const LinearOutput& output : outputs) {
    TESSERA_KERNEL_RETURN_IF_ERROR(CheckWeights("Linear", output.weights, k));
    TESSERA_KERNEL_RETURN_IF_ERROR(
        CheckMatrix("Linear", "y", output.y, output.y_stride, input.tokens, output.weights.n));
  }
  return CheckWorkspace("Linear", workspace, LinearWorkspaceBytes(input.tokens, k));
}

}  // namespace

size_t LinearWorkspaceBytes(int64_t tokens, int64_t k) { return static_cast<size_t>(PanelBytes(tokens, k)); }

absl::Status LinearGroup(const LinearInput& input, absl::Span<const LinearOutput> outputs,
                         Workspace workspace, ThreadPool& pool) {
  if (outputs.empty()) return absl::OkStatus();
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckArguments(input, outputs, workspace));
  if (input.tokens == 0) return absl::OkStatus();

  const KernelTable& table = Kernels();
  const int64_t k = outputs[0].weights.k;
  const bool all_bf16 = std::all_of(outputs.begin(), outputs.end(), [](const LinearOutput& output) {
    return output.weights.format == WeightFormat::kBf16;
  });
  const PanelCut panels(input.tokens, all_bf16 ? table.max_bf16_panel_tokens : table.max_panel_tokens);
  const auto panel_data = [&](int64_t panel) -> const void* {
    if (PanelIsRow(table, panels.size(panel), k)) return input.x + panels.begin(panel) * input.x_stride;
    return workspace.data + PanelBytes(panels.begin(panel), k);
  };
  const auto pack = [&](int64_t panel) {
    const int t = panels.size(panel);
    if (PanelIsRow(table, t, k)) return;
    const Bf16* rows[kMaxPanelTokens];
    for (int i = 0; i < t; ++i) rows[i] = input.x + (panels.begin(panel) + i) * input.x_stride;
    table.pack_panel(rows, t, k, workspace.data + PanelBytes(panels.begin(panel), k));
  };
  if (input.tokens * k < kSerialPackElements) {
    for (int64_t panel = 0; panel < panels.count; ++panel) pack(panel);
  } else {
    pool.ParallelFor(panels.count, pack);
  }

  const int64_t panel_chunks = (panels.count + kChunkPanels - 1) / kChunkPanels;
  int64_t chunks = 0;
  int64_t operations = 0;
  for (const LinearOutput& output : outputs) {
    chunks += CutTiles(output.weights, pool.num_threads()).tile_chunks * panel_chunks;
    operations += 2 * input.tokens * k * output.weights.n;
  }
  const auto multiply = [&](int64_t chunk) {
    const LinearOutput* output = outputs.data();
    Cut cut = CutTiles(output->weights, pool.num_threads());
    while (chunk >= cut.tile_chunks * panel_chunks) {
      chunk -= cut.tile_chunks * panel_chunks;
      ++output;
      cut = CutTiles(output->weights, pool.num_threads());
    }
    const int64_t first_tile = chunk % cut.tile_chunks * cut.tiles_per_chunk;
    const int64_t end_tile = std::min(first_tile + cut.tiles_per_chunk, output->weights.num_tiles());
    const int64_t first_panel = chunk / cut.tile_chunks * kChunkPanels;
    const int64_t end_panel = std::min(first_panel + kChunkPanels, panels.count);
    alignas(64) float result[kMaxPanelTokens * kTileRows];
    for (int64_t panel = first_panel; panel < end_panel; ++panel) {
      const int t = panels.size(panel);
      for (int64_t tile = first_tile; tile < end_tile; ++tile) {
        MultiplyTile(table, output->weights, tile, panel_data(panel), t, result);
        StoreTile(*output, tile, panels.begin(panel), t, result);
      }
    }
  };
  if (operations < kSerialOperations) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) multiply(chunk);
  } else {
    pool.ParallelFor(chunks, multiply);
  }
  return absl::OkStatus();
}

absl::Status Linear(const LinearInput& input, const LinearOutput& output, Workspace workspace,
                    ThreadPool& pool) {
  return LinearGroup(input, absl::MakeConstSpan(&output, 1), workspace, pool);
}

}  // namespace tessera::cpu
