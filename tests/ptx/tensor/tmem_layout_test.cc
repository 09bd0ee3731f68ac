#include "tests/ptx/tensor/tmem_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <utility>

namespace tessera::ptx {
namespace {

using ::testing::ElementsAre;

std::pair<int, int> At(TmemShape shape, int lane, int reg) {
  const TmemWord word = TmemShapeWord(shape, lane, reg);
  return {word.lane, word.column};
}

// PTX ISA, figures of "Matrix fragments for shape ...".
TEST(TmemShapeTest, FragmentsByHand) {
  EXPECT_EQ(At(TmemShape::k32x32b, 17, 3), std::pair(17, 3));
  EXPECT_EQ(At(TmemShape::k16x64b, 0, 0), std::pair(0, 0));
  EXPECT_EQ(At(TmemShape::k16x64b, 1, 0), std::pair(8, 0));
  EXPECT_EQ(At(TmemShape::k16x64b, 2, 0), std::pair(0, 1));
  EXPECT_EQ(At(TmemShape::k16x64b, 31, 1), std::pair(15, 3));
  EXPECT_EQ(At(TmemShape::k16x128b, 5, 0), std::pair(1, 1));
  EXPECT_EQ(At(TmemShape::k16x128b, 5, 1), std::pair(9, 1));
  EXPECT_EQ(At(TmemShape::k16x128b, 5, 2), std::pair(1, 5));
  EXPECT_EQ(At(TmemShape::k16x256b, 5, 0), std::pair(1, 2));
  EXPECT_EQ(At(TmemShape::k16x256b, 5, 1), std::pair(1, 3));
  EXPECT_EQ(At(TmemShape::k16x256b, 5, 2), std::pair(9, 2));
  EXPECT_EQ(At(TmemShape::k16x256b, 5, 4), std::pair(1, 10));
  EXPECT_EQ(At(TmemShape::k16x32bx2, 20, 1), std::pair(4, 1));
  EXPECT_TRUE(TmemShapeWord(TmemShape::k16x32bx2, 20, 1).second);
  EXPECT_FALSE(TmemShapeWord(TmemShape::k16x32bx2, 15, 1).second);
}

// PTX ISA, table "Various-combinations of .num and .shape".
TEST(TmemShapeTest, RegisterCounts) {
  for (int num = 1; num <= 128; num *= 2) {
    for (TmemShape shape : {TmemShape::k32x32b, TmemShape::k16x64b, TmemShape::k16x32bx2}) {
      EXPECT_EQ(TmemShapeRegisters(shape, num), num);
    }
    EXPECT_EQ(TmemShapeRegisters(TmemShape::k16x128b, num), num <= 64 ? 2 * num : 0);
    EXPECT_EQ(TmemShapeRegisters(TmemShape::k16x256b, num), num <= 32 ? 4 * num : 0);
  }
  EXPECT_EQ(TmemShapeRegisters(TmemShape::k32x32b, 3), 0);
  EXPECT_EQ(TmemShapeRegisters(TmemShape::k32x32b, 256), 0);
}

// Every image is a rectangle, each of its words held once.
TEST(TmemShapeTest, ImagesAreBijections) {
  const std::tuple<TmemShape, int> kShapes[] = {{TmemShape::k32x32b, 1},
                                                {TmemShape::k16x64b, 2},
                                                {TmemShape::k16x128b, 4},
                                                {TmemShape::k16x256b, 8},
                                                {TmemShape::k16x32bx2, 1}};
  for (auto [shape, width] : kShapes) {
    for (int num = 1; TmemShapeRegisters(shape, num) > 0; num *= 2) {
      std::set<std::tuple<bool, int, int>> words;
      for (int lane = 0; lane < 32; ++lane) {
        for (int reg = 0; reg < TmemShapeRegisters(shape, num); ++reg) {
          const TmemWord word = TmemShapeWord(shape, lane, reg);
          EXPECT_LT(word.lane, TmemShapeLanes(shape));
          EXPECT_LT(word.column, width * num);
          words.insert({word.second, word.lane, word.column});
        }
      }
      EXPECT_EQ(words.size(), 32u * TmemShapeRegisters(shape, num)) << Name(shape) << " x" << num;
    }
  }
}

TEST(DataPathTest, ChosenByShape) {
  EXPECT_EQ(DataPathOf(256, 2, false), DataPath::kA);
  EXPECT_EQ(DataPathOf(128, 2, false), DataPath::kB);
  EXPECT_EQ(DataPathOf(128, 1, false), DataPath::kD);
  EXPECT_EQ(DataPathOf(128, 1, true), DataPath::kD);
  EXPECT_EQ(DataPathOf(64, 1, true), DataPath::kE);
  EXPECT_EQ(DataPathOf(64, 1, false), DataPath::kF);
  EXPECT_EQ(DataPathOf(32, 1, true), DataPath::kG);
}

void ExpectPlace(DataPath path, int n, int row, int column, int cta, int lane, int tmem_column) {
  const AccumulatorPlace place = PlaceAccumulator(path, n, row, column);
  EXPECT_EQ(std::tuple(place.cta, place.lane, place.column), std::tuple(cta, lane, tmem_column))
      << "layout " << Name(path) << " row " << row << " column " << column;
}

TEST(DataPathTest, AccumulatorsByHand) {
  ExpectPlace(DataPath::kA, 256, 200, 7, 1, 72, 7);
  ExpectPlace(DataPath::kB, 128, 10, 63, 0, 10, 63);
  ExpectPlace(DataPath::kB, 128, 10, 64, 0, 74, 0);
  ExpectPlace(DataPath::kB, 128, 70, 65, 1, 70, 1);
  ExpectPlace(DataPath::kD, 64, 99, 5, 0, 99, 5);
  ExpectPlace(DataPath::kE, 128, 63, 100, 0, 127, 36);
  ExpectPlace(DataPath::kF, 64, 15, 5, 0, 15, 5);
  ExpectPlace(DataPath::kF, 64, 16, 5, 0, 32, 5);
  ExpectPlace(DataPath::kF, 64, 63, 5, 0, 111, 5);
  ExpectPlace(DataPath::kG, 256, 31, 64, 0, 63, 0);
  ExpectPlace(DataPath::kG, 256, 31, 255, 0, 127, 63);
  EXPECT_TRUE(ValidBaseLane(DataPath::kF, 16));
  EXPECT_FALSE(ValidBaseLane(DataPath::kD, 16));
  EXPECT_EQ(AccumulatorColumns(DataPath::kB, 256), 128);
  EXPECT_EQ(AccumulatorColumns(DataPath::kG, 256), 64);
}

TEST(DataPathTest, AccumulatorsAreInjective) {
  const std::tuple<DataPath, int> kPaths[] = {{DataPath::kA, 256}, {DataPath::kB, 128}, {DataPath::kD, 128},
                                              {DataPath::kE, 64},  {DataPath::kF, 64},  {DataPath::kG, 32}};
  for (auto [path, m] : kPaths) {
    std::set<std::tuple<int, int, int>> places;
    for (int row = 0; row < m; ++row) {
      for (int column = 0; column < 128; ++column) {
        const AccumulatorPlace place = PlaceAccumulator(path, 128, row, column);
        EXPECT_LT(place.lane, kTmemLanes);
        EXPECT_LT(place.column, AccumulatorColumns(path, 128));
        places.insert({place.cta, place.lane, place.column});
      }
    }
    EXPECT_EQ(places.size(), static_cast<size_t>(m) * 128) << Name(path);
  }
}

TEST(DataPathTest, OperandA) {
  EXPECT_EQ(PlaceOperandA(DataPath::kF, 20).lane, 36);
  EXPECT_EQ(PlaceOperandA(DataPath::kB, 100).cta, 1);
  EXPECT_EQ(PlaceOperandA(DataPath::kB, 100).lane, 36);
  EXPECT_EQ(PlaceOperandA(DataPath::kB, 100).copies, 2) << "lanes 36 and 100";
}

TEST(ScaleFactorTest, Places) {
  ScalePlace place = PlaceScaleA(DataPath::kD, 70);
  EXPECT_EQ(place.column, 2);
  EXPECT_THAT(place.lanes, ElementsAre(6, 38, 70, 102));
  place = PlaceScaleA(DataPath::kA, 128 + 33);
  EXPECT_EQ(place.cta, 1);
  EXPECT_EQ(place.column, 1);
  place = PlaceScaleA(DataPath::kB, 64 + 33);
  EXPECT_EQ(place.cta, 1);
  EXPECT_EQ(place.column, 1);
  place = PlaceScaleB(DataPath::kD, 256, 255);
  EXPECT_EQ(place.cta, -1);
  EXPECT_EQ(place.column, 7);
  EXPECT_THAT(place.lanes, ElementsAre(31, 63, 95, 127));
  // Layout B, N = 128: columns 64.. belong to the upper quarters.
  place = PlaceScaleB(DataPath::kB, 128, 64 + 33);
  EXPECT_EQ(place.column, 1);
  EXPECT_THAT(place.lanes, ElementsAre(65, 97));
}

TEST(CopyTest, ShapesAndLanes) {
  EXPECT_TRUE(ParseCopyShape("32x128b", "warpx4").ok());
  EXPECT_FALSE(ParseCopyShape("32x128b", "").ok());
  EXPECT_FALSE(ParseCopyShape("64x128b", "warpx4").ok());
  EXPECT_FALSE(ParseCopyShape("128x256b", "warpx4").ok());
  EXPECT_THAT(CopyLanes(CopyShape::k32x128bWarpx4, 5), ElementsAre(5, 37, 69, 101));
  EXPECT_THAT(CopyLanes(CopyShape::k64x128bWarpx2_02_13, 40), ElementsAre(40, 104));
  EXPECT_THAT(CopyLanes(CopyShape::k64x128bWarpx2_01_23, 40), ElementsAre(72, 104));
  EXPECT_THAT(CopyLanes(CopyShape::k4x256b, 3), ElementsAre(96));
  EXPECT_THAT(CopyLanes(CopyShape::k128x128b, 77), ElementsAre(77));
  EXPECT_EQ(CopyChunks(CopyShape::k128x256b), 2);
  EXPECT_EQ(CopyRows(CopyShape::k4x256b), 4);
}

TEST(CopyTest, Decompression) {
  uint8_t source[16] = {0x21, 0x43};  // nibbles 1, 2, 3, 4
  uint8_t target[16];
  DecompressChunk(CopyDecompress::kB4x16P64, source, target);
  EXPECT_EQ(target[0], 1 << 2);
  EXPECT_EQ(target[1], 2 << 2);
  EXPECT_EQ(target[3], 4 << 2);
  // Six-bit 0x3f, 0x00, 0x15: 0x3f | 0x00 << 6 | 0x15 << 12 = 0x1503f.
  uint8_t six[16] = {0x3f, 0x50, 0x01};
  DecompressChunk(CopyDecompress::kB6x16P32, six, target);
  EXPECT_EQ(target[0], 0x3f);
  EXPECT_EQ(target[1], 0x00);
  EXPECT_EQ(target[2], 0x15);
}

}  // namespace
}  // namespace tessera::ptx
