// Matrix descriptors and canonical layouts: the worked examples of the PTX ISA, and properties that hold in every mode.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>

#include "tests/ptx/tensor/canonical_layout.h"
#include "tests/ptx/tensor/smem_descriptor.h"

namespace tessera::ptx {
namespace {

using ::testing::HasSubstr;

MatrixDescriptor Make(uint32_t start, uint32_t leading, uint32_t stride, Swizzle swizzle) {
  MatrixDescriptor descriptor;
  descriptor.start_address = start;
  descriptor.leading_offset = leading;
  descriptor.stride_offset = stride;
  descriptor.swizzle = swizzle;
  return descriptor;
}

std::string Refusal(DescriptorTarget target, uint64_t bits) {
  return std::string(DecodeDescriptor(target, bits).status().message());
}

TEST(DescriptorTest, Sm100FieldsByHand) {
  // Start 0x8000, LBO 16 (written by CUTLASS as 1), SBO 1024, 128B: 0x800 | 1 << 16 | 64 << 32 | 1 << 46 | 2 << 61.
  const uint64_t bits = 0x4000404000010800;
  absl::StatusOr<MatrixDescriptor> d = DecodeDescriptor(DescriptorTarget::kSm100, bits);
  ASSERT_TRUE(d.ok()) << d.status();
  EXPECT_EQ(d->start_address, 0x8000u);
  EXPECT_EQ(d->leading_offset, 16u);
  EXPECT_EQ(d->stride_offset, 1024u);
  EXPECT_EQ(d->swizzle, Swizzle::k128B);
  EXPECT_EQ(*EncodeDescriptor(DescriptorTarget::kSm100, *d), bits);
}

TEST(DescriptorTest, Sm90FieldsByHand) {
  // Start 0x400, SBO 1024, 128B: 0x40 | 64 << 32 | 1 << 62.
  const uint64_t bits = 0x4000004000000040;
  absl::StatusOr<MatrixDescriptor> d = DecodeDescriptor(DescriptorTarget::kSm90, bits);
  ASSERT_TRUE(d.ok()) << d.status();
  EXPECT_EQ(d->start_address, 0x400u);
  EXPECT_EQ(d->stride_offset, 1024u);
  EXPECT_EQ(d->swizzle, Swizzle::k128B);
  EXPECT_EQ(*EncodeDescriptor(DescriptorTarget::kSm90, *d), bits);
}

// The address field has 14 bits of 16 bytes: 256 KB, not 128.
TEST(DescriptorTest, AddressesAbove128KBFit) {
  for (DescriptorTarget target : {DescriptorTarget::kSm90, DescriptorTarget::kSm100}) {
    const uint32_t start = 227 * 1024 - 1024;
    absl::StatusOr<uint64_t> bits = EncodeDescriptor(target, Make(start, 16, 1024, Swizzle::k128B));
    ASSERT_TRUE(bits.ok()) << bits.status();
    EXPECT_EQ(DecodeDescriptor(target, *bits)->start_address, start);
    EXPECT_THAT(
        std::string(EncodeDescriptor(target, Make(256 * 1024, 16, 1024, Swizzle::kNone)).status().message()),
        HasSubstr("does not fit 18 bits"));
  }
}

TEST(DescriptorTest, EveryFieldRoundTrips) {
  for (Swizzle swizzle :
       {Swizzle::kNone, Swizzle::k32B, Swizzle::k64B, Swizzle::k128B, Swizzle::k128B32BAtom}) {
    MatrixDescriptor d = Make(0x3fff0, 0x15550, 0x2aaa0, swizzle);
    if (swizzle != Swizzle::kNone) d.base_offset = 5;
    absl::StatusOr<uint64_t> bits = EncodeDescriptor(DescriptorTarget::kSm100, d);
    ASSERT_TRUE(bits.ok());
    EXPECT_EQ(DecodeDescriptor(DescriptorTarget::kSm100, *bits)->ToString(), d.ToString());
  }
}

TEST(DescriptorTest, RefusesWhatTheTargetDoesNotHave) {
  EXPECT_THAT(Refusal(DescriptorTarget::kSm100, 0x4000004000000040), HasSubstr("the form of sm_90"));
  EXPECT_THAT(Refusal(DescriptorTarget::kSm90, 0x4000404000010800), HasSubstr("the form of sm_100"));
  EXPECT_THAT(Refusal(DescriptorTarget::kSm100, uint64_t{1} << 46 | uint64_t{3} << 61),
              HasSubstr("layout code 3"));
  EXPECT_THAT(Refusal(DescriptorTarget::kSm100, uint64_t{1} << 46 | uint64_t{1} << 52), HasSubstr("sm_103a"));
  EXPECT_THAT(Refusal(DescriptorTarget::kSm100, uint64_t{1} << 46 | uint64_t{1} << 55),
              HasSubstr("bits 53-60"));
  EXPECT_THAT(Refusal(DescriptorTarget::kSm100, uint64_t{1} << 46 | uint64_t{1} << 49),
              HasSubstr("base offset 1 without a swizzle"));
  EXPECT_THAT(Refusal(DescriptorTarget::kSm100, uint64_t{1} << 46 | 0x4000),
              HasSubstr("reserved bits 14-15"));
  EXPECT_THAT(
      std::string(
          EncodeDescriptor(DescriptorTarget::kSm90, Make(8, 0, 0, Swizzle::kNone)).status().message()),
      HasSubstr("start address 8 is no multiple of 16"));
}

// Byte offset of element (row, k) of a K-major operand.
uint32_t KMajorByte(const MatrixDescriptor& d, int row, int k, int bits) {
  return KMajorChunkAddress(d, row, k * bits / 128) + k * bits % 128 / 8;
}
uint32_t MnMajorByte(const MatrixDescriptor& d, int row, int k, int bits) {
  return MnMajorChunkAddress(d, k, row * bits / 128) + row * bits % 128 / 8;
}

// PTX ISA, "Canonical Layouts", the five examples with their exact layouts (strides in elements).
TEST(CanonicalLayoutTest, WorkedExamplesOfThePtxIsa) {
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      // tf32, K-major: Swizzle<0,4,3> o ((8,2),(4,4)):((4,32),(1,64))
      EXPECT_EQ(KMajorByte(Make(0, 64 * 4, 32 * 4, Swizzle::kNone), row, k, 32),
                4u * (row % 8 * 4 + row / 8 * 32 + k % 4 + k / 4 * 64));
      // bf16, MN-major: Swizzle<0,4,3> o ((8,1,2),(8,2)):((1,8,64),(8,128))
      EXPECT_EQ(MnMajorByte(Make(0, 128 * 2, 64 * 2, Swizzle::kNone), row, k, 16),
                2u * (row % 8 + row / 8 * 64 + k % 8 * 8 + k / 8 * 128));
    }
    for (int k = 0; k < 8; ++k) {
      // tf32, K-major, 32B: Swizzle<1,4,3> o ((8,2),(4,4)):((8,64),(1,4)), eight of its sixteen columns
      const uint32_t linear = 4u * (row % 8 * 8 + row / 8 * 64 + k % 4 + k / 4 * 4);
      EXPECT_EQ(KMajorByte(Make(0, 16, 64 * 4, Swizzle::k32B), row, k, 32),
                linear ^ ((linear >> 7 & 1) << 4));
    }
  }
  for (int k = 0; k < 16; ++k) {
    for (int row = 0; row < 32; ++row) {
      // bf16, MN-major, 32B: Swizzle<1,4,3> o ((8,2,2),(8,2)):((1,8,128),(16,256))
      const uint32_t linear = 2u * (row % 8 + row / 8 % 2 * 8 + row / 16 * 128 + k % 8 * 16 + k / 8 * 256);
      EXPECT_EQ(MnMajorByte(Make(0, 128 * 2, 256 * 2, Swizzle::k32B), row, k, 16),
                linear ^ ((linear >> 7 & 1) << 4));
    }
    for (int row = 0; row < 64; ++row) {
      // bf16, MN-major, 64B: Swizzle<2,4,3> o ((8,4,2),(8,2)):((1,8,256),(32,512))
      const uint32_t linear = 2u * (row % 8 + row / 8 % 4 * 8 + row / 32 * 256 + k % 8 * 32 + k / 8 * 512);
      EXPECT_EQ(MnMajorByte(Make(0, 256 * 2, 512 * 2, Swizzle::k64B), row, k, 16),
                linear ^ ((linear >> 7 & 3) << 4));
    }
  }
}

