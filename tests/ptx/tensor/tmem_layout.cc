#include "tests/ptx/tensor/tmem_layout.h"

#include <cstring>

#include "absl/strings/str_format.h"

namespace tessera::ptx {

absl::StatusOr<TmemShape> ParseTmemShape(std::string_view name) {
  for (TmemShape shape : {TmemShape::k32x32b, TmemShape::k16x64b, TmemShape::k16x128b, TmemShape::k16x256b,
                          TmemShape::k16x32bx2}) {
    if (Name(shape) == name) return shape;
  }
  return absl::InvalidArgumentError(absl::StrFormat("tcgen05.ld and st have no shape .%s", name));
}

std::string_view Name(TmemShape shape) {
  switch (shape) {
    case TmemShape::k32x32b:
      return "32x32b";
    case TmemShape::k16x64b:
      return "16x64b";
    case TmemShape::k16x128b:
      return "16x128b";
    case TmemShape::k16x256b:
      return "16x256b";
    case TmemShape::k16x32bx2:
      return "16x32bx2";
  }
  return "?";
}

int TmemShapeLanes(TmemShape shape) { return shape == TmemShape::k32x32b ? 32 : 16; }

int TmemShapeRegisters(TmemShape shape, int num) {
  if (num < 1 || num > 128 || (num & (num - 1)) != 0) return 0;
  const int each = shape == TmemShape::k16x256b ? 4 : shape == TmemShape::k16x128b ? 2 : 1;
  return each * num <= 128 ? each * num : 0;
}

TmemWord TmemShapeWord(TmemShape shape, int lane, int reg) {
  switch (shape) {
    case TmemShape::k32x32b:
      return {lane, reg, false};
    case TmemShape::k16x64b:
      return {lane / 4 + 8 * (lane % 2), lane / 2 % 2 + 2 * reg, false};
    case TmemShape::k16x128b:
      return {lane / 4 + 8 * (reg % 2), lane % 4 + 4 * (reg / 2), false};
    case TmemShape::k16x256b:
      return {lane / 4 + 8 * (reg / 2 % 2), reg % 2 + 2 * (lane % 4) + 8 * (reg / 4), false};
    case TmemShape::k16x32bx2:
      return {lane % 16, reg, lane >= 16};
  }
  return {};
}

DataPath DataPathOf(int m, int cta_group, bool weight_stationary) {
  if (cta_group == 2) return m == 256 ? DataPath::kA : DataPath::kB;
  if (m == 128) return DataPath::kD;
  if (m == 32) return DataPath::kG;
  return weight_stationary ? DataPath::kE : DataPath::kF;
}

std::string_view Name(DataPath path) {
  constexpr std::string_view kNames[] = {"A", "B", "D", "E", "F", "G"};
  return kNames[static_cast<int>(path)];
}

int AccumulatorColumns(DataPath path, int n) {
  switch (path) {
    case DataPath::kB:
    case DataPath::kE:
      return n / 2;
    case DataPath::kG:
      return n / 4;
    default:
      return n;
  }
}

bool ValidBaseLane(DataPath path, uint32_t lane) { return lane == 0 || (path == DataPath::kF && lane == 16); }

AccumulatorPlace PlaceAccumulator(DataPath path, int n, int row, int column) {
  const int width = AccumulatorColumns(path, n);
  switch (path) {
    case DataPath::kA:
      return {row / 128, row % 128, column};
    case DataPath::kB:
      return {row / 64, row % 64 + 64 * (column / width), column % width};
    case DataPath::kD:
      return {0, row, column};
    case DataPath::kE:
      return {0, row + 64 * (column / width), column % width};
    case DataPath::kF:
      return {0, row / 16 * 32 + row % 16, column};
    case DataPath::kG:
      return {0, row + 32 * (column / width), column % width};
  }
  return {};
}

OperandPlace PlaceOperandA(DataPath path, int row) {
  switch (path) {
    case DataPath::kA:
      return {row / 128, row % 128, 1};
    case DataPath::kB:
      return {row / 64, row % 64, 2};
    case DataPath::kF:
      return {0, row / 16 * 32 + row % 16, 1};
    default:
      return {0, row, 1};
  }
}

ScalePlace PlaceScaleA(DataPath path, int row) {
  const int rows_per_cta = path == DataPath::kB ? 64 : 128;
  const int local = row % rows_per_cta;
  ScalePlace place{row / rows_per_cta, local / 32, {}};
  for (int quarter = 0; quarter < 4; ++quarter) place.lanes.push_back(quarter * kTmemQuarter + local % 32);
  return place;
}

ScalePlace PlaceScaleB(DataPath path, int n, int row) {
  // In layout B the two upper quarters compute the second half of the columns and have the scales of these alone.
  if (path == DataPath::kB) {
    const int half = row / (n / 2);
    const int local = row % (n / 2);
    const int lane = half * 64 + local % 32;
    return {-1, local / 32, {lane, lane + kTmemQuarter}};
  }
  ScalePlace place{-1, row / 32, {}};
  for (int quarter = 0; quarter < 4; ++quarter) place.lanes.push_back(quarter * kTmemQuarter + row % 32);
  return place;
}

absl::StatusOr<CopyShape> ParseCopyShape(std::string_view shape, std::string_view multicast) {
  constexpr struct {
    std::string_view shape, multicast;
    CopyShape value;
  } kShapes[] = {
      {"128x256b", "", CopyShape::k128x256b},
      {"4x256b", "", CopyShape::k4x256b},
      {"128x128b", "", CopyShape::k128x128b},
      {"64x128b", "warpx2::02_13", CopyShape::k64x128bWarpx2_02_13},
      {"64x128b", "warpx2::01_23", CopyShape::k64x128bWarpx2_01_23},
      {"32x128b", "warpx4", CopyShape::k32x128bWarpx4},
  };
  for (const auto& entry : kShapes) {
    if (entry.shape == shape && entry.multicast == multicast) return entry.value;
  }
  return absl::InvalidArgumentError(absl::StrFormat("tcgen05.cp has no shape .%s with %s", shape,
                                                    multicast.empty() ? "no multicast" : multicast));
}

int CopyRows(CopyShape shape) {
  switch (shape) {
    case CopyShape::k128x256b:
    case CopyShape::k128x128b:
      return 128;
    case CopyShape::k4x256b:
      return 4;
    case CopyShape::k64x128bWarpx2_02_13:
    case CopyShape::k64x128bWarpx2_01_23:
      return 64;
    case CopyShape::k32x128bWarpx4:
      return 32;
  }
  return 0;
}

int CopyChunks(CopyShape shape) {
  return shape == CopyShape::k128x256b || shape == CopyShape::k4x256b ? 2 : 1;
}

std::vector<int> CopyLanes(CopyShape shape, int row) {
  switch (shape) {
    case CopyShape::k128x256b:
    case CopyShape::k128x128b:
      return {row};
    case CopyShape::k4x256b:
      return {row * kTmemQuarter};
    case CopyShape::k64x128bWarpx2_02_13:
      return {row, row + 64};
    case CopyShape::k64x128bWarpx2_01_23: {
      const int lane = row / 32 * 64 + row % 32;
      return {lane, lane + kTmemQuarter};
    }
    case CopyShape::k32x128bWarpx4:
      return {row, row + 32, row + 64, row + 96};
  }
  return {};
}

void DecompressChunk(CopyDecompress format, const uint8_t (&source)[16], uint8_t (&target)[16]) {
  if (format == CopyDecompress::kNone) {
    std::memcpy(target, source, 16);
    return;
  }
  const int width = format == CopyDecompress::kB6x16P32 ? 6 : 4;
  for (int i = 0; i < 16; ++i) {
    const int bit = i * width;
    const uint32_t two = source[bit / 8] | (bit / 8 + 1 < 16 ? source[bit / 8 + 1] : 0) << 8;
    const uint32_t value = (two >> (bit % 8)) & ((1u << width) - 1);
    target[i] = static_cast<uint8_t>(width == 4 ? value << 2 : value);
  }
}

}  // namespace tessera::ptx
