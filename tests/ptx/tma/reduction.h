// The element-wise reductions of cp.reduce.async.bulk.
#ifndef TESSERA_TESTS_PTX_TMA_REDUCTION_H_
#define TESSERA_TESTS_PTX_TMA_REDUCTION_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tests/ptx/parser/module.h"

namespace tessera::ptx {

// destination[i] = destination[i] op source[i], over `bytes` bytes.
using ReduceFn = void (*)(uint8_t* destination, const uint8_t* source, uint32_t bytes);

// From the instruction's modifiers .redOp and .type. `global`: into global memory, which takes more types.
absl::StatusOr<ReduceFn> FindReduction(const Instruction& i, bool global);

// For tensors, whose element type is the tensor map's: `type` is PTX's name of it.
absl::StatusOr<ReduceFn> FindReduction(std::string_view op, std::string_view type, bool global);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TMA_REDUCTION_H_
