// The tensor-core instructions: ldmatrix, stmatrix, movmatrix, mma.sync, wgmma, tcgen05.
#ifndef TESSERA_TESTS_PTX_TENSOR_REGISTER_H_
#define TESSERA_TESTS_PTX_TENSOR_REGISTER_H_

#include "tests/ptx/machine/registry.h"

namespace tessera::ptx {

void RegisterTensor(Registry& registry);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TENSOR_REGISTER_H_
