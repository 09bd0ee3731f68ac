#include "kernels/cuda/linear/grouped_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/kernels/cuda/gpu.h"

namespace tessera::cuda {
namespace {

// One matrix in the checkpoint's layout, with its values in double precision.
struct Matrix {
  int32_t n, k;
  WeightFormat format;
  std::vector<uint8_t> codes, scales;  // NVFP4
  std::vector<uint16_t> bf16;
  float tensor_scale = 1.0f;
  std::vector<double> values;

  // Every code and every non-negative finite scale occurs, zero and subnormal scales included.
  Matrix(int32_t n, int32_t k, WeightFormat format, std::mt19937& rng) : n(n), k(k), format(format) {
    values.resize(size_t(n) * k);
    if (format == WeightFormat::kBf16) {
      std::normal_distribution<float> normal;
      for (double& v : values) {
        bf16.push_back(ToBf16(normal(rng)));
        v = FromBf16(bf16.back());
      }
      return;
    }
    tensor_scale = 0.001f + (rng() % 1000) * 1e-6f;
    static const double kMagnitude[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    codes.resize(size_t(n) * k / 2);
    scales.resize(size_t(n) * k / 16);
    for (uint8_t& c : codes) c = rng() & 255;
    for (uint8_t& s : scales) s = rng() % 127;  // 0x7F is NaN
    for (int32_t row = 0; row < n; ++row) {
      for (int32_t i = 0; i < k; ++i) {
        const uint8_t code = codes[(size_t(row) * k + i) / 2] >> (i % 2 * 4) & 15;
        const uint8_t s = scales[size_t(row) * (k / 16) + i / 16];
        const double scale = s >> 3 ? std::ldexp(1 + (s & 7) / 8.0, (s >> 3) - 7) : std::ldexp(s & 7, -9);
        values[size_t(row) * k + i] = (code & 8 ? -1 : 1) * kMagnitude[code & 7] * scale * tensor_scale;
      }
    }
  }
};

// Matrices packed on the device; every source byte around them is NaN.
struct Packed {
  PackedWeights weights;
  DeviceBuffer<uint8_t> data;
  DeviceBuffer<float> sum_scales;

  // `ups` is empty or has an up matrix for each of `matrices`.
  Packed(const std::vector<Matrix>& matrices, const std::vector<Matrix>& ups)
      : data(matrices.size() * PackedMatrixBytes(matrices[0].format, PackedN(matrices, ups), matrices[0].k)),
        sum_scales(matrices.size() * PackedN(matrices, ups) / 8) {
    const Matrix& m = matrices[0];
    weights.format = m.format;
    weights.n = PackedN(matrices, ups);
    weights.k = m.k;
    weights.num_matrices = matrices.size();
    weights.data = data.get();
    std::vector<float> scales;
    const size_t bytes = PackedMatrixBytes(m.format, weights.n, m.k);
    for (size_t i = 0; i < matrices.size(); ++i) {
      const Matrix& first = matrices[i];
      const Matrix* up = ups.empty() ? nullptr : &ups[i];
      const RowOrder order = up ? RowOrder::kGateUp : RowOrder::kPlain;
      for (int32_t half = 0; half < weights.n / 8; ++half) {
        scales.push_back((up && half % 2 ? up->tensor_scale : first.tensor_scale) * kNvfp4SumScale);
      }
      const char* error;
      if (m.format == WeightFormat::kNvfp4) {
        DeviceBuffer<uint8_t> c(first.codes), s(first.scales), uc(up ? up->codes : first.codes),
            us(up ? up->scales : first.scales);
        error = PackNvfp4(c.get(), s.get(), up ? uc.get() : nullptr, up ? us.get() : nullptr, first.n,
                          first.k, order, data.get() + i * bytes, nullptr);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      } else {
        DeviceBuffer<uint16_t> c(first.bf16), uc(up ? up->bf16 : first.bf16);
        error = PackBf16(c.get(), up ? uc.get() : nullptr, first.n, first.k, order, data.get() + i * bytes,
                         nullptr);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      }
      EXPECT_EQ(error, nullptr) << error;
    }
    if (m.format == WeightFormat::kNvfp4) {
      EXPECT_EQ(cudaMemcpy(sum_scales.get(), scales.data(), scales.size() * 4, cudaMemcpyHostToDevice),
                cudaSuccess);
      weights.sum_scales = sum_scales.get();
    }
  }

