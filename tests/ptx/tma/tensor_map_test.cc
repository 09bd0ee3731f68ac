#include "tests/ptx/tma/tensor_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace tessera::ptx {
namespace {

// A map that every rule allows: bf16, three dimensions, boxes of 64 x 8 x 2 with the 128-byte swizzle.
struct Arguments {
  uint32_t element = static_cast<uint32_t>(TensorElement::kBfloat16), rank = 3;
  uint64_t address = 0x7000'0000'1000;
  std::vector<uint64_t> sizes = {256, 100, 7}, strides = {512, 51200};
  std::vector<uint32_t> box = {64, 8, 2}, steps = {1, 1, 1};
  uint32_t interleave = 0, swizzle = static_cast<uint32_t>(TensorSwizzle::k128B), l2_promotion = 3, fill = 0;

  absl::StatusOr<TensorMap> Make() const {
    return MakeTiledTensorMap(
        {element, rank, address, sizes, strides, box, steps, interleave, swizzle, l2_promotion, fill});
  }
};

void UseElement(Arguments& a, TensorElement element) { a.element = static_cast<uint32_t>(element); }
void UseSwizzle(Arguments& a, TensorSwizzle swizzle) { a.swizzle = static_cast<uint32_t>(swizzle); }

TEST(TensorMap, SurvivesItsEncoding) {
  Arguments a;
  a.steps = {1, 3, 1};
  a.sizes = {uint64_t{1} << 32, 1, 0xFFFF'FFFF};
  a.strides = {(uint64_t{1} << 40) - 16, 0};
  a.fill = 1;
  const auto map = a.Make();
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->BoxElements(1), 3u);  // of 8 every third
  EXPECT_EQ(map->BoxBytes(), 128u * 3 * 2);
  alignas(kTensorMapAlignment) uint8_t bytes[kTensorMapBytes];
  EncodeTensorMap(*map, bytes);
  const auto back = DecodeTensorMap(bytes);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, *map);
}

TEST(TensorMap, NoticesBytesThatAreNoMap) {
  alignas(kTensorMapAlignment) uint8_t bytes[kTensorMapBytes] = {};
  EXPECT_THAT(std::string(DecodeTensorMap(bytes).status().message()), testing::HasSubstr("no tensor map"));
  EncodeTensorMap(*Arguments().Make(), bytes);
  for (size_t i = 4; i < kTensorMapBytes; ++i) {
    bytes[i] ^= 1;
    EXPECT_THAT(std::string(DecodeTensorMap(bytes).status().message()), testing::HasSubstr("changed"))
        << "byte " << i;
    bytes[i] ^= 1;
  }
  EXPECT_TRUE(DecodeTensorMap(bytes).ok());
}

struct Rule {
  const char* name;
  std::function<void(Arguments&)> breaks;
  const char* message;
};

class TensorMapRules : public testing::TestWithParam<Rule> {};

