// tcgen05.mma of every kind against a plain product. Operands are small integers (times powers of two), so that every
// sum is exact and the comparison is for equality.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/ptx/tensor/canonical_layout.h"
#include "tests/ptx/tensor/formats.h"
#include "tests/ptx/tensor/instruction_descriptor.h"
#include "tests/ptx/tensor/matmul.h"
#include "tests/ptx/tensor/smem_descriptor.h"
#include "tests/ptx/tensor/tensor_kernel.h"
#include "tests/ptx/tensor/test_tile.h"
#include "tests/ptx/tensor/tmem_layout.h"

namespace tessera::ptx {
namespace {

struct Case {
  MmaKind kind;
  ElementType a, b, d;
  int m, n;
  Major a_major = Major::kK, b_major = Major::kK;
  Swizzle swizzle = Swizzle::k128B;
  const char* modifiers = "";
};

std::string Spell(const Case& c) {
  return absl::StrFormat("%s %s x %s, M %d, N %d, %s %s, %s", Name(c.kind), Name(c.a), Name(c.b), c.m, c.n,
                         Name(c.a_major), Name(c.b_major), Name(c.swizzle));
}

Packing PackingOf(MmaKind kind, ElementType type) {
  return StorageBits(kind, type) == BitsOf(type) ? Packing::kDense : Packing::kPadded;
}

// One MMA, D = A * B, and every thread's row of D out.
void RunCase(const Case& c, AsyncPolicy async) {
  std::mt19937 random(7);
  std::vector<uint8_t> image(48 * 1024);
  const int k = KOf(c.kind);
  const Tile a = MakeTile(image, 0, c.a_major, c.swizzle, c.a, PackingOf(c.kind, c.a), c.m, k, random);
  const Tile b = MakeTile(image, 16384, c.b_major, c.swizzle, c.b, PackingOf(c.kind, c.b), c.n, k, random);
  InstructionDescriptor desc;
  desc.a_type = c.a;
  desc.b_type = c.b;
  desc.d_type = c.d;
  desc.m = c.m;
  desc.n = c.n;
  desc.a_major = c.a_major;
  desc.b_major = c.b_major;
  TensorKernelArguments arguments;
  arguments.image = image;
  arguments.a = *EncodeDescriptor(DescriptorTarget::kSm100, a.descriptor);
  arguments.b = *EncodeDescriptor(DescriptorTarget::kSm100, b.descriptor);
  arguments.idesc = *EncodeInstructionDescriptor(c.kind, desc);
  const bool ws = std::string_view(c.modifiers).find(".ws") != std::string_view::npos;
  const DataPath path = DataPathOf(c.m, 1, ws);
  const int columns = AccumulatorColumns(path, c.n);
  // Rows of layout F leave half of the lanes untouched, which must not be read.
  const std::string store = path == DataPath::kF ? absl::StrFormat(R"(
  shl.b32 %%x90, %%warp, 21;
  add.u32 %%x90, %%x90, %%tmem;
  mul.wide.u32 %%y50, %%thread, %d;
  add.u64 %%y50, %%y50, %%out;
  mov.u32 %%x91, 0;
COLUMNS:
  tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {%%x100}, [%%x90], 0;
  tcgen05.wait::ld.sync.aligned;
  st.global.b32 [%%y50], %%x100;
  add.u64 %%y50, %%y50, 4;
  add.u32 %%x90, %%x90, 1;
  add.u32 %%x91, %%x91, 1;
  setp.lt.u32 %%p9, %%x91, %d;
  @%%p9 bra COLUMNS;
)",
                                                                   4 * columns, columns)
                                                 : StoreAccumulator(columns);
  const std::string body = "  setp.ne.u32 %p1, 0, 0;\n" +
                           IssueAndWait(absl::StrFormat(
                               "  tcgen05.mma%s.cta_group::1.kind::%s [%%tmem], %%a, %%b, %%idesc, %%p1;\n",
                               c.modifiers, Name(c.kind))) +
                           store;
  std::vector<uint32_t> out;
  TensorKernelLaunch launch;
  launch.async = async;
  launch.seed = 3;
  const absl::Status status = RunTensorKernel(TensorKernel(body), arguments, launch, 128 * columns, &out);
  ASSERT_TRUE(status.ok()) << Spell(c) << "\n" << status;
  for (int row = 0; row < c.m; ++row) {
    for (int n = 0; n < c.n; ++n) {
      double sum = 0;
      for (int x = 0; x < k; ++x) sum += a.values.at(row, x) * b.values.at(n, x);
      const AccumulatorPlace place = PlaceAccumulator(path, c.n, row, n);
      const uint32_t word = out[place.lane * columns + place.column];
      ASSERT_EQ(Decode(c.d, word), sum) << Spell(c) << " row " << row << " column " << n;
    }
  }
}

using enum ElementType;

TEST(Tcgen05MmaTest, KindF16InEveryLayout) {
  for (Major a : {Major::kK, Major::kMN}) {
    for (Major b : {Major::kK, Major::kMN}) {
      for (Swizzle swizzle : {Swizzle::kNone, Swizzle::k32B, Swizzle::k64B, Swizzle::k128B}) {
        RunCase({MmaKind::kF16, kBF16, kBF16, kF32, 128, 64, a, b, swizzle}, AsyncPolicy::kLazy);
      }
    }
  }
}

TEST(Tcgen05MmaTest, ShapesOfKindF16) {
  for (int m : {64, 128}) {
    for (int n : {8, 24, 128, 256}) RunCase({MmaKind::kF16, kBF16, kBF16, kF32, m, n}, AsyncPolicy::kRandom);
  }
  RunCase({MmaKind::kF16, kF16, kBF16, kF32, 128, 16}, AsyncPolicy::kEager);
  RunCase({MmaKind::kF16, kF16, kF16, kF16, 128, 16}, AsyncPolicy::kLazy);
}

TEST(Tcgen05MmaTest, OtherKinds) {
  RunCase({MmaKind::kTF32, kTF32, kTF32, kF32, 128, 32}, AsyncPolicy::kLazy);
  RunCase({MmaKind::kTF32, kTF32, kTF32, kF32, 128, 64, Major::kMN, Major::kMN, Swizzle::k128B32BAtom},
          AsyncPolicy::kLazy);
  for (ElementType a : {kE4M3, kE5M2, kE2M3, kE3M2, kE2M1}) {
    for (ElementType b : {kE4M3, kE3M2, kE2M1}) {
      RunCase({MmaKind::kF8F6F4, a, b, kF32, 128, 24}, AsyncPolicy::kLazy);
    }
  }
  RunCase({MmaKind::kF8F6F4, kE4M3, kE5M2, kF32, 128, 128, Major::kMN, Major::kMN}, AsyncPolicy::kLazy);
  RunCase({MmaKind::kI8, kS8, kU8, kS32, 128, 48}, AsyncPolicy::kLazy);
  RunCase({MmaKind::kI8, kU8, kS8, kS32, 64, 16}, AsyncPolicy::kLazy);
}

TEST(Tcgen05MmaTest, WeightStationary) {
  for (int m : {32, 64, 128}) {
    Case c{MmaKind::kF16, kBF16, kBF16, kF32, m, 64};
    c.modifiers = ".ws";
    RunCase(c, AsyncPolicy::kLazy);
  }
}

// D = A * B + D / 4, with negated A, two steps of K in one atom, and lanes 0 and 33 left alone.
TEST(Tcgen05MmaTest, AccumulatesScalesAndMasks) {
  std::mt19937 random(7);
  std::vector<uint8_t> image(48 * 1024);
  // 128 x 32 of A and 8 x 32 of B, in rows of 128 bytes.
  const Tile a = MakeTile(image, 0, Major::kK, Swizzle::k128B, kBF16, Packing::kDense, 128, 32, random);
  const Tile b = MakeTile(image, 16384, Major::kK, Swizzle::k128B, kBF16, Packing::kDense, 8, 32, random);
  InstructionDescriptor desc;
  desc.n = 8;
  desc.negate_a = true;
  TensorKernelArguments arguments;
  arguments.image = image;
  arguments.a = *EncodeDescriptor(DescriptorTarget::kSm100, a.descriptor);
  arguments.b = *EncodeDescriptor(DescriptorTarget::kSm100, b.descriptor);
  arguments.idesc = *EncodeInstructionDescriptor(MmaKind::kF16, desc);
  const std::string body = R"(
  setp.ne.u32 %p1, 0, 0;
  setp.eq.u32 %p2, 0, 0;
  add.u64 %y1, %a, 2;
  add.u64 %y2, %b, 2;
  mov.u32 %x0, 1;
  mov.u32 %x1, 2;
  mov.u32 %x2, 0;
)" + IssueAndWait(R"(
  tcgen05.mma.cta_group::1.kind::f16 [%tmem], %a, %b, %idesc, %p1;
  tcgen05.mma.cta_group::1.kind::f16 [%tmem], %y1, %y2, %idesc, {%x0, %x1, %x2, %x2}, %p2, 2;
)") + StoreAccumulator(8);
  std::vector<uint32_t> out;
  const absl::Status status = RunTensorKernel(TensorKernel(body), arguments, {}, 128 * 8, &out);
  ASSERT_TRUE(status.ok()) << status;
  for (int row = 0; row < 128; ++row) {
    for (int n = 0; n < 8; ++n) {
      double first = 0, second = 0;
      for (int x = 0; x < 16; ++x) {
        first -= a.values.at(row, x) * b.values.at(n, x);
        second -= a.values.at(row, 16 + x) * b.values.at(n, 16 + x);
      }
      const double expected = row == 0 || row == 33 ? first : second + first / 4;
      ASSERT_EQ(std::bit_cast<float>(out[row * 8 + n]), expected) << row << " " << n;
    }
  }
}

