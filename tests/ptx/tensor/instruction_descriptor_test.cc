#include "tests/ptx/tensor/instruction_descriptor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tessera::ptx {
namespace {

using ::testing::HasSubstr;

InstructionDescriptor Typed(ElementType a, ElementType b, int m, int n,
                            ElementType d_type = ElementType::kF32) {
  InstructionDescriptor d;
  d.a_type = a;
  d.b_type = b;
  d.d_type = d_type;
  d.m = m;
  d.n = n;
  return d;
}

std::string CheckMessage(MmaKind kind, const InstructionDescriptor& d, const MmaQualifiers& q = {}) {
  return std::string(CheckInstruction(kind, d, q).message());
}
bool Allowed(MmaKind kind, const InstructionDescriptor& d, const MmaQualifiers& q = {}) {
  return CheckInstruction(kind, d, q).ok();
}

TEST(InstructionDescriptorTest, ValuesByHand) {
  // bf16 x bf16 -> f32, M 128, N 64: (1<<4)|(1<<7)|(1<<10)|(8<<17)|(8<<24).
  EXPECT_EQ(
      *EncodeInstructionDescriptor(MmaKind::kF16, Typed(ElementType::kBF16, ElementType::kBF16, 128, 64)),
      0x08100490u);
  // f16 x f16 -> f16, M 64, N 8, B MN-major: (1<<16)|(1<<17)|(4<<24).
  InstructionDescriptor f16 = Typed(ElementType::kF16, ElementType::kF16, 64, 8, ElementType::kF16);
  f16.b_major = Major::kMN;
  EXPECT_EQ(*EncodeInstructionDescriptor(MmaKind::kF16, f16), 0x04030000u);
  // tf32, M 256, N 256: (1<<4)|(2<<7)|(2<<10)|(32<<17)|(16<<24).
  EXPECT_EQ(
      *EncodeInstructionDescriptor(MmaKind::kTF32, Typed(ElementType::kTF32, ElementType::kTF32, 256, 256)),
      0x10400910u);
  // e5m2 x e2m1, M 128, N 16, A negated: (1<<4)|(1<<7)|(5<<10)|(1<<13)|(2<<17)|(8<<24).
  InstructionDescriptor f8 = Typed(ElementType::kE5M2, ElementType::kE2M1, 128, 16);
  f8.negate_a = true;
  EXPECT_EQ(*EncodeInstructionDescriptor(MmaKind::kF8F6F4, f8), 0x08043490u);
  // s8 x u8 -> s32 with saturation, M 128, N 32: (1<<3)|(2<<4)|(1<<7)|(4<<17)|(8<<24).
  InstructionDescriptor i8 = Typed(ElementType::kS8, ElementType::kU8, 128, 32, ElementType::kS32);
  i8.saturate = true;
  EXPECT_EQ(*EncodeInstructionDescriptor(MmaKind::kI8, i8), 0x080800a8u);
  // NVFP4, M 128, N 128: (1<<7)|(1<<10)|(16<<17)|(1<<27), scales UE4M3 = 0.
  InstructionDescriptor fp4 = Typed(ElementType::kE2M1, ElementType::kE2M1, 128, 128);
  fp4.scale_type = ElementType::kUE4M3;
  EXPECT_EQ(*EncodeInstructionDescriptor(MmaKind::kMxF4NvF4, fp4), 0x08200480u);
  // mxf8f6f4, e4m3 x e3m2, M 256, N 64, ids A 3, B 1: (1<<4)|(4<<10)|(8<<17)|(1<<23)|(2<<27)|(3<<29).
  InstructionDescriptor mx = Typed(ElementType::kE4M3, ElementType::kE3M2, 256, 64);
  mx.a_scale_id = 3;
  mx.b_scale_id = 1;
  EXPECT_EQ(*EncodeInstructionDescriptor(MmaKind::kMxF8F6F4, mx), 0x70901010u);
}

TEST(InstructionDescriptorTest, RoundTrips) {
  InstructionDescriptor d = Typed(ElementType::kE2M3, ElementType::kE5M2, 256, 240);
  d.a_major = Major::kMN;
  d.negate_b = true;
  d.a_scale_id = 2;
  d.b_scale_id = 1;
  for (MmaKind kind : {MmaKind::kF8F6F4, MmaKind::kMxF8F6F4}) {
    absl::StatusOr<uint32_t> bits = EncodeInstructionDescriptor(kind, d);
    ASSERT_TRUE(bits.ok()) << bits.status();
    absl::StatusOr<InstructionDescriptor> back = DecodeInstructionDescriptor(kind, *bits);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*EncodeInstructionDescriptor(kind, *back), *bits);
    EXPECT_EQ(back->m, 256);
    EXPECT_EQ(back->n, 240);
    EXPECT_EQ(back->a_type, ElementType::kE2M3);
    EXPECT_EQ(back->a_major, Major::kMN);
    EXPECT_TRUE(back->negate_b);
  }
}

