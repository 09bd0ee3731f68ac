#include "tests/ptx/tensor/matmul.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace tessera::ptx {
namespace {

// Columns of B handled at once: their sums stay in registers or in the first-level cache.
constexpr int kPanel = 32;

// sums[j] = sum over k of a[k] * b[k][j], in the order of k.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void MultiplyPanel(int rows, int k, const double* a, const double* b, double* sums, int stride) {
  for (int i = 0; i < rows; ++i) {
    double sum[kPanel] = {};
    for (int x = 0; x < k; ++x) {
      const double value = a[static_cast<size_t>(i) * k + x];
      const double* row = b + static_cast<size_t>(x) * kPanel;
      for (int j = 0; j < kPanel; ++j) sum[j] += value * row[j];
    }
    std::copy(sum, sum + kPanel, sums + static_cast<size_t>(i) * stride);
  }
}

}  // namespace

Matrix Multiply(const Matrix& a, const Matrix& b) {
  const int n = b.rows;
  const int k = b.columns;
  Matrix result(a.rows, n);
  std::vector<double> panel(static_cast<size_t>(k) * kPanel);
  std::vector<double> sums(static_cast<size_t>(a.rows) * kPanel);
  for (int start = 0; start < n; start += kPanel) {
    const int width = std::min(kPanel, n - start);
    std::fill(panel.begin(), panel.end(), 0.0);
    for (int j = 0; j < width; ++j) {
      for (int x = 0; x < k; ++x) panel[static_cast<size_t>(x) * kPanel + j] = b.at(start + j, x);
    }
    MultiplyPanel(a.rows, k, a.values.data(), panel.data(), sums.data(), kPanel);
    for (int i = 0; i < a.rows; ++i) {
      std::copy_n(sums.data() + static_cast<size_t>(i) * kPanel, width, &result.at(i, start));
    }
  }
  return result;
}

uint32_t RoundAccumulator(ElementType type, double sum, bool saturate) {
  switch (type) {
    case ElementType::kF16:
      return RoundToF16(sum);
    case ElementType::kS32: {
      if (saturate) {
        sum =
            std::clamp<double>(sum, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
      }
      return static_cast<uint32_t>(static_cast<int64_t>(sum));
    }
    default:
      return RoundToF32(sum);
  }
}

void RoundAccumulatorRow(ElementType type, const double* sums, const uint32_t* old, double scale,
                         bool saturate, int count, uint32_t* words) {
  if (type == ElementType::kF32) {  // by far the most frequent
    for (int i = 0; i < count; ++i) {
      const double sum = old != nullptr ? sums[i] + std::bit_cast<float>(old[i]) * scale : sums[i];
      words[i] = sum == sum ? std::bit_cast<uint32_t>(static_cast<float>(sum)) : 0x7fffffffu;
    }
    return;
  }
  for (int i = 0; i < count; ++i) {
    const double before = old != nullptr ? Decode(type, old[i]) * scale : 0;
    words[i] = RoundAccumulator(type, sums[i] + before, saturate);
  }
}

int ChunkElements(ElementType type, Packing packing) {
  return packing == Packing::kPadded ? kChunkBytes : kChunkBytes * 8 / BitsOf(type);
}

double ChunkElement(ElementType type, Packing packing, absl::Span<const uint8_t> chunk, int index) {
  const int width = BitsOf(type);
  const int bit = index * width;
  uint32_t word = 0;
  for (int byte = (bit + width - 1) / 8; byte >= bit / 8; --byte) word = word << 8 | chunk[byte];
  return Decode(type, word >> (bit % 8));
}

absl::StatusOr<Matrix> LoadOperand(const MatrixDescriptor& descriptor, Major major, ElementType type,
                                   Packing packing, int rows, int k, ReadChunk read) {
  const int elements = ChunkElements(type, packing);
  Matrix matrix(rows, k);
  uint8_t bytes[kChunkBytes];
  if (major == Major::kK) {
    for (int row = 0; row < rows; ++row) {
      for (int chunk = 0; chunk < k / elements; ++chunk) {
        if (absl::Status status = read(KMajorChunkAddress(descriptor, row, chunk), bytes); !status.ok())
          return status;
        for (int i = 0; i < elements; ++i)
          matrix.at(row, chunk * elements + i) = ChunkElement(type, packing, bytes, i);
      }
    }
    return matrix;
  }
  for (int x = 0; x < k; ++x) {
    for (int chunk = 0; chunk * elements < rows; ++chunk) {
      if (absl::Status status = read(MnMajorChunkAddress(descriptor, x, chunk), bytes); !status.ok())
        return status;
      const int count = std::min(elements, rows - chunk * elements);
      for (int i = 0; i < count; ++i)
        matrix.at(chunk * elements + i, x) = ChunkElement(type, packing, bytes, i);
    }
  }
  return matrix;
}

}  // namespace tessera::ptx
