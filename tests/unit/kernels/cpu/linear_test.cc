#include "kernels/cpu/linear/linear.h"

#include <tuple>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/linear/pack_columns.h"
#include "kernels/cpu/reference.h"
#include "tests/unit/kernels/cpu/test_util.h"

namespace tessera::cpu {
namespace {

using ::testing::Values;

TEST(PackedLinearTest, KeepsNvfp4Exactly) {
  Random random(1);
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 16}, {16, 64}, {17, 48}, {40, 208}, {5, 1024}}) {
    std::vector<uint8_t> codes(n * k / 2), scales(n * k / 16);
    for (uint8_t& c : codes) c = static_cast<uint8_t>(random.Int(0, 255));
    for (uint8_t& s : scales) s = static_cast<uint8_t>(random.Int(0, 0x7e));
    AlignedBuffer<std::byte> packed(PackedBytes(WeightFormat::kNvfp4, n, k));
    ThreadPool pool(2);
    const auto view = PackNvfp4({codes.data(), scales.data(), 0.5f, n, k}, packed.data(), &pool);
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(view->tensor_scale, 0.5f);
    std::vector<float> row(k), expected(k);
    for (int64_t i = 0; i < n; ++i) {
      UnpackRow(*view, i, row.data());
      nvfp4::DequantizeRow(codes.data() + i * k / 2, scales.data() + i * k / 16, k, 1.0f, expected.data());
      ASSERT_TRUE(SameBits(row.data(), expected.data(), k)) << n << "x" << k << " row " << i;
    }
  }
}

TEST(PackedLinearTest, KeepsMxfp4Exactly) {
  Random random(1);
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 32}, {17, 96}, {40, 224}, {5, 1024}}) {
    std::vector<uint8_t> codes(n * k / 2), scales(n * k / 32);
    for (uint8_t& c : codes) c = static_cast<uint8_t>(random.Int(0, 255));
    for (uint8_t& s : scales) s = static_cast<uint8_t>(random.Int(0, 254));
    AlignedBuffer<std::byte> packed(PackedBytes(WeightFormat::kMxfp4, n, k));
    const auto view = PackMxfp4({codes.data(), scales.data(), n, k}, packed.data(), nullptr);
    ASSERT_TRUE(view.ok()) << view.status();
    std::vector<float> row(k);
    for (int64_t i = 0; i < n; ++i) {
      UnpackRow(*view, i, row.data());
      for (int64_t c = 0; c < k; ++c) {
        const int code = codes[(i * k + c) / 2] >> (c % 2 * 4) & 0xf;
        const double magnitude[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
        const double value = std::ldexp(magnitude[code & 7], scales[(i * k + c) / 32] - 127);
        ASSERT_EQ(row[c], static_cast<float>(code & 8 ? -value : value)) << i << " " << c;
      }
    }
  }
}

TEST(PackedLinearTest, KeepsFp8Exactly) {
  Random random(1);
  for (const auto& [n, k, per_scale] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                                        {17, 96, 128},
                                        {40, 300, 128},
                                        {5, 1024, 1024},
                                        {3, 515, 256}}) {
    const int64_t scale_columns = (k + per_scale - 1) / per_scale;
    std::vector<uint8_t> codes(n * k);
    for (uint8_t& c : codes) {
      do c = static_cast<uint8_t>(random.Int(0, 255));
      while ((c & 0x7f) == 0x7f);
    }
    std::vector<float> scales(n * scale_columns);
    for (float& s : scales) s = std::abs(random.Normal());
    AlignedBuffer<std::byte> packed(PackedBytes(WeightFormat::kFp8, n, k));
    ThreadPool pool(2);
    const auto view = PackFp8({codes.data(), scales.data(), per_scale, n, k}, packed.data(), &pool);
    ASSERT_TRUE(view.ok()) << view.status();
    std::vector<float> row(k);
    for (int64_t i = 0; i < n; ++i) {
      UnpackRow(*view, i, row.data());
      for (int64_t c = 0; c < k; ++c) {
        ASSERT_EQ(row[c], nvfp4::E4M3ToFloat(codes[i * k + c]) * scales[i * scale_columns + c / per_scale])
            << i << " " << c;
      }
    }
    codes[(n - 1) * k] = 0xff;
    EXPECT_EQ(
        PackFp8({codes.data(), scales.data(), per_scale, n, k}, packed.data(), nullptr).status().message(),
        absl::StrCat("FP8 row ", n - 1,
                     " holds a NaN, or a scale that is negative, not finite or too large"));
    codes[(n - 1) * k] = 0;
    for (const float bad : {-1.0f, kNaN, std::numeric_limits<float>::infinity()}) {
      scales.back() = bad;
      EXPECT_FALSE(PackFp8({codes.data(), scales.data(), per_scale, n, k}, packed.data(), nullptr).ok());
    }
  }
}

