// The arithmetic of a matrix instruction: D = A * B (+ D), in the emulator's order.
//
// Products are exact: A and B are doubles that hold at most 24 significant bits. A result is the sum of its K products
// in the order of K, plus the old D, all in double, rounded once, to D's type, when the instruction is done. The
// hardware's order and its inner precision are not specified (PTX ISA: "at least single precision"), so inputs whose
// sums are exact in float give the same bits there and here; others differ by rounding alone.
// Integers are summed exactly and wrap or saturate once at the end.
#ifndef TESSERA_TESTS_PTX_TENSOR_MATMUL_H_
#define TESSERA_TESTS_PTX_TENSOR_MATMUL_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tests/ptx/tensor/canonical_layout.h"
#include "tests/ptx/tensor/formats.h"

namespace tessera::ptx {

// A dense row-major matrix of doubles.
struct Matrix {
  Matrix() = default;
  Matrix(int rows, int columns) : rows(rows), columns(columns), values(static_cast<size_t>(rows) * columns) {}
  double& at(int row, int column) { return values[static_cast<size_t>(row) * columns + column]; }
  double at(int row, int column) const { return values[static_cast<size_t>(row) * columns + column]; }

  int rows = 0;
  int columns = 0;
  std::vector<double> values;
};

// Sums of products: a is M x K, b is N x K; the result is M x N. Infinities and NaN go through as in IEEE arithmetic.
Matrix Multiply(const Matrix& a, const Matrix& b);

// Rounds `sum` to an accumulator of type kF32, kF16 or kS32, in the low bits of a word.
uint32_t RoundAccumulator(ElementType type, double sum, bool saturate);

// Rounds sums[i] + old[i] * scale to words[i], a row of an accumulator. `old` may be `words`; null: no old values.
void RoundAccumulatorRow(ElementType type, const double* sums, const uint32_t* old, double scale,
                         bool saturate, int count, uint32_t* words);

// How elements are packed in the 16-byte chunks of shared memory.
enum class Packing : uint8_t {
  kDense,   // BitsOf(type) bits each: 8 bf16, 16 e4m3, 32 e2m1 a chunk
  kPadded,  // 16 elements a chunk, tightly packed from its start, then padding (f8f6f4 and mxf8f6f4)
};

// Elements a chunk.
int ChunkElements(ElementType type, Packing packing);

// The value of element `index` of a chunk.
double ChunkElement(ElementType type, Packing packing, absl::Span<const uint8_t> chunk, int index);

// Reads `kChunkBytes` bytes at a shared-memory address, 16-byte aligned.
using ReadChunk = absl::FunctionRef<absl::Status(uint32_t address, uint8_t* bytes)>;

// Decodes an operand of `rows` x `k` elements from shared memory, through its descriptor's canonical layout.
absl::StatusOr<Matrix> LoadOperand(const MatrixDescriptor& descriptor, Major major, ElementType type,
                                   Packing packing, int rows, int k, ReadChunk read);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TENSOR_MATMUL_H_
