#include "kernels/cpu/moe/moe.h"

#include <algorithm>

#include "kernels/cpu/checks.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/linear/panels.h"

namespace tessera::cpu {
namespace {

// As in linear.cc: what a chunk keeps in the second-level cache, and how many chunks a thread should find.
constexpr int64_t kChunkWeightBytes = 256 << 10;
constexpr int64_t kChunksPerThread = 4;
// Activations fewer than this are gathered by the caller: a fork would cost more.
constexpr int64_t kSerialGatherElements = 64 << 10;
constexpr int64_t kCombineElementsPerChunk = 32 << 10;

constexpr size_t Align(size_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

// Where everything lies in the workspace. An assignment is a (token, j) pair; "sorted" is by expert, then
// token.
struct Layout {
  size_t order;     // int32 [assignments]: sorted place -> assignment
  size_t place;     // int32 [assignments]: assignment -> sorted place
  size_t offsets;   // int32 [experts + 1]: an expert's first sorted place
  size_t active;    // int32 [experts]: experts that have tokens, ascending
  size_t x_panels;  // gathered inputs
  size_t h_panels;  // activations, as panels for the down projection
  size_t y;         // float [assignments, hidden], sorted
  size_t total;

  Layout(int64_t assignments, int64_t experts, int64_t hidden, int64_t intermediate) {
    size_t at = 0;
    const auto take = [&](size_t bytes) {
      const size_t start = at;
      at += Align(bytes);
      return start;
    };
    order = take(assignments * sizeof(int32_t));
    place = take(assignments * sizeof(int32_t));
    offsets = take((experts + 1) * sizeof(int32_t));
    active = take(experts * sizeof(int32_t));
    x_panels = take(PanelBytes(assignments, hidden));
    h_panels = take(PanelBytes(assignments, intermediate));
    y = take(assignments * hidden * sizeof(float));
    total = at;
  }
};

struct Cut {
  int64_t tiles_per_chunk;
  int64_t chunks;  // for one expert
};

Cut CutTiles(int64_t tiles, int64_t bytes_per_tile, int64_t active, int num_threads) {
  const int64_t by_cache = std::max<int64_t>(1, kChunkWeightBytes / bytes_per_tile);
  const int64_t by_threads = std::max<int64_t>(1, tiles * active / (kChunksPerThread * num_threads));
  const int64_t per_chunk = num_threads == 1 ? by_cache : std::min(by_cache, by_threads);
  return {per_chunk, (tiles + per_chunk - 1) / per_chunk};
}

absl::Status CheckArguments(const MoeArgs& args) {
  TESSERA_KERNEL_CHECK(!args.experts.empty(), "MoeForward: no experts");
  const int64_t hidden = args.experts[0].gate.k;
  const int64_t intermediate = args.experts[0].gate.n;
  for (const MoeExpert& expert : args.experts) {
    TESSERA_KERNEL_RETURN_IF_ERROR(CheckWeights("MoeForward gate", expert.gate, hidden));
    TESSERA_KERNEL_RETURN_IF_ERROR(CheckWeights("MoeForward up", expert.up, hidden));
    TESSERA_KERNEL_RETURN_IF_ERROR(CheckWeights("MoeForward down", expert.down, intermediate));
    TESSERA_KERNEL_CHECK(
        expert.gate.n == intermediate && expert.up.n == intermediate && expert.down.n == hidden,
        "MoeForward: expert ", &expert - args.experts.data(), " has gate [", expert.gate.n, ", ",
        expert.gate.k, "], up [", expert.up.n, ", ", expert.up.k, "], down [", expert.down.n, ", ",
        expert.down.k, "]; expected [", intermediate, ", ", hidden, "] twice and [", hidden, ", ",
        intermediate, "]");
  }
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckMatrix("MoeForward", "x", args.x, args.x_stride, args.tokens, hidden));
  TESSERA_KERNEL_RETURN_IF_ERROR(
      CheckMatrix("MoeForward", "out", args.out, args.out_stride, args.tokens, hidden));
  const int64_t num_experts = static_cast<int64_t>(args.experts.size());
  TESSERA_KERNEL_CHECK(args.top_k > 0 && args.top_k <= num_experts, "MoeForward: top-k ", args.top_k, " of ",
                       num_experts, " experts");
  TESSERA_KERNEL_CHECK(args.tokens == 0 || (args.ids != nullptr && args.weights != nullptr),
                       "MoeForward: null ids or weights");
  for (int64_t i = 0; i < args.tokens * args.top_k; ++i) {
    TESSERA_KERNEL_CHECK(args.ids[i] >= 0 && args.ids[i] < num_experts, "MoeForward: expert id ", args.ids[i],
                         " of token ", i / args.top_k, " is outside 0..", num_experts - 1);
  }
  return absl::OkStatus();
}

// Writes t x 16 activations (columns first_column.. of the down projection's input) into a panel.
template <typename Value, typename Convert>
void StorePanelColumns(const Bf16* h, int t, int64_t first_column, int64_t columns, Value* panel,
                       Convert convert) {
  const int64_t end = std::min<int64_t>(16, EvenColumns(columns) - first_column);
  for (int64_t c = 0; c < end; ++c) {
    const bool inside = first_column + c < columns;
    Value* out = panel + ((first_column + c) / 2 * t) * 2 + c % 2;
    for (int i = 0; i < t; ++i) out[2 * i] = convert(inside ? h[16 * i + c] : Bf16{});
  }
}

// Adds rows row0.. of a bias to one tile's results for t tokens.
void AddBias(const float* bias, int64_t row0, int64_t n, int t, float* result) {
  if (bias == nullptr) return;
  const int64_t rows = std::min(kTileRows, n - row0);
  for (int i = 0; i < t; ++i) {
    for (int64_t r = 0; r < rows; ++r) result[kTileRows * i + r] += bias[row0 + r];
  }
}

class Moe {
 public:
  Moe(const MoeArgs& args, const Layout& layout, std::byte* workspace, ThreadPool& pool)
      : args_(args),
        table_(Kernels()),
        pool_(pool),
        hidden_(args.experts[0].gate.k),
        intermediate_(args.experts[0].gate.n),
        order_(reinterpret_cast<int32_t*>(workspace + layout.order)),
        place_(reinterpret_cast<int32_t*>(workspace + layout.place)),
        offsets_(reinterpret_cast<int32_t*>(workspace + layout.offsets)),
        active_(reinterpret_cast<int32_t*>(workspace + layout.active)),
        x_panels_(workspace + layout.x_panels),
        h_panels_(workspace + layout.h_panels),
        y_(reinterpret_cast<float*>(workspace + layout.y)) {}