TEST(PackedLinearTest, RefusesAnMxfp4NaN) {
  std::vector<uint8_t> codes(4 * 64 / 2, 0x11), scales(4 * 2, 127);
  AlignedBuffer<std::byte> packed(PackedBytes(WeightFormat::kMxfp4, 4, 64));
  Mxfp4Source source{codes.data(), scales.data(), 4, 64};
  EXPECT_TRUE(PackMxfp4(source, packed.data(), nullptr).ok());
  scales[5] = 0xff;
  EXPECT_EQ(PackMxfp4(source, packed.data(), nullptr).status().message(),
            "MXFP4 block scale at row 2, block 1 is NaN (0xff); scales must be finite and not negative");
  source.k = 48;
  EXPECT_FALSE(PackMxfp4(source, packed.data(), nullptr).ok());
}

TEST(PackedLinearTest, RoundsDenseTypesToBf16) {
  const float f32[] = {1.0f, -2.5f, 1.00390625f, 3.0e38f, 0.1f, -0.0f};
  const uint16_t f16[] = {0x3c00, 0xc100, 0x3c04, 0x0001, 0x2e66, 0x8000};
  AlignedBuffer<std::byte> packed(PackedBytes(WeightFormat::kBf16, 2, 3));
  std::vector<float> row(3);
  auto view = PackDense({f32, DenseType::kF32, 2, 3}, packed.data(), nullptr);
  ASSERT_TRUE(view.ok());
  for (int i = 0; i < 6; ++i) {
    UnpackRow(*view, i / 3, row.data());
    EXPECT_EQ(row[i % 3], ToFloat(ToBf16(f32[i])));
  }
  view = PackDense({f16, DenseType::kF16, 2, 3}, packed.data(), nullptr);
  ASSERT_TRUE(view.ok());
  const float expected[] = {1.0f, -2.5f, 1.0f, 5.9604644775390625e-8f, 0.10009765625f, -0.0f};
  for (int i = 0; i < 6; ++i) {
    UnpackRow(*view, i / 3, row.data());
    EXPECT_EQ(row[i % 3], expected[i]) << i;
  }
}

// Stores [n, k] units of `unit` bytes by columns, each row's `step` rows apart, with `lead` bytes before them.
struct ByColumns {
  ByColumns(const std::vector<uint8_t>& rows, int64_t n, int64_t k, int64_t unit, int64_t step, int64_t lead)
      : bytes(lead + k * n * step * unit, 0x7f) {
    units = {bytes.data() + lead, step * unit, n * step * unit};
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t c = 0; c < k; ++c) {
        std::memcpy(bytes.data() + lead + (c * n + r) * step * unit, rows.data() + (r * k + c) * unit, unit);
      }
    }
    if (step > 1) bytes.resize(bytes.size() - (step - 1) * unit);  // nothing follows the last row
    bytes.shrink_to_fit();
    units.data = bytes.data() + lead;
  }
  std::vector<uint8_t> bytes;
  ColumnUnits units;
};

