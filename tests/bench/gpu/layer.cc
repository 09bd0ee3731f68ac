// The launches of a decode step's layer (Qwen3-30B-A3B's shapes) behind C entry points: each alone, or all in order.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda/fmha/fmha_decode.h"
#include "kernels/cuda/linear/grouped_gemm.h"
#include "kernels/cuda/moe/combine_norm.h"
#include "kernels/cuda/moe/routing.h"
#include "kernels/cuda/ops/ops.h"

namespace tessera::cuda {
namespace {

constexpr int32_t kHidden = 2048, kInter = 768, kExperts = 128, kTopK = 8, kHeads = 32, kKvHeads = 4, kDim = 128;
constexpr int32_t kQkv = (kHeads + 2 * kKvHeads) * kDim, kBlock = 16, kVocab = 151936;

template <class T>
T* Take(size_t count) {
  void* p = nullptr;
  if (cudaMalloc(&p, count * sizeof(T)) != cudaSuccess) return nullptr;
  cudaMemset(p, 0, count * sizeof(T));
  return static_cast<T*>(p);
}

// `count` values that `draw` makes of random words, on the device; after the first 4 M they repeat.
template <class T, class Draw>
T* Random(size_t count, uint32_t seed, Draw draw) {
  std::mt19937 rng(seed);
  std::vector<T> values(std::min<size_t>(count, 4 << 20));
  for (T& v : values) v = draw(static_cast<uint32_t>(rng()));
  T* p = Take<T>(count);
  for (size_t at = 0; at < count; at += values.size()) {
    cudaMemcpy(p + at, values.data(), std::min(values.size(), count - at) * sizeof(T), cudaMemcpyHostToDevice);
  }
  return p;
}

float Uniform(uint32_t word, float scale) { return (static_cast<int32_t>(word) * (1.0f / 2147483648.0f)) * scale; }

float* Floats(size_t count, float scale, uint32_t seed) {
  return Random<float>(count, seed, [=](uint32_t word) { return Uniform(word, scale); });
}

float* Ones(size_t count) {
  return Random<float>(count, 0, [](uint32_t) { return 1.0f; });
}

// bf16
uint16_t* Halves(size_t count, float scale, uint32_t seed) {
  return Random<uint16_t>(count, seed, [=](uint32_t word) {
    const float value = Uniform(word, scale);
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return static_cast<uint16_t>(bits >> 16);
  });
}

PackedWeights Nvfp4(int32_t n, int32_t k, int32_t matrices, bool gate_up, const uint8_t* codes, const uint8_t* scales) {
  PackedWeights w;
  w.format = WeightFormat::kNvfp4;
  w.n = gate_up ? 2 * n : n;
  w.k = k;
  w.num_matrices = matrices;
  const size_t bytes = PackedMatrixBytes(w.format, w.n, k);
  uint8_t* data = Take<uint8_t>(bytes * matrices);
  for (int32_t i = 0; i < matrices; ++i) {
    // Other codes for every matrix.
    const uint8_t *c = codes + i * 4096, *s = scales + i * 256;
    PackNvfp4(c, s, gate_up ? c + 128 : nullptr, gate_up ? s + 64 : nullptr, n, k,
              gate_up ? RowOrder::kGateUp : RowOrder::kPlain, data + i * bytes, nullptr);
  }
  w.data = data;
  w.sum_scales = Ones(size_t(matrices) * w.n / 8);
  return w;
}

PackedWeights Bf16(int32_t n, int32_t k, float scale, uint32_t seed) {
  PackedWeights w;
  w.n = n;
  w.k = k;
  uint16_t* source = Halves(size_t(n) * k, scale, seed);
  uint8_t* data = Take<uint8_t>(PackedMatrixBytes(w.format, n, k));
  PackBf16(source, nullptr, n, k, RowOrder::kPlain, data, nullptr);
  cudaDeviceSynchronize();
  cudaFree(source);
  w.data = data;
  return w;
}

struct Layer {
  PackedWeights qkv, o, router, gate_up, down;
  float *input_norm, *post_norm, *q_norm, *k_norm;
  uint16_t *k_cache, *v_cache;
};

struct Model {
  int32_t tokens, length, blocks, stride;
  std::vector<Layer> layers;
  PackedWeights head;
  float *hidden, *qkv, *router, *expert_weights, *expert_out, *logits, *start;
  uint16_t *normed, *q, *attended, *activated;
  int32_t *experts, *slot_token, *token_slot, *tile_expert, *num_tiles, *positions, *table, *lengths, *rows;
  int64_t* slots;
  int2* ranges;
  float2* rope;
  void* workspace;
};

enum Op { kQkvOp, kFinishOp, kAttendOp, kOOp, kNormOp, kRouterOp, kRouteOp, kGateUpOp, kDownOp, kCombineOp, kHeadOp };

const char* Gemm(const Model& m, const PackedWeights& w, const void* x, void* out, int32_t features, GemmEpilogue epilogue,
                 cudaStream_t stream) {
  GroupedGemmParams p;
  p.weights = w;
  p.x = x;
  p.out = out;
  p.out_features = features;
  p.epilogue = epilogue;
  p.num_slots = m.tokens;
  p.tile_slots = ChooseTileSlots(m.tokens, w);
  return GroupedGemm(p, stream);
}

const char* LaunchOp(const Model& m, int32_t index, int32_t op, cudaStream_t stream) {
  const Layer& l = m.layers[index];
  const Layer& next = m.layers[(index + 1) % m.layers.size()];
  switch (op) {
    case kQkvOp:
      return Gemm(m, l.qkv, m.normed, m.qkv, kQkv, GemmEpilogue::kStore, stream);
    case kFinishOp: {
      QkvParams q;
      q.qkv = m.qkv;
      q.row_stride = kQkv;
      q.k_offset = kHeads * kDim;
      q.v_offset = (kHeads + kKvHeads) * kDim;
      q.q_norm = l.q_norm;
      q.k_norm = l.k_norm;
      q.eps = 1e-6f;
      q.rope = m.rope;
      q.rotary_dim = kDim;
      q.positions = m.positions;
      q.slots = m.slots;
      q.tokens = m.tokens;
      q.num_query_heads = kHeads;
      q.num_kv_heads = kKvHeads;
      q.head_dim = q.out_dim = kDim;
      q.block_size = kBlock;
      q.q = m.q;
      q.k_cache = l.k_cache;
      q.v_cache = l.v_cache;
      return FinishQkv(q, stream);
    }
    case kAttendOp: {
      FmhaDecodeParams p;
      p.q = m.q;
      p.out = m.attended;
      p.k_cache = l.k_cache;
      p.v_cache = l.v_cache;
      p.block_table = m.table;
      p.table_rows = m.rows;
      p.lengths = m.lengths;
      p.num_sequences = m.tokens;
      p.num_query_heads = kHeads;
      p.num_kv_heads = kKvHeads;
      p.head_dim = p.v_head_dim = kDim;
      p.num_blocks = m.blocks;
      p.block_size = kBlock;
      p.block_table_stride = m.stride;
      p.softmax_scale = 0.0883883f;
      p.workspace = m.workspace;
      return FmhaDecode(p, stream);
    }
    case kOOp:
      return Gemm(m, l.o, m.attended, m.hidden, kHidden, GemmEpilogue::kAdd, stream);
    case kNormOp:
      return RmsNorm({m.hidden, kHidden, nullptr, m.tokens, kHidden, l.post_norm, 1e-6f}, m.normed, kHidden, stream);
    case kRouterOp:
      return Gemm(m, l.router, m.normed, m.router, kExperts, GemmEpilogue::kStore, stream);
    case kRouteOp: {
      RouteParams r;
      r.logits = m.router;
      r.tokens = m.tokens;
      r.num_experts = kExperts;
      r.top_k = kTopK;
      r.renormalize = true;
      r.experts = m.experts;
      r.weights = m.expert_weights;
      return RouteAndSort(r, ChooseTileSlots(m.tokens * kTopK, l.gate_up),
                          {m.slot_token, m.token_slot, m.tile_expert, m.ranges, m.num_tiles}, stream);
    }
    case kGateUpOp:
    case kDownOp: {
      GroupedGemmParams p;
      p.num_slots = m.tokens * kTopK;
      p.tile_slots = ChooseTileSlots(p.num_slots, l.gate_up);
      p.tile_expert = m.tile_expert;
      p.tile_slot_range = m.ranges;
      p.num_tiles = m.num_tiles;
      p.max_tiles = MostTiles(m.tokens, kTopK, kExperts, p.tile_slots);
      if (op == kGateUpOp) {
        p.weights = l.gate_up;
        p.x = m.normed;
        p.input_rows = m.slot_token;
        p.out = m.activated;
        p.out_features = kInter;
        p.epilogue = GemmEpilogue::kSwiglu;
      } else {
        p.weights = l.down;
        p.x = m.activated;
        p.out = m.expert_out;
        p.out_features = kHidden;
        p.tiles_settled = true;
      }
      return GroupedGemm(p, stream);
    }
    case kCombineOp:
      return CombineExpertsAndNorm({m.expert_out, m.token_slot, m.expert_weights, m.tokens, kTopK, kHidden, m.hidden,
                                    next.input_norm, 1e-6f, m.normed, kHidden},
                                   stream);
    case kHeadOp:
      return Gemm(m, m.head, m.normed, m.logits, kVocab, GemmEpilogue::kStore, stream);
  }
  return "no such op";
}

}  // namespace
}  // namespace tessera::cuda