  void Run() {
    SortByExpert();
    Gather();
    GateUp();
    Down();
    Combine();
  }

 private:
  // Stable counting sort of the assignments by expert.
  void SortByExpert() {
    const int64_t assignments = args_.tokens * args_.top_k;
    const int64_t experts = static_cast<int64_t>(args_.experts.size());
    std::fill(offsets_, offsets_ + experts + 1, 0);
    for (int64_t i = 0; i < assignments; ++i) ++offsets_[args_.ids[i] + 1];
    num_active_ = 0;
    for (int64_t e = 0; e < experts; ++e) {
      if (offsets_[e + 1] > 0) active_[num_active_++] = static_cast<int32_t>(e);
      offsets_[e + 1] += offsets_[e];
    }
    for (int64_t i = 0; i < assignments; ++i) {
      const int32_t at = offsets_[args_.ids[i]]++;
      order_[at] = static_cast<int32_t>(i);
      place_[i] = at;
    }
    for (int64_t e = experts; e > 0; --e) offsets_[e] = offsets_[e - 1];
    offsets_[0] = 0;
  }

  PanelCut Panels(int32_t expert) const {
    return PanelCut(offsets_[expert + 1] - offsets_[expert], table_.max_panel_tokens);
  }
  const Bf16* TokenOf(int64_t sorted) const {
    return args_.x + order_[sorted] / args_.top_k * args_.x_stride;
  }

  void Gather() {
    const auto gather = [&](int64_t a) {
      const int32_t expert = active_[a];
      const PanelCut panels = Panels(expert);
      for (int64_t p = 0; p < panels.count; ++p) {
        const int t = panels.size(p);
        if (PanelIsRow(table_, t, hidden_)) continue;
        const int64_t first = offsets_[expert] + panels.begin(p);
        const Bf16* rows[kMaxPanelTokens];
        for (int i = 0; i < t; ++i) rows[i] = TokenOf(first + i);
        table_.pack_panel(rows, t, hidden_, x_panels_ + PanelBytes(first, hidden_));
      }
    };
    if (args_.tokens * args_.top_k * hidden_ < kSerialGatherElements) {
      for (int64_t a = 0; a < num_active_; ++a) gather(a);
    } else {
      pool_.ParallelFor(num_active_, gather);
    }
  }