TEST(InstructionDescriptorTest, RefusesFieldsThatTheKindDoesNotHave) {
  const auto message = [](MmaKind kind, uint32_t bits) {
    return std::string(DecodeInstructionDescriptor(kind, bits).status().message());
  };
  EXPECT_THAT(message(MmaKind::kF16, 0x08100490 | 2 << 7), HasSubstr("format of A in bits 7-9"));
  EXPECT_THAT(message(MmaKind::kTF32, 0x08100490), HasSubstr("the kind takes tf32 2"));
  EXPECT_THAT(message(MmaKind::kF16, 0x08100490 | 1 << 6), HasSubstr("reserved bits 6-6"));
  EXPECT_THAT(message(MmaKind::kF16, 0x08100490 | 1 << 23), HasSubstr("reserved bits 23-23"));
  EXPECT_THAT(message(MmaKind::kMxF4, 0x08200480 | 1 << 24), HasSubstr("reserved bits 24-26"));
  EXPECT_THAT(message(MmaKind::kMxF4NvF4, 0x08200480 | 5 << 10), HasSubstr("format of B"));
  EXPECT_THAT(message(MmaKind::kF16, 0x08100490 | 3 << 4), HasSubstr("format of D"));
}

// The table of shapes, kind by kind.
TEST(CheckInstructionTest, MAndNOfKindF16) {
  const auto d = [](int m, int n) { return Typed(ElementType::kBF16, ElementType::kBF16, m, n); };
  const MmaQualifiers one, pair{.cta_group = 2}, ws{.weight_stationary = true};
  for (int n = 8; n <= 504; n += 8) {
    EXPECT_EQ(Allowed(MmaKind::kF16, d(128, n), one), n <= 256) << n;
    EXPECT_EQ(Allowed(MmaKind::kF16, d(64, n), one), n <= 256) << n;
    EXPECT_EQ(Allowed(MmaKind::kF16, d(256, n), pair), n <= 256 && n % 16 == 0) << n;
    EXPECT_EQ(Allowed(MmaKind::kF16, d(32, n), ws), n == 64 || n == 128 || n == 256) << n;
  }
  EXPECT_THAT(CheckMessage(MmaKind::kF16, d(256, 64), one),
              HasSubstr("M is 256; cta_group::1 takes 64 or 128"));
  EXPECT_THAT(CheckMessage(MmaKind::kF16, d(64, 64), pair), HasSubstr("cta_group::2 takes 128 or 256"));
  EXPECT_THAT(CheckMessage(MmaKind::kF16, d(128, 24), pair), HasSubstr("multiples of 16"));
  EXPECT_THAT(CheckMessage(MmaKind::kF16, d(128, 64), {.cta_group = 2, .weight_stationary = true}),
              HasSubstr(".ws has no cta_group::2"));
}

TEST(CheckInstructionTest, NOfIntegersAndOfMnMajorBytes) {
  const auto i8 = [](int n) { return Typed(ElementType::kS8, ElementType::kS8, 128, n, ElementType::kS32); };
  for (int n : {8, 16, 24, 32, 48, 64, 256}) EXPECT_TRUE(Allowed(MmaKind::kI8, i8(n))) << n;
  for (int n : {40, 56, 72}) EXPECT_FALSE(Allowed(MmaKind::kI8, i8(n))) << n;
  EXPECT_FALSE(Allowed(MmaKind::kI8, i8(48), {.cta_group = 2}));
  InstructionDescriptor f8 = Typed(ElementType::kE4M3, ElementType::kE4M3, 128, 24);
  EXPECT_TRUE(Allowed(MmaKind::kF8F6F4, f8));
  f8.b_major = Major::kMN;
  EXPECT_THAT(CheckMessage(MmaKind::kF8F6F4, f8), HasSubstr("MN-major 8-bit B takes multiples of 16"));
}

