// The emulator's descriptors and layouts against those of CUTLASS's host functions, where its headers are found (CMake
// variable or environment variable CUTLASS_INCLUDE_DIR; `pip install nvidia-cutlass` brings them in
// cutlass_library/source/include).
#include <gtest/gtest.h>

#ifndef TESSERA_HAS_CUTLASS

TEST(CutlassTest, Skipped) {
  GTEST_SKIP() << "built without CUTLASS's headers: set CUTLASS_INCLUDE_DIR and run CMake again";
}

#else

#include <cstddef>
#include <cstdint>
#include <type_traits>

// On the host CuTe has no address of shared memory; the pointer's own value serves.
#define CUTE_CVTA_GENERIC_TO_SHARED_ACTIVATED 1
inline size_t __cvta_generic_to_shared(const void* pointer) { return reinterpret_cast<size_t>(pointer); }

#include <cutlass/numeric_types.h>
#include <cute/arch/mma_sm100_desc.hpp>
#include <cute/atom/copy_traits_sm100.hpp>
#include <cute/atom/mma_traits_sm100.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>
#include <cutlass/detail/sm100_blockscaled_layout.hpp>

#include "tests/ptx/tensor/canonical_layout.h"
#include "tests/ptx/tensor/formats.h"
#include "tests/ptx/tensor/instruction_descriptor.h"
#include "tests/ptx/tensor/smem_descriptor.h"
#include "tests/ptx/tensor/tmem_layout.h"