  static int32_t PackedN(const std::vector<Matrix>& matrices, const std::vector<Matrix>& ups) {
    return (matrices[0].n * (ups.empty() ? 1 : 2) + 15) / 16 * 16;
  }
};

std::vector<uint16_t> RandomActivations(size_t count, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<uint16_t> x(count);
  for (uint16_t& v : x) v = ToBf16(normal(rng));
  return x;
}

std::vector<uint16_t> OrderedBySteps(const std::vector<uint16_t>& x, int32_t k) {
  std::vector<uint16_t> ordered(x.size());
  for (size_t i = 0; i < x.size(); ++i) ordered[i / k * k + StepPosition(i % k)] = x[i];
  return ordered;
}

// The kernels there are: the order of x, and the tile sizes it is run with.
struct Way {
  ActivationOrder order;
  int32_t tile_slots;
};

std::vector<Way> Ways() {
  std::vector<Way> ways;
  for (int32_t tile : {8, 16, 32, 64}) ways.push_back({ActivationOrder::kPlain, tile});
  if (GpuMajor() == 9) {
    for (int32_t tile : {8, 32, 64, 128}) ways.push_back({ActivationOrder::kSteps, tile});
  }
  return ways;
}

double Dot(const Matrix& m, int32_t row, const uint16_t* x, double* magnitude) {
  double sum = 0;
  for (int32_t i = 0; i < m.k; ++i) {
    const double product = m.values[size_t(row) * m.k + i] * FromBf16(x[i]);
    sum += product;
    *magnitude += std::abs(product);
  }
  return sum;
}

struct Shape {
  int32_t n, k, slots;
  WeightFormat format;
};

class GroupedGemmShapes : public testing::TestWithParam<Shape> {};

TEST_P(GroupedGemmShapes, EqualsDoublePrecisionForEveryTileSize) {
  TESSERA_REQUIRE_GPU();
  const Shape s = GetParam();
  std::mt19937 rng(5);
  const std::vector<Matrix> matrices = {Matrix(s.n, s.k, s.format, rng)};
  Packed packed(matrices, {});
  const std::vector<uint16_t> x = RandomActivations(size_t(s.slots) * s.k, rng);
  const DeviceBuffer<uint16_t> d_x(x), d_ordered(OrderedBySteps(x, s.k));
  std::vector<float> bias(packed.weights.n);
  for (float& b : bias) b = s.slots % 2 ? (rng() % 100) * 0.01f - 0.5f : 0.0f;
  const DeviceBuffer<float> d_bias(bias);
  if (s.slots % 2) packed.weights.bias = d_bias.get();
  std::vector<float> first;
  for (const auto& [order, tile] : Ways()) {
    DeviceBuffer<float> out(size_t(s.slots) * s.n);
    GroupedGemmParams p;
    p.weights = packed.weights;
    p.x = order == ActivationOrder::kSteps ? d_ordered.get() : d_x.get();
    p.x_order = order;
    p.out = out.get();
    p.out_features = s.n;
    p.num_slots = s.slots;
    p.tile_slots = tile;
    const char* error = GroupedGemm(p, nullptr);
    ASSERT_EQ(error, nullptr) << error;
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<float> got = out.Read();
    if (first.empty()) {
      first = got;
      for (int32_t slot = 0; slot < s.slots; ++slot) {
        for (int32_t row = 0; row < s.n; ++row) {
          double magnitude = 0;
          const double want = bias[row] + Dot(matrices[0], row, &x[size_t(slot) * s.k], &magnitude);
          ASSERT_NEAR(got[size_t(slot) * s.n + row], want, (magnitude + std::abs(want)) * 2e-6 + 1e-12)
              << "slot " << slot << " row " << row;
        }
      }
    } else {
      EXPECT_EQ(got, first) << "tiles of " << tile << " slots, order " << static_cast<int>(order)
                            << " give other bits";
    }
  }
}

constexpr WeightFormat kFp4 = WeightFormat::kNvfp4;
constexpr WeightFormat kB16 = WeightFormat::kBf16;
INSTANTIATE_TEST_SUITE_P(Shapes, GroupedGemmShapes,
                         testing::Values(Shape{16, 64, 1, kFp4}, Shape{48, 512, 9, kFp4},
                                         Shape{100, 576, 70, kFp4}, Shape{768, 2048, 3, kFp4},
                                         Shape{2048, 768, 130, kFp4}, Shape{300, 1600, 300, kFp4},
                                         Shape{272, 1856, 97, kFp4}, Shape{64, 7168, 5, kFp4},
                                         Shape{16, 25088, 3, kFp4}, Shape{16, 64, 1, kB16},
                                         Shape{100, 576, 70, kB16}, Shape{128, 2048, 17, kB16},
                                         Shape{33, 4096, 2, kB16}));

TEST(OrderBySteps, MovesElementsToTheirPlaces) {
  TESSERA_REQUIRE_GPU();
  for (const int32_t k : {64, 320}) {
    for (const int32_t rows : {1, 77}) {
      std::vector<uint16_t> x(size_t(rows) * k);
      for (size_t i = 0; i < x.size(); ++i) x[i] = i * 7;
      const DeviceBuffer<uint16_t> d_x(x);
      const char* error = OrderBySteps(d_x.get(), rows, k, nullptr);
      ASSERT_EQ(error, nullptr) << error;
      EXPECT_EQ(d_x.Read(), OrderedBySteps(x, k));
    }
  }
}

TEST(GatherRows, CopiesRows) {
  TESSERA_REQUIRE_GPU();
  for (const int32_t k : {64, 576}) {
    std::vector<uint16_t> x(size_t(5) * k), want;
    for (size_t i = 0; i < x.size(); ++i) x[i] = i * 7;
    const std::vector<int32_t> rows = {4, 0, 0, 3, 1, 4, 2, 2, 1, 0, 4};
    for (const int32_t row : rows) want.insert(want.end(), &x[size_t(row) * k], &x[size_t(row) * k] + k);
    const DeviceBuffer<uint16_t> d_x(x);
    const DeviceBuffer<int32_t> d_rows(rows);
    DeviceBuffer<uint16_t> out(want.size());
    const char* error = GatherRows(d_x.get(), d_rows.get(), rows.size(), k, out.get(), nullptr);
    ASSERT_EQ(error, nullptr) << error;
    EXPECT_EQ(out.Read(), want);
  }
}

// Experts with no, one and many slots, gathered rows, gate-up and SwiGLU; a row's bits do not change with its company.
class GroupedGemmTiles : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Slots, GroupedGemmTiles,
                         testing::Values(Way{ActivationOrder::kPlain, 16}, Way{ActivationOrder::kSteps, 32},
                                         Way{ActivationOrder::kSteps, 128}));

// Plain SwiGLU, and gpt-oss's: clamped, biased, with sharper sigmoid and shifted up.
TEST_P(GroupedGemmTiles, ServeExpertsAndFuseSwiglu) {
  TESSERA_REQUIRE_GPU();
  const auto [order, tile_slots] = GetParam();
  if (order == ActivationOrder::kSteps && GpuMajor() != 9)
    GTEST_SKIP() << "wgmma is of compute capability 9.x";
  for (const auto& [format, clamped] :
       {std::pair(kFp4, false), std::pair(kB16, false), std::pair(kFp4, true), std::pair(kB16, true)}) {
    std::mt19937 rng(9);
    const int32_t experts = 5, k = 576, tokens = 90;
    // Results in the order of the steps are whole groups.
    const int32_t inter = order == ActivationOrder::kSteps && tile_slots == 128 ? 192 : 104;
    const ActivationOrder out_order = inter == 192 ? order : ActivationOrder::kPlain;
    std::vector<Matrix> gates, ups;
    for (int32_t e = 0; e < experts; ++e) {
      gates.emplace_back(inter, k, format, rng);
      ups.emplace_back(inter, k, format, rng);
    }
    Packed packed(gates, ups);
    const std::vector<uint16_t> x = RandomActivations(size_t(tokens) * k, rng);
    std::vector<float> bias(experts * packed.weights.n);  // [expert][tile][gate, up][8]
    for (float& b : bias) b = (rng() % 100) * 0.02f - 1.0f;
    const DeviceBuffer<float> d_bias(bias);
    Glu glu;
    if (clamped) {
      packed.weights.bias = d_bias.get();
      glu = {format == kFp4 ? 700.0f : 7.0f, 1.702f, 1.0f};
    }
    const std::vector<int32_t> counts = {0, 1, 137, 0, 8};
    std::vector<int32_t> rows, tile_expert;
    std::vector<int2> ranges;
    for (int32_t e = 0; e < experts; ++e) {
      const int32_t begin = rows.size();
      for (int32_t i = 0; i < counts[e]; ++i) rows.push_back(rng() % tokens);
      for (int32_t at = begin; at < static_cast<int32_t>(rows.size()); at += tile_slots) {
        tile_expert.push_back(e);
        ranges.push_back(make_int2(at, std::min<int32_t>(at + tile_slots, rows.size())));
      }
    }
    const int32_t slots = rows.size(), tiles = tile_expert.size();
    const int32_t max_tiles = tiles + 7;  // a launch bound, not a count
    tile_expert.resize(max_tiles, -1);
    ranges.resize(max_tiles, make_int2(-1, -1));
    const DeviceBuffer<uint16_t> d_x(order == ActivationOrder::kSteps ? OrderedBySteps(x, k) : x);
    const bool gathered = order == ActivationOrder::kSteps;
    const DeviceBuffer<int32_t> d_rows(rows), d_expert(tile_expert), d_tiles(std::vector<int32_t>{tiles});
    const DeviceBuffer<int2> d_ranges(ranges);
    DeviceBuffer<uint16_t> out(size_t(slots) * inter), d_gathered(size_t(slots) * k);
    if (gathered) {
      const char* error = GatherRows(d_x.get(), d_rows.get(), slots, k, d_gathered.get(), nullptr);
      ASSERT_EQ(error, nullptr) << error;
    }
    GroupedGemmParams p;
    p.weights = packed.weights;
    p.x = gathered ? d_gathered.get() : d_x.get();
    p.x_order = order;
    p.out_order = out_order;
    p.input_rows = gathered ? nullptr : d_rows.get();
    p.out = out.get();
    p.out_features = inter;
    p.epilogue = GemmEpilogue::kSwiglu;
    p.glu = glu;
    p.num_slots = slots;
    p.tile_slots = tile_slots;
    p.tile_expert = d_expert.get();
    p.tile_slot_range = d_ranges.get();
    p.num_tiles = d_tiles.get();
    p.max_tiles = max_tiles;
    const char* error = GroupedGemm(p, nullptr);
    ASSERT_EQ(error, nullptr) << error;
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<uint16_t> got = out.Read();
    for (int32_t slot = 0, e = 0, left = counts[0]; slot < slots; ++slot) {
      while (left == 0) left = counts[++e];
      --left;
      for (int32_t f = 0; f < inter; ++f) {
        double magnitude = 0;
        const uint16_t* row = &x[size_t(rows[slot]) * k];
        double gate = Dot(gates[e], f, row, &magnitude), up = Dot(ups[e], f, row, &magnitude);
        if (clamped) {
          const float* biases = &bias[e * packed.weights.n + f / 8 * 16 + f % 8];
          gate = std::min<double>(gate + biases[0], glu.limit);
          up = std::clamp<double>(up + biases[8], -glu.limit, glu.limit);
        }
        const double want = gate / (1 + std::exp(-glu.sigmoid_scale * gate)) * (up + glu.up_offset);
        const int32_t at = out_order == ActivationOrder::kSteps ? StepPosition(f) : f;
        ASSERT_NEAR(FromBf16(got[size_t(slot) * inter + at]), want, std::abs(want) * 5e-3 + magnitude * 1e-4)
            << "slot " << slot << " feature " << f;
      }
    }
  }
}

TEST(GroupedGemm, RefusesOrdersThatDoNotFit) {
  TESSERA_REQUIRE_GPU();
  std::mt19937 rng(3);
  const std::vector<Matrix> gates = {Matrix(104, 64, kFp4, rng)}, ups = {Matrix(104, 64, kFp4, rng)};
  const Packed packed(gates, ups);
  const DeviceBuffer<uint16_t> x(64), out(104);
  GroupedGemmParams p;
  p.weights = packed.weights;
  p.x = x.get();
  p.out = out.get();
  p.out_features = 104;
  p.epilogue = GemmEpilogue::kSwiglu;
  p.num_slots = 1;
  const auto refuses = [](const GroupedGemmParams& params, const char* part) {
    const char* error = GroupedGemm(params, nullptr);
    EXPECT_TRUE(error != nullptr && std::string(error).find(part) != std::string::npos)
        << (error ? error : "no error") << ", expected " << part;
  };
  p.tile_slots = 128;
  refuses(p, "tile_slots 128 needs activations in the order of the steps");
  p.tile_slots = 64;
  p.out_order = ActivationOrder::kSteps;
  refuses(p, "results in the order of the steps");  // of plain activations
  p.x_order = ActivationOrder::kSteps;
  refuses(p, GpuMajor() == 9 ? "results in the order of the steps"  // 104 features are no whole groups
                             : "activations in the order of the steps need sm_90");
  EXPECT_EQ(StepOrderPays(1), false);
  EXPECT_EQ(StepOrderPays(8192), GpuMajor() == 9);
  EXPECT_NE(OrderBySteps(x.get(), 1, 72, nullptr), nullptr);
  EXPECT_NE(OrderBySteps(x.get(), 0, 64, nullptr), nullptr);
  EXPECT_NE(OrderBySteps(nullptr, 1, 64, nullptr), nullptr);
}

}  // namespace
}  // namespace tessera::cuda
