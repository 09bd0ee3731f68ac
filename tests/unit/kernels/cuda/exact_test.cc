// Every kernel on inputs whose results are exact: sums of small integers, softmax weights that are 0 or 1. The expected
// bits do not depend on who computes them, so a GPU and the emulator (tests/ptx) that both pass agree bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/cuda/fmha/fmha_decode.h"
#include "kernels/cuda/linear/grouped_gemm.h"
#include "kernels/cuda/moe/routing.h"
#include "kernels/cuda/ops/ops.h"
#include "tests/unit/kernels/cuda/gpu.h"

namespace tessera::cuda {
namespace {

int32_t Small(std::mt19937& rng, int32_t most) { return static_cast<int32_t>(rng() % (2 * most + 1)) - most; }

// A matrix of multiples of 1/8 and its packed form.
struct ExactMatrix {
  int32_t n, k;
  std::vector<double> values;
  DeviceBuffer<uint8_t> data;
  DeviceBuffer<float> sum_scales;
  PackedWeights weights;

  ExactMatrix(int32_t n, int32_t k, WeightFormat format, std::mt19937& rng)
      : n(n),
        k(k),
        values(size_t(n) * k),
        data(PackedMatrixBytes(format, n, k)),
        sum_scales((n + 15) / 16 * 2) {
    weights.format = format;
    weights.n = (n + 15) / 16 * 16;
    weights.k = k;
    weights.data = data.get();
    const char* error = nullptr;
    if (format == WeightFormat::kBf16) {
      std::vector<uint16_t> bf16(values.size());
      for (size_t i = 0; i < values.size(); ++i)
        bf16[i] = ToBf16(static_cast<float>(values[i] = Small(rng, 60) / 8.0));
      const DeviceBuffer<uint16_t> source(bf16);
      error = PackBf16(source.get(), nullptr, n, k, RowOrder::kPlain, data.get(), nullptr);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    } else {
      static const double kMagnitude[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
      std::vector<uint8_t> codes(values.size() / 2), scales(values.size() / 16);
      for (uint8_t& code : codes) code = rng() & 255;
      for (uint8_t& scale : scales) scale = 0x28 + 8 * (rng() % 4);  // E4M3 1/4, 1/2, 1, 2
      for (size_t i = 0; i < values.size(); ++i) {
        const uint8_t code = codes[i / 2] >> (i % 2 * 4) & 15;
        values[i] = (code & 8 ? -1 : 1) * kMagnitude[code & 7] * std::ldexp(1, (scales[i / 16] - 0x38) / 8);
      }
      const DeviceBuffer<uint8_t> d_codes(codes), d_scales(scales);
      error = PackNvfp4(d_codes.get(), d_scales.get(), nullptr, nullptr, n, k, RowOrder::kPlain, data.get(),
                        nullptr);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      const std::vector<float> ones(weights.n / 8, kNvfp4SumScale);  // a tensor scale of 1
      EXPECT_EQ(cudaMemcpy(sum_scales.get(), ones.data(), ones.size() * 4, cudaMemcpyHostToDevice),
                cudaSuccess);
      weights.sum_scales = sum_scales.get();
    }
    EXPECT_EQ(error, nullptr) << error;
  }
};

TEST(ExactKernels, GroupedGemm) {
  TESSERA_REQUIRE_GPU();
  std::mt19937 rng(1);
  for (const WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kBf16}) {
    const int32_t n = 72, k = 640, slots = 19;
    const ExactMatrix matrix(n, k, format, rng);
    std::vector<int32_t> x(slots * k);
    std::vector<uint16_t> x_bf16;
    for (int32_t& value : x) x_bf16.push_back(ToBf16(value = Small(rng, 3)));
    std::vector<float> sums(slots * n);
    for (int32_t slot = 0; slot < slots; ++slot) {
      for (int32_t row = 0; row < n; ++row) {
        double sum = 0;
        for (int32_t i = 0; i < k; ++i) sum += matrix.values[row * k + i] * x[slot * k + i];
        sums[slot * n + row] = static_cast<float>(sum);
        ASSERT_EQ(sums[slot * n + row], sum);
      }
    }
    const DeviceBuffer<uint16_t> d_x(x_bf16), d_ordered(x_bf16);
    const char* ordered = OrderBySteps(d_ordered.get(), slots, k, nullptr);
    ASSERT_EQ(ordered, nullptr) << ordered;
    for (const int32_t tile : {8, 16, 32, 64, 128}) {  // 128: through wgmma
      if (tile == 128 && GpuMajor() != 9) continue;
      for (const GemmEpilogue epilogue : {GemmEpilogue::kStore, GemmEpilogue::kAdd}) {
        const DeviceBuffer<float> out(std::vector<float>(sums.size(), 1000.0f));
        GroupedGemmParams p;
        p.weights = matrix.weights;
        p.x = tile == 128 ? d_ordered.get() : d_x.get();
        p.x_order = tile == 128 ? ActivationOrder::kSteps : ActivationOrder::kPlain;
        p.out = out.get();
        p.out_features = n;
        p.epilogue = epilogue;
        p.num_slots = slots;
        p.tile_slots = tile;
        const char* error = GroupedGemm(p, nullptr);
        ASSERT_EQ(error, nullptr) << error;
        const std::vector<float> got = out.Read();
        const float before = epilogue == GemmEpilogue::kAdd ? 1000.0f : 0.0f;
        for (size_t i = 0; i < sums.size(); ++i)
          ASSERT_EQ(got[i], before + sums[i]) << "tile " << tile << " at " << i;
      }
    }
  }
}

// A few keys of each sequence, a power of two of them, score alike and far above the rest: the output is the mean of
// their values.
TEST(ExactKernels, FmhaDecode) {
  TESSERA_REQUIRE_GPU();
  std::mt19937 rng(2);
  for (const int32_t dim : {64, 128, 256}) {
    for (const int32_t group : {1, 8, 16}) {
      const int32_t kv_heads = 2, heads = kv_heads * group, block = 16, blocks = 420;
      const std::vector<int32_t> lengths = {1, 77, 6000};
      const int32_t sequences = 3, stride = (6000 + block - 1) / block;
      std::vector<int32_t> table(sequences * stride);
      for (int32_t i = 0; i < sequences * stride; ++i) table[i] = i * 131 % blocks;
      // Sequences 0 and 1 have blocks of their own at the end; only these may differ.
      for (int32_t i = 0; i < 5; ++i) table[stride + i] = blocks - 6 + i;
      table[0] = blocks - 1;
      for (int32_t i = 0; i < stride; ++i) table[2 * stride + i] = i;
      const auto slot = [&](int32_t sequence, int32_t key, int32_t head) {
        return ((size_t(table[sequence * stride + key / block]) * kv_heads + head) * block + key % block) *
               dim;
      };
      std::vector<uint16_t> k(size_t(blocks) * kv_heads * block * dim, 0x7FC0), v(k),
          q(sequences * heads * dim, 0);
      std::vector<double> want(q.size());
      // Every query is 64 in dimension 0; a chosen key 64 there, the others 0.
      for (size_t row = 0; row < q.size(); row += dim) q[row] = ToBf16(64);
      for (int32_t s = 0; s < sequences; ++s) {
        for (int32_t head = 0; head < kv_heads; ++head) {
          std::vector<bool> chosen(lengths[s]);
          const int32_t count = std::min(lengths[s], 4) == 4 ? 4 : 1;
          for (int32_t i = 0; i < count; ++i) {
            size_t at = rng() % lengths[s];
            while (chosen[at]) at = rng() % lengths[s];
            chosen[at] = true;
          }
          for (int32_t key = 0; key < lengths[s]; ++key) {
            const size_t at = slot(s, key, head);
            for (int32_t d = 0; d < dim; ++d) {
              const int32_t value = Small(rng, 30);
              k[at + d] = ToBf16(d == 0 ? (chosen[key] ? 64 : 0) : Small(rng, 3));
              v[at + d] = ToBf16(value);
              if (!chosen[key]) continue;
              for (int32_t g = 0; g < group; ++g)
                want[(s * heads + head * group + g) * dim + d] += double(value) / count;
            }
          }
        }
      }
      const DeviceBuffer<uint16_t> d_q(q), d_k(k), d_v(v), out(q.size());
      const DeviceBuffer<int32_t> d_table(table), d_lengths(lengths);
      DeviceBuffer<uint8_t> workspace(FmhaDecodeWorkspaceBytes(sequences, 1, heads, kv_heads, dim));
      workspace.Zero();
      FmhaDecodeParams p;
      p.q = d_q.get();
      p.out = out.get();
      p.k_cache = d_k.get();
      p.v_cache = d_v.get();
      p.block_table = d_table.get();
      p.lengths = d_lengths.get();
      p.num_sequences = sequences;
      p.num_query_heads = heads;
      p.num_kv_heads = kv_heads;
      p.head_dim = dim;
      p.num_blocks = blocks;
      p.block_size = block;
      p.block_table_stride = stride;
      p.softmax_scale = 1.0f / 8;
      p.workspace = workspace.get();
      const char* error = FmhaDecode(p, nullptr);
      ASSERT_EQ(error, nullptr) << error;
      const std::vector<uint16_t> got = out.Read();
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(got[i], ToBf16(static_cast<float>(want[i])))
            << "dim " << dim << " group " << group << " at " << i;
      }
    }
  }
}

TEST(ExactKernels, RowsAndRouting) {
  TESSERA_REQUIRE_GPU();
  std::mt19937 rng(3);
  const int32_t tokens = 21, dim = 320, experts = 64, top_k = 4;
  // Rows of 1 and -1 have norm 1.
  std::vector<float> x(tokens * dim), weight(dim), angles(8 * 32 * 2);
  for (float& value : x) value = rng() % 2 ? 1.0f : -1.0f;
  for (float& value : weight) value = Small(rng, 50);
  const DeviceBuffer<float> d_x(x), d_weight(weight), normed(x.size());
  const RmsNormParams norm = {d_x.get(), 0, nullptr, tokens, dim, d_weight.get(), 0.0f};
  ASSERT_EQ(RmsNormFloat(norm, normed.get(), dim, nullptr), nullptr);
  const std::vector<float> rows = normed.Read();
  for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i], x[i] * weight[i % dim]);

  // Equal logits: the first experts, each with an equal share.
  const DeviceBuffer<float> logits(std::vector<float>(tokens * experts, 1.5f)), shares(tokens * top_k);
  const DeviceBuffer<int32_t> chosen(tokens * top_k);
  RouteParams route;
  route.logits = logits.get();
  route.tokens = tokens;
  route.num_experts = experts;
  route.top_k = top_k;
  route.renormalize = true;
  route.experts = chosen.get();
  route.weights = shares.get();
  ASSERT_EQ(RouteTokens(route, nullptr), nullptr);
  const std::vector<int32_t> ids = chosen.Read();
  const std::vector<float> share = shares.Read();
  for (int32_t i = 0; i < tokens * top_k; ++i) {
    ASSERT_EQ(ids[i], i % top_k);
    ASSERT_EQ(share[i], 0.25f);
  }

  // Quarter turns, and no norms.
  const int32_t heads = 3, kv_heads = 1, d = 64, block = 16;
  std::vector<int32_t> positions(tokens);
  std::vector<int64_t> slots(tokens);
  for (int32_t t = 0; t < tokens; ++t) {
    positions[t] = t % 8;
    slots[t] = t * 5 % 32;
  }
  for (int32_t p = 0; p < 8; ++p) {
    for (int32_t i = 0; i < 32; ++i) {
      const int32_t turn = (p + i) % 4;
      angles[(p * 32 + i) * 2] = turn == 0 ? 1 : turn == 2 ? -1 : 0;
      angles[(p * 32 + i) * 2 + 1] = turn == 1 ? 1 : turn == 3 ? -1 : 0;
    }
  }
  std::vector<float> qkv(tokens * (heads + 2 * kv_heads) * d);
  for (float& value : qkv) value = Small(rng, 100);
  const DeviceBuffer<float> d_qkv(qkv), d_angles(angles);
  const DeviceBuffer<int32_t> d_positions(positions);
  const DeviceBuffer<int64_t> d_slots(slots);
  const DeviceBuffer<uint16_t> q(tokens * heads * d), k(2 * kv_heads * block * d),
      v(2 * kv_heads * block * d);
  QkvParams p;
  p.qkv = d_qkv.get();
  p.row_stride = (heads + 2 * kv_heads) * d;
  p.k_offset = heads * d;
  p.v_offset = (heads + kv_heads) * d;
  p.rope = reinterpret_cast<const float2*>(d_angles.get());
  p.rotary_dim = d;
  p.positions = d_positions.get();
  p.slots = d_slots.get();
  p.tokens = tokens;
  p.num_query_heads = heads;
  p.num_kv_heads = kv_heads;
  p.head_dim = d;
  p.out_dim = d;
  p.block_size = block;
  p.q = q.get();
  p.k_cache = k.get();
  p.v_cache = v.get();
  ASSERT_EQ(FinishQkv(p, nullptr), nullptr);
  const std::vector<uint16_t> got_q = q.Read(), got_v = v.Read();
  for (int32_t t = 0; t < tokens; ++t) {
    const float* row = &qkv[size_t(t) * 5 * d];
    for (int32_t i = 0; i < d; ++i) {
      const float* angle = &angles[(positions[t] * 32 + i % 32) * 2];
      const float first = row[i % 32], second = row[i % 32 + 32];
      ASSERT_EQ(FromBf16(got_q[t * heads * d + i]),
                i < 32 ? first * angle[0] - second * angle[1] : second * angle[0] + first * angle[1]);
      ASSERT_EQ(FromBf16(got_v[(slots[t] / block * block + slots[t] % block) * d + i]), row[4 * d + i]);
    }
  }
}

}  // namespace
}  // namespace tessera::cuda
