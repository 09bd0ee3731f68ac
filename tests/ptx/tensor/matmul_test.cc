#include "tests/ptx/tensor/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/ptx/tensor/fragments.h"

namespace tessera::ptx {
namespace {

TEST(MatmulTest, EqualsAPlainLoop) {
  std::mt19937 random(1);
  for (int n : {8, 24, 40, 256}) {
    Matrix a(64, 16), b(n, 16);
    for (double& v : a.values) v = static_cast<int>(random() % 17) - 8;
    for (double& v : b.values) v = static_cast<int>(random() % 17) - 8;
    const Matrix c = Multiply(a, b);
    for (int i = 0; i < 64; ++i) {
      for (int j = 0; j < n; ++j) {
        double sum = 0;
        for (int k = 0; k < 16; ++k) sum += a.at(i, k) * b.at(j, k);
        ASSERT_EQ(c.at(i, j), sum);
      }
    }
  }
}

TEST(MatmulTest, RoundsOnceAtTheEnd) {
  // 2^24 + 1 - 2^24: float partial sums would lose the 1.
  Matrix a(1, 3), b(1, 3);
  a.values = {1, 1, 1};
  b.values = {0x1p24, 1, -0x1p24};
  EXPECT_EQ(RoundAccumulator(ElementType::kF32, Multiply(a, b).at(0, 0), false), 0x3f800000u);
  b.values = {std::numeric_limits<double>::infinity(), 0, -std::numeric_limits<double>::infinity()};
  EXPECT_EQ(RoundAccumulator(ElementType::kF32, Multiply(a, b).at(0, 0), false), 0x7fffffffu);
}

TEST(MatmulTest, IntegersWrapOrSaturate) {
  EXPECT_EQ(RoundAccumulator(ElementType::kS32, 0x1p31, false), 0x80000000u);
  EXPECT_EQ(RoundAccumulator(ElementType::kS32, 0x1p31, true), 0x7fffffffu);
  EXPECT_EQ(RoundAccumulator(ElementType::kS32, -0x1p31 - 1, false), 0x7fffffffu);
  EXPECT_EQ(RoundAccumulator(ElementType::kS32, -0x1p31 - 1, true), 0x80000000u);
  EXPECT_EQ(RoundAccumulator(ElementType::kS32, -5, true), 0xfffffffbu);
}

TEST(MatmulTest, AccumulatorRows) {
  const double sums[] = {1, -2.5, 0x1p24 + 1, std::numeric_limits<double>::quiet_NaN()};
  uint32_t words[] = {0x40000000, 0, 0x3f800000, 0};  // 2, 0, 1, 0
  RoundAccumulatorRow(ElementType::kF32, sums, words, 0.5, false, 4, words);
  EXPECT_EQ(words[0], 0x40000000u);
  EXPECT_EQ(words[1], 0xc0200000u);
  EXPECT_EQ(words[2], 0x4b800001u) << "2^24 + 1.5 rounds up to 2^24 + 2";
  EXPECT_EQ(words[3], 0x7fffffffu);
  RoundAccumulatorRow(ElementType::kF16, sums, nullptr, 1, false, 2, words);
  EXPECT_EQ(words[1], 0xc100u);
}

TEST(MatmulTest, ChunkElements) {
  uint8_t chunk[16];
  for (int i = 0; i < 16; ++i)
    chunk[i] = static_cast<uint8_t>(0x10 * (2 * i + 1) | (2 * i));  // nibbles 0, 1, 2, ...
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(ChunkElement(ElementType::kE2M1, Packing::kDense, chunk, i),
              Decode(ElementType::kE2M1, i & 0xf));
  }
  EXPECT_EQ(ChunkElements(ElementType::kE2M1, Packing::kDense), 32);
  EXPECT_EQ(ChunkElements(ElementType::kE2M1, Packing::kPadded), 16);
  EXPECT_EQ(ChunkElements(ElementType::kBF16, Packing::kDense), 8);
  // Padded six-bit: element 2 is bits 12-17.
  uint8_t six[16] = {0, 0xf0, 0x01};
  EXPECT_EQ(ChunkElement(ElementType::kE2M3, Packing::kPadded, six, 2), 7.5);
  EXPECT_EQ(ChunkElement(ElementType::kE2M3, Packing::kPadded, six, 15), 0);
}

// An operand written by the formula of one mode and read through its descriptor comes back.
TEST(MatmulTest, LoadsBothMajors) {
  std::vector<uint8_t> memory(64 * 1024);
  const auto read = [&](uint32_t address, uint8_t* bytes) {
    std::memcpy(bytes, &memory[address], 16);
    return absl::OkStatus();
  };
  for (Major major : {Major::kK, Major::kMN}) {
    for (Swizzle swizzle : {Swizzle::kNone, Swizzle::k32B, Swizzle::k64B, Swizzle::k128B}) {
      MatrixDescriptor d;
      d.swizzle = swizzle;
      d.start_address = 1024;
      const uint32_t width = SwizzleWidth(swizzle);
      d.stride_offset = 8 * width;
      d.leading_offset = major == Major::kK ? 128 / 8 * d.stride_offset : 2 * d.stride_offset;
      if (major == Major::kMN && swizzle == Swizzle::kNone) d.leading_offset = 128 * 16;
      for (int row = 0; row < 128; ++row) {
        for (int k = 0; k < 16; ++k) {
          const float value = static_cast<float>(row + 128 * k % 64);
          const uint16_t bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
          const uint32_t address = major == Major::kK ? KMajorChunkAddress(d, row, k / 8) + k % 8 * 2
                                                      : MnMajorChunkAddress(d, k, row / 8) + row % 8 * 2;
          std::memcpy(&memory[address], &bits, 2);
        }
      }
      absl::StatusOr<Matrix> matrix =
          LoadOperand(d, major, ElementType::kBF16, Packing::kDense, 128, 16, read);
      ASSERT_TRUE(matrix.ok());
      for (int row = 0; row < 128; ++row) {
        for (int k = 0; k < 16; ++k)
          ASSERT_EQ(matrix->at(row, k), row + 128 * k % 64) << Name(major) << Name(swizzle);
      }
    }
  }
}

// PTX ISA, figures of mma.m16n8k16 and wgmma.m64nNk16.
TEST(FragmentTest, ByHand) {
  EXPECT_EQ(PlaceFragmentA(5, 0).row, 1);
  EXPECT_EQ(PlaceFragmentA(5, 0).column, 1);
  EXPECT_EQ(PlaceFragmentA(5, 1).row, 9);
  EXPECT_EQ(PlaceFragmentA(5, 2).column, 5);
  EXPECT_EQ(PlaceFragmentB(5, 1).row, 1);
  EXPECT_EQ(PlaceFragmentB(5, 1).column, 5);
  EXPECT_EQ(PlaceFragmentD32(5, 3).row, 9);
  EXPECT_EQ(PlaceFragmentD32(5, 3).column, 3);
  EXPECT_EQ(PlaceFragmentD32(5, 4).column, 10);
  EXPECT_EQ(PlaceFragmentD16(5, 1).row, 9);
  EXPECT_EQ(PlaceFragmentD16(5, 2).column, 10);
}

}  // namespace
}  // namespace tessera::ptx
