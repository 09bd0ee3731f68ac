// Register fragments of the matrix instructions of a warp (mma.sync, ldmatrix, stmatrix) and of a warpgroup (wgmma).
//
// Source: PTX ISA "Matrix Fragments for mma.m16n8k16 ..." and "Register Fragments" of wgmma. All of them follow one
// pattern in units of a 32-bit word of K, whatever the element: 16 rows by 4 words a pair of registers. Row and column
// are of the 16-row tile of one warp; warp w of a warpgroup holds rows 16 w .. 16 w + 15 of the 64.
#ifndef TESSERA_TESTS_PTX_TENSOR_FRAGMENTS_H_
#define TESSERA_TESTS_PTX_TENSOR_FRAGMENTS_H_

namespace tessera::ptx {

struct FragmentPlace {
  int row = 0;
  int column = 0;
};

// A: register `reg` of lane `lane` is 32-bit word `column` of K of row `row`.
constexpr FragmentPlace PlaceFragmentA(int lane, int reg) {
  return {lane / 4 + 8 * (reg % 2), lane % 4 + 4 * (reg / 2)};
}

// B (mma.sync): register `reg` is 32-bit word `column` of K of column `row` of B (B is K-major: "col").
constexpr FragmentPlace PlaceFragmentB(int lane, int reg) { return {lane / 4, lane % 4 + 4 * reg}; }

// C and D of 32-bit elements: register `reg` is the element (row, column).
constexpr FragmentPlace PlaceFragmentD32(int lane, int reg) {
  return {lane / 4 + 8 * (reg / 2 % 2), 8 * (reg / 4) + 2 * (lane % 4) + reg % 2};
}

// C and D of 16-bit elements: register `reg` holds the elements (row, column) in its low half and (row, column + 1).
constexpr FragmentPlace PlaceFragmentD16(int lane, int reg) {
  return {lane / 4 + 8 * (reg % 2), 8 * (reg / 2) + 2 * (lane % 4)};
}

// An 8x8 matrix of 16-bit elements (ldmatrix, stmatrix, movmatrix): the register of lane `lane` holds the elements
// (row, column) and (row, column + 1); with .trans the elements (column, row) and (column + 1, row).
constexpr FragmentPlace PlaceMatrix8x8(int lane) { return {lane / 4, 2 * (lane % 4)}; }

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TENSOR_FRAGMENTS_H_