namespace tessera::ptx {
namespace {

using cute::_1;
using cute::_128;
using cute::_16;
using cute::_2;
using cute::_256;
using cute::_32;
using cute::_4;
using cute::_64;
using cute::_8;
using cute::Int;
using cute::make_coord;
using cute::Shape;

TEST(CutlassTest, SwizzleFunctions) {
  for (uint32_t address = 0; address < 8192; address += 16) {
    EXPECT_EQ(ApplySwizzle(Swizzle::k32B, address), (cute::Swizzle<1, 4, 3>{}(address)));
    EXPECT_EQ(ApplySwizzle(Swizzle::k64B, address), (cute::Swizzle<2, 4, 3>{}(address)));
    EXPECT_EQ(ApplySwizzle(Swizzle::k128B, address), (cute::Swizzle<3, 4, 3>{}(address)));
    EXPECT_EQ(ApplySwizzle(Swizzle::k128B32BAtom, address), (cute::Swizzle<2, 5, 2>{}(address)));
  }
}

// Makes CUTLASS's descriptor of the first MMA step of a tile, and compares the address of every element of that step by
// our decoding of the descriptor with CUTLASS's layout of the tile.
template <class T, bool kSm90, Major kMajor, class Atom, int kRows, int kTileK>
void CompareTile() {
  constexpr int kK = 32 / sizeof(T);
  const auto layout = cute::tile_to_shape(Atom{}, Shape<Int<kRows>, Int<kTileK> >{});
  const auto tile = cute::make_tensor(cute::make_smem_ptr(reinterpret_cast<T*>(uintptr_t{0x8000})), layout);
  const auto step = cute::local_tile(tile, Shape<Int<kRows>, Int<kK> >{}, make_coord(0, 0));
  const auto swizzled =
      cute::as_position_independent_swizzle_layout(layout);  // offsets with the swizzle applied
  uint64_t bits;
  if constexpr (kSm90) {
    constexpr auto major = kMajor == Major::kK ? cute::SM90::GMMA::Major::K : cute::SM90::GMMA::Major::MN;
    bits = cute::SM90::GMMA::make_gmma_desc<major>(step).desc_;
  } else {
    constexpr auto major = kMajor == Major::kK ? cute::UMMA::Major::K : cute::UMMA::Major::MN;
    bits = cute::UMMA::make_umma_desc<major>(step).desc_;
  }
  const auto target = kSm90 ? DescriptorTarget::kSm90 : DescriptorTarget::kSm100;
  absl::StatusOr<MatrixDescriptor> d = DecodeDescriptor(target, bits);
  ASSERT_TRUE(d.ok()) << d.status();
  EXPECT_EQ(*EncodeDescriptor(target, *d), bits);
  EXPECT_EQ(d->start_address, 0x8000u);
  const int element_bits = 8 * sizeof(T);
  EXPECT_TRUE(CheckOperand(*d, kMajor, element_bits, kRows, 2).ok())
      << CheckOperand(*d, kMajor, element_bits, kRows, 2);
  for (int row = 0; row < kRows; ++row) {
    for (int k = 0; k < kK; ++k) {
      const uint32_t expected = 0x8000 + static_cast<uint32_t>(swizzled(row, k)) * sizeof(T);
      const int along = (kMajor == Major::kK ? k : row) * static_cast<int>(sizeof(T));
      const uint32_t chunk = kMajor == Major::kK ? KMajorChunkAddress(*d, row, along / kChunkBytes)
                                                 : MnMajorChunkAddress(*d, k, along / kChunkBytes);
      ASSERT_EQ(chunk + along % kChunkBytes, expected) << d->ToString() << " row " << row << " k " << k;
    }
  }
}

TEST(CutlassTest, UmmaDescriptorsKMajor) {
  using cutlass::bfloat16_t, cutlass::float_e4m3_t, cutlass::tfloat32_t;
  namespace U = cute::UMMA;
  CompareTile<bfloat16_t, false, Major::kK, U::Layout_K_SW128_Atom<bfloat16_t>, 128, 64>();
  CompareTile<bfloat16_t, false, Major::kK, U::Layout_K_SW64_Atom<bfloat16_t>, 128, 64>();
  CompareTile<bfloat16_t, false, Major::kK, U::Layout_K_SW32_Atom<bfloat16_t>, 64, 64>();
  CompareTile<bfloat16_t, false, Major::kK, U::Layout_K_INTER_Atom<bfloat16_t>, 128, 64>();
  CompareTile<float_e4m3_t, false, Major::kK, U::Layout_K_SW128_Atom<float_e4m3_t>, 256, 128>();
  CompareTile<tfloat32_t, false, Major::kK, U::Layout_K_SW64_Atom<tfloat32_t>, 128, 32>();
}

TEST(CutlassTest, UmmaDescriptorsMnMajor) {
  using cutlass::bfloat16_t, cutlass::float_e4m3_t, cutlass::tfloat32_t;
  namespace U = cute::UMMA;
  CompareTile<bfloat16_t, false, Major::kMN, U::Layout_MN_SW128_Atom<bfloat16_t>, 128, 64>();
  CompareTile<bfloat16_t, false, Major::kMN, U::Layout_MN_SW64_Atom<bfloat16_t>, 128, 64>();
  CompareTile<bfloat16_t, false, Major::kMN, U::Layout_MN_SW32_Atom<bfloat16_t>, 64, 64>();
  CompareTile<bfloat16_t, false, Major::kMN, U::Layout_MN_INTER_Atom<bfloat16_t>, 128, 64>();
  CompareTile<float_e4m3_t, false, Major::kMN, U::Layout_MN_SW128_Atom<float_e4m3_t>, 256, 128>();
  CompareTile<tfloat32_t, false, Major::kMN, U::Layout_MN_SW128_32B_Atom<tfloat32_t>, 128, 32>();
}

TEST(CutlassTest, GmmaDescriptors) {
  using cutlass::bfloat16_t, cutlass::float_e4m3_t;
  namespace G = cute::SM90::GMMA;
  CompareTile<bfloat16_t, true, Major::kK, G::Layout_K_SW128_Atom<bfloat16_t>, 64, 64>();
  CompareTile<bfloat16_t, true, Major::kK, G::Layout_K_SW64_Atom<bfloat16_t>, 64, 64>();
  CompareTile<bfloat16_t, true, Major::kK, G::Layout_K_SW32_Atom<bfloat16_t>, 64, 64>();
  CompareTile<bfloat16_t, true, Major::kK, G::Layout_K_INTER_Atom<bfloat16_t>, 64, 64>();
  CompareTile<float_e4m3_t, true, Major::kK, G::Layout_K_SW128_Atom<float_e4m3_t>, 128, 128>();
  CompareTile<bfloat16_t, true, Major::kMN, G::Layout_MN_SW128_Atom<bfloat16_t>, 128, 64>();
  CompareTile<bfloat16_t, true, Major::kMN, G::Layout_MN_SW64_Atom<bfloat16_t>, 64, 64>();
  CompareTile<bfloat16_t, true, Major::kMN, G::Layout_MN_SW32_Atom<bfloat16_t>, 64, 64>();
  CompareTile<bfloat16_t, true, Major::kMN, G::Layout_MN_INTER_Atom<bfloat16_t>, 64, 64>();
}

InstructionDescriptor Ours(ElementType a, ElementType b, ElementType d_type, int m, int n, Major a_major,
                           Major b_major) {
  InstructionDescriptor d;
  d.a_type = a;
  d.b_type = b;
  d.d_type = d_type;
  d.m = m;
  d.n = n;
  d.a_major = a_major;
  d.b_major = b_major;
  return d;
}

TEST(CutlassTest, InstructionDescriptors) {
  using cute::UMMA::make_instr_desc;
  constexpr auto K = cute::UMMA::Major::K;
  constexpr auto MN = cute::UMMA::Major::MN;
  using T = ElementType;
  const auto encode = [](MmaKind kind, const InstructionDescriptor& d) {
    return *EncodeInstructionDescriptor(kind, d);
  };
  EXPECT_EQ(encode(MmaKind::kF16, Ours(T::kBF16, T::kBF16, T::kF32, 128, 64, Major::kK, Major::kK)),
            uint32_t(make_instr_desc<cutlass::bfloat16_t, cutlass::bfloat16_t, float, 128, 64, K, K>()));
  EXPECT_EQ(encode(MmaKind::kF16, Ours(T::kF16, T::kF16, T::kF16, 64, 8, Major::kMN, Major::kK)),
            uint32_t(make_instr_desc<cutlass::half_t, cutlass::half_t, cutlass::half_t, 64, 8, MN, K>()));
  EXPECT_EQ(encode(MmaKind::kTF32, Ours(T::kTF32, T::kTF32, T::kF32, 256, 256, Major::kK, Major::kMN)),
            uint32_t(make_instr_desc<cutlass::tfloat32_t, cutlass::tfloat32_t, float, 256, 256, K, MN>()));
  EXPECT_EQ(encode(MmaKind::kF8F6F4, Ours(T::kE4M3, T::kE5M2, T::kF32, 128, 240, Major::kK, Major::kK)),
            uint32_t(make_instr_desc<cutlass::float_e4m3_t, cutlass::float_e5m2_t, float, 128, 240, K, K>()));
  EXPECT_EQ(encode(MmaKind::kI8, Ours(T::kS8, T::kU8, T::kS32, 128, 32, Major::kK, Major::kK)),
            uint32_t(make_instr_desc<int8_t, uint8_t, int32_t, 128, 32, K, K>()));
  InstructionDescriptor nvfp4 = Ours(T::kE2M1, T::kE2M1, T::kF32, 128, 128, Major::kK, Major::kK);
  nvfp4.scale_type = T::kUE4M3;
  EXPECT_EQ(
      encode(MmaKind::kMxF4NvF4, nvfp4),
      uint32_t(cute::UMMA::make_instr_desc_block_scaled<cutlass::float_e2m1_t, cutlass::float_e2m1_t, float,
                                                        cutlass::float_ue4m3_t, 128, 128, K, K>()));
  InstructionDescriptor mxf8 = Ours(T::kE4M3, T::kE4M3, T::kF32, 256, 64, Major::kK, Major::kK);
  EXPECT_EQ(
      encode(MmaKind::kMxF8F6F4, mxf8),
      uint32_t(cute::UMMA::make_instr_desc_block_scaled<cutlass::float_e4m3_t, cutlass::float_e4m3_t, float,
                                                        cutlass::float_ue8m0_t, 256, 64, K, K>()));
}

// Copy atoms count bits: DstLayout maps (lane, bit of its registers) to a logical bit, ValID that to an address.
template <class Atom, bool kPacked = false>
void CompareLoad(TmemShape shape, int num) {
  using Traits = cute::Copy_Traits<Atom>;
  const typename Traits::DstLayout registers{};
  const typename Traits::ValID address{};
  constexpr int kLaneStride = cute::TMEM::DP_b::value;
  for (int lane = 0; lane < 32; ++lane) {
    for (int reg = 0; reg < TmemShapeRegisters(shape, num); ++reg) {
      const TmemWord ours = TmemShapeWord(shape, lane, reg);
      const int column =
          ours.column + (ours.second ? num : 0);  // CuTe puts the second image right behind the first
      for (int half = 0; half < (kPacked ? 2 : 1); ++half) {
        const int at = static_cast<int>(address(registers(lane, reg * 32 + 16 * half)));
        ASSERT_EQ(at / kLaneStride, ours.lane)
            << Name(shape) << " x" << num << " lane " << lane << " register " << reg;
        ASSERT_EQ(at % kLaneStride, kPacked ? (2 * column + half) * 32 : column * 32)
            << Name(shape) << " x" << num << " lane " << lane << " register " << reg;
      }
    }
  }
}

TEST(CutlassTest, LoadShapes) {
  using namespace cute::SM100::TMEM::LOAD;
  CompareLoad<SM100_TMEM_LOAD_32dp32b1x>(TmemShape::k32x32b, 1);
  CompareLoad<SM100_TMEM_LOAD_32dp32b128x>(TmemShape::k32x32b, 128);
  CompareLoad<SM100_TMEM_LOAD_16dp64b1x>(TmemShape::k16x64b, 1);
  CompareLoad<SM100_TMEM_LOAD_16dp64b16x>(TmemShape::k16x64b, 16);
  CompareLoad<SM100_TMEM_LOAD_16dp128b1x>(TmemShape::k16x128b, 1);
  CompareLoad<SM100_TMEM_LOAD_16dp128b8x>(TmemShape::k16x128b, 8);
  CompareLoad<SM100_TMEM_LOAD_16dp256b1x>(TmemShape::k16x256b, 1);
  CompareLoad<SM100_TMEM_LOAD_16dp256b32x>(TmemShape::k16x256b, 32);
  CompareLoad<SM100_TMEM_LOAD_16dp32b4x>(TmemShape::k16x32bx2, 4);
}

TEST(CutlassTest, PackedLoadShapes) {
  using namespace cute::SM100::TMEM::LOAD;
  CompareLoad<SM100_TMEM_LOAD_32dp32b2x_16b, true>(TmemShape::k32x32b, 2);
  CompareLoad<SM100_TMEM_LOAD_16dp64b2x_16b, true>(TmemShape::k16x64b, 2);
  CompareLoad<SM100_TMEM_LOAD_16dp128b2x_16b, true>(TmemShape::k16x128b, 2);
  CompareLoad<SM100_TMEM_LOAD_16dp256b4x_16b, true>(TmemShape::k16x256b, 4);
}

// (row, column) of one CTA's accumulator -> address, lanes 2^16 apart for 32-bit elements.
template <class Fragment, int kRows, int kColumns>
void CompareAccumulator(DataPath path, int rank_rows) {
  const auto tensor = Fragment::make(Shape<Shape<Int<kRows>, Int<kColumns> >, _1, _1>{});
  for (int row = 0; row < kRows; ++row) {
    for (int n = 0; n < kColumns; ++n) {
      const AccumulatorPlace ours = PlaceAccumulator(path, kColumns, row, n);
      const int at = static_cast<int>(tensor.layout()(make_coord(row, n), 0, 0));
      ASSERT_EQ(ours.cta, 0);
      ASSERT_EQ(at, ours.lane << 16 | ours.column)
          << "layout " << Name(path) << " row " << row << " column " << n;
      // The odd CTA's rows lie like the even one's.
      if (rank_rows != 0) {
        const AccumulatorPlace odd = PlaceAccumulator(path, kColumns, row + rank_rows, n);
        ASSERT_EQ(odd.cta, 1);
        ASSERT_EQ(odd.lane << 16 | odd.column, at);
      }
    }
  }
}

TEST(CutlassTest, Accumulators) {
  namespace U = cute::UMMA;
  CompareAccumulator<U::tmem_frg_1sm<float>, 128, 256>(DataPath::kD, 0);
  CompareAccumulator<U::tmem_frg_1sm<float>, 64, 128>(DataPath::kF, 0);
  CompareAccumulator<U::tmem_frg_2sm<float>, 128, 256>(DataPath::kA, 128);
  CompareAccumulator<U::tmem_frg_2sm<float>, 64, 128>(DataPath::kB, 64);
  CompareAccumulator<U::tmem_frg_ws_1sm<float>, 64, 128>(DataPath::kE, 0);
  CompareAccumulator<U::tmem_frg_ws_1sm<float>, 32, 128>(DataPath::kG, 0);
}

// Scale factors are bytes: lanes are 2^18 apart, four to a column.
template <class Fragment, int kRows, int kVector, int kScales, class Place>
void CompareScales(int copies, Place place) {
  const auto tensor = Fragment::make(Shape<Shape<Int<kRows>, Shape<Int<kVector>, Int<kScales> > >, _1, _1>{});
  const auto layout = tensor.layout();
  for (int row = 0; row < kRows; ++row) {
    const ScalePlace ours = place(row);
    ASSERT_EQ(static_cast<int>(ours.lanes.size()), copies);
    for (int scale = 0; scale < kScales; ++scale) {
      for (int copy = 0; copy < copies; ++copy) {
        // CuTe's row mode is (rows, copies), copies last.
        const int at = static_cast<int>(layout(row + copy * kRows + scale * kVector * kRows * copies));
        ASSERT_EQ(at >> 18, ours.lanes[copy]) << "row " << row << " copy " << copy;
        ASSERT_EQ(at & 0x3ffff, 4 * ours.column + scale) << "row " << row;
      }
    }
  }
}

TEST(CutlassTest, ScaleFactors) {
  namespace U = cute::UMMA;
  using Scale = cutlass::float_ue4m3_t;
  CompareScales<U::tmem_sf_frg<Scale, 16, 1, true>, 128, 16, 4>(
      4, [](int r) { return PlaceScaleA(DataPath::kD, r); });
  CompareScales<U::tmem_sf_frg<Scale, 16, 1, false>, 256, 16, 4>(
      4, [](int r) { return PlaceScaleB(DataPath::kD, 256, r); });
  CompareScales<U::tmem_sf_frg<Scale, 16, 2, true>, 64, 16, 4>(
      4, [](int r) { return PlaceScaleA(DataPath::kB, r); });
  CompareScales<U::tmem_sf_frg<Scale, 16, 2, false, U::TmemAllocMode::ScaleFactorDuplicated2by2>, 128, 16, 4>(
      2, [](int r) { return PlaceScaleB(DataPath::kB, 128, r); });
}

// The 512-byte block of scale factors, through cp.32x128b.warpx4, lands where the MMA looks.
TEST(CutlassTest, ScaleFactorBlockThroughCopy) {
  const typename cutlass::detail::Sm1xxBlockScaledBasicChunk<16>::SfAtom block{};
  for (int row = 0; row < 128; ++row) {
    for (int scale = 0; scale < 4; ++scale) {
      const int byte = static_cast<int>(block(row, scale * 16));
      const ScalePlace place = PlaceScaleA(DataPath::kD, row);
      EXPECT_EQ(CopyLanes(CopyShape::k32x128bWarpx4, byte / 16), place.lanes);
      EXPECT_EQ(byte % 16 / 4, place.column);
      EXPECT_EQ(byte % 4, scale);
    }
  }
}

// ValID of the copies: (row, bit, copies) -> address.
TEST(CutlassTest, CopyShapes) {
  using namespace cute::SM100::TMEM::UTCCP;
  constexpr int kLaneStride = cute::TMEM::DP_b::value;
  const auto lane = [](auto layout, auto... at) { return static_cast<int>(layout(at...)) / kLaneStride; };
  const typename cute::Copy_Traits<SM100_UTCCP_4x32dp128bit_1cta>::ValID x4{};
  for (int row = 0; row < 32; ++row) {
    for (int copy = 0; copy < 4; ++copy) {
      EXPECT_EQ(lane(x4, row, 0, copy), CopyLanes(CopyShape::k32x128bWarpx4, row)[copy]);
    }
  }
  const typename cute::Copy_Traits<SM100_UTCCP_2x64dp128bitlw0213_1cta>::ValID x2_0213{};
  const typename cute::Copy_Traits<SM100_UTCCP_2x64dp128bitlw0123_1cta>::ValID x2_0123{};
  for (int row = 0; row < 64; ++row) {
    for (int copy = 0; copy < 2; ++copy) {
      EXPECT_EQ(lane(x2_0213, row, 0, copy), CopyLanes(CopyShape::k64x128bWarpx2_02_13, row)[copy]);
      EXPECT_EQ(lane(x2_0123, row % 32, 0, row / 32, copy),
                CopyLanes(CopyShape::k64x128bWarpx2_01_23, row)[copy]);
    }
  }
  // 4x256b: its four rows are every 32nd of the 128.
  const typename cute::Copy_Traits<SM100_UTCCP_4dp256bit_1cta>::SrcLayout four{};
  const typename cute::Copy_Traits<SM100_UTCCP_4dp256bit_1cta>::ValID valid{};
  for (int row = 0; row < 4; ++row) {
    EXPECT_EQ(static_cast<int>(valid(four(0, make_coord(row, 0)))) / kLaneStride,
              CopyLanes(CopyShape::k4x256b, row)[0]);
  }
}

}  // namespace
}  // namespace tessera::ptx

#endif  // TESSERA_HAS_CUTLASS