TEST(CheckInstructionTest, BlockScaledKinds) {
  InstructionDescriptor d = Typed(ElementType::kE2M1, ElementType::kE2M1, 128, 8);
  d.scale_type = ElementType::kUE4M3;
  const MmaQualifiers x4{.scale_vector = 4}, x2{.scale_vector = 2};
  EXPECT_TRUE(Allowed(MmaKind::kMxF4NvF4, d, x4));
  EXPECT_THAT(CheckMessage(MmaKind::kMxF4NvF4, d, x2), HasSubstr("ue4m3 scales, which need scale_vec::4X"));
  EXPECT_THAT(CheckMessage(MmaKind::kMxF4, d, x2), HasSubstr("only kind::mxf4nvf4"));
  d.scale_type = ElementType::kUE8M0;
  EXPECT_TRUE(Allowed(MmaKind::kMxF4, d, x2));
  d.a_scale_id = 1;
  EXPECT_THAT(CheckMessage(MmaKind::kMxF4, d, x2), HasSubstr("id of A is 1; scale_vec::2X takes 0 or 2"));
  d.a_scale_id = 2;
  EXPECT_TRUE(Allowed(MmaKind::kMxF4, d, x2));
  EXPECT_FALSE(Allowed(MmaKind::kMxF4NvF4, d, x4));
  d.a_scale_id = 0;
  d.a_major = Major::kMN;
  EXPECT_THAT(CheckMessage(MmaKind::kMxF4, d, x2), HasSubstr("K-major only"));
  d.a_major = Major::kK;
  d.m = 256;
  EXPECT_THAT(CheckMessage(MmaKind::kMxF4, d, x2), HasSubstr("cta_group::1 takes 128"));
  EXPECT_THAT(CheckMessage(MmaKind::kMxF4, d, {.weight_stationary = true, .scale_vector = 2}),
              HasSubstr("no .ws"));
}

TEST(CheckInstructionTest, Types) {
  EXPECT_THAT(
      CheckMessage(MmaKind::kF16, Typed(ElementType::kBF16, ElementType::kBF16, 128, 64, ElementType::kF16)),
      HasSubstr("an f16 D takes f16 operands"));
  EXPECT_THAT(CheckMessage(MmaKind::kF8F6F4,
                           Typed(ElementType::kE4M3, ElementType::kE4M3, 128, 64, ElementType::kF16)),
              HasSubstr("D is f16; the kind takes f32"));
  EXPECT_THAT(CheckMessage(MmaKind::kI8, Typed(ElementType::kS8, ElementType::kS8, 128, 64)),
              HasSubstr("takes s32"));
  InstructionDescriptor six = Typed(ElementType::kE2M3, ElementType::kE4M3, 128, 64);
  six.a_major = Major::kMN;
  EXPECT_THAT(CheckMessage(MmaKind::kF8F6F4, six), HasSubstr("A of type e2m3 is MN-major"));
  InstructionDescriptor bf16 = Typed(ElementType::kBF16, ElementType::kBF16, 128, 64);
  bf16.a_major = Major::kMN;
  EXPECT_TRUE(Allowed(MmaKind::kF16, bf16));
  EXPECT_THAT(CheckMessage(MmaKind::kF16, bf16, {.a_in_tmem = true}), HasSubstr("tensor memory is K-major"));
}

TEST(ScaleVectorTest, QualifiersOfEachKind) {
  EXPECT_EQ(*ScaleVector(MmaKind::kMxF4NvF4, "scale_vec::4X"), 4);
  EXPECT_EQ(*ScaleVector(MmaKind::kMxF4NvF4, "block16"), 4);
  EXPECT_EQ(*ScaleVector(MmaKind::kMxF4NvF4, "block32"), 2);
  EXPECT_EQ(*ScaleVector(MmaKind::kMxF4, ""), 2);
  EXPECT_EQ(*ScaleVector(MmaKind::kMxF8F6F4, "block32"), 1);
  EXPECT_EQ(*ScaleVector(MmaKind::kF16, ""), 0);
  EXPECT_FALSE(ScaleVector(MmaKind::kMxF4NvF4, "").ok());
  EXPECT_FALSE(ScaleVector(MmaKind::kMxF4, "scale_vec::4X").ok());
  EXPECT_FALSE(ScaleVector(MmaKind::kF16, "block32").ok());
}

}  // namespace
}  // namespace tessera::ptx