// Calls pack(first, count) for all ranges of columns, the last one first.
void ForEachRange(int64_t k, int64_t size, const std::function<absl::Status(int64_t, int64_t)>& pack) {
  for (int64_t first = (k - 1) / size * size; first >= 0; first -= size) {
    const absl::Status status = pack(first, std::min(size, k - first));
    ASSERT_TRUE(status.ok()) << status;
  }
}

TEST(PackColumnsTest, GivesTheBytesThatRowsGive) {
  Random random(2);
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{1, 16}, {16, 64}, {17, 48}, {40, 208}, {5, 1024}, {64, 400}, {33, 256}}) {
    for (const int64_t step : {1, 2, 3}) {
      for (const int64_t range : {128, 256}) {
        SCOPED_TRACE(absl::StrCat(n, "x", k, " step ", step, " range ", range));
        const auto expect_same = [](const AlignedBuffer<std::byte>& a, const AlignedBuffer<std::byte>& b,
                                    size_t bytes) { EXPECT_EQ(std::memcmp(a.data(), b.data(), bytes), 0); };
        // BF16, F16 and F32; also of an odd number of columns.
        for (const DenseType type : {DenseType::kBf16, DenseType::kF16, DenseType::kF32}) {
          for (const int64_t columns : {k, k - 1}) {
            const int64_t unit = type == DenseType::kF32 ? 4 : 2;
            std::vector<uint8_t> rows(n * columns * unit);
            for (int64_t i = 0; i < n * columns; ++i) {
              const float value = random.Normal();
              const uint16_t bits = type == DenseType::kBf16 ? ToBf16(value).bits : random.Int(0, 0x7bff);
              std::memcpy(rows.data() + i * unit,
                          type == DenseType::kF32 ? static_cast<const void*>(&value) : &bits, unit);
            }
            const size_t bytes = PackedBytes(WeightFormat::kBf16, n, columns);
            AlignedBuffer<std::byte> expected(bytes), packed(bytes);
            std::memset(packed.data(), 0xa5, bytes);
            ASSERT_TRUE(PackDense({rows.data(), type, n, columns}, expected.data(), nullptr).ok());
            const ByColumns source(rows, n, columns, unit, step, 1);
            ForEachRange(columns, range, [&](int64_t first, int64_t count) {
              return PackDense({source.units, type, n, columns}, first, count, packed.data());
            });
            expect_same(expected, packed, bytes);
          }
        }
        std::vector<uint8_t> codes(n * k / 2), scales(n * k / 16);
        for (uint8_t& c : codes) c = static_cast<uint8_t>(random.Int(0, 255));
        for (uint8_t& s : scales) s = static_cast<uint8_t>(random.Int(0, 0x7e));
        size_t bytes = PackedBytes(WeightFormat::kNvfp4, n, k);
        AlignedBuffer<std::byte> expected(bytes), packed(bytes);
        std::memset(packed.data(), 0xa5, bytes);
        ASSERT_TRUE(PackNvfp4({codes.data(), scales.data(), 1.0f, n, k}, expected.data(), nullptr).ok());
        const ByColumns code_source(codes, n, k / 2, 1, step, 1), scale_source(scales, n, k / 16, 1, step, 0);
        ForEachRange(k, range, [&](int64_t first, int64_t count) {
          return PackNvfp4({code_source.units, scale_source.units, n, k}, first, count, packed.data());
        });
        expect_same(expected, packed, bytes);

        for (const int64_t columns : {k, k - 3}) {
          for (const int64_t per_scale : {int64_t{128}, k}) {
            std::vector<uint8_t> fp8(n * columns);
            for (uint8_t& c : fp8) c = static_cast<uint8_t>(random.Int(0, 0x7e));
            std::vector<float> factors(n * ((columns + per_scale - 1) / per_scale));
            for (float& s : factors) s = std::abs(random.Normal());
            bytes = PackedBytes(WeightFormat::kFp8, n, columns);
            AlignedBuffer<std::byte> fp8_expected(bytes), fp8_packed(bytes);
            std::memset(fp8_packed.data(), 0xa5, bytes);
            ASSERT_TRUE(
                PackFp8({fp8.data(), factors.data(), per_scale, n, columns}, fp8_expected.data(), nullptr)
                    .ok());
            const ByColumns source(fp8, n, columns, 1, step, 1);
            ForEachRange(columns, range, [&](int64_t first, int64_t count) {
              return PackFp8({source.units, factors.data(), per_scale, n, columns}, first, count,
                             fp8_packed.data());
            });
            expect_same(fp8_expected, fp8_packed, bytes);
          }
        }
      }
    }
  }
}

