#include "tests/ptx/tma/tensor_box.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "tests/ptx/tma/swizzle.h"

namespace tessera::ptx {
namespace {

absl::Status CheckBox(const TensorMap& map, absl::Span<const int32_t> at, uint32_t shared,
                      BoxDirection direction) {
  if (shared % kBoxAlignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor's box lies at shared-memory address 0x",
                                                   absl::Hex(shared), "; expected a multiple of 128 bytes"));
  }
  const bool padded =
      map.element == TensorElement::k16U4Align16B || map.element == TensorElement::k16U6Align16B;
  if (padded && at[0] % 128 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "coordinate 0 is ", at[0], "; ", TensorElementName(map.element), " needs a multiple of 128"));
  }
  if (int64_t{at[0]} * TensorElementBits(map.element) % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("coordinate 0 is ", at[0], ", inside a byte of ", TensorElementName(map.element)));
  }
  if (direction == BoxDirection::kStore && map.element == TensorElement::k16U4Align16B) {
    return absl::InvalidArgumentError("16U4_ALIGN16B can be loaded, not stored");
  }
  if (direction == BoxDirection::kStore && map.element == TensorElement::k16U6Align16B) {
    return absl::UnimplementedError("stores of 6-bit elements are not emulated");
  }
  if (direction == BoxDirection::kLoad && map.element == TensorElement::k16U6Align16B &&
      map.swizzle == TensorSwizzle::k128BAtom64B) {
    return absl::InvalidArgumentError("16U6_ALIGN16B with swizzle 128B_ATOM_64B can be stored, not loaded");
  }
  for (int32_t coordinate : at) {
    if (direction == BoxDirection::kStore && coordinate < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("a store's coordinates must not be negative; one is ", coordinate));
    }
  }
  return absl::OkStatus();
}

// Appends the pieces of one row of dimension 0. `row_address` is the global address of the row's element 0, `inside`
// whether the row lies inside the tensor in the other dimensions.
void AppendRow(const TensorMap& map, int32_t column, uint64_t row_address, bool inside, uint32_t shared,
               std::vector<BoxPiece>* pieces) {
  const bool u4_padded = map.element == TensorElement::k16U4Align16B;
  const bool u6_padded = map.element == TensorElement::k16U6Align16B;
  const int64_t bits = TensorElementBits(map.element);
  const int64_t piece_bytes = u4_padded ? 8 : u6_padded ? 12 : SwizzleAtomBytes(map.swizzle);
  const int64_t shared_bytes = u4_padded || u6_padded ? 16 : piece_bytes;
  const int64_t row_bytes = map.box[0] * bits / 8;
  const int64_t first = column * bits / 8;  // of the box's row, within the tensor's row; may be negative
  const int64_t last = static_cast<int64_t>(map.sizes[0] * bits / 8);
  for (int64_t offset = 0; offset < row_bytes; offset += piece_bytes) {
    const int64_t position = first + offset;
    BoxPiece piece;
    piece.shared =
        SwizzleAddress(map.swizzle, static_cast<uint32_t>(shared + offset / piece_bytes * shared_bytes));
    piece.global = row_address + position;
    piece.bytes = static_cast<uint32_t>(piece_bytes);
    if (inside) {
      piece.begin = static_cast<uint32_t>(std::clamp<int64_t>(-position, 0, piece_bytes));
      piece.end = static_cast<uint32_t>(std::clamp<int64_t>(last - position, piece.begin, piece_bytes));
    }
    piece.padding = static_cast<uint32_t>(shared_bytes - piece_bytes);
    pieces->push_back(piece);
  }
}

}  // namespace

absl::StatusOr<std::vector<BoxPiece>> BoxPieces(const TensorMap& map, absl::Span<const int32_t> at,
                                                uint32_t shared, BoxDirection direction) {
  if (static_cast<int>(at.size()) != map.rank) {
    return absl::InvalidArgumentError(
        absl::StrCat(at.size(), " coordinates for a tensor map of ", map.rank, " dimensions"));
  }
  if (absl::Status status = CheckBox(map, at, shared, direction); !status.ok()) return status;
  std::vector<BoxPiece> pieces;
  std::array<uint32_t, kMaxTensorRank> index = {};  // within the box, counted in steps
  const uint32_t rows = map.BoxRows(), pitch = map.SharedPitch();
  for (uint32_t row = 0; row < rows; ++row) {
    uint64_t address = map.address;
    bool inside = true;
    for (int d = 1; d < map.rank; ++d) {
      const int64_t coordinate = int64_t{at[d]} + int64_t{index[d]} * map.steps[d];
      inside = inside && coordinate >= 0 && coordinate < static_cast<int64_t>(map.sizes[d]);
      address += static_cast<uint64_t>(coordinate) * map.strides[d];
    }
    AppendRow(map, at[0], address, inside, shared + row * pitch, &pieces);
    for (int d = 1; d < map.rank; ++d) {
      if (++index[d] < map.BoxElements(d)) break;
      index[d] = 0;
    }
  }
  return pieces;
}

absl::StatusOr<std::vector<BoxPiece>> FourRowPieces(const TensorMap& map, absl::Span<const int32_t> at,
                                                    uint32_t shared, BoxDirection direction) {
  if (map.rank != 2 || map.box[1] != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gather4 and scatter4 need a tensor map of 2 dimensions with boxes ", "of one row; this one has ",
        map.rank, " dimensions and boxes of ", map.box[1], " rows"));
  }
  if (at.size() != 5) {
    return absl::InvalidArgumentError(
        absl::StrCat("gather4 and scatter4 take a column and four rows, 5 coordinates; got ", at.size()));
  }
  if (absl::Status status = CheckBox(map, at, shared, direction); !status.ok()) return status;
  std::vector<BoxPiece> pieces;
  for (uint32_t row = 0; row < 4; ++row) {
    const int64_t coordinate = at[1 + row];
    const bool inside = coordinate >= 0 && coordinate < static_cast<int64_t>(map.sizes[1]);
    AppendRow(map, at[0], map.address + static_cast<uint64_t>(coordinate) * map.strides[1], inside,
              shared + row * map.SharedPitch(), &pieces);
  }
  return pieces;
}

uint8_t FillByte(const TensorMap& map, uint32_t offset) {
  if (map.fill == TensorFill::kZero) return 0;
  // The bits of the special NaN are not documented: all ones but the sign, a quiet NaN in every format.
  const uint32_t bytes = TensorElementBits(map.element) / 8;
  return offset % bytes == bytes - 1 ? 0x7F : 0xFF;
}

}  // namespace tessera::ptx