// P * V of attention: A is stored to tensor memory as bf16 pairs, two a column.
TEST(Tcgen05MmaTest, AFromTensorMemory) {
  std::mt19937 random(7);
  std::vector<uint8_t> image(48 * 1024);
  const Tile b = MakeTile(image, 0, Major::kMN, Swizzle::k128B, kBF16, Packing::kDense, 64, 16, random);
  InstructionDescriptor desc;
  desc.n = 64;
  desc.b_major = Major::kMN;
  TensorKernelArguments arguments;
  arguments.image = image;
  arguments.b = *EncodeDescriptor(DescriptorTarget::kSm100, b.descriptor);
  arguments.idesc = *EncodeInstructionDescriptor(MmaKind::kF16, desc);
  // Row r of A is (r % 4, 1, r % 4, 1, ...): words 0x3f80 << 16 | bf16(r % 4).
  const std::string body = R"(
  and.b32 %x0, %thread, 3;
  cvt.rn.f32.u32 %f0, %x0;
  mov.b32 %x1, %f0;
  shr.u32 %x1, %x1, 16;
  or.b32 %x1, %x1, 0x3f800000;
  shl.b32 %x90, %warp, 21;
  add.u32 %x90, %x90, %tmem;
  tcgen05.st.sync.aligned.32x32b.x8.b32 [%x90 + 256], {%x1, %x1, %x1, %x1, %x1, %x1, %x1, %x1};
  tcgen05.wait::st.sync.aligned;
  tcgen05.fence::before_thread_sync;
  bar.sync 0;
  tcgen05.fence::after_thread_sync;
  setp.ne.u32 %p1, 0, 0;
  add.u32 %x2, %tmem, 256;
)" + IssueAndWait("  tcgen05.mma.cta_group::1.kind::f16 [%tmem], [%x2], %b, %idesc, %p1;\n") +
                           StoreAccumulator(64);
  std::vector<uint32_t> out;
  const absl::Status status = RunTensorKernel(TensorKernel(body), arguments, {}, 128 * 64, &out);
  ASSERT_TRUE(status.ok()) << status;
  for (int row = 0; row < 128; ++row) {
    for (int n = 0; n < 64; ++n) {
      double sum = 0;
      for (int x = 0; x < 16; ++x) sum += (x % 2 == 0 ? row % 4 : 1) * b.values.at(n, x);
      ASSERT_EQ(std::bit_cast<float>(out[row * 64 + n]), sum) << row << " " << n;
    }
  }
}