// By hand: bf16, 128B, a 64-wide tile at 1024. Row 3's 16-byte column 2 is line 3 of the atom: chunk 2 ^ 3 = 1.
TEST(CanonicalLayoutTest, Swizzle128ByHand) {
  const MatrixDescriptor d = Make(1024, 16, 1024, Swizzle::k128B);
  EXPECT_EQ(KMajorChunkAddress(d, 3, 2), 1024u + 3 * 128 + 1 * 16);
  EXPECT_EQ(KMajorChunkAddress(d, 8, 0), 2048u);
  EXPECT_EQ(KMajorChunkAddress(d, 15, 0), 2048u + 7 * 128 + 7 * 16);
  // In 64B mode two rows share a line: rows 2 and 3 are line 1. In 32B mode four rows do.
  EXPECT_EQ(KMajorChunkAddress(Make(0, 16, 512, Swizzle::k64B), 3, 0), 3 * 64u + 16);
  EXPECT_EQ(KMajorChunkAddress(Make(0, 16, 256, Swizzle::k32B), 3, 0), 3 * 32u);
  EXPECT_EQ(KMajorChunkAddress(Make(0, 16, 256, Swizzle::k32B), 4, 0), 4 * 32u + 16);
  // tf32, MN-major, 32-byte atoms: k = 1 is line 1, whose 32-byte units 0 and 1 trade places; k = 4 is the next group.
  EXPECT_EQ(MnMajorChunkAddress(Make(0, 1024, 512, Swizzle::k128B32BAtom), 1, 0), 128u + 32);
  EXPECT_EQ(MnMajorChunkAddress(Make(0, 1024, 512, Swizzle::k128B32BAtom), 4, 1), 512u + 16);
}

