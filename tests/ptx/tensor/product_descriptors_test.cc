// The descriptors that the project's own kernels build (kernels/cuda/ptx), read by the emulator.
#include <gtest/gtest.h>

#include <cstdint>

#include "kernels/cuda/ptx/instruction_descriptor.h"
#include "kernels/cuda/ptx/smem_descriptor.h"
#include "tests/ptx/tensor/instruction_descriptor.h"
#include "tests/ptx/tensor/smem_descriptor.h"

namespace tessera::ptx {
namespace {

using cuda::ptx::SmemSwizzle;

TEST(ProductDescriptorsTest, SharedMemory) {
  const struct {
    SmemSwizzle theirs;
    Swizzle ours;
  } kSwizzles[] = {{SmemSwizzle::kNone, Swizzle::kNone},
                   {SmemSwizzle::k32, Swizzle::k32B},
                   {SmemSwizzle::k64, Swizzle::k64B},
                   {SmemSwizzle::k128, Swizzle::k128B},
                   {SmemSwizzle::k128Base32, Swizzle::k128B32BAtom}};
  for (const auto& swizzle : kSwizzles) {
    for (uint32_t address : {0u, 1024u, 0x18400u, 227u * 1024 - 1024}) {
      for (uint32_t stride : {128u, 1024u, 65536u}) {
        const uint64_t bits = cuda::ptx::MakeSmemDescriptor(address, 2048, stride, swizzle.theirs);
        absl::StatusOr<MatrixDescriptor> d = DecodeDescriptor(DescriptorTarget::kSm100, bits);
        ASSERT_TRUE(d.ok()) << d.status();
        EXPECT_EQ(d->start_address, address);
        EXPECT_EQ(d->leading_offset, 2048u);
        EXPECT_EQ(d->stride_offset, stride);
        EXPECT_EQ(d->swizzle, swizzle.ours);
        EXPECT_EQ(*EncodeDescriptor(DescriptorTarget::kSm100, *d), bits);
        d = DecodeDescriptor(DescriptorTarget::kSm100, cuda::ptx::AdvanceSmemDescriptor(bits, 96));
        ASSERT_TRUE(d.ok());
        EXPECT_EQ(d->start_address, address + 96);
      }
    }
  }
}

TEST(ProductDescriptorsTest, Instructions) {
  for (uint32_t m : {64u, 128u}) {
    for (uint32_t n = 16; n <= 256; n += 16) {
      for (bool a : {false, true}) {
        for (bool b : {false, true}) {
          const auto major = [](bool mn) { return mn ? cuda::ptx::Major::kMn : cuda::ptx::Major::kK; };
          const uint32_t bits = cuda::ptx::MakeBf16InstructionDescriptor(m, n, major(a), major(b));
          absl::StatusOr<InstructionDescriptor> d = DecodeInstructionDescriptor(MmaKind::kF16, bits);
          ASSERT_TRUE(d.ok()) << d.status();
          EXPECT_EQ(d->m, static_cast<int>(m));
          EXPECT_EQ(d->n, static_cast<int>(n));
          EXPECT_EQ(d->a_type, ElementType::kBF16);
          EXPECT_EQ(d->b_type, ElementType::kBF16);
          EXPECT_EQ(d->d_type, ElementType::kF32);
          EXPECT_EQ(d->a_major == Major::kMN, a);
          EXPECT_EQ(d->b_major == Major::kMN, b);
          EXPECT_TRUE(CheckInstruction(MmaKind::kF16, *d, {}).ok());
        }
      }
      if (m != 128) continue;
      absl::StatusOr<InstructionDescriptor> d =
          DecodeInstructionDescriptor(MmaKind::kMxF4NvF4, cuda::ptx::MakeNvfp4InstructionDescriptor(m, n));
      ASSERT_TRUE(d.ok()) << d.status();
      EXPECT_EQ(d->m, 128);
      EXPECT_EQ(d->n, static_cast<int>(n));
      EXPECT_EQ(d->scale_type, ElementType::kUE4M3);
      EXPECT_TRUE(CheckInstruction(MmaKind::kMxF4NvF4, *d, {.scale_vector = 4}).ok());
    }
  }
}

}  // namespace
}  // namespace tessera::ptx