struct ScaledCase {
  MmaKind kind;
  ElementType a, b, scale;
  const char* vector;
  int n, a_id, b_id;
};

// Scales come through tcgen05.cp.32x128b.warpx4 from 512-byte blocks, A's at 24576, B's at 25088 and 25600.
TEST(Tcgen05MmaTest, BlockScaledKinds) {
  const ScaledCase kCases[] = {
      {MmaKind::kMxF4NvF4, kE2M1, kE2M1, kUE4M3, "scale_vec::4X", 128, 0, 0},
      {MmaKind::kMxF4NvF4, kE2M1, kE2M1, kUE4M3, "block16", 256, 0, 0},
      {MmaKind::kMxF4NvF4, kE2M1, kE2M1, kUE8M0, "scale_vec::2X", 16, 2, 0},
      {MmaKind::kMxF4, kE2M1, kE2M1, kUE8M0, "scale_vec::2X", 64, 0, 2},
      {MmaKind::kMxF4, kE2M1, kE2M1, kUE8M0, "block32", 64, 2, 2},
      {MmaKind::kMxF8F6F4, kE4M3, kE5M2, kUE8M0, "scale_vec::1X", 32, 1, 3},
      {MmaKind::kMxF8F6F4, kE2M1, kE3M2, kUE8M0, "block32", 32, 0, 2},
  };
  for (const ScaledCase& c : kCases) {
    std::mt19937 random(11);
    std::vector<uint8_t> image(48 * 1024);
    const int k = KOf(c.kind);
    const Tile a =
        MakeTile(image, 0, Major::kK, Swizzle::k128B, c.a, PackingOf(c.kind, c.a), 64 * 2, k, random);
    const Tile b = MakeTile(image, 32768 - 16384 + 0, Major::kK, Swizzle::k32B, c.b, PackingOf(c.kind, c.b),
                            c.n, k, random);
    // Block of (row, j), bytes as the NVFP4 layout has them.
    const auto scale_byte = [](uint32_t base, int row, int j) {
      return base + row / 128 * 512 + row % 32 * 16 + row % 128 / 32 * 4 + j;
    };
    for (int row = 0; row < 256; ++row) {
      for (int j = 0; j < 4; ++j) {
        const double value = std::ldexp(1.0, static_cast<int>(random() % 5) - 2);
        const auto code = static_cast<uint8_t>(
            c.scale == kUE8M0 ? EncodeUE8M0(value, false) : Encode(kE4M3, value * 1.5, Overflow::kSaturate));
        if (row < 128) image[scale_byte(24576, row, j)] = code;
        image[scale_byte(25088, row, j)] = static_cast<uint8_t>(code ^ (row & 1 ? 1 : 0));
      }
    }
    InstructionDescriptor desc;
    desc.a_type = c.a;
    desc.b_type = c.b;
    desc.m = 128;
    desc.n = c.n;
    desc.scale_type = c.scale;
    desc.a_scale_id = static_cast<uint8_t>(c.a_id);
    desc.b_scale_id = static_cast<uint8_t>(c.b_id);
    MatrixDescriptor scales;
    scales.stride_offset = 128;
    scales.start_address = 24576;
    TensorKernelArguments arguments;
    arguments.image = image;
    arguments.a = *EncodeDescriptor(DescriptorTarget::kSm100, a.descriptor);
    arguments.b = *EncodeDescriptor(DescriptorTarget::kSm100, b.descriptor);
    arguments.extra = *EncodeDescriptor(DescriptorTarget::kSm100, scales);
    arguments.idesc = *EncodeInstructionDescriptor(c.kind, desc);
    const std::string body = R"(
  shr.u32 %x0, %tile, 4;
  cvt.u64.u32 %y0, %x0;
  add.u64 %y1, %extra, %y0;
  add.u64 %y2, %y1, 32;
  add.u64 %y3, %y1, 64;
  add.u32 %x1, %tmem, 500;
  add.u32 %x2, %tmem, 504;
  add.u32 %x3, %tmem, 508;
  setp.ne.u32 %p1, 0, 0;
)" +
                             IssueAndWait(absl::StrFormat(R"(
  tcgen05.cp.cta_group::1.32x128b.warpx4 [%%x1], %%y1;
  tcgen05.cp.cta_group::1.32x128b.warpx4 [%%x2], %%y2;
  tcgen05.cp.cta_group::1.32x128b.warpx4 [%%x3], %%y3;
  tcgen05.mma.cta_group::1.kind::%s.block_scale.%s [%%tmem], %%a, %%b, %%idesc, [%%x1], [%%x2], %%p1;
)",
                                                          Name(c.kind), c.vector)) +
                             StoreAccumulator(c.n);
    std::vector<uint32_t> out;
    const absl::Status status = RunTensorKernel(TensorKernel(body), arguments, {}, 128 * c.n, &out);
    ASSERT_TRUE(status.ok()) << Name(c.kind) << c.vector << status;
    const int vector = *ScaleVector(c.kind, c.vector);
    for (int row = 0; row < 128; ++row) {
      for (int n = 0; n < c.n; ++n) {
        double sum = 0;
        for (int x = 0; x < k; ++x) {
          const int j = x / (k / vector);
          sum += a.values.at(row, x) * Decode(c.scale, image[scale_byte(24576, row, c.a_id + j)]) *
                 b.values.at(n, x) * Decode(c.scale, image[scale_byte(25088, n, c.b_id + j)]);
        }
        ASSERT_EQ(std::bit_cast<float>(out[row * c.n + n]), static_cast<float>(sum))
            << Name(c.kind) << " " << c.vector << " row " << row << " column " << n;
      }
    }
  }
}

