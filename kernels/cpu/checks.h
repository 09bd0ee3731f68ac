// Argument checks shared by the operations. Internal to kernels/cpu.
#ifndef TESSERA_KERNELS_CPU_CHECKS_H_
#define TESSERA_KERNELS_CPU_CHECKS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/linear/packed_linear.h"
#include "kernels/cpu/workspace.h"

#define TESSERA_KERNEL_CHECK(condition, ...)                        \
  do {                                                              \
    if (!(condition)) {                                             \
      return absl::InvalidArgumentError(absl::StrCat(__VA_ARGS__)); \
    }                                                               \
  } while (false)

#define TESSERA_KERNEL_RETURN_IF_ERROR(expression)            \
  do {                                                        \
    if (absl::Status status_ = (expression); !status_.ok()) { \
      return status_;                                         \
    }                                                         \
  } while (false)

namespace tessera::cpu {

inline absl::Status CheckWorkspace(const char* op, Workspace workspace, size_t needed) {
  TESSERA_KERNEL_CHECK(workspace.size >= needed, op, ": workspace of ", workspace.size, " bytes, needs ",
                       needed);
  TESSERA_KERNEL_CHECK(needed == 0 || reinterpret_cast<uintptr_t>(workspace.data) % kWorkspaceAlignment == 0,
                       op, ": workspace must be aligned to ", kWorkspaceAlignment, " bytes");
  TESSERA_KERNEL_CHECK(needed == 0 || workspace.data != nullptr, op, ": null workspace");
  return absl::OkStatus();
}

inline absl::Status CheckWeights(const char* op, const PackedLinear& weights, int64_t k) {
  TESSERA_KERNEL_CHECK(weights.data != nullptr && weights.n > 0 && weights.k > 0, op,
                       ": weights are not packed");
  TESSERA_KERNEL_CHECK(reinterpret_cast<uintptr_t>(weights.data) % kPackedAlignment == 0, op,
                       ": packed weights must be aligned to ", kPackedAlignment, " bytes");
  TESSERA_KERNEL_CHECK(weights.k == k, op, ": weights of shape [", weights.n, ", ", weights.k,
                       "] for an input of ", k, " columns");
  TESSERA_KERNEL_CHECK(weights.format != WeightFormat::kNvfp4 || weights.k % 16 == 0, op,
                       ": NVFP4 weights with ", weights.k, " columns, not a multiple of 16");
  TESSERA_KERNEL_CHECK(weights.format != WeightFormat::kMxfp4 || weights.k % 32 == 0, op,
                       ": MXFP4 weights with ", weights.k, " columns, not a multiple of 32");
  return absl::OkStatus();
}

// A [tokens, dim] matrix with rows `stride` apart.
inline absl::Status CheckMatrix(const char* op, const char* name, const void* data, int64_t stride,
                                int64_t tokens, int64_t dim) {
  TESSERA_KERNEL_CHECK(tokens >= 0 && dim > 0, op, ": ", name, " of shape [", tokens, ", ", dim, "]");
  TESSERA_KERNEL_CHECK(tokens == 0 || data != nullptr, op, ": ", name, " is null");
  TESSERA_KERNEL_CHECK(tokens <= 1 || stride >= dim, op, ": ", name, " has rows of ", dim,
                       " elements but a stride of ", stride);
  return absl::OkStatus();
}

}  // namespace tessera::cpu

#endif  // TESSERA_KERNELS_CPU_CHECKS_H_
