// wgmma of every type against a plain product, and one small kernel for each of its rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/ptx/tensor/fragments.h"
#include "tests/ptx/tensor/tensor_kernel.h"
#include "tests/ptx/tensor/test_tile.h"

namespace tessera::ptx {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using enum ElementType;

constexpr int kFragments = 45056;  // where the image holds the A fragments: [register][thread]

struct Case {
  ElementType a, b, d;
  int n;
  Major a_major = Major::kK, b_major = Major::kK;
  Swizzle swizzle = Swizzle::k128B;
  bool a_in_registers = false;
  uint8_t base_offset = 0;  // in 128-byte lines: how far A starts behind the swizzle's natural alignment
};

std::string Instruction(const Case& c, std::string_view a, std::string_view b) {
  const int registers = c.d == kF16 ? c.n / 4 : c.n / 2;
  std::string immediates;
  if (!IsInteger(c.a)) immediates = ", 1, 1";
  if (BitsOf(c.a) == 16) {
    if (!c.a_in_registers) immediates += c.a_major == Major::kK ? ", 0" : ", 1";
    immediates += c.b_major == Major::kK ? ", 0" : ", 1";
  }
  return absl::StrFormat("  wgmma.mma_async.sync.aligned.m64n%dk%d.%s.%s.%s %s, %s, %s, %%p1%s;\n", c.n,
                         256 / BitsOf(c.a), Name(c.d), Name(c.a), Name(c.b),
                         RegisterList("%x", 100, registers), a, b, immediates);
}

std::string StoreRegisters(int registers) {
  std::string body =
      absl::StrFormat("  mul.wide.u32 %%y50, %%thread, %d;\n  add.u64 %%y50, %%y50, %%out;\n", 4 * registers);
  for (int r = 0; r < registers; ++r)
    absl::StrAppendFormat(&body, "  st.global.b32 [%%y50 + %d], %%x%d;\n", 4 * r, 100 + r);
  return body;
}

// D = A B, then D += A B: twice the product.
void RunCase(const Case& c, AsyncPolicy async = AsyncPolicy::kLazy) {
  std::mt19937 random(3);
  std::vector<uint8_t> image(48 * 1024);
  const int k = 256 / BitsOf(c.a);
  const Tile a = MakeTile(image, 128 * c.base_offset, c.a_major, c.swizzle, c.a, Packing::kDense, 64, k,
                          random, c.base_offset);
  const Tile b = MakeTile(image, 12288, c.b_major, c.swizzle, c.b, Packing::kDense, c.n, k, random);
  const int each = 32 / BitsOf(c.a);
  for (int thread = 0; thread < 128; ++thread) {
    for (int reg = 0; reg < 4; ++reg) {
      const FragmentPlace place = PlaceFragmentA(thread % 32, reg);
      for (int e = 0; e < each; ++e) {
        PutBits(image, 8 * (kFragments + 4 * (128 * reg + thread)) + e * BitsOf(c.a), BitsOf(c.a),
                a.codes[(thread / 32 * 16 + place.row) * k + place.column * each + e]);
      }
    }
  }
  TensorKernelArguments arguments;
  arguments.image = image;
  arguments.a = *EncodeDescriptor(DescriptorTarget::kSm90, a.descriptor);
  arguments.b = *EncodeDescriptor(DescriptorTarget::kSm90, b.descriptor);
  const int registers = c.d == kF16 ? c.n / 4 : c.n / 2;
  std::string body;
  for (int reg = 0; reg < 4; ++reg) {
    absl::StrAppendFormat(
        &body,
        "  shl.b32 %%x0, %%thread, 2;\n  add.u32 %%x0, %%x0, %%tile;\n  ld.shared.b32 %%x%d, [%%x0 + %d];\n",
        10 + reg, kFragments + 512 * reg);
  }
  const std::string_view a_operand = c.a_in_registers ? "{%x10, %x11, %x12, %x13}" : "%a";
  body += "  wgmma.fence.sync.aligned;\n  setp.ne.u32 %p1, 0, 0;\n";
  body += Instruction(c, a_operand, "%b");
  body += "  setp.eq.u32 %p1, 0, 0;\n";
  body += Instruction(c, a_operand, "%b");
  body +=
      "  wgmma.commit_group.sync.aligned;\n  wgmma.wait_group.sync.aligned 0;\n" + StoreRegisters(registers);
  std::vector<uint32_t> out;
  TensorKernelLaunch launch;
  launch.async = async;
  launch.seed = 5;
  const absl::Status status =
      RunTensorKernel(TensorKernel(body, 0, "sm_90a"), arguments, launch, 128 * registers, &out);
  ASSERT_TRUE(status.ok()) << status;
  for (int thread = 0; thread < 128; ++thread) {
    for (int reg = 0; reg < registers; ++reg) {
      for (int half = 0; half < (c.d == kF16 ? 2 : 1); ++half) {
        const FragmentPlace place =
            c.d == kF16 ? PlaceFragmentD16(thread % 32, reg) : PlaceFragmentD32(thread % 32, reg);
        const int row = thread / 32 * 16 + place.row;
        const int column = place.column + half;
        double sum = 0;
        for (int x = 0; x < k; ++x) sum += 2 * a.values.at(row, x) * b.values.at(column, x);
        const uint32_t word = out[thread * registers + reg] >> (16 * half);
        ASSERT_EQ(Decode(c.d, word), sum)
            << Name(c.a) << " " << Name(c.b) << " n " << c.n << " row " << row << " column " << column;
      }
    }
  }
}

TEST(WgmmaTest, EveryLayoutOfBf16) {
  for (Major a : {Major::kK, Major::kMN}) {
    for (Major b : {Major::kK, Major::kMN}) {
      for (Swizzle swizzle : {Swizzle::kNone, Swizzle::k32B, Swizzle::k64B, Swizzle::k128B}) {
        RunCase({kBF16, kBF16, kF32, 64, a, b, swizzle});
      }
    }
  }
}

TEST(WgmmaTest, TypesAndShapes) {
  for (int n : {8, 24, 256}) RunCase({kBF16, kBF16, kF32, n}, AsyncPolicy::kRandom);
  RunCase({kF16, kF16, kF16, 16});
  RunCase({kF16, kF16, kF32, 16}, AsyncPolicy::kEager);
  RunCase({kTF32, kTF32, kF32, 32});
  RunCase({kE4M3, kE5M2, kF32, 64});
  RunCase({kE5M2, kE4M3, kF16, 8});
  RunCase({kS8, kU8, kS32, 48});
}

TEST(WgmmaTest, AInRegisters) {
  for (ElementType type : {kBF16, kF16, kTF32, kE4M3}) {
    Case c{type, type, kF32, 16};
    c.a_in_registers = true;
    RunCase(c);
  }
  Case transposed{kBF16, kBF16, kF32, 64, Major::kK, Major::kMN};
  transposed.a_in_registers = true;
  RunCase(transposed, AsyncPolicy::kRandom);
}

// A pattern that starts at another line than a multiple of its period: the base offset says which.
TEST(WgmmaTest, BaseOffsets) {
  for (Swizzle swizzle : {Swizzle::k32B, Swizzle::k64B, Swizzle::k128B}) {
    for (uint8_t line : {1, 2, 3, 7}) {
      Case c{kBF16, kBF16, kF32, 8};
      c.swizzle = swizzle;
      c.base_offset = line;
      RunCase(c);
    }
  }
}

// ---- rules

constexpr char kZero[] = R"(
  mov.b32 %x100, 0;
  mov.b32 %x101, 0;
  mov.b32 %x102, 0;
  mov.b32 %x103, 0;
  setp.eq.u32 %p1, 0, 0;
)";
constexpr char kFence[] = "  wgmma.fence.sync.aligned;\n";
constexpr char kMma[] =
    "  wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%x100, %x101, %x102, %x103}, %a, %b, %p1, 1, 1, "
    "0, 0;\n";