// A pair of CTAs, M = 256 and M = 128: each holds half of the rows of A and half of the columns of B.
TEST(Tcgen05MmaTest, PairOfCtas) {
  for (int m : {256, 128}) {
    constexpr int kN = 64;
    std::mt19937 random(5);
    std::vector<uint8_t> images[2] = {std::vector<uint8_t>(48 * 1024), std::vector<uint8_t>(48 * 1024)};
    Tile a[2], b[2];
    for (int cta = 0; cta < 2; ++cta) {
      a[cta] = MakeTile(images[cta], 0, Major::kK, Swizzle::k128B, kBF16, Packing::kDense, m / 2, 16, random);
      b[cta] =
          MakeTile(images[cta], 16384, Major::kK, Swizzle::k128B, kBF16, Packing::kDense, kN / 2, 16, random);
    }
    InstructionDescriptor desc;
    desc.m = m;
    desc.n = kN;
    TensorKernelArguments arguments;
    arguments.image = images[0];
    arguments.odd_image = images[1];
    arguments.a = *EncodeDescriptor(DescriptorTarget::kSm100, a[0].descriptor);
    arguments.b = *EncodeDescriptor(DescriptorTarget::kSm100, b[0].descriptor);
    arguments.idesc = *EncodeInstructionDescriptor(MmaKind::kF16, desc);
    const int columns = m == 256 ? kN : kN / 2;
    const std::string body =
        R"(
  .reg .b16 %h<4>;
  setp.ne.u32 %p1, 0, 0;
  setp.eq.and.u32 %p2, %rank, 0, %leader;
  mov.u16 %h0, 3;
)" +
        IssueAndWait(
            "  tcgen05.mma.cta_group::2.kind::f16 [%tmem], %a, %b, %idesc, %p1;\n", "%p2",
            "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
            "[bar], %h0;") +
        StoreAccumulator(columns);
    std::vector<uint32_t> out;
    TensorKernelLaunch launch;
    launch.ctas = 2;
    const absl::Status status =
        RunTensorKernel(TensorKernel(body, 2), arguments, launch, 128 * columns, &out);
    ASSERT_TRUE(status.ok()) << status;
    for (int row = 0; row < m; ++row) {
      for (int n = 0; n < kN; ++n) {
        double sum = 0;
        for (int x = 0; x < 16; ++x) {
          sum += a[row / (m / 2)].values.at(row % (m / 2), x) * b[n / (kN / 2)].values.at(n % (kN / 2), x);
        }
        const AccumulatorPlace place = PlaceAccumulator(DataPathOf(m, 2, false), kN, row, n);
        const uint32_t word = out[place.cta * 128 * columns + place.lane * columns + place.column];
        ASSERT_EQ(std::bit_cast<float>(word), sum) << "M " << m << " row " << row << " column " << n;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::ptx
