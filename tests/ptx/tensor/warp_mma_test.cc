// mma.sync, ldmatrix, stmatrix, movmatrix against plain products and transposes.
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

using ::testing::HasSubstr;
using enum ElementType;

struct Case {
  ElementType a, b, d;
  int k;
};

// One warp; fragments come from the image as [register][lane], C is random too.
void RunCase(const Case& c) {
  std::mt19937 random(9);
  std::vector<uint8_t> image(4096);
  const int bits = BitsOf(c.a);
  const int each = 32 / bits;
  const int a_registers = c.k * bits / 64, b_registers = c.k * bits / 128;
  Matrix a(16, c.k), b(8, c.k);
  Matrix d(16, 8);
  const auto fill = [&](Matrix& m, ElementType type, int registers, int base, auto place) {
    for (int reg = 0; reg < registers; ++reg) {
      for (int lane = 0; lane < 32; ++lane) {
        const FragmentPlace at = place(lane, reg);
        for (int e = 0; e < each; ++e) {
          const uint32_t code = RandomCode(type, random);
          m.at(at.row, at.column * each + e) = Decode(type, code);
          PutBits(image, 8 * (base + 4 * (32 * reg + lane)) + e * bits, bits, code);
        }
      }
    }
  };
  fill(a, c.a, a_registers, 0, [](int l, int r) { return PlaceFragmentA(l, r); });
  fill(b, c.b, b_registers, 1024, [](int l, int r) { return PlaceFragmentB(l, r); });
  const int d_registers = c.d == kF16 ? 2 : 4;
  for (int reg = 0; reg < d_registers; ++reg) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int half = 0; half < (c.d == kF16 ? 2 : 1); ++half) {
        const FragmentPlace at = c.d == kF16 ? PlaceFragmentD16(lane, reg) : PlaceFragmentD32(lane, reg);
        const int value = static_cast<int>(random() % 9) - 4;
        const uint32_t code = c.d == kS32   ? static_cast<uint32_t>(value)
                              : c.d == kF16 ? RoundToF16(value)
                                            : RoundToF32(value);
        d.at(at.row, at.column + half) = value;
        PutBits(image, 8 * (2048 + 4 * (32 * reg + lane)) + 16 * half, c.d == kF16 ? 16 : 32, code);
      }
    }
  }
  std::string body = "  shl.b32 %x0, %lane, 2;\n  add.u32 %x0, %x0, %tile;\n";
  const auto load = [&](int first, int registers, int base) {
    for (int r = 0; r < registers; ++r) {
      absl::StrAppendFormat(&body, "  ld.shared.b32 %%x%d, [%%x0 + %d];\n", first + r, base + 128 * r);
    }
  };
  load(100, d_registers, 2048);
  load(110, a_registers, 0);
  load(120, b_registers, 1024);
  absl::StrAppendFormat(&body, "  mma.sync.aligned.m16n8k%d.row.col.%s.%s.%s.%s %s, %s, %s, %s;\n", c.k,
                        Name(c.d), Name(c.a), Name(c.b), Name(c.d), RegisterList("%x", 130, d_registers),
                        RegisterList("%x", 110, a_registers), RegisterList("%x", 120, b_registers),
                        RegisterList("%x", 100, d_registers));
  absl::StrAppendFormat(&body, "  mul.wide.u32 %%y0, %%lane, %d;\n  add.u64 %%y0, %%y0, %%out;\n",
                        4 * d_registers);
  for (int r = 0; r < d_registers; ++r)
    absl::StrAppendFormat(&body, "  st.global.b32 [%%y0 + %d], %%x%d;\n", 4 * r, 130 + r);
  TensorKernelArguments arguments;
  arguments.image = image;
  TensorKernelLaunch launch;
  launch.threads = 32;
  std::vector<uint32_t> out;
  const absl::Status status =
      RunTensorKernel(TensorKernel(body, 0, "sm_90a"), arguments, launch, 32 * d_registers, &out);
  ASSERT_TRUE(status.ok()) << status;
  for (int reg = 0; reg < d_registers; ++reg) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int half = 0; half < (c.d == kF16 ? 2 : 1); ++half) {
        const FragmentPlace at = c.d == kF16 ? PlaceFragmentD16(lane, reg) : PlaceFragmentD32(lane, reg);
        const int column = at.column + half;
        double sum = d.at(at.row, column);
        for (int x = 0; x < c.k; ++x) sum += a.at(at.row, x) * b.at(column, x);
        ASSERT_EQ(Decode(c.d, out[lane * d_registers + reg] >> (16 * half)), sum)
            << Name(c.a) << " k " << c.k;
      }
    }
  }
}

TEST(WarpMmaTest, EveryType) {
  RunCase({kBF16, kBF16, kF32, 16});
  RunCase({kBF16, kBF16, kF32, 8});
  RunCase({kF16, kF16, kF32, 16});
  RunCase({kF16, kF16, kF16, 16});
  RunCase({kTF32, kTF32, kF32, 8});
  RunCase({kTF32, kTF32, kF32, 4});
  RunCase({kE4M3, kE5M2, kF32, 32});
  RunCase({kS8, kU8, kS32, 32});
  RunCase({kU8, kS8, kS32, 16});
}