TEST(CanonicalLayoutTest, SwizzleIsAPermutationOfItsPeriod) {
  for (Swizzle swizzle :
       {Swizzle::kNone, Swizzle::k32B, Swizzle::k64B, Swizzle::k128B, Swizzle::k128B32BAtom}) {
    std::set<uint32_t> seen;
    for (uint32_t address = 0; address < 1024; address += 16) {
      const uint32_t there = ApplySwizzle(swizzle, address);
      EXPECT_EQ(there / SwizzlePeriod(swizzle), address / SwizzlePeriod(swizzle));
      EXPECT_EQ(ApplySwizzle(swizzle, there), address);
      seen.insert(there);
    }
    EXPECT_EQ(seen.size(), 64u) << Name(swizzle);
  }
}

// A dense tile covers its bytes exactly once, in both majors and every mode: no address twice, none outside.
TEST(CanonicalLayoutTest, DenseTilesArePermutations) {
  for (Swizzle swizzle : {Swizzle::k32B, Swizzle::k64B, Swizzle::k128B}) {
    const uint32_t width = SwizzleWidth(swizzle);
    std::set<uint32_t> seen;
    for (int row = 0; row < 128; ++row) {
      for (int chunk = 0; chunk < static_cast<int>(width) / 16; ++chunk) {
        seen.insert(KMajorChunkAddress(Make(4096, 16, 8 * width, swizzle), row, chunk));
      }
    }
    EXPECT_EQ(seen.size(), 128u * width / 16);
    EXPECT_EQ(*seen.begin(), 4096u);
    EXPECT_EQ(*seen.rbegin(), 4096u + 128 * width - 16);
    // MN-major: 128 bf16 of M by 64 of K; atoms follow each other along K, then along M.
    seen.clear();
    for (int k = 0; k < 64; ++k) {
      for (int chunk = 0; chunk < 16; ++chunk) {
        seen.insert(MnMajorChunkAddress(Make(0, 64 * width, 8 * width, swizzle), k, chunk));
      }
    }
    EXPECT_EQ(seen.size(), 64u * 16);
    EXPECT_EQ(*seen.rbegin(), 64u * 256 - 16);
  }
}