TEST(PackColumnsTest, RefusesWhatItCannotPack) {
  constexpr int64_t kN = 20, kK = 272;
  std::vector<uint8_t> codes(kN * kK, 0x11), scales(kN * kK / 16, 0x38);
  std::vector<float> factors(kN, 1.0f);
  AlignedBuffer<std::byte> packed(PackedBytes(WeightFormat::kBf16, kN, kK));
  const auto nvfp4 = [&](int64_t first, int64_t count) {
    return PackNvfp4({{codes.data(), 1, kN}, {scales.data(), 1, kN}, kN, kK}, first, count, packed.data());
  };
  const auto fp8 = [&](int64_t first, int64_t count) {
    return PackFp8({{codes.data(), 1, kN}, factors.data(), kK, kN, kK}, first, count, packed.data());
  };
  EXPECT_TRUE(nvfp4(0, kK).ok());
  EXPECT_TRUE(fp8(128, kK - 128).ok());
  for (const auto& [first, count] :
       {std::pair<int64_t, int64_t>{64, 128}, {0, 64}, {128, 256}, {-128, 128}, {0, 0}}) {
    EXPECT_FALSE(nvfp4(first, count).ok()) << first;
    EXPECT_FALSE(fp8(first, count).ok()) << first;
    EXPECT_FALSE(
        PackDense({{codes.data(), 2, 2 * kN}, DenseType::kBf16, kN, kK}, first, count, packed.data()).ok());
  }
  for (const uint8_t bad : {0x7f, 0x80, 0xff}) {
    scales[8 * kN + 18] = bad;  // block 8, in the second range
    EXPECT_TRUE(nvfp4(0, 128).ok());
    EXPECT_FALSE(nvfp4(128, 128).ok());
    EXPECT_FALSE(nvfp4(0, kK).ok());
  }
  codes[271 * kN + 19] = 0xff;
  EXPECT_TRUE(fp8(0, 256).ok());
  EXPECT_FALSE(fp8(256, 16).ok());
  codes[271 * kN + 19] = 0;
  for (const float bad : {-1.0f, kNaN, std::numeric_limits<float>::infinity()}) {
    factors[19] = bad;
    EXPECT_FALSE(fp8(0, kK).ok());
  }
}

TEST(PackedLinearTest, RefusesWhatItCannotPack) {
  std::vector<uint8_t> codes(4 * 32 / 2, 0x11), scales(4 * 2, 0x38);
  AlignedBuffer<std::byte> packed(PackedBytes(WeightFormat::kNvfp4, 4, 32));
  Nvfp4Source source{codes.data(), scales.data(), 1.0f, 4, 32};
  EXPECT_TRUE(PackNvfp4(source, packed.data(), nullptr).ok());
  scales[5] = 0x7f;
  absl::Status status = PackNvfp4(source, packed.data(), nullptr).status();
  EXPECT_EQ(status.message(),
            "NVFP4 block scale at row 2, block 1 is NaN (0x7f); scales must be finite and not negative");
  scales[5] = 0xb8;
  status = PackNvfp4(source, packed.data(), nullptr).status();
  EXPECT_EQ(status.message(),
            "NVFP4 block scale at row 2, block 1 is negative (0xb8); scales must be finite and not negative");
  scales[5] = 0x38;
  source.k = 24;
  EXPECT_FALSE(PackNvfp4(source, packed.data(), nullptr).ok());
  source.k = 32;
  source.tensor_scale = kNaN;
  EXPECT_FALSE(PackNvfp4(source, packed.data(), nullptr).ok());
  source.tensor_scale = 1;
  EXPECT_FALSE(PackNvfp4(source, packed.data() + 8, nullptr).ok());
  source.n = 0;
  EXPECT_FALSE(PackNvfp4(source, packed.data(), nullptr).ok());
}