constexpr char kCommit[] = "  wgmma.commit_group.sync.aligned;\n";
constexpr char kWait[] = "  wgmma.wait_group.sync.aligned 0;\n";
constexpr char kUse[] = "  add.u32 %x0, %x100, 1;\n";

absl::Status RunRule(std::initializer_list<std::string_view> pieces, uint32_t threads = 128) {
  std::string body;
  for (std::string_view piece : pieces) body += piece;
  TensorKernelArguments arguments;
  arguments.image.assign(16 * 1024, 0);
  MatrixDescriptor d;
  d.swizzle = Swizzle::k128B;
  d.stride_offset = 1024;
  arguments.a = *EncodeDescriptor(DescriptorTarget::kSm90, d);
  d.start_address = 8192;
  arguments.b = *EncodeDescriptor(DescriptorTarget::kSm90, d);
  TensorKernelLaunch launch;
  launch.threads = threads;
  std::vector<uint32_t> out;
  return RunTensorKernel(TensorKernel(body, 0, "sm_90a"), arguments, launch, 16, &out);
}

std::string Fault(std::initializer_list<std::string_view> pieces, uint32_t threads = 128) {
  const absl::Status status = RunRule(pieces, threads);
  EXPECT_FALSE(status.ok()) << "ran without a fault";
  return std::string(status.message());
}

TEST(WgmmaRulesTest, TheUsualSequenceIsFine) {
  EXPECT_TRUE(RunRule({kZero, kFence, kMma, kMma, kCommit, kWait, kUse}).ok());
  EXPECT_TRUE(RunRule({kZero, kFence, kMma, kCommit, kWait, kMma, kCommit, kWait, kUse}).ok())
      << "an accumulator that was only waited for needs no fence";
}

