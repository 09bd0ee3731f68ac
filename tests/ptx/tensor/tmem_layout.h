// Who holds what in tensor memory: the images of tcgen05.ld, st and cp, the layouts of accumulators, of A and of scale
// factors. Pure maps; tensor_memory.h has the memory itself.
//
// Tensor memory of a CTA: 128 lanes by 512 columns of 32 bits; an address is lane << 16 | column.
// Sources: PTX ISA "Data Movement Shape", "Data Path Layout Organization", "Scale Factor A ID", "tcgen05.cp".
#ifndef TESSERA_TESTS_PTX_TENSOR_TMEM_LAYOUT_H_
#define TESSERA_TESTS_PTX_TENSOR_TMEM_LAYOUT_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::ptx {

inline constexpr int kTmemLanes = 128;
inline constexpr int kTmemColumns = 512;
inline constexpr int kTmemQuarter = 32;  // lanes that one warp of a warpgroup reaches

struct TmemAddress {
  uint32_t lane = 0;
  uint32_t column = 0;
};
constexpr TmemAddress SplitTmemAddress(uint32_t address) { return {address >> 16, address & 0xffff}; }
constexpr uint32_t MakeTmemAddress(uint32_t lane, uint32_t column) { return lane << 16 | column; }

// --- tcgen05.ld, tcgen05.st --------------------------------------------------------------------------------------

enum class TmemShape : uint8_t { k32x32b, k16x64b, k16x128b, k16x256b, k16x32bx2 };

absl::StatusOr<TmemShape> ParseTmemShape(std::string_view name);
std::string_view Name(TmemShape shape);

// Lanes covered: 32 for 32x32b, else 16.
int TmemShapeLanes(TmemShape shape);

// Registers a thread for .x`num`; 0 if there is no such instruction.
int TmemShapeRegisters(TmemShape shape, int num);

// The word that register `reg` of lane `lane` holds, relative to the instruction's address. 16x32bx2 reads two images:
// `second` says that the split offset is to be added to the column. With pack::16b or unpack::16b a register holds
// the low halves of columns 2 * column and 2 * column + 1 instead (of the image, before the split offset).
struct TmemWord {
  int lane = 0;
  int column = 0;
  bool second = false;
};
TmemWord TmemShapeWord(TmemShape shape, int lane, int reg);

// --- accumulators and A ------------------------------------------------------------------------------------------

// The letters of the PTX ISA. C (sparse A) is not modelled.
enum class DataPath : uint8_t {
  kA,  // M = 256, a pair: 128 rows a CTA, lane = row
  kB,  // M = 128, a pair: 64 rows a CTA, the second half of the columns in lanes 64-127
  kD,  // M = 128, one CTA: lane = row
  kE,  // M = 64, .ws: the second half of the columns in lanes 64-127
  kF,  // M = 64: 16 rows in each quarter, in lanes 0-15 or 16-31 of it as the address says
  kG,  // M = 32, .ws: a quarter of the columns in each quarter of the lanes
};
DataPath DataPathOf(int m, int cta_group, bool weight_stationary);
std::string_view Name(DataPath path);

// Columns that an accumulator of N columns occupies in one CTA.
int AccumulatorColumns(DataPath path, int n);

// Whether the address of D (and of A) may have this lane: 0, and 16 too for layout F.
bool ValidBaseLane(DataPath path, uint32_t lane);

// Where element (row, column) of D lies: the CTA of the pair (0 the even one), lane and column relative to the address.
struct AccumulatorPlace {
  int cta = 0;
  int lane = 0;
  int column = 0;
};
AccumulatorPlace PlaceAccumulator(DataPath path, int n, int row, int column);

// CTA of the pair that holds row `row` of A, and its lane, relative to the address. Layout B needs every row of A
// twice, in `lane` and in lane + 64: `copies` is 2.
struct OperandPlace {
  int cta = 0;
  int lane = 0;
  int copies = 1;
};
OperandPlace PlaceOperandA(DataPath path, int row);

// --- scale factors -----------------------------------------------------------------------------------------------

// Where the 32-bit word with the scales of row `row` of A (or of N index `row` of B) lies, relative to the operand's
// address: in column `column`, in every lane of `lanes` (the copies that the quarters of the data path read). The
// scale id chooses the bytes of the word.
struct ScalePlace {
  int cta = -1;  // CTA of the pair that holds it; -1: each CTA has its copy
  int column = 0;
  std::vector<int> lanes;
};
ScalePlace PlaceScaleA(DataPath path, int row);
ScalePlace PlaceScaleB(DataPath path, int n, int row);

// --- tcgen05.cp --------------------------------------------------------------------------------------------------

enum class CopyShape : uint8_t {
  k128x256b,
  k4x256b,
  k128x128b,
  k64x128bWarpx2_02_13,
  k64x128bWarpx2_01_23,
  k32x128bWarpx4,
};

// From the qualifiers: "128x256b", "" or "64x128b", "warpx2::02_13".
absl::StatusOr<CopyShape> ParseCopyShape(std::string_view shape, std::string_view multicast);

int CopyRows(CopyShape shape);
int CopyChunks(CopyShape shape);  // 16-byte columns (four columns of tensor memory) a row: 1 or 2

// Lanes that row `row` of the source goes to.
std::vector<int> CopyLanes(CopyShape shape, int row);

// Source formats of the optional decompression: 16 elements in 16 bytes, the rest of which is padding, become 16 bytes
// in the form in which f8f6f4 reads them (6 bits in the low bits, 4 bits in the middle of the byte).
enum class CopyDecompress : uint8_t { kNone, kB6x16P32, kB4x16P64 };
void DecompressChunk(CopyDecompress format, const uint8_t (&source)[16], uint8_t (&target)[16]);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TENSOR_TMEM_LAYOUT_H_
