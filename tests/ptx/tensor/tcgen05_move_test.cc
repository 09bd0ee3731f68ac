// tcgen05.ld, st and cp: every shape against the maps of tmem_layout.h, and stores that follow each other.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/ptx/tensor/smem_descriptor.h"
#include "tests/ptx/tensor/tensor_kernel.h"
#include "tests/ptx/tensor/tmem_layout.h"

namespace tessera::ptx {
namespace {

// Tensor memory columns [0, columns) of all 128 lanes, as [lane][column].
std::vector<uint32_t> Dump(const std::string& fill, const TensorKernelArguments& arguments, int columns) {
  std::vector<uint32_t> out;
  const absl::Status status =
      RunTensorKernel(TensorKernel(fill + StoreAccumulator(columns)), arguments, {}, 128 * columns, &out);
  EXPECT_TRUE(status.ok()) << status << "\n" << fill;
  out.resize(128 * columns);
  return out;
}

// Clears `columns` columns, so that what a shape leaves alone can be read.
std::string Clear(int columns) {
  std::string body = R"(
  shl.b32 %x90, %warp, 21;
  add.u32 %x90, %x90, %tmem;
  mov.u32 %x91, 0;
)";
  for (int c = 0; c < columns; ++c) {
    absl::StrAppendFormat(&body, "  tcgen05.st.sync.aligned.32x32b.x1.b32 [%%x90 + %d], {%%x91};\n", c);
  }
  return body + "  tcgen05.wait::st.sync.aligned;\n";
}

constexpr std::pair<TmemShape, int> kShapes[] = {
    {TmemShape::k32x32b, 4},  {TmemShape::k16x64b, 1},  {TmemShape::k16x64b, 4},   {TmemShape::k16x128b, 2},
    {TmemShape::k16x256b, 1}, {TmemShape::k16x256b, 2}, {TmemShape::k16x32bx2, 4},
};

// Each register r of thread t stores 1000 t + r + 1; the dump must have it where the map says.
TEST(Tcgen05MoveTest, StoresOfEveryShape) {
  for (auto [shape, num] : kShapes) {
    for (bool unpack : {false, true}) {
      const int registers = TmemShapeRegisters(shape, num);
      const bool two = shape == TmemShape::k16x32bx2;
      std::string body = Clear(64);
      for (int r = 0; r < registers; ++r) {
        absl::StrAppendFormat(&body, "  mad.lo.u32 %%x%d, %%thread, 1000, %d;\n", 200 + r, r + 1);
      }
      absl::StrAppendFormat(
          &body, "  tcgen05.st.sync.aligned.%s.x%d%s.b32 [%%x90], %s%s;\n  tcgen05.wait::st.sync.aligned;\n",
          Name(shape), num, unpack ? ".unpack::16b" : "", two ? "32, " : "",
          RegisterList("%x", 200, registers));
      const std::vector<uint32_t> out = Dump(body, {}, 64);
      for (int thread = 0; thread < 128; ++thread) {
        for (int r = 0; r < registers; ++r) {
          const uint32_t value = 1000 * thread + r + 1;
          const TmemWord word = TmemShapeWord(shape, thread % 32, r);
          const uint32_t* row = &out[(thread / 32 * 32 + word.lane) * 64 + (word.second ? 32 : 0)];
          if (unpack) {
            ASSERT_EQ(row[2 * word.column], value & 0xffff)
                << Name(shape) << " thread " << thread << " register " << r;
            ASSERT_EQ(row[2 * word.column + 1], value >> 16);
          } else {
            ASSERT_EQ(row[word.column], value) << Name(shape) << " thread " << thread << " register " << r;
          }
        }
      }
    }
  }
}

// What a shape stores its load brings back, from the upper half of the quarter too; with pack::16b after unpack::16b.
TEST(Tcgen05MoveTest, LoadsBringBackWhatStoresPut) {
  for (auto [shape, num] : kShapes) {
    for (bool packed : {false, true}) {
      for (int half : {0, 16}) {
        if (half != 0 && TmemShapeLanes(shape) == 32) continue;
        const int registers = TmemShapeRegisters(shape, num);
        const bool two = shape == TmemShape::k16x32bx2;
        std::string body = absl::StrFormat(R"(
  shl.b32 %%x90, %%warp, 21;
  add.u32 %%x90, %%x90, %%tmem;
  add.u32 %%x90, %%x90, %d;
)",
                                           half << 16);
        for (int r = 0; r < registers; ++r) {
          absl::StrAppendFormat(&body, "  mad.lo.u32 %%x%d, %%thread, 1000, %d;\n", 200 + r, r + 1);
        }
        absl::StrAppendFormat(
            &body,
            "  tcgen05.st.sync.aligned.%s.x%d%s.b32 [%%x90], %s%s;\n  tcgen05.wait::st.sync.aligned;\n",
            Name(shape), num, packed ? ".unpack::16b" : "", two ? "128, " : "",
            RegisterList("%x", 200, registers));
        absl::StrAppendFormat(
            &body,
            "  tcgen05.ld.sync.aligned.%s.x%d%s.b32 %s, [%%x90]%s;\n  tcgen05.wait::ld.sync.aligned;\n",
            Name(shape), num, packed ? ".pack::16b" : "", RegisterList("%x", 100, registers),
            two ? ", 128" : "");
        absl::StrAppendFormat(&body, "  mul.wide.u32 %%y50, %%thread, %d;\n  add.u64 %%y50, %%y50, %%out;\n",
                              4 * registers);
        for (int r = 0; r < registers; ++r) {
          absl::StrAppendFormat(&body, "  st.global.b32 [%%y50 + %d], %%x%d;\n", 4 * r, 100 + r);
        }
        std::vector<uint32_t> out;
        const absl::Status status = RunTensorKernel(TensorKernel(body), {}, {}, 128 * registers, &out);
        ASSERT_TRUE(status.ok()) << status;
        for (int thread = 0; thread < 128; ++thread) {
          for (int r = 0; r < registers; ++r) ASSERT_EQ(out[thread * registers + r], 1000u * thread + r + 1);
        }
      }
    }
  }
}