  void GateUp() {
    const MoeExpert& shape = args_.experts[0];
    const Cut cut =
        CutTiles(shape.gate.num_tiles(), 2 * shape.gate.tile_bytes(), num_active_, pool_.num_threads());
    pool_.ParallelFor(num_active_ * cut.chunks, [&](int64_t chunk) {
      const int32_t expert = active_[chunk / cut.chunks];
      const MoeExpert& weights = args_.experts[expert];
      const int64_t first_tile = chunk % cut.chunks * cut.tiles_per_chunk;
      const int64_t end_tile = std::min(first_tile + cut.tiles_per_chunk, weights.gate.num_tiles());
      const PanelCut panels = Panels(expert);
      alignas(64) float gate[kMaxPanelTokens * kTileRows];
      alignas(64) float up[kMaxPanelTokens * kTileRows];
      alignas(64) Bf16 h[kMaxPanelTokens * kTileRows];
      for (int64_t p = 0; p < panels.count; ++p) {
        const int t = panels.size(p);
        const int64_t first = offsets_[expert] + panels.begin(p);
        const void* x = PanelIsRow(table_, t, hidden_)
                            ? static_cast<const void*>(TokenOf(first))
                            : static_cast<const void*>(x_panels_ + PanelBytes(first, hidden_));
        std::byte* out = h_panels_ + PanelBytes(first, intermediate_);
        for (int64_t tile = first_tile; tile < end_tile; ++tile) {
          MultiplyTile(table_, weights.gate, tile, x, t, gate);
          MultiplyTile(table_, weights.up, tile, x, t, up);
          AddBias(weights.gate_bias, tile * kTileRows, intermediate_, t, gate);
          AddBias(weights.up_bias, tile * kTileRows, intermediate_, t, up);
          table_.glu(args_.glu, gate, up, kTileRows * t, h);
          if (table_.panel_value_bytes(t) == static_cast<int>(sizeof(Bf16))) {
            StorePanelColumns(h, t, tile * kTileRows, intermediate_, reinterpret_cast<Bf16*>(out),
                              [](Bf16 v) { return v; });
          } else {
            StorePanelColumns(h, t, tile * kTileRows, intermediate_, reinterpret_cast<float*>(out),
                              [](Bf16 v) { return ToFloat(v); });
          }
        }
      }
    });
  }

  void Down() {
    const MoeExpert& shape = args_.experts[0];
    const Cut cut =
        CutTiles(shape.down.num_tiles(), shape.down.tile_bytes(), num_active_, pool_.num_threads());
    pool_.ParallelFor(num_active_ * cut.chunks, [&](int64_t chunk) {
      const int32_t expert = active_[chunk / cut.chunks];
      const PackedLinear& weights = args_.experts[expert].down;
      const float* bias = args_.experts[expert].down_bias;
      const int64_t first_tile = chunk % cut.chunks * cut.tiles_per_chunk;
      const int64_t end_tile = std::min(first_tile + cut.tiles_per_chunk, weights.num_tiles());
      const PanelCut panels = Panels(expert);
      alignas(64) float result[kMaxPanelTokens * kTileRows];
      for (int64_t p = 0; p < panels.count; ++p) {
        const int t = panels.size(p);
        const int64_t first = offsets_[expert] + panels.begin(p);
        for (int64_t tile = first_tile; tile < end_tile; ++tile) {
          MultiplyTile(table_, weights, tile, h_panels_ + PanelBytes(first, intermediate_), t, result);
          const int64_t row0 = tile * kTileRows;
          AddBias(bias, row0, hidden_, t, result);
          const int64_t rows = std::min(kTileRows, hidden_ - row0);
          for (int i = 0; i < t; ++i) {
            std::copy(result + 16 * i, result + 16 * i + rows, y_ + (first + i) * hidden_ + row0);
          }
        }
      }
    });
  }

  // out[t] = sum over j, ascending, of weight * y; the first product starts the sum.
  void Combine() {
    const int k = args_.top_k;
    const int64_t per_chunk = std::max<int64_t>(1, kCombineElementsPerChunk / (hidden_ * k));
    pool_.ParallelFor((args_.tokens + per_chunk - 1) / per_chunk, [&](int64_t chunk) {
      const int64_t end = std::min(args_.tokens, (chunk + 1) * per_chunk);
      for (int64_t t = chunk * per_chunk; t < end; ++t) {
        const float* weights = args_.weights + t * k;
        float* sum = y_ + place_[t * k] * hidden_;
        for (int64_t i = 0; i < hidden_; ++i) sum[i] *= weights[0];
        for (int j = 1; j < k; ++j) {
          table_.scale_add(weights[j], y_ + place_[t * k + j] * hidden_, hidden_, sum);
        }
        float* out = args_.out + t * args_.out_stride;
        for (int64_t i = 0; i < hidden_; ++i) out[i] = args_.accumulate ? out[i] + sum[i] : sum[i];
      }
    });
  }

  const MoeArgs& args_;
  const KernelTable& table_;
  ThreadPool& pool_;
  const int64_t hidden_;
  const int64_t intermediate_;
  int32_t* order_;
  int32_t* place_;
  int32_t* offsets_;
  int32_t* active_;
  std::byte* x_panels_;
  std::byte* h_panels_;
  float* y_;
  int64_t num_active_ = 0;
};

}  // namespace

size_t MoeWorkspaceBytes(int64_t tokens, int top_k, int num_experts, int64_t hidden, int64_t intermediate) {
  return Layout(tokens * top_k, num_experts, hidden, intermediate).total;
}

absl::Status MoeForward(const MoeArgs& args, Workspace workspace, ThreadPool& pool) {
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckArguments(args));
  const Layout layout(args.tokens * args.top_k, static_cast<int64_t>(args.experts.size()),
                      args.experts[0].gate.k, args.experts[0].gate.n);
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckWorkspace("MoeForward", workspace, layout.total));
  if (args.tokens == 0) return absl::OkStatus();
  Moe(args, layout, workspace.data, pool).Run();
  return absl::OkStatus();
}

}  // namespace tessera::cpu