TEST(WgmmaRulesTest, ResultBeforeItsWait) {
  EXPECT_THAT(
      Fault({kZero, kFence, kMma, kUse}),
      AllOf(HasSubstr("%x100 is not ready"), HasSubstr("needs wgmma.commit_group and wgmma.wait_group")));
  EXPECT_THAT(Fault({kZero, kFence, kMma, kCommit, kUse}), HasSubstr("%x100 is not ready"));
  EXPECT_THAT(Fault({kZero, kFence, kMma, kWait, kUse}), HasSubstr("%x100 is not ready"))
      << "a wait for no group";
  EXPECT_THAT(Fault({kZero, kFence, kMma, kCommit, "  wgmma.wait_group.sync.aligned 1;\n", kUse}),
              HasSubstr("%x100 is not ready"));
}

TEST(WgmmaRulesTest, AccumulatorWrittenWhileUnderWay) {
  EXPECT_THAT(Fault({kZero, kFence, kMma, kCommit, "  mov.b32 %x101, 0;\n", kWait}),
              HasSubstr("accumulator register %x101 was written while its wgmma.mma_async was under way"));
}

TEST(WgmmaRulesTest, Fences) {
  EXPECT_THAT(Fault({kZero, kMma, kCommit, kWait}), HasSubstr("without a wgmma.fence before it"));
  EXPECT_THAT(Fault({kZero, kFence, "  mov.b32 %x102, 5;\n", kMma, kCommit, kWait}),
              HasSubstr("accumulator register %x102 was written after the last wgmma.fence"));
  EXPECT_THAT(Fault({kZero, kFence, kMma, kCommit, kWait, "  mov.b32 %x103, 5;\n", kMma, kCommit, kWait}),
              HasSubstr("%x103 was written after the last wgmma.fence"));
}

TEST(WgmmaRulesTest, FragmentWrittenWhileUnderWay) {
  constexpr std::string_view kFragments =
      "  mov.b32 %x10, 1;\n  mov.b32 %x11, 1;\n  mov.b32 %x12, 1;\n  mov.b32 %x13, 1;\n";
  constexpr std::string_view kRegisters =
      "  wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%x100, %x101, %x102, %x103}, {%x10, %x11, "
      "%x12, %x13}, %b, "
      "%p1, 1, 1, 0;\n";
  EXPECT_THAT(Fault({kZero, kFragments, kFence, kRegisters, kCommit, "  mov.b32 %x11, 2;\n", kWait}),
              HasSubstr("A register %x11 was written while its wgmma.mma_async was under way"));
}

TEST(WgmmaRulesTest, AnotherShapeOnAnUnfinishedAccumulator) {
  EXPECT_THAT(Fault({kZero, kFence, kMma,
                     "  wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%x100, %x101, %x102, %x103, "
                     "%x104, %x105, "
                     "%x106, %x107}, %a, %b, %p1, 1, 1, 0, 0;\n"}),
              HasSubstr("only the same shape may follow without a wait"));
}

TEST(WgmmaRulesTest, WholeWarpgroup) {
  EXPECT_THAT(Fault({kZero, kFence, kMma, kCommit, kWait}, 96),
              HasSubstr("wgmma needs the four warps 0-3; the CTA has 3"));
  EXPECT_THAT(Fault({kZero, kFence, "  setp.eq.u32 %p2, %warp, 2;\n  @%p2 bra SKIP;\n", kMma, kCommit, kWait,
                     "SKIP:\n"}),
              HasSubstr("the other warps of the warpgroup must issue theirs too"));
  EXPECT_THAT(Fault({kZero, kFence, "  setp.lt.u32 %p2, %lane, 16;\n  @%p2 bra SKIP;\n", kMma, "SKIP:\n"}),
              HasSubstr("needs all lanes of the warp"));
  EXPECT_THAT(Fault({kZero, "  setp.eq.u32 %p1, %warp, 1;\n", kFence, kMma, kCommit, kWait}),
              HasSubstr("scale-d differ between the warps"));
}

TEST(WgmmaRulesTest, Descriptors) {
  EXPECT_THAT(Fault({kZero, kFence, "  add.u64 %a, %a, 0x400000000000;\n", kMma, kCommit, kWait}),
              HasSubstr("form of sm_100"));
  EXPECT_THAT(Fault({kZero, kFence, "  add.u64 %b, %b, 8;\n", kMma, kCommit, kWait}),
              HasSubstr("B: K-major operand"));
}

TEST(WgmmaRulesTest, WrongForms) {
  EXPECT_THAT(Fault({kZero, kFence,
                     "  wgmma.mma_async.sync.aligned.m64n12k16.f32.bf16.bf16 {%x100, %x101, %x102, %x103, "
                     "%x104, %x105}, %a, %b, %p1, 1, 1, 0, 0;\n"}),
              HasSubstr("N is 12"));
  EXPECT_THAT(Fault({kZero, kFence,
                     "  wgmma.mma_async.sync.aligned.m64n8k32.f32.bf16.bf16 {%x100, %x101, %x102, %x103}, "
                     "%a, %b, %p1, 1, 1, 0, 0;\n"}),
              HasSubstr("has K 16, not 32"));
}

}  // namespace
}  // namespace tessera::ptx
