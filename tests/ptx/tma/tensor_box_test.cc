#include "tests/ptx/tma/tensor_box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/ptx/tma/swizzle.h"

namespace tessera::ptx {
namespace {

TensorMap Map(TensorElement element, std::vector<uint64_t> sizes, std::vector<uint64_t> strides,
              std::vector<uint32_t> box, TensorSwizzle swizzle = TensorSwizzle::kNone,
              uint64_t address = 0x10000, std::vector<uint32_t> steps = {}) {
  if (steps.empty()) steps.assign(sizes.size(), 1);
  TiledTensorArguments a;
  a.element = static_cast<uint32_t>(element);
  a.rank = sizes.size();
  a.address = address;
  a.sizes = sizes;
  a.strides = strides;
  a.box = box;
  a.steps = steps;
  a.swizzle = static_cast<uint32_t>(swizzle);
  auto map = MakeTiledTensorMap(a);
  EXPECT_TRUE(map.ok()) << map.status();
  return *map;
}

std::vector<BoxPiece> Load(const TensorMap& map, std::vector<int32_t> at, uint32_t shared = 0) {
  auto pieces = BoxPieces(map, at, shared, BoxDirection::kLoad);
  EXPECT_TRUE(pieces.ok()) << pieces.status();
  return *pieces;
}

// The tables of PTX ISA, "Swizzling Modes": for each 128-byte line, the 16-byte chunk found at each place.
struct Table {
  TensorSwizzle swizzle;
  std::vector<std::vector<int>> chunk_at;
};

const std::vector<Table>& Tables() {
  static const std::vector<Table> tables = {
      {TensorSwizzle::kNone, {{0, 1, 2, 3, 4, 5, 6, 7}}},
      {TensorSwizzle::k32B, {{0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}}},
      {TensorSwizzle::k64B,
       {{0, 1, 2, 3, 4, 5, 6, 7},
        {1, 0, 3, 2, 5, 4, 7, 6},
        {2, 3, 0, 1, 6, 7, 4, 5},
        {3, 2, 1, 0, 7, 6, 5, 4}}},
      {TensorSwizzle::k128B,
       {{0, 1, 2, 3, 4, 5, 6, 7},
        {1, 0, 3, 2, 5, 4, 7, 6},
        {2, 3, 0, 1, 6, 7, 4, 5},
        {3, 2, 1, 0, 7, 6, 5, 4},
        {4, 5, 6, 7, 0, 1, 2, 3},
        {5, 4, 7, 6, 1, 0, 3, 2},
        {6, 7, 4, 5, 2, 3, 0, 1},
        {7, 6, 5, 4, 3, 2, 1, 0}}},
      {TensorSwizzle::k128BAtom32B,
       {{0, 1, 2, 3, 4, 5, 6, 7},
        {2, 3, 0, 1, 6, 7, 4, 5},
        {4, 5, 6, 7, 0, 1, 2, 3},
        {6, 7, 4, 5, 2, 3, 0, 1}}},
      {TensorSwizzle::k128BAtom64B, {{0, 1, 2, 3, 4, 5, 6, 7}, {4, 5, 6, 7, 0, 1, 2, 3}}}};
  return tables;
}

TEST(Swizzle, FollowsTheTablesOfTheSpecification) {
  for (const Table& table : Tables()) {
    for (uint32_t line = 0; line < 16; ++line) {
      const auto& row = table.chunk_at[line % table.chunk_at.size()];
      for (uint32_t place = 0; place < 8; ++place) {
        EXPECT_EQ(SwizzleAddress(table.swizzle, line * 128 + row[place] * 16 + 5),
                  line * 128 + place * 16 + 5)
            << TensorSwizzleName(table.swizzle) << " line " << line << " place " << place;
      }
    }
  }
}

TEST(Swizzle, IsAPermutationOf1024Bytes) {
  for (int s = 0; s <= static_cast<int>(TensorSwizzle::k128BAtom64B); ++s) {
    std::set<uint32_t> seen;
    for (uint32_t address = 2048; address < 3072; ++address) {
      seen.insert(SwizzleAddress(static_cast<TensorSwizzle>(s), address));
    }
    EXPECT_EQ(seen.size(), 1024u);
    EXPECT_EQ(*seen.begin(), 2048u);
    EXPECT_EQ(*seen.rbegin(), 3071u);
  }
}

TEST(TensorBox, CopiesRowsOfAMatrixWithTheSwizzle) {
  const TensorMap map = Map(TensorElement::kBfloat16, {256, 100}, {512}, {64, 16}, TensorSwizzle::k128B);
  const auto pieces = Load(map, {128, 40}, 1024);
  ASSERT_EQ(pieces.size(), 16u * 8);
  for (uint32_t i = 0; i < pieces.size(); ++i) {
    const uint32_t row = i / 8, chunk = i % 8;
    EXPECT_EQ(pieces[i].global, 0x10000 + (40 + row) * 512 + 128 * 2 + chunk * 16);
    EXPECT_EQ(pieces[i].shared, 1024 + row * 128 + (chunk ^ row % 8) * 16);
    EXPECT_EQ(pieces[i].bytes, 16);
    EXPECT_EQ(pieces[i].begin, 0);
    EXPECT_EQ(pieces[i].end, 16);
  }
  // The pattern belongs to the address, not to the box: a box that starts at line 1 begins with line 1's pattern.
  EXPECT_EQ(Load(map, {128, 40}, 1024 + 128)[0].shared, 1024u + 128 + 16);
}

TEST(TensorBox, MarksWhatLiesOutside) {
  // 10 columns of float, 3 rows; a box of 8 x 4 from column 4, row -1.
  const TensorMap map = Map(TensorElement::kFloat32, {10, 3}, {48}, {8, 4});
  const auto pieces = Load(map, {4, -1});
  ASSERT_EQ(pieces.size(), 8u);
  EXPECT_EQ(pieces[0].begin, pieces[0].end);  // row -1
  EXPECT_EQ(pieces[1].begin, pieces[1].end);
  EXPECT_EQ(pieces[2].global, 0x10000u + 16);  // row 0, columns 4 to 7
  EXPECT_EQ(pieces[2].end, 16);
  EXPECT_EQ(pieces[3].begin, 0);  // columns 8 and 9; 10 and 11 are outside
  EXPECT_EQ(pieces[3].end, 8);
  EXPECT_EQ(map.BoxBytes(), 8u * 4 * 4);  // what is filled in counts
  // To the left of column 0.
  const auto left = Load(map, {-3, 2});
  EXPECT_EQ(left[0].begin, 12);
  EXPECT_EQ(left[0].end, 16);
  EXPECT_EQ(left[1].begin, 0);
  EXPECT_EQ(left[1].end, 16);
  // Wholly beside the tensor, on both sides.
  for (int32_t column : {-8, 10, INT32_MIN / 4, INT32_MAX / 4}) {
    for (const BoxPiece& piece : Load(map, {column, 0})) EXPECT_EQ(piece.begin, piece.end) << column;
  }
}

// Five dimensions with steps, compared with plain nested loops.
TEST(TensorBox, WalksFiveDimensionsWithSteps) {
  const std::vector<uint64_t> strides = {64, 64 * 5, 64 * 5 * 7, 64 * 5 * 7 * 3};
  const TensorMap map = Map(TensorElement::kUint32, {16, 5, 7, 3, 4}, strides, {8, 3, 5, 2, 2},
                            TensorSwizzle::kNone, 0x4000, {1, 2, 3, 1, 1});
  const auto pieces = Load(map, {4, 1, 3, -1, 2}, 256);
  size_t next = 0;
  uint32_t shared = 256;
  for (int64_t w = 2; w < 4; ++w) {
    for (int64_t z = -1; z < 1; ++z) {
      for (int64_t y = 3; y < 8; y += 3) {
        for (int64_t x = 1; x < 4; x += 2) {
          for (int64_t column = 4; column < 12; column += 4, ++next, shared += 16) {
            ASSERT_LT(next, pieces.size());
            const bool inside = z >= 0 && y < 7 && x < 5;
            EXPECT_EQ(pieces[next].shared, shared);
            EXPECT_EQ(pieces[next].end - pieces[next].begin, inside ? 16 : 0);
            if (!inside) continue;
            EXPECT_EQ(pieces[next].global, 0x4000 + column * 4 + x * strides[0] + y * strides[1] +
                                               z * strides[2] + w * strides[3]);
          }
        }
      }
    }
  }
  EXPECT_EQ(next, pieces.size());
  EXPECT_EQ(map.BoxBytes(), shared - 256);
}

TEST(TensorBox, PadsRowsToTheWidthOfTheSwizzle) {
  const TensorMap map = Map(TensorElement::kUint8, {64, 8}, {64}, {32, 4}, TensorSwizzle::k128B);
  const auto pieces = Load(map, {0, 0});
  ASSERT_EQ(pieces.size(), 8u);
  EXPECT_EQ(map.BoxBytes(), 128u);
  for (uint32_t row = 0; row < 4; ++row) {
    EXPECT_EQ(pieces[row * 2].shared, row * 128 + row * 16);
    EXPECT_EQ(pieces[row * 2 + 1].shared, row * 128 + (1 ^ row) * 16);
  }
}

TEST(TensorBox, FlipsHalvesOfOddLines) {
  const TensorMap map =
      Map(TensorElement::kUint64, {16, 2}, {128}, {16, 2}, TensorSwizzle::k128BAtom32BFlip8B);
  const auto pieces = Load(map, {0, 0});
  ASSERT_EQ(pieces.size(), 32u);
  for (uint32_t i = 0; i < 16; ++i) {
    EXPECT_EQ(pieces[i].shared, i * 8);
    EXPECT_EQ(pieces[16 + i].shared, 128 + ((i * 8) ^ 32 ^ 8));
  }
}

TEST(TensorBox, SpreadsPaddedFourBitElements) {
  const TensorMap packed = Map(TensorElement::k16U4Align8B, {256, 4}, {128}, {64, 2});
  ASSERT_EQ(Load(packed, {64, 1}).size(), 4u);
  EXPECT_EQ(Load(packed, {64, 1})[1].global, 0x10000u + 128 + 32 + 16);
  EXPECT_EQ(packed.BoxBytes(), 64u);

  const TensorMap padded = Map(TensorElement::k16U4Align16B, {256, 4}, {128}, {128, 2}, TensorSwizzle::k128B);
  const auto pieces = Load(padded, {128, 1});
  ASSERT_EQ(pieces.size(), 16u);
  for (uint32_t i = 0; i < 16; ++i) {
    EXPECT_EQ(pieces[i].bytes, 8);
    EXPECT_EQ(pieces[i].padding, 8);
    EXPECT_EQ(pieces[i].global, 0x10000u + (1 + i / 8) * 128 + 64 + i % 8 * 8);
    EXPECT_EQ(pieces[i].shared, i / 8 * 128 + (i % 8 ^ i / 8) * 16);
  }
}

TEST(TensorBox, GathersFourRows) {
  const TensorMap map = Map(TensorElement::kBfloat16, {64, 10}, {128}, {64, 1}, TensorSwizzle::k128B);
  const auto pieces = FourRowPieces(map, {0, 9, 2, 10, 2}, 0, BoxDirection::kLoad);
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  ASSERT_EQ(pieces->size(), 32u);
  EXPECT_EQ((*pieces)[0].global, 0x10000u + 9 * 128);
  EXPECT_EQ((*pieces)[8].global, 0x10000u + 2 * 128);
  EXPECT_EQ((*pieces)[8].shared, 128u + 16);
  EXPECT_EQ((*pieces)[16].end, 0);  // row 10 is outside
  const TensorMap tall = Map(TensorElement::kBfloat16, {64, 10}, {128}, {64, 2});
  EXPECT_THAT(std::string(FourRowPieces(tall, {0, 1, 2, 3, 4}, 0, BoxDirection::kLoad).status().message()),
              testing::HasSubstr("boxes of one row"));
}

TEST(TensorBox, RefusesWhatTheInstructionForbids) {
  const TensorMap map = Map(TensorElement::kBfloat16, {256, 100}, {512}, {64, 16});
  const auto error = [](const TensorMap& m, std::vector<int32_t> at, uint32_t shared,
                        BoxDirection direction) {
    return std::string(BoxPieces(m, at, shared, direction).status().message());
  };
  EXPECT_THAT(error(map, {0}, 0, BoxDirection::kLoad),
              testing::HasSubstr("1 coordinates for a tensor map of 2"));
  EXPECT_THAT(error(map, {0, 0}, 64, BoxDirection::kLoad), testing::HasSubstr("multiple of 128 bytes"));
  EXPECT_THAT(error(map, {-1, 0}, 0, BoxDirection::kStore), testing::HasSubstr("must not be negative"));
  const TensorMap padded = Map(TensorElement::k16U4Align16B, {256, 4}, {128}, {128, 2});
  EXPECT_THAT(error(padded, {64, 0}, 0, BoxDirection::kLoad), testing::HasSubstr("multiple of 128"));
  EXPECT_THAT(error(padded, {0, 0}, 0, BoxDirection::kStore), testing::HasSubstr("not stored"));
  const TensorMap packed = Map(TensorElement::k16U4Align8B, {256, 4}, {128}, {64, 2});
  EXPECT_THAT(error(packed, {3, 0}, 0, BoxDirection::kLoad), testing::HasSubstr("inside a byte"));
}

TEST(TensorBox, FillsWithZeroOrANan) {
  TensorMap map = Map(TensorElement::kBfloat16, {64, 1}, {128}, {64, 1});
  EXPECT_EQ(FillByte(map, 1), 0);
  map.fill = TensorFill::kNan;
  EXPECT_EQ(FillByte(map, 0), 0xFF);
  EXPECT_EQ(FillByte(map, 1), 0x7F);
  map.element = TensorElement::kFloat32;
  EXPECT_EQ(FillByte(map, 1), 0xFF);
  EXPECT_EQ(FillByte(map, 7), 0x7F);
}

}  // namespace
}  // namespace tessera::ptx