TEST_P(TensorMapRules, RefusesAndSaysWhy) {
  Arguments a;
  ASSERT_TRUE(a.Make().ok()) << a.Make().status();
  GetParam().breaks(a);
  const auto map = a.Make();
  ASSERT_FALSE(map.ok());
  EXPECT_THAT(std::string(map.status().message()), testing::HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Every, TensorMapRules,
    testing::Values(
        Rule{"Type", [](Arguments& a) { a.element = 16; }, "tensorDataType is 16; expected 0 (UINT8) to 15"},
        Rule{"RankZero", [](Arguments& a) { a.rank = 0; }, "tensorRank is 0; expected 1 to 5"},
        Rule{"RankSix", [](Arguments& a) { a.rank = 6; }, "tensorRank is 6; expected 1 to 5"},
        Rule{"RankOfArrays", [](Arguments& a) { a.rank = 2; }, "must have 2 values, globalStrides 1"},
        Rule{"Interleave", [](Arguments& a) { a.interleave = 3; }, "interleave is 3"},
        Rule{"InterleaveRank",
             [](Arguments& a) {
               a.interleave = 1;
               a.rank = 2;
             },
             "tensorRank is 2; an interleaved layout needs 3 to 5"},
        Rule{"InterleaveSwizzle", [](Arguments& a) { a.interleave = 2; }, "interleave 32B needs SWIZZLE_32B"},
        Rule{"InterleaveEmulation", [](Arguments& a) { a.interleave = 1; }, "not emulated"},
        Rule{"Swizzle", [](Arguments& a) { a.swizzle = 7; }, "swizzle is 7"},
        Rule{"L2", [](Arguments& a) { a.l2_promotion = 4; }, "l2Promotion is 4"},
        Rule{"Fill", [](Arguments& a) { a.fill = 2; }, "oobFill is 2"},
        Rule{"FillOfIntegers",
             [](Arguments& a) {
               UseElement(a, TensorElement::kUint16);
               a.fill = 1;
             },
             "needs a floating-point type, not UINT16"},
        Rule{"Address", [](Arguments& a) { a.address += 8; },
             "globalAddress 0x700000001008 is not a multiple of 16"},
        Rule{"SizeZero", [](Arguments& a) { a.sizes[1] = 0; }, "globalDim[1] is 0; expected 1 to 2^32"},
        Rule{"SizeLarge", [](Arguments& a) { a.sizes[2] = (uint64_t{1} << 32) + 1; },
             "globalDim[2] is 4294967297"},
        Rule{"Stride", [](Arguments& a) { a.strides[0] = 520; },
             "globalStrides[0] is 520 bytes; expected a multiple of 16"},
        Rule{"StrideLarge", [](Arguments& a) { a.strides[1] = uint64_t{1} << 40; }, "below 2^40"},
        Rule{"BoxZero", [](Arguments& a) { a.box[1] = 0; }, "boxDim[1] is 0; expected 1 to 256"},
        Rule{"BoxLarge", [](Arguments& a) { a.box[2] = 257; }, "boxDim[2] is 257; expected 1 to 256"},
        Rule{"BoxRow", [](Arguments& a) { a.box[0] = 60; }, "expected a multiple of 16 bytes"},
        Rule{"BoxOfSwizzle128", [](Arguments& a) { a.box[0] = 72; },
             "144 bytes; swizzle 128B takes at most 128 bytes"},
        Rule{"BoxOfSwizzle64", [](Arguments& a) { UseSwizzle(a, TensorSwizzle::k64B); },
             "takes at most 64 bytes"},
        Rule{"BoxOfSwizzle32", [](Arguments& a) { UseSwizzle(a, TensorSwizzle::k32B); },
             "takes at most 32 bytes"},
        Rule{"StepZero", [](Arguments& a) { a.steps[0] = 0; }, "elementStrides[0] is 0; expected 1 to 8"},
        Rule{"StepLarge", [](Arguments& a) { a.steps[1] = 9; }, "elementStrides[1] is 9; expected 1 to 8"},
        Rule{"OddFp4",
             [](Arguments& a) {
               UseElement(a, TensorElement::k16U4Align8B);
               a.sizes[0] = 255;
             },
             "16U4_ALIGN8B needs a multiple of 2"},
        Rule{"PaddedFp4Size",
             [](Arguments& a) {
               UseElement(a, TensorElement::k16U4Align16B);
               a.box[0] = 128;
               a.sizes[0] = 320;
             },
             "16U4_ALIGN16B needs a multiple of 128"},
        Rule{"PaddedFp4Box", [](Arguments& a) { UseElement(a, TensorElement::k16U4Align16B); },
             "boxDim[0] is 64; "},
        Rule{"PaddedFp4Address",
             [](Arguments& a) {
               UseElement(a, TensorElement::k16U4Align16B);
               a.address += 16;
             },
             "is not a multiple of 32"},
        Rule{"PaddedFp4Stride",
             [](Arguments& a) {
               UseElement(a, TensorElement::k16U6Align16B);
               a.strides[0] += 16;
             },
             "expected a multiple of 32"},
        Rule{"PaddedFp4Swizzle",
             [](Arguments& a) {
               UseElement(a, TensorElement::k16U4Align16B);
               UseSwizzle(a, TensorSwizzle::k128BAtom64B);
               a.box[0] = 128;
             },
             "swizzle 128B_ATOM_64B is not supported with 16U4_ALIGN16B"}),
    [](const testing::TestParamInfo<Rule>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::ptx