class LinearTest : public EachIsa {};

struct Case {
  WeightFormat format;
  int64_t n, k, tokens;
};

// x has poison between its rows, the workspace is full of NaN.
std::vector<float> RunLinear(const PackedLinear& w, const Bf16* x, int64_t x_stride, int64_t tokens,
                             int threads) {
  ThreadPool pool(threads);
  AlignedBuffer<std::byte> workspace(LinearWorkspaceBytes(tokens, w.k));
  std::vector<float> y(tokens * w.n, kNaN);
  const absl::Status status =
      Linear({x, x_stride, tokens}, {w, y.data(), w.n, nullptr, false}, workspace.workspace(), pool);
  EXPECT_TRUE(status.ok()) << status;
  return y;
}

std::vector<Bf16> PoisonedRows(int64_t tokens, int64_t k, int64_t stride, uint32_t seed) {
  std::vector<Bf16> x(tokens * stride, Bf16{0x7fff});
  Random random(seed);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < k; ++c) x[t * stride + c] = ToBf16(random.Normal());
  }
  return x;
}

TEST_P(LinearTest, MatchesDoublePrecision) {
  const Case cases[] = {
      {WeightFormat::kNvfp4, 1, 16, 1},    {WeightFormat::kNvfp4, 16, 64, 2},
      {WeightFormat::kNvfp4, 33, 48, 3},   {WeightFormat::kNvfp4, 70, 208, 5},
      {WeightFormat::kNvfp4, 48, 768, 7},  {WeightFormat::kNvfp4, 20, 2048, 13},
      {WeightFormat::kNvfp4, 64, 320, 64}, {WeightFormat::kBf16, 1, 1, 1},
      {WeightFormat::kBf16, 16, 32, 2},    {WeightFormat::kBf16, 33, 47, 3},
      {WeightFormat::kBf16, 70, 207, 5},   {WeightFormat::kBf16, 48, 768, 7},
      {WeightFormat::kBf16, 19, 2049, 13}, {WeightFormat::kBf16, 64, 320, 64},
      {WeightFormat::kBf16, 5, 3, 4},      {WeightFormat::kNvfp4, 24, 80, 6},
      {WeightFormat::kNvfp4, 24, 112, 9},  {WeightFormat::kNvfp4, 8, 96, 10},
      {WeightFormat::kNvfp4, 8, 96, 11},   {WeightFormat::kNvfp4, 8, 96, 12},
      {WeightFormat::kBf16, 8, 96, 8},     {WeightFormat::kBf16, 8, 95, 9},
      {WeightFormat::kBf16, 8, 95, 10},    {WeightFormat::kBf16, 8, 95, 11},
      {WeightFormat::kBf16, 8, 95, 12},    {WeightFormat::kNvfp4, 8, 96, 8},
      {WeightFormat::kNvfp4, 8, 96, 4},    {WeightFormat::kBf16, 8, 95, 6},
      {WeightFormat::kMxfp4, 1, 32, 1},    {WeightFormat::kMxfp4, 33, 96, 3},
      {WeightFormat::kMxfp4, 70, 224, 5},  {WeightFormat::kMxfp4, 20, 2880, 13},
      {WeightFormat::kMxfp4, 8, 160, 12},  {WeightFormat::kMxfp4, 64, 320, 64},
      {WeightFormat::kFp8, 1, 1, 1},       {WeightFormat::kFp8, 16, 128, 2},
      {WeightFormat::kFp8, 33, 47, 3},     {WeightFormat::kFp8, 70, 207, 5},
      {WeightFormat::kFp8, 19, 2049, 13},  {WeightFormat::kFp8, 48, 768, 8},
      {WeightFormat::kFp8, 8, 130, 12},    {WeightFormat::kFp8, 64, 320, 64},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(::testing::Message() << "format " << static_cast<int>(c.format) << " " << c.n << "x" << c.k
                                      << " tokens " << c.tokens);
    const TestWeights weights(c.format, c.n, c.k, 7);
    const int64_t stride = c.k + 5;
    const std::vector<Bf16> x = PoisonedRows(c.tokens, c.k, stride, 11);
    const LinearInput input{x.data(), stride, c.tokens};
    const std::vector<double> expected = reference::Linear(input, weights.view(), nullptr);
    const std::vector<double> magnitude = reference::LinearMagnitude(input, weights.view());
    const std::vector<float> y = RunLinear(weights.view(), x.data(), stride, c.tokens, 2);
    for (size_t i = 0; i < y.size(); ++i) {
      // Blocked sums: a block's length plus the number of blocks bounds the error; rounding errors average out.
      const double bound = (40 + static_cast<double>(c.k) / 16) * 0x1p-24 * magnitude[i];
      ASSERT_NEAR(y[i], expected[i], bound) << i;
    }
  }
}

