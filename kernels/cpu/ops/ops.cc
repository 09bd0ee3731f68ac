#include "kernels/cpu/ops/ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/checks.h"
#include "kernels/cpu/kernel_table.h"

namespace tessera::cpu {
namespace {

// Elements that make a chunk worth handing to another thread.
constexpr int64_t kChunkElements = 16 << 10;

// Calls fn(row) for each row, in chunks of rows.
template <typename Fn>
void ForEachRow(int64_t rows, int64_t elements_per_row, ThreadPool& pool, Fn fn) {
  const int64_t per_chunk = std::max<int64_t>(1, kChunkElements / std::max<int64_t>(1, elements_per_row));
  pool.ParallelFor((rows + per_chunk - 1) / per_chunk, [&](int64_t chunk) {
    const int64_t end = std::min(rows, (chunk + 1) * per_chunk);
    for (int64_t row = chunk * per_chunk; row < end; ++row) fn(row);
  });
}

absl::Status CheckHeads(const char* op, const float* x, int64_t stride, int64_t tokens, int64_t heads,
                        int64_t head_dim) {
  TESSERA_KERNEL_CHECK(heads > 0 && head_dim > 0, op, ": ", heads, " heads of ", head_dim);
  return CheckMatrix(op, "x", x, stride, tokens, heads * head_dim);
}

void RotateInterleaved(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

}  // namespace

absl::Status RmsNorm(const float* x, int64_t x_stride, int64_t tokens, int64_t dim, const float* weight,
                     float eps, Bf16* out, int64_t out_stride, ThreadPool& pool) {
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckMatrix("RmsNorm", "x", x, x_stride, tokens, dim));
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckMatrix("RmsNorm", "out", out, out_stride, tokens, dim));
  const KernelTable& table = Kernels();
  ForEachRow(tokens, dim, pool, [&](int64_t t) {
    table.rms_norm_bf16(x + t * x_stride, weight, eps, dim, out + t * out_stride);
  });
  return absl::OkStatus();
}

absl::Status RmsNorm(const float* x, int64_t x_stride, int64_t tokens, int64_t dim, const float* weight,
                     float eps, float* out, int64_t out_stride, ThreadPool& pool) {
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckMatrix("RmsNorm", "x", x, x_stride, tokens, dim));
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckMatrix("RmsNorm", "out", out, out_stride, tokens, dim));
  const KernelTable& table = Kernels();
  ForEachRow(tokens, dim, pool,
             [&](int64_t t) { table.rms_norm(x + t * x_stride, weight, eps, dim, out + t * out_stride); });
  return absl::OkStatus();
}

absl::Status HeadRmsNorm(float* x, int64_t stride, int64_t tokens, int64_t heads, int64_t head_dim,
                         const float* weight, float eps, ThreadPool& pool) {
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckHeads("HeadRmsNorm", x, stride, tokens, heads, head_dim));
  const KernelTable& table = Kernels();
  ForEachRow(tokens, heads * head_dim, pool, [&](int64_t t) {
    for (int64_t h = 0; h < heads; ++h) {
      float* head = x + t * stride + h * head_dim;
      table.rms_norm(head, weight, eps, head_dim, head);
    }
  });
  return absl::OkStatus();
}

absl::Status RopeTable(const int32_t* positions, int64_t tokens, const double* inverse_frequencies,
                       int64_t half, double scale, float* cos, float* sin, ThreadPool& pool) {
  TESSERA_KERNEL_CHECK(tokens >= 0 && half > 0, "RopeTable: ", tokens, " tokens, ", half, " frequencies");
  TESSERA_KERNEL_CHECK(tokens == 0 || (positions && inverse_frequencies && cos && sin),
                       "RopeTable: null argument");
  ForEachRow(tokens, half * 16, pool, [&](int64_t t) {  // a sine costs as much as many multiplications
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(positions[t]) * inverse_frequencies[i];
      cos[t * half + i] = static_cast<float>(scale * std::cos(angle));
      sin[t * half + i] = static_cast<float>(scale * std::sin(angle));
    }
  });
  return absl::OkStatus();
}

absl::Status Rope(RopeKind kind, float* x, int64_t stride, int64_t tokens, int64_t heads, int64_t head_dim,
                  int64_t rotary_dim, const float* cos, const float* sin, ThreadPool& pool) {
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckHeads("Rope", x, stride, tokens, heads, head_dim));
  TESSERA_KERNEL_CHECK(rotary_dim > 0 && rotary_dim % 2 == 0 && rotary_dim <= head_dim, "Rope: rotary dim ",
                       rotary_dim, " must be even, positive and at most the head dim ", head_dim);
  TESSERA_KERNEL_CHECK(tokens == 0 || (cos != nullptr && sin != nullptr), "Rope: null table");
  const KernelTable& table = Kernels();
  const int64_t half = rotary_dim / 2;
  ForEachRow(tokens, heads * head_dim, pool, [&](int64_t t) {
    for (int64_t h = 0; h < heads; ++h) {
      float* head = x + t * stride + h * head_dim;
      if (kind == RopeKind::kNeox) {
        table.rope_neox(head, cos + t * half, sin + t * half, half);
      } else {
        RotateInterleaved(head, cos + t * half, sin + t * half, half);
      }
    }
  });
  return absl::OkStatus();
}

absl::Status GatedActivation(const Glu& glu, const float* gate, int64_t gate_stride, const float* up,
                             int64_t up_stride, int64_t tokens, int64_t dim, Bf16* out, int64_t out_stride,
                             ThreadPool& pool) {
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckMatrix("GatedActivation", "gate", gate, gate_stride, tokens, dim));
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckMatrix("GatedActivation", "up", up, up_stride, tokens, dim));
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckMatrix("GatedActivation", "out", out, out_stride, tokens, dim));
  const KernelTable& table = Kernels();
  ForEachRow(tokens, dim, pool, [&](int64_t t) {
    table.glu(glu, gate + t * gate_stride, up + t * up_stride, dim, out + t * out_stride);
  });
  return absl::OkStatus();
}

absl::Status EmbeddingLookup(const Bf16* table, int64_t vocab, int64_t dim, const int32_t* ids,
                             int64_t tokens, float* out, int64_t out_stride, ThreadPool& pool) {
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckMatrix("EmbeddingLookup", "table", table, dim, vocab, dim));
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckMatrix("EmbeddingLookup", "out", out, out_stride, tokens, dim));
  TESSERA_KERNEL_CHECK(tokens == 0 || ids != nullptr, "EmbeddingLookup: null ids");
  for (int64_t t = 0; t < tokens; ++t) {
    TESSERA_KERNEL_CHECK(ids[t] >= 0 && ids[t] < vocab, "EmbeddingLookup: token id ", ids[t], " at place ", t,
                         " is outside the vocabulary of ", vocab);
  }
  const KernelTable& kernels = Kernels();
  ForEachRow(tokens, dim, pool,
             [&](int64_t t) { kernels.to_float(table + ids[t] * dim, dim, out + t * out_stride); });
  return absl::OkStatus();
}

absl::Status ConvertToBf16(const float* x, int64_t x_stride, int64_t tokens, int64_t dim, Bf16* out,
                           int64_t out_stride, ThreadPool& pool) {
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckMatrix("ConvertToBf16", "x", x, x_stride, tokens, dim));
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckMatrix("ConvertToBf16", "out", out, out_stride, tokens, dim));
  const KernelTable& table = Kernels();
  ForEachRow(tokens, dim, pool,
             [&](int64_t t) { table.to_bf16(x + t * x_stride, dim, out + t * out_stride); });
  return absl::OkStatus();
}

}  // namespace tessera::cpu
