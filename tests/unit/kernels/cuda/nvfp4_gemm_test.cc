#include "kernels/cuda/linear/nvfp4_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/linear/nvfp4_tiles.h"
#include "kernels/nvfp4/nvfp4.h"
#include "kernels/nvfp4/quantize.h"
#include "tests/unit/kernels/cuda/gpu.h"
#include "tests/unit/kernels/cuda/nvfp4_matrix.h"

namespace tessera::cuda {
namespace {

// Slots of several matrices: counts[m] slots of matrix m, in tiles.
struct Sorted {
  std::vector<int32_t> matrix;  // of each slot
  std::vector<int32_t> expert;
  std::vector<int2> ranges;
  DeviceBuffer<int32_t> d_expert, d_count;
  DeviceBuffer<int2> d_ranges;
  SlotTiles tiles;

  Sorted(const std::vector<int32_t>& counts, int32_t tile_slots)
      : Sorted(Split(counts, tile_slots), counts, tile_slots) {}

 private:
  struct Pieces {
    std::vector<int32_t> expert;
    std::vector<int2> ranges;
  };
  static Pieces Split(const std::vector<int32_t>& counts, int32_t tile_slots) {
    Pieces p;
    int32_t first = 0;
    for (int32_t m = 0; m < static_cast<int32_t>(counts.size()); ++m) {
      for (int32_t at = 0; at < counts[m]; at += tile_slots) {
        p.expert.push_back(m);
        p.ranges.push_back(make_int2(first + at, first + std::min(at + tile_slots, counts[m])));
      }
      first += counts[m];
    }
    return p;
  }
  Sorted(const Pieces& p, const std::vector<int32_t>& counts, int32_t tile_slots)
      : expert(p.expert),
        ranges(p.ranges),
        d_expert(p.expert),
        d_count(std::vector<int32_t>{static_cast<int32_t>(p.expert.size())}),
        d_ranges(p.ranges) {
    for (int32_t m = 0; m < static_cast<int32_t>(counts.size()); ++m)
      matrix.insert(matrix.end(), counts[m], m);
    tiles = {
        static_cast<int32_t>(matrix.size()),      tile_slots, d_expert.get(), d_ranges.get(), d_count.get(),
        static_cast<int32_t>(p.expert.size()) + 3};  // a launch bound, not a count
  }
};

// The codes and scales of a row in a tile as QuantizedRow has them.
void ExpectRow(const std::vector<uint8_t>& data, const SlotTiles& tiles, int32_t k, int32_t tile, int32_t row,
               const QuantizedRow& want) {
  for (int32_t block = 0; block < static_cast<int32_t>(want.scales.size()); ++block) {
    const uint8_t* chunk =
        &data[(size_t(tile) * Nvfp4Chunks(k) + block / 16) * Nvfp4ChunkBytes(tiles.tile_slots)];
    ASSERT_EQ(chunk[Nvfp4ScaleOffset(tiles.tile_slots, row, block % 16)], want.scales[block])
        << "tile " << tile << " row " << row << " block " << block;
    for (int32_t i = 0; i < 8; ++i) {
      ASSERT_EQ(chunk[Nvfp4CodeOffset(row, block % 16) + i], want.codes[block * 8 + i])
          << "tile " << tile << " row " << row << " block " << block << " byte " << i;
    }
  }
}

TEST(QuantizeNvfp4, EqualsTheCodecBitForBit) {
  TESSERA_REQUIRE_BLACKWELL();
  std::mt19937 rng(3);
  const int32_t k = 336, padded = 384, rows = 37, tile_slots = 16;
  std::vector<uint16_t> x = RandomActivations(size_t(rows) * k, rng);
  for (int32_t i = 0; i < k; ++i) x[5 * k + i] = 0;             // a zero row
  for (int32_t i = 0; i < 16; ++i) x[7 * k + 32 + i] = 0x8000;  // a block of -0
  for (int32_t i = 0; i < k; ++i)
    x[9 * k + i] = ToBf16(FromBf16(x[9 * k + i]) * (i % 48 < 16 ? 1e-5f : 30.0f));
  const std::vector<int32_t> slots_rows = [&] {
    std::vector<int32_t> r(41);
    for (int32_t& v : r) v = rng() % rows;
    r[0] = 5, r[1] = 7, r[2] = 9;
    return r;
  }();
  const DeviceBuffer<uint16_t> d_x(x);
  const DeviceBuffer<int32_t> d_rows(slots_rows);
  const DeviceBuffer<float> given(std::vector<float>{0.01f});
  SlotTiles tiles;
  tiles.num_slots = slots_rows.size();
  tiles.tile_slots = tile_slots;
  for (const bool dynamic : {true, false}) {
    DeviceBuffer<uint8_t> data(Nvfp4ActivationBytes(tiles, padded));
    DeviceBuffer<float> scales(tiles.num_slots);
    Nvfp4Activations out;
    out.k = padded;
    out.data = data.get();
    out.row_scales = scales.get();
    out.matrix_scales = dynamic ? nullptr : given.get();
    const char* error = QuantizeNvfp4(d_x.get(), d_rows.get(), k, tiles, out, nullptr);
    ASSERT_EQ(error, nullptr) << error;
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<uint8_t> got = data.Read();
    const std::vector<float> got_scales = scales.Read();
    for (int32_t slot = 0; slot < tiles.num_slots; ++slot) {
      const uint16_t* row = &x[size_t(slots_rows[slot]) * k];
      const float scale = dynamic ? RowScale(row, k) : 0.01f;
      if (dynamic) {
        ASSERT_EQ(got_scales[slot], scale) << "slot " << slot;
      }
      QuantizedRow want(row, k, scale);
      want.codes.resize(padded / 2, 0);  // the padding
      want.scales.resize(padded / 16, 0);
      ExpectRow(got, tiles, padded, slot / tile_slots, slot % tile_slots, want);
    }
  }
}

// Quantises x and multiplies. Row r of the result is slot r.
std::vector<float> Multiply(const Packed& packed, const DeviceBuffer<uint16_t>& x, const int32_t* rows,
                            int32_t x_k, const SlotTiles& tiles, int32_t n) {
  DeviceBuffer<uint8_t> data(Nvfp4ActivationBytes(tiles, packed.weights.k), Unwritten());
  DeviceBuffer<float> scales(tiles.num_slots), out(size_t(tiles.num_slots) * n);
  Nvfp4GemmParams p;
  p.weights = packed.weights;
  p.tiles = tiles;
  p.x.k = packed.weights.k;
  p.x.data = data.get();
  p.x.row_scales = scales.get();
  p.out = out.get();
  p.out_features = n;
  const char* error = QuantizeNvfp4(x.get(), rows, x_k, tiles, p.x, nullptr);
  EXPECT_EQ(error, nullptr) << error;
  error = Nvfp4Gemm(p, nullptr);
  EXPECT_EQ(error, nullptr) << error;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return out.Read();
}

struct Shape {
  int32_t n, k, slots;
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "n " << s.n << " k " << s.k << " slots " << s.slots;
}

class Nvfp4GemmShapes : public testing::TestWithParam<Shape> {};

TEST_P(Nvfp4GemmShapes, EqualsDoublePrecisionForEveryTileSize) {
  TESSERA_REQUIRE_BLACKWELL();
  const Shape s = GetParam();
  std::mt19937 rng(5);
  const std::vector<Matrix> matrices = {Matrix(s.n, s.k, rng)};
  const Matrix& m = matrices[0];
  const Packed packed(matrices);
  const std::vector<uint16_t> x = RandomActivations(size_t(s.slots) * s.k, rng);
  const DeviceBuffer<uint16_t> d_x(x);
  std::vector<float> first;
  for (int32_t tile_slots : {16, 32, 64, 128}) {
    SlotTiles tiles;
    tiles.num_slots = s.slots;
    tiles.tile_slots = tile_slots;
    const std::vector<float> got = Multiply(packed, d_x, nullptr, s.k, tiles, s.n);
    if (!first.empty()) {
      EXPECT_EQ(got, first) << "tiles of " << tile_slots << " slots give other bits";
      continue;
    }
    first = got;
    for (int32_t slot = 0; slot < s.slots; ++slot) {
      const float scale = RowScale(&x[size_t(slot) * s.k], s.k);
      const QuantizedRow row(&x[size_t(slot) * s.k], s.k, scale);
      for (int32_t f = 0; f < s.n; ++f) {
        double sum = 0, magnitude = 0;
        for (int32_t i = 0; i < s.k; ++i) {
          const double product = double(m.Value(f, i)) * row.values[i];
          sum += product;
          magnitude += std::abs(product);
        }
        const double factor = double(scale) * m.tensor_scale;
        ASSERT_NEAR(got[size_t(slot) * s.n + f], sum * factor, magnitude * factor * 2e-6 + 1e-12)
            << "slot " << slot << " feature " << f;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Nvfp4GemmShapes,
                         testing::Values(Shape{128, 64, 1}, Shape{100, 256, 17}, Shape{256, 320, 3},
                                         Shape{48, 1280, 70}, Shape{384, 144, 130}, Shape{130, 2048, 5},
                                         Shape{512, 576, 150}));

// Small integers as activations and unit scales: every sum is exact in float, so that any order gives these bits.
TEST(Nvfp4Gemm, IsExactWhereSumsAre) {
  TESSERA_REQUIRE_BLACKWELL();
  std::mt19937 rng(11);
  const int32_t n = 128, k = 512, slots = 19;
  std::vector<Matrix> matrices = {Matrix(n, k, rng)};
  Matrix& m = matrices[0];
  std::fill(m.scales.begin(), m.scales.end(), 0x38);  // 1
  m.tensor_scale = 0.5f;
  static const float kValues[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  std::vector<uint16_t> x(size_t(slots) * k);
  for (size_t i = 0; i < x.size(); ++i) {
    // Each block holds a 6: its scale is 1 where the row's tensor scale is 1 / 448.
    const float value = i % 16 == 0 ? 6.0f : kValues[rng() % 8];
    x[i] = ToBf16(rng() % 2 ? value : -value);
  }
  const Packed packed(matrices);
  const DeviceBuffer<uint16_t> d_x(x);
  SlotTiles tiles;
  tiles.num_slots = slots;
  const std::vector<float> got = Multiply(packed, d_x, nullptr, k, tiles, n);
  for (int32_t slot = 0; slot < slots; ++slot) {
    for (int32_t f = 0; f < n; ++f) {
      float sum = 0;
      for (int32_t i = 0; i < k; ++i) sum += m.Value(f, i) * FromBf16(x[size_t(slot) * k + i]) * 448;
      ASSERT_EQ(got[size_t(slot) * n + f], sum * 0.5f * (6.0f / (6.0f * 448.0f)))
          << "slot " << slot << " feature " << f;
    }
  }
}

// A row's NaN reaches its own results alone.
TEST(Nvfp4Gemm, KeepsNaNInItsRow) {
  TESSERA_REQUIRE_BLACKWELL();
  std::mt19937 rng(2);
  const int32_t n = 128, k = 128, slots = 5;
  const Packed packed({Matrix(n, k, rng)});
  std::vector<uint16_t> x = RandomActivations(size_t(slots) * k, rng);
  x[2 * k + 77] = 0x7FC0;
  x[4 * k + 3] = 0x7F80;  // infinity
  SlotTiles tiles;
  tiles.num_slots = slots;
  const std::vector<float> got = Multiply(packed, DeviceBuffer<uint16_t>(x), nullptr, k, tiles, n);
  for (int32_t i = 0; i < slots * n; ++i) {
    ASSERT_EQ(std::isnan(got[i]), i / n == 2 || i / n == 4) << "slot " << i / n << " feature " << i % n;
  }
}

// Experts with no, one and many slots, gathered rows, gate-up and SwiGLU, in bf16 and quantised for the next product, which
// follows.
void ExpectServesExperts(const std::vector<int32_t>& counts, int32_t inter,
                         const std::vector<int32_t>& tile_sizes) {
  std::mt19937 rng(9);
  const int32_t experts = counts.size(), k = 320, dim = 136, tokens = 30;
  std::vector<Matrix> gates, ups, downs;
  for (int32_t e = 0; e < experts; ++e) {
    gates.emplace_back(inter, k, rng);
    ups.emplace_back(inter, k, rng);
    downs.emplace_back(dim, inter, rng);
  }
  const Packed gate_up(gates, ups), down(downs);
  const std::vector<uint16_t> x = RandomActivations(size_t(tokens) * k, rng);
  const DeviceBuffer<uint16_t> d_x(x);
  std::vector<float> in_scales, next_scales;
  for (int32_t e = 0; e < experts; ++e) {
    in_scales.push_back(0.002f + e * 1e-4f);
    next_scales.push_back(0.5f + e * 0.125f);
  }
  const DeviceBuffer<float> d_in_scales(in_scales), d_next_scales(next_scales);
  for (const int32_t tile_slots : tile_sizes) {
    const Sorted sorted(counts, tile_slots);
    const int32_t slots = sorted.tiles.num_slots;
    std::vector<int32_t> rows(slots);
    for (int32_t& r : rows) r = rng() % tokens;
    const DeviceBuffer<int32_t> d_rows(rows);
    DeviceBuffer<uint8_t> data(Nvfp4ActivationBytes(sorted.tiles, k), Unwritten());
    DeviceBuffer<uint8_t> next_data(Nvfp4ActivationBytes(sorted.tiles, Nvfp4PaddedK(inter)));
    DeviceBuffer<uint16_t> out(size_t(slots) * inter);
    DeviceBuffer<float> result(size_t(slots) * dim);
    result.Zero();
    Nvfp4GemmParams p;
    p.weights = gate_up.weights;
    p.tiles = sorted.tiles;
    p.x.k = k;
    p.x.data = data.get();
    p.x.matrix_scales = d_in_scales.get();
    p.epilogue = Nvfp4Epilogue::kSwiglu;
    p.out = out.get();
    p.out_features = inter;
    ASSERT_EQ(QuantizeNvfp4(d_x.get(), d_rows.get(), k, sorted.tiles, p.x, nullptr), nullptr);
    const char* error = Nvfp4Gemm(p, nullptr);
    ASSERT_EQ(error, nullptr) << error;
    p.epilogue = Nvfp4Epilogue::kSwigluNvfp4;
    p.out = nullptr;
    p.next.k = Nvfp4PaddedK(inter);
    p.next.data = next_data.get();
    p.next.matrix_scales = d_next_scales.get();
    error = Nvfp4Gemm(p, nullptr);
    ASSERT_EQ(error, nullptr) << error;
    Nvfp4GemmParams d;
    d.weights = down.weights;
    d.tiles = sorted.tiles;
    d.x = p.next;
    d.epilogue = Nvfp4Epilogue::kAdd;
    d.out = result.get();
    d.out_features = dim;
    error = Nvfp4Gemm(d, nullptr);
    ASSERT_EQ(error, nullptr) << error;
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

    const std::vector<uint16_t> got = out.Read();
    const std::vector<uint8_t> next = next_data.Read();
    const std::vector<float> got_result = result.Read();
    int32_t off = 0;
    for (int32_t tile = 0; tile < static_cast<int32_t>(sorted.ranges.size()); ++tile) {
      for (int32_t slot = sorted.ranges[tile].x; slot < sorted.ranges[tile].y; ++slot) {
        const int32_t e = sorted.matrix[slot];
        const QuantizedRow row(&x[size_t(rows[slot]) * k], k, in_scales[e]);
        std::vector<float> want(inter);
        for (int32_t f = 0; f < inter; ++f) {
          double gate = 0, up = 0, magnitude = 0;
          for (int32_t i = 0; i < k; ++i) {
            gate += double(gates[e].Value(f, i)) * row.values[i];
            up += double(ups[e].Value(f, i)) * row.values[i];
            magnitude += std::abs(double(ups[e].Value(f, i)) * row.values[i]);
          }
          gate *= double(in_scales[e]) * gates[e].tensor_scale;
          up *= double(in_scales[e]) * ups[e].tensor_scale;
          want[f] = gate / (1 + std::exp(-gate)) * up;
          ASSERT_NEAR(FromBf16(got[size_t(slot) * inter + f]), want[f], std::abs(want[f]) * 5e-3 + 1e-5)
              << "slot " << slot << " feature " << f;
        }
        // What the epilogue quantised: the codec's result for the same values, but for values beside a rounding border.
        std::vector<uint8_t> codes(inter / 2), scales(inter / 16);
        nvfp4::QuantizeRow(want.data(), inter, next_scales[e], nvfp4::BlockScaleRule::kModelOpt, codes.data(),
                           scales.data());
        std::vector<float> next_values(inter);
        for (int32_t f = 0; f < inter; ++f) {
          const uint8_t* chunk = &next[(size_t(tile) * Nvfp4Chunks(Nvfp4PaddedK(inter)) + f / 256) *
                                       Nvfp4ChunkBytes(tile_slots)];
          const int32_t block = f / 16 % 16, r = slot - sorted.ranges[tile].x;
          const uint8_t scale = chunk[Nvfp4ScaleOffset(tile_slots, r, block)];
          const uint8_t code = chunk[Nvfp4CodeOffset(r, block) + f % 16 / 2] >> (f % 2 * 4) & 15;
          next_values[f] = nvfp4::DequantizeUnscaled(code, scale);
          ASSERT_LE(std::abs(scale - scales[f / 16]), 1);
          if (scale != scales[f / 16] || code != (codes[f / 2] >> (f % 2 * 4) & 15)) ++off;
        }
        for (int32_t o = 0; o < dim; ++o) {
          double sum = 0, magnitude = 0;
          for (int32_t f = 0; f < inter; ++f) {
            const double product = double(downs[e].Value(o, f)) * next_values[f];
            sum += product;
            magnitude += std::abs(product);
          }
          const double factor = double(next_scales[e]) * downs[e].tensor_scale;
          ASSERT_NEAR(got_result[size_t(slot) * dim + o], sum * factor, magnitude * factor * 2e-6 + 1e-12)
              << "slot " << slot << " output " << o;
        }
      }
    }
    EXPECT_LE(off, slots * inter / 200) << "codes that differ from the codec's";
  }
}

TEST(Nvfp4Gemm, ServesExpertsAndFusesSwiglu) {
  TESSERA_REQUIRE_BLACKWELL();
  ExpectServesExperts({0, 1, 37, 0, 8}, /*inter=*/176, {16, 64});
}

// An even number of row tiles and large tiles of slots: pairs of CTAs.
TEST(Nvfp4Gemm, ServesExpertsOfManySlots) {
  TESSERA_REQUIRE_BLACKWELL();
  ExpectServesExperts({3, 0, 135, 70}, /*inter=*/112, {128});
}

TEST(Nvfp4Gemm, RefusesShapesItCannotTake) {
  int dummy;
  Nvfp4GemmParams p;
  p.tiles.num_slots = 1;
  p.tiles.tile_slots = 24;
  EXPECT_NE(std::string(Nvfp4Gemm(p, nullptr)).find("tile_slots"), std::string::npos);
  p.tiles.tile_slots = 16;
  p.x.data = reinterpret_cast<uint8_t*>(&dummy);
  p.x.k = 72;
  EXPECT_NE(std::string(Nvfp4Gemm(p, nullptr)).find("multiple of 64"), std::string::npos);
  p.x.k = 128;
  EXPECT_NE(std::string(Nvfp4Gemm(p, nullptr)).find("scales"), std::string::npos);
  p.x.row_scales = reinterpret_cast<float*>(&dummy);
  p.weights.data = reinterpret_cast<uint8_t*>(&dummy);
  p.weights.sum_scales = reinterpret_cast<float*>(&dummy);
  p.weights.n = 100;
  EXPECT_NE(std::string(Nvfp4Gemm(p, nullptr)).find("multiple of 128"), std::string::npos);
  p.weights.n = 128;
  p.weights.k = 64;
  EXPECT_NE(std::string(Nvfp4Gemm(p, nullptr)).find("differ in k"), std::string::npos);
  p.weights.k = 128;
  p.weights.num_matrices = 2;
  EXPECT_NE(std::string(Nvfp4Gemm(p, nullptr)).find("need tiles"), std::string::npos);
  p.weights.num_matrices = 1;
  p.out = &dummy;
  p.out_features = 129;
  EXPECT_NE(std::string(Nvfp4Gemm(p, nullptr)).find("out_features"), std::string::npos);
  p.epilogue = Nvfp4Epilogue::kSwigluNvfp4;
  p.next = p.x;
  EXPECT_NE(std::string(Nvfp4Gemm(p, nullptr)).find("given scale"), std::string::npos);
}

}  // namespace
}  // namespace tessera::cuda