TEST_P(LinearTest, OneTokenAloneGivesTheSameBitsAsInAnyBatch) {
  for (WeightFormat format :
       {WeightFormat::kNvfp4, WeightFormat::kBf16, WeightFormat::kMxfp4, WeightFormat::kFp8}) {
    const int64_t n = 50, k = 352, tokens = 64;
    const TestWeights weights(format, n, k, 3);
    const std::vector<Bf16> x = PoisonedRows(tokens, k, k, 5);
    std::vector<float> alone(tokens * n);
    for (int64_t t = 0; t < tokens; ++t) {
      const std::vector<float> y = RunLinear(weights.view(), x.data() + t * k, k, 1, 1);
      std::copy(y.begin(), y.end(), alone.begin() + t * n);
    }
    for (int64_t batch = 1; batch <= tokens; ++batch) {
      const int threads = 1 + static_cast<int>(batch % 4);
      const std::vector<float> y =
          RunLinear(weights.view(), x.data() + (tokens - batch) * k, k, batch, threads);
      ASSERT_TRUE(SameBits(y.data(), alone.data() + (tokens - batch) * n, batch * n)) << "batch of " << batch;
    }
  }
}

TEST_P(LinearTest, WideMagnitudesGiveTheSameBitsAloneAndInABatch) {
  // Products from 2^-40 to 2^40 in one sum: any difference in rounding between the paths shows.
  const int64_t n = 32, k = 512, tokens = 24;
  const TestWeights weights(WeightFormat::kNvfp4, n, k, 3);
  const TestWeights dense(WeightFormat::kBf16, n, k, 4);
  const TestWeights mxfp4(WeightFormat::kMxfp4, n, k, 5);
  const TestWeights fp8(WeightFormat::kFp8, n, k, 6);
  Random random(9);
  std::vector<Bf16> x(tokens * k);
  for (Bf16& v : x) v = ToBf16(std::ldexp(random.Normal(), static_cast<int>(random.Int(-40, 40))));
  for (const PackedLinear& w : {weights.view(), dense.view(), mxfp4.view(), fp8.view()}) {
    const std::vector<float> together = RunLinear(w, x.data(), k, tokens, 1);
    for (int64_t t = 0; t < tokens; ++t) {
      const std::vector<float> alone = RunLinear(w, x.data() + t * k, k, 1, 1);
      ASSERT_TRUE(SameBits(alone.data(), together.data() + t * n, n)) << t;
    }
  }
}