// Adding 32 bytes to the start moves one MMA step along K inside the atom, without swizzling again.
TEST(CanonicalLayoutTest, AdvanceAlongK) {
  for (int step = 0; step < 4; ++step) {
    for (int row = 0; row < 64; ++row) {
      for (int chunk = 0; chunk < 2; ++chunk) {
        EXPECT_EQ(KMajorChunkAddress(Make(2048 + 32 * step, 16, 1024, Swizzle::k128B), row, chunk),
                  KMajorChunkAddress(Make(2048, 16, 1024, Swizzle::k128B), row, 2 * step + chunk));
      }
    }
  }
}

// A pattern that starts at 0x180 has base offset 3: its first line is not swizzled.
TEST(CanonicalLayoutTest, BaseOffsetMovesThePattern) {
  MatrixDescriptor d = Make(0x180, 16, 1024, Swizzle::k128B);
  d.base_offset = 3;
  for (int row = 0; row < 8; ++row) EXPECT_EQ(KMajorChunkAddress(d, row, 0), 0x180u + row * 128 + row * 16);
  EXPECT_TRUE(CheckOperand(d, Major::kK, 16, 64, 2).ok());
}

std::string OperandRefusal(const MatrixDescriptor& d, Major major, int bits, int rows) {
  return std::string(CheckOperand(d, major, bits, rows, 2).message());
}

TEST(CheckOperandTest, AcceptsUsualTiles) {
  EXPECT_TRUE(CheckOperand(Make(1024, 16, 1024, Swizzle::k128B), Major::kK, 16, 128, 2).ok());
  EXPECT_TRUE(CheckOperand(Make(1024 + 96, 0, 1024, Swizzle::k128B), Major::kK, 16, 128, 2).ok());
  EXPECT_TRUE(CheckOperand(Make(16, 128 * 16, 128, Swizzle::kNone), Major::kK, 8, 128, 2).ok());
  EXPECT_TRUE(CheckOperand(Make(0, 8192, 1024, Swizzle::k128B), Major::kMN, 16, 128, 2).ok());
  EXPECT_TRUE(CheckOperand(Make(0, 1024, 512, Swizzle::k128B32BAtom), Major::kMN, 32, 64, 2).ok());
  EXPECT_TRUE(CheckOperand(Make(0, 0, 0, Swizzle::k128B), Major::kK, 16, 8, 2).ok())
      << "N = 8 needs no stride";
  EXPECT_TRUE(CheckOperand(Make(0, 0, 1024, Swizzle::k128B), Major::kMN, 16, 128, 2).ok())
      << "repeats 64 rows of M";
}

TEST(CheckOperandTest, NamesWhatIsWrong) {
  EXPECT_THAT(OperandRefusal(Make(1024 + 128, 16, 1024, Swizzle::k128B), Major::kK, 16, 128),
              HasSubstr("128 bytes into the swizzle pattern"));
  EXPECT_THAT(OperandRefusal(Make(1024 + 16, 16, 1024, Swizzle::k128B), Major::kK, 16, 128),
              HasSubstr("steps along K are 32 bytes"));
  EXPECT_THAT(OperandRefusal(Make(0, 0, 0, Swizzle::kNone), Major::kK, 16, 128), HasSubstr("SBO is 0"));
  EXPECT_THAT(OperandRefusal(Make(0, 0, 128, Swizzle::kNone), Major::kK, 16, 128), HasSubstr("LBO is 0"));
  EXPECT_THAT(OperandRefusal(Make(0, 128, 0, Swizzle::kNone), Major::kMN, 16, 128), HasSubstr("SBO is 0"));
  EXPECT_THAT(OperandRefusal(Make(0, 1024, 0, Swizzle::k128B), Major::kMN, 16, 64), HasSubstr("SBO is 0"));
  EXPECT_THAT(OperandRefusal(Make(0, 16, 1024, Swizzle::k128B32BAtom), Major::kK, 32, 128),
              HasSubstr("MN-major 32-bit"));
  EXPECT_THAT(OperandRefusal(Make(0, 1024, 1024, Swizzle::k128B), Major::kMN, 32, 128),
              HasSubstr("with 32B atoms"));
  EXPECT_THAT(OperandRefusal(Make(0, 1024, 1024, Swizzle::k128B), Major::kMN, 4, 128),
              HasSubstr("no MN-major form"));
}

}  // namespace
}  // namespace tessera::ptx