// Two and more stores in a row: the next one starts 8 columns on (16x256b.x1 covers 16 lanes by 8 columns), or 16 lanes.
TEST(Tcgen05MoveTest, StoresInARow) {
  std::string body = Clear(32);
  for (int lane : {0, 16}) {
    for (int column = 0; column < 32; column += 8) {
      absl::StrAppendFormat(&body, R"(
  mov.u32 %%x200, %d;
  add.u32 %%x201, %%x90, %d;
  tcgen05.st.sync.aligned.16x256b.x1.b32 [%%x201], {%%x200, %%x200, %%x200, %%x200};
)",
                            100 * lane + column + 1, lane << 16 | column);
    }
  }
  const std::vector<uint32_t> out = Dump(body + "  tcgen05.wait::st.sync.aligned;\n", {}, 32);
  for (int lane = 0; lane < 128; ++lane) {
    for (int column = 0; column < 32; ++column) {
      ASSERT_EQ(out[lane * 32 + column], 100u * (lane % 32 / 16 * 16) + column / 8 * 8 + 1)
          << lane << " " << column;
    }
  }
}

// The image is 0, 1, 2, ... in words; rows of the source are the rows of its core matrices.
TEST(Tcgen05MoveTest, CopiesOfEveryShape) {
  const std::pair<const char*, CopyShape> kCopies[] = {
      {"128x256b", CopyShape::k128x256b},
      {"4x256b", CopyShape::k4x256b},
      {"128x128b", CopyShape::k128x128b},
      {"64x128b.warpx2::02_13", CopyShape::k64x128bWarpx2_02_13},
      {"64x128b.warpx2::01_23", CopyShape::k64x128bWarpx2_01_23},
      {"32x128b.warpx4", CopyShape::k32x128bWarpx4},
  };
  TensorKernelArguments arguments;
  arguments.image.resize(8192);
  for (uint32_t i = 0; i < 2048; ++i) std::memcpy(&arguments.image[4 * i], &i, 4);
  MatrixDescriptor source;
  source.stride_offset = 128;
  source.leading_offset = 2048;
  arguments.a = *EncodeDescriptor(DescriptorTarget::kSm100, source);
  for (auto [name, shape] : kCopies) {
    const std::string body = Clear(8) + absl::StrFormat(R"(
  tcgen05.fence::before_thread_sync;
  bar.sync 0;
  tcgen05.fence::after_thread_sync;
  @!%%leader bra ISSUED;
  tcgen05.cp.cta_group::1.%s [%%tmem], %%a;
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar];
ISSUED:
WAITING:
  mbarrier.try_wait.parity.shared::cta.b64 %%p2, [bar], 0;
  @!%%p2 bra WAITING;
  tcgen05.fence::after_thread_sync;
)",
                                                        name);
    const std::vector<uint32_t> out = Dump(body, arguments, 8);
    std::map<std::pair<int, int>, uint32_t> expected;
    for (int row = 0; row < CopyRows(shape); ++row) {
      for (int word = 0; word < 4 * CopyChunks(shape); ++word) {
        // 16-byte column word / 4, 2048 bytes apart; row r at 16 r.
        const uint32_t value = word / 4 * 512 + row * 4 + word % 4;
        for (int lane : CopyLanes(shape, row)) expected[{lane, word}] = value;
      }
    }
    for (int lane = 0; lane < 128; ++lane) {
      for (int column = 0; column < 8; ++column) {
        const auto found = expected.find({lane, column});
        ASSERT_EQ(out[lane * 8 + column], found == expected.end() ? 0 : found->second)
            << name << " " << lane << " " << column;
      }
    }
  }
}

TEST(Tcgen05MoveTest, CopyDecompresses) {
  TensorKernelArguments arguments;
  arguments.image.resize(4096);
  for (size_t i = 0; i < arguments.image.size(); ++i) arguments.image[i] = static_cast<uint8_t>(37 * i);
  MatrixDescriptor source;
  source.stride_offset = 128;
  arguments.a = *EncodeDescriptor(DescriptorTarget::kSm100, source);
  const std::string body = R"(
  @!%leader bra ISSUED;
  tcgen05.cp.cta_group::1.128x128b.b8x16.b4x16_p64 [%tmem], %a;
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar];
ISSUED:
WAITING:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0;
  @!%p2 bra WAITING;
  tcgen05.fence::after_thread_sync;
)";
  const std::vector<uint32_t> out = Dump(body, arguments, 4);
  for (int row = 0; row < 128; ++row) {
    for (int i = 0; i < 16; ++i) {
      const uint32_t nibble = arguments.image[row * 16 + i / 2] >> (i % 2 * 4) & 0xf;
      ASSERT_EQ(out[row * 4 + i / 4] >> (i % 4 * 8) & 0xff, nibble << 2) << row << " " << i;
    }
  }
}

}  // namespace
}  // namespace tessera::ptx