TEST_P(LinearTest, ARowWithNaNOrInfinityLeavesTheOthersAlone) {
  const int64_t n = 40, k = 96, tokens = 9;
  for (WeightFormat format :
       {WeightFormat::kNvfp4, WeightFormat::kBf16, WeightFormat::kMxfp4, WeightFormat::kFp8}) {
    const TestWeights weights(format, n, k, 3);
    std::vector<Bf16> x = PoisonedRows(tokens, k, k, 5);
    const std::vector<float> clean = RunLinear(weights.view(), x.data(), k, tokens, 2);
    x[4 * k + 17] = Bf16{0x7fc0};
    const std::vector<float> dirty = RunLinear(weights.view(), x.data(), k, tokens, 2);
    EXPECT_TRUE(SameBits(clean.data(), dirty.data(), 4 * n));
    EXPECT_TRUE(SameBits(clean.data() + 5 * n, dirty.data() + 5 * n, 4 * n));
    for (int64_t i = 0; i < n; ++i) EXPECT_TRUE(std::isnan(dirty[4 * n + i]));
  }
}

TEST_P(LinearTest, PaddingOfTheWeightsDoesNotReachAnyOutput) {
  // The rows that fill the last tile and the blocks that fill the last group become NaN scales and junk codes.
  const int64_t n = 21, k = 80, tokens = 14;
  const TestWeights weights(WeightFormat::kNvfp4, n, k, 3);
  const std::vector<Bf16> x = PoisonedRows(tokens, k, k, 5);
  const std::vector<float> clean = RunLinear(weights.view(), x.data(), k, tokens, 1);
  const PackedLinear& view = weights.view();
  AlignedBuffer<std::byte> poisoned(view.bytes());
  std::memcpy(poisoned.data(), view.data, view.bytes());
  for (int64_t tile = 0; tile < view.num_tiles(); ++tile) {
    std::byte* group = poisoned.data() + tile * view.tile_bytes() + kNvfp4GroupBytes;  // columns 64 to 127
    std::memset(group + 16, 0xff, 48);  // scales of blocks 1 to 3
    std::memset(group + 64 + 128, 0xff, 3 * 128);
  }
  std::byte* last = poisoned.data() + view.tile_bytes();
  for (int64_t r = 5; r < 16; ++r) {
    for (int64_t block = 0; block < 5; ++block) {
      std::byte* group = last + block / 4 * kNvfp4GroupBytes;
      group[block % 4 * 16 + r] = std::byte{0x7f};
      std::memset(group + 64 + block % 4 * 128 + r * 4, 0xff, 4);
    }
  }
  PackedLinear poisoned_view = view;
  poisoned_view.data = poisoned.data();
  for (int64_t count : {int64_t{1}, tokens}) {
    const std::vector<float> y = RunLinear(poisoned_view, x.data(), k, count, 2);
    EXPECT_TRUE(SameBits(y.data(), clean.data(), count * n)) << count;
  }
}

TEST_P(LinearTest, LargeProductsSharedByThreadsGiveTheSameBits) {
  const int64_t n = 1000, k = 512, tokens = 40;
  const TestWeights weights(WeightFormat::kNvfp4, n, k, 3);
  const std::vector<Bf16> x = PoisonedRows(tokens, k, k, 5);
  const std::vector<float> one = RunLinear(weights.view(), x.data(), k, tokens, 1);
  for (int threads : {2, 3, 7}) {
    const std::vector<float> many = RunLinear(weights.view(), x.data(), k, tokens, threads);
    EXPECT_TRUE(SameBits(many.data(), one.data(), tokens * n)) << threads;
  }
}

TEST_P(LinearTest, BiasResidualAndStrides) {
  const int64_t n = 21, k = 64, tokens = 5, y_stride = 30;
  const TestWeights weights(WeightFormat::kNvfp4, n, k, 3);
  const std::vector<Bf16> x = PoisonedRows(tokens, k, k, 5);
  const std::vector<float> plain = RunLinear(weights.view(), x.data(), k, tokens, 1);
  Random random(2);
  const std::vector<float> bias = random.Normals(n);
  const std::vector<float> before = random.Normals(tokens * y_stride);
  std::vector<float> y = before;
  ThreadPool pool(3);
  AlignedBuffer<std::byte> workspace(LinearWorkspaceBytes(tokens, k));
  ASSERT_TRUE(Linear({x.data(), k, tokens}, {weights.view(), y.data(), y_stride, bias.data(), true},
                     workspace.workspace(), pool)
                  .ok());
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < y_stride; ++i) {
      const float old = before[t * y_stride + i];
      EXPECT_EQ(y[t * y_stride + i], i < n ? old + (plain[t * n + i] + bias[i]) : old);
    }
  }
}