using tessera::cuda::Model;

extern "C" {

void* tessera_layer_create(int32_t most_tokens, int32_t length, int32_t layers) {
  using namespace tessera::cuda;
  Model* m = new Model;
  const int32_t tokens = most_tokens;
  m->tokens = tokens;
  m->length = length;
  m->stride = (length + kBlock - 1) / kBlock;
  m->blocks = tokens * m->stride;
  const uint8_t* codes = Random<uint8_t>(8 << 20, 7, [](uint32_t word) { return static_cast<uint8_t>(word); });
  const uint8_t* scales = Random<uint8_t>(1 << 20, 9, [](uint32_t word) { return static_cast<uint8_t>(0x28 + (word & 31)); });
  for (int32_t i = 0; i < layers; ++i) {
    Layer l;
    l.qkv = Nvfp4(kQkv, kHidden, 1, false, codes + i * 512, scales);
    l.o = Nvfp4(kHidden, kHeads * kDim, 1, false, codes + i * 512 + 64, scales);
    l.router = Bf16(kExperts, kHidden, 0.06f, 5 + i);
    l.gate_up = Nvfp4(kInter, kHidden, kExperts, true, codes + i * 512 + 128, scales);
    l.down = Nvfp4(kHidden, kInter, kExperts, false, codes + i * 512 + 192, scales);
    l.input_norm = Ones(kHidden);
    l.post_norm = Ones(kHidden);
    l.q_norm = Ones(kDim);
    l.k_norm = Ones(kDim);
    const size_t cache = size_t(m->blocks) * kKvHeads * kBlock * kDim;
    l.k_cache = Halves(cache, 1.0f, i);
    l.v_cache = Halves(cache, 1.0f, i + 100);
    m->layers.push_back(l);
  }
  m->head = Bf16(kVocab, kHidden, 0.05f, 77);
  m->start = Floats(size_t(tokens) * kHidden, 1.0f, 3);
  m->hidden = Floats(size_t(tokens) * kHidden, 1.0f, 3);
  m->qkv = Take<float>(size_t(tokens) * kQkv);
  m->router = Floats(size_t(tokens) * kExperts, 1.0f, 13);
  m->expert_weights = Take<float>(size_t(tokens) * kTopK);
  m->expert_out = Take<float>(size_t(tokens) * kTopK * kHidden);
  m->logits = Take<float>(size_t(tokens) * kVocab);
  m->normed = Halves(size_t(tokens) * kHidden, 1.0f, 21);
  m->q = Take<uint16_t>(size_t(tokens) * kHeads * kDim);
  m->attended = Halves(size_t(tokens) * kHeads * kDim, 1.0f, 22);
  m->activated = Halves(size_t(tokens) * kTopK * kInter, 1.0f, 23);
  const size_t pairs = size_t(tokens) * kTopK + kExperts;
  m->experts = Take<int32_t>(pairs);
  m->slot_token = Take<int32_t>(pairs);
  m->token_slot = Take<int32_t>(pairs);
  m->tile_expert = Take<int32_t>(pairs);
  m->num_tiles = Take<int32_t>(1);
  m->ranges = Take<int2>(pairs);
  m->rope = reinterpret_cast<float2*>(Floats(size_t(length) * kDim, 1.0f, 31));
  m->positions = Take<int32_t>(tokens);
  m->lengths = Take<int32_t>(tokens);
  m->rows = Take<int32_t>(tokens);
  m->slots = Take<int64_t>(tokens);
  m->table = Take<int32_t>(m->blocks);
  std::vector<int32_t> positions(tokens, length - 1), lengths(tokens, length), rows(tokens), table(m->blocks);
  std::vector<int64_t> slots(tokens);
  for (int32_t i = 0; i < m->blocks; ++i) table[i] = i;
  for (int32_t t = 0; t < tokens; ++t) {
    rows[t] = t;
    slots[t] = int64_t{t + 1} * m->stride * kBlock - 1 - (m->stride * kBlock - length);
  }
  cudaMemcpy(m->positions, positions.data(), tokens * 4, cudaMemcpyHostToDevice);
  cudaMemcpy(m->lengths, lengths.data(), tokens * 4, cudaMemcpyHostToDevice);
  cudaMemcpy(m->rows, rows.data(), tokens * 4, cudaMemcpyHostToDevice);
  cudaMemcpy(m->slots, slots.data(), tokens * 8, cudaMemcpyHostToDevice);
  cudaMemcpy(m->table, table.data(), m->blocks * 4, cudaMemcpyHostToDevice);
  const size_t workspace = FmhaDecodeWorkspaceBytes(tokens, 1, kHeads, kKvHeads, kDim);
  m->workspace = Take<uint8_t>(workspace);
  cudaDeviceSynchronize();
  return m;
}

// Of the first `tokens` tokens from now on.
void tessera_layer_tokens(void* model, int32_t tokens) { static_cast<Model*>(model)->tokens = tokens; }

// The residual stream as it was at first.
void tessera_layer_reset(void* model) {
  const Model* m = static_cast<Model*>(model);
  cudaMemcpy(m->hidden, m->start, size_t(m->tokens) * tessera::cuda::kHidden * 4, cudaMemcpyDeviceToDevice);
}

// Copies the residual stream's first token to the host.
void tessera_layer_hidden(void* model, float* out) {
  cudaMemcpy(out, static_cast<Model*>(model)->hidden, tessera::cuda::kHidden * 4, cudaMemcpyDeviceToHost);
}

// Launches `count` ops of layer `layer`, in order.
const char* tessera_layer_launch(void* model, int32_t layer, const int32_t* ops, int32_t count, cudaStream_t stream) {
  for (int32_t i = 0; i < count; ++i) {
    if (const char* error = tessera::cuda::LaunchOp(*static_cast<Model*>(model), layer, ops[i], stream)) return error;
  }
  return nullptr;
}
}
