// Floating-point arithmetic by type: float.cc has f32, f64 and f32x2, half.cc f16, bf16 and their pairs.
#ifndef TESSERA_TESTS_PTX_ISA_FLOAT_H_
#define TESSERA_TESTS_PTX_ISA_FLOAT_H_

#include "absl/status/status.h"
#include "tests/ptx/parser/module.h"

namespace tessera::ptx {

// add, sub, mul, mad, fma, div, min, max, neg, abs of any floating type. i.type is set.
absl::Status PrepareFloatArithmetic(Instruction& i);
absl::Status PrepareHalfArithmetic(Instruction& i);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_ISA_FLOAT_H_