// Matrices 0-3 of 16-bit elements numbered 0, 1, 2, ... in rows of 16 bytes.
TensorKernelArguments Numbered() {
  TensorKernelArguments arguments;
  arguments.image.resize(1024);
  for (uint16_t i = 0; i < 512; ++i) std::memcpy(&arguments.image[2 * i], &i, 2);
  return arguments;
}

std::vector<uint32_t> RunWarp(std::string body, const TensorKernelArguments& arguments, int registers) {
  absl::StrAppendFormat(&body, "  mul.wide.u32 %%y0, %%lane, %d;\n  add.u64 %%y0, %%y0, %%out;\n",
                        4 * registers);
  for (int r = 0; r < registers; ++r)
    absl::StrAppendFormat(&body, "  st.global.b32 [%%y0 + %d], %%x%d;\n", 4 * r, 100 + r);
  TensorKernelLaunch launch;
  launch.threads = 32;
  std::vector<uint32_t> out;
  const absl::Status status =
      RunTensorKernel(TensorKernel(body, 0, "sm_90a"), arguments, launch, 32 * registers, &out);
  EXPECT_TRUE(status.ok()) << status;
  out.resize(32 * registers);
  return out;
}

TEST(WarpMatrixTest, LdmatrixWithAndWithoutTrans) {
  for (bool trans : {false, true}) {
    const std::vector<uint32_t> out = RunWarp(
        absl::StrFormat(
            "  shl.b32 %%x0, %%lane, 4;\n  add.u32 %%x0, %%x0, %%tile;\n"
            "  ldmatrix.sync.aligned.m8n8.x4%s.shared.b16 {%%x100, %%x101, %%x102, %%x103}, [%%x0];\n",
            trans ? ".trans" : ""),
        Numbered(), 4);
    for (int lane = 0; lane < 32; ++lane) {
      for (int m = 0; m < 4; ++m) {
        const uint32_t row = lane / 4, column = lane % 4 * 2;
        const uint32_t low = 64 * m + (trans ? column * 8 + row : row * 8 + column);
        const uint32_t high = 64 * m + (trans ? (column + 1) * 8 + row : row * 8 + column + 1);
        ASSERT_EQ(out[lane * 4 + m], low | high << 16)
            << "lane " << lane << " matrix " << m << (trans ? " trans" : "");
      }
    }
  }
}

TEST(WarpMatrixTest, StmatrixIsTheInverse) {
  for (const char* trans : {"", ".trans"}) {
    const std::vector<uint32_t> out =
        RunWarp(absl::StrFormat(
                    "  shl.b32 %%x0, %%lane, 4;\n  add.u32 %%x0, %%x0, %%tile;\n"
                    "  ldmatrix.sync.aligned.m8n8.x2%s.shared.b16 {%%x10, %%x11}, [%%x0];\n"
                    "  stmatrix.sync.aligned.m8n8.x2%s.shared.b16 [%%x0 + 2048], {%%x10, %%x11};\n"
                    "  bar.warp.sync 0xffffffff;\n  shl.b32 %%x1, %%lane, 2;\n  add.u32 %%x1, %%x1, %%tile;\n"
                    "  ld.shared.b32 %%x100, [%%x1 + 2048];\n  ld.shared.b32 %%x101, [%%x1 + 2176];\n",
                    trans, trans),
                Numbered(), 2);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      ASSERT_EQ(out[lane * 2], 2 * lane | (2 * lane + 1) << 16);
      ASSERT_EQ(out[lane * 2 + 1], (64 + 2 * lane) | (65 + 2 * lane) << 16);
    }
  }
}

TEST(WarpMatrixTest, MovmatrixTransposes) {
  const std::vector<uint32_t> out = RunWarp(
      "  shl.b32 %x0, %lane, 4;\n  add.u32 %x0, %x0, %tile;\n"
      "  ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%x10}, [%x0];\n"
      "  movmatrix.sync.aligned.m8n8.trans.b16 %x100, %x10;\n"
      "  ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%x101}, [%x0];\n",
      Numbered(), 2);
  for (int lane = 0; lane < 32; ++lane) ASSERT_EQ(out[lane * 2], out[lane * 2 + 1]);
}

TEST(WarpMatrixTest, RowsAreAligned) {
  TensorKernelLaunch launch;
  launch.threads = 32;
  std::vector<uint32_t> out;
  const absl::Status status =
      RunTensorKernel(TensorKernel("  shl.b32 %x0, %lane, 3;\n  add.u32 %x0, %x0, %tile;\n"
                                   "  ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%x100}, [%x0];\n",
                                   0, "sm_90a"),
                      Numbered(), launch, 16, &out);
  EXPECT_THAT(std::string(status.message()), HasSubstr("misaligned"));
}

}  // namespace
}  // namespace tessera::ptx
