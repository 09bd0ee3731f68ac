#include "kernels/cuda/moe/nvfp4_moe.h"

#include <algorithm>

#include "kernels/cuda/linear/nvfp4_tiles.h"
#include "kernels/cuda/moe/routing.h"

namespace tessera::cuda {
namespace {

// Large enough that a tile holds an expert's share. Any size gives the same bits.
int32_t ChooseTileSlots(int64_t slots, int32_t experts) {
  const int64_t each = (slots + experts - 1) / experts;
  return each <= 16 ? 16 : each <= 32 ? 32 : each <= 64 ? 64 : 128;
}

// Hands out pieces of the workspace, or only counts them.
class Allocator {
 public:
  explicit Allocator(void* base) : base_(static_cast<uint8_t*>(base)) {}
  template <class T>
  T* Take(size_t count) {
    T* piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (count * sizeof(T) + 255) / 256 * 256;
    return piece;
  }
  size_t used() const { return used_; }

 private:
  uint8_t* base_;
  size_t used_ = 0;
};

struct Workspace {
  SortedSlots sorted;
  SlotTiles tiles;
  Nvfp4Activations x, inner;
  uint16_t* activated = nullptr;  // bf16 [slots, intermediate]
  float* rows = nullptr;          // [slots, hidden]
  size_t bytes = 0;

  explicit Workspace(const Nvfp4MoeParams& p) {
    const int32_t slots = p.tokens * p.top_k;
    tiles.num_slots = slots;
    tiles.tile_slots = ChooseTileSlots(slots, p.num_experts);
    tiles.max_tiles = MostTiles(p.tokens, p.top_k, p.num_experts, tiles.tile_slots);
    Allocator a(p.workspace);
    sorted.slot_token = a.Take<int32_t>(slots);
    sorted.token_slot = a.Take<int32_t>(slots);
    sorted.tile_expert = a.Take<int32_t>(tiles.max_tiles);
    sorted.tile_slot_range = a.Take<int2>(tiles.max_tiles);
    sorted.num_tiles = a.Take<int32_t>(1);
    tiles.tile_expert = sorted.tile_expert;
    tiles.tile_slot_range = sorted.tile_slot_range;
    tiles.num_tiles = sorted.num_tiles;
    x = TakeActivations(a, p.hidden, p.gate_up_input_scales);
    inner = TakeActivations(a, p.intermediate, p.down_input_scales);
    if (!p.down_input_scales) activated = a.Take<uint16_t>(size_t(slots) * p.intermediate);
    rows = a.Take<float>(size_t(slots) * p.hidden);
    bytes = a.used();
  }

  Nvfp4Activations TakeActivations(Allocator& a, int32_t k, const float* given_scales) const {
    Nvfp4Activations v;
    v.k = Nvfp4PaddedK(k);
    const size_t chunk_bytes = Nvfp4ChunkBytes(tiles.tile_slots);
    v.data = a.Take<uint8_t>(size_t(tiles.max_tiles) * Nvfp4Chunks(v.k) * chunk_bytes);
    v.matrix_scales = given_scales;
    v.row_scales = a.Take<float>(tiles.num_slots);
    return v;
  }
};

int32_t RowLength(const Nvfp4MoeParams& p) { return p.x_stride > 0 ? p.x_stride : p.hidden; }

const char* Check(const Nvfp4MoeParams& p) {
  if (!p.x || !p.experts || !p.expert_weights || !p.residual || !p.workspace)
    return "nvfp4 moe: a required pointer is null";
  if (p.tokens < 1 || p.top_k < 1 || p.num_experts < 1) return "nvfp4 moe: sizes must be positive";
  if (p.hidden < 16 || p.hidden % 16 != 0 || p.intermediate < 16 || p.intermediate % 16 != 0) {
    return "nvfp4 moe: hidden and intermediate must be positive multiples of 16";
  }
  if (RowLength(p) < p.hidden) return "nvfp4 moe: x_stride is less than hidden";
  if (p.gate_up.num_matrices != p.num_experts || p.down.num_matrices != p.num_experts) {
    return "nvfp4 moe: the weights must hold num_experts matrices";
  }
  if (p.gate_up.n != Nvfp4PackedFeatures(p.intermediate, RowOrder::kGateUp) ||
      p.gate_up.k != Nvfp4PaddedK(p.hidden) || p.down.n != Nvfp4PackedFeatures(p.hidden, RowOrder::kPlain) ||
      p.down.k != Nvfp4PaddedK(p.intermediate)) {
    return "nvfp4 moe: the weights' shapes differ from hidden and intermediate";
  }
  return nullptr;
}

}  // namespace

size_t Nvfp4MoeWorkspaceBytes(const Nvfp4MoeParams& params) {
  Nvfp4MoeParams sizes = params;
  sizes.workspace = nullptr;
  return Workspace(sizes).bytes;
}

const char* Nvfp4Moe(const Nvfp4MoeParams& params, cudaStream_t stream) {
  if (const char* error = Check(params)) return error;
  const Workspace w(params);
  if (const char* error = SortByExpert(params.experts, params.tokens, params.top_k, params.num_experts,
                                       w.tiles.tile_slots, w.sorted, stream)) {
    return error;
  }
  if (const char* error =
          QuantizeNvfp4(params.x, w.sorted.slot_token, RowLength(params), w.tiles, w.x, stream))
    return error;

  Nvfp4GemmParams gemm;
  gemm.weights = params.gate_up;
  gemm.tiles = w.tiles;
  gemm.x = w.x;
  if (params.down_input_scales) {
    gemm.epilogue = Nvfp4Epilogue::kSwigluNvfp4;
    gemm.next = w.inner;
    if (const char* error = Nvfp4Gemm(gemm, stream)) return error;
  } else {
    gemm.epilogue = Nvfp4Epilogue::kSwiglu;
    gemm.out = w.activated;
    gemm.out_features = params.intermediate;
    if (const char* error = Nvfp4Gemm(gemm, stream)) return error;
    if (const char* error =
            QuantizeNvfp4(w.activated, nullptr, params.intermediate, w.tiles, w.inner, stream))
      return error;
  }

  gemm = {};
  gemm.weights = params.down;
  gemm.tiles = w.tiles;
  gemm.x = w.inner;
  gemm.epilogue = Nvfp4Epilogue::kStore;
  gemm.out = w.rows;
  gemm.out_features = params.hidden;
  if (const char* error = Nvfp4Gemm(gemm, stream)) return error;
  return CombineExperts(w.rows, w.sorted.token_slot, params.expert_weights, params.tokens, params.top_k,
                        params.hidden, params.residual, stream);
}

}  // namespace tessera::cuda