TEST_P(LinearTest, GroupEqualsTheProductsOneByOne) {
  const int64_t k = 128, tokens = 14;
  const TestWeights a(WeightFormat::kNvfp4, 48, k, 1);
  const TestWeights b(WeightFormat::kBf16, 17, k, 2);
  const TestWeights c(WeightFormat::kNvfp4, 100, k, 3);
  const std::vector<Bf16> x = PoisonedRows(tokens, k, k, 5);
  std::vector<float> ya(tokens * 48), yb(tokens * 17), yc(tokens * 100);
  const LinearOutput outputs[] = {
      {a.view(), ya.data(), 48}, {b.view(), yb.data(), 17}, {c.view(), yc.data(), 100}};
  ThreadPool pool(2);
  AlignedBuffer<std::byte> workspace(LinearWorkspaceBytes(tokens, k));
  ASSERT_TRUE(LinearGroup({x.data(), k, tokens}, outputs, workspace.workspace(), pool).ok());
  EXPECT_TRUE(SameBits(ya.data(), RunLinear(a.view(), x.data(), k, tokens, 1).data(), ya.size()));
  EXPECT_TRUE(SameBits(yb.data(), RunLinear(b.view(), x.data(), k, tokens, 1).data(), yb.size()));
  EXPECT_TRUE(SameBits(yc.data(), RunLinear(c.view(), x.data(), k, tokens, 1).data(), yc.size()));
}

TEST_P(LinearTest, RefusesShapesThatDoNotFit) {
  const TestWeights weights(WeightFormat::kNvfp4, 16, 64, 3);
  const TestWeights other(WeightFormat::kNvfp4, 16, 32, 3);
  const std::vector<Bf16> x(3 * 64);
  std::vector<float> y(3 * 16, 5.0f);
  ThreadPool pool(1);
  AlignedBuffer<std::byte> workspace(LinearWorkspaceBytes(3, 64));
  const LinearOutput good{weights.view(), y.data(), 16};
  EXPECT_FALSE(Linear({x.data(), 63, 3}, good, workspace.workspace(), pool).ok());
  EXPECT_FALSE(Linear({nullptr, 64, 3}, good, workspace.workspace(), pool).ok());
  EXPECT_FALSE(Linear({x.data(), 64, -1}, good, workspace.workspace(), pool).ok());
  EXPECT_FALSE(Linear({x.data(), 64, 3}, {weights.view(), y.data(), 15}, workspace.workspace(), pool).ok());
  EXPECT_FALSE(Linear({x.data(), 64, 3}, {weights.view(), nullptr, 16}, workspace.workspace(), pool).ok());
  EXPECT_FALSE(Linear({x.data(), 64, 3}, good, {workspace.data(), 64}, pool).ok());
  EXPECT_FALSE(Linear({x.data(), 64, 3}, {PackedLinear{}, y.data(), 16}, workspace.workspace(), pool).ok());
  const LinearOutput mixed[] = {good, {other.view(), y.data(), 16}};
  const absl::Status status = LinearGroup({x.data(), 64, 3}, mixed, workspace.workspace(), pool);
  EXPECT_EQ(status.message(), "Linear: weights of shape [16, 32] for an input of 64 columns");
  EXPECT_EQ(y, std::vector<float>(3 * 16, 5.0f));
  EXPECT_TRUE(Linear({nullptr, 64, 0}, good, {}, pool).ok());
  EXPECT_TRUE(Linear({x.data(), 64, 3}, good, workspace.workspace(), pool).ok());
}

TESSERA_EACH_ISA(LinearTest);

}  // namespace
}  // namespace tessera::cpu
