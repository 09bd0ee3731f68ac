// The kernels' descriptor encoders against the emulator's, which have been held against CUTLASS's.
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "kernels/cuda/ptx/instruction_descriptor.h"
#include "kernels/cuda/ptx/smem_descriptor.h"
#include "tests/ptx/tensor/instruction_descriptor.h"
#include "tests/ptx/tensor/smem_descriptor.h"

namespace tessera::cuda::ptx {
namespace {

namespace emulator = ::tessera::ptx;

TEST(SmemDescriptor, DecodesToWhatItWasMadeOf) {
  const std::pair<SmemSwizzle, emulator::Swizzle> swizzles[] = {
      {SmemSwizzle::kNone, emulator::Swizzle::kNone},
      {SmemSwizzle::k32, emulator::Swizzle::k32B},
      {SmemSwizzle::k64, emulator::Swizzle::k64B},
      {SmemSwizzle::k128, emulator::Swizzle::k128B},
      {SmemSwizzle::k128Base32, emulator::Swizzle::k128B32BAtom},
  };
  for (const auto& [swizzle, name] : swizzles) {
    for (uint32_t address = 1024; address < 232448; address += 7 * 1024) {
      for (uint32_t leading : {0, 128, 2048, 16384}) {
        for (uint32_t stride : {128, 1024, 65536}) {
          const auto decoded = emulator::DecodeDescriptor(
              emulator::DescriptorTarget::kSm100,
              AdvanceSmemDescriptor(MakeSmemDescriptor(address, leading, stride, swizzle), 96));
          ASSERT_TRUE(decoded.ok()) << decoded.status();
          EXPECT_EQ(decoded->start_address, address + 96);
          EXPECT_EQ(decoded->leading_offset, leading);
          EXPECT_EQ(decoded->stride_offset, stride);
          EXPECT_EQ(decoded->swizzle, name);
          EXPECT_EQ(decoded->base_offset, 0);
          EXPECT_FALSE(decoded->leading_is_absolute);
        }
      }
    }
  }
}

TEST(InstructionDescriptor, EqualsTheEmulatorsForBf16) {
  for (int m : {64, 128}) {
    for (int n = 16; n <= 256; n += 16) {
      for (Major a : {Major::kK, Major::kMn}) {
        for (Major b : {Major::kK, Major::kMn}) {
          emulator::InstructionDescriptor want;
          want.d_type = emulator::ElementType::kF32;
          want.a_type = want.b_type = emulator::ElementType::kBF16;
          want.a_major = a == Major::kK ? emulator::Major::kK : emulator::Major::kMN;
          want.b_major = b == Major::kK ? emulator::Major::kK : emulator::Major::kMN;
          want.m = m;
          want.n = n;
          const auto bits = emulator::EncodeInstructionDescriptor(emulator::MmaKind::kF16, want);
          ASSERT_TRUE(bits.ok()) << bits.status();
          EXPECT_EQ(MakeBf16InstructionDescriptor(m, n, a, b), *bits) << m << " x " << n;
        }
      }
    }
  }
}

TEST(InstructionDescriptor, EqualsTheEmulatorsForNvfp4) {
  for (int n = 16; n <= 256; n += 16) {
    emulator::InstructionDescriptor want;
    want.d_type = emulator::ElementType::kF32;
    want.a_type = want.b_type = emulator::ElementType::kE2M1;
    want.scale_type = emulator::ElementType::kUE4M3;
    want.m = 128;
    want.n = n;
    const auto bits = emulator::EncodeInstructionDescriptor(emulator::MmaKind::kMxF4NvF4, want);
    ASSERT_TRUE(bits.ok()) << bits.status();
    EXPECT_EQ(MakeNvfp4InstructionDescriptor(128, n), *bits) << n;
  }
}

}  // namespace
}  // namespace tessera::cuda::ptx
