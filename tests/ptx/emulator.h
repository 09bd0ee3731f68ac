// The whole emulator: all instruction families registered.
#ifndef TESSERA_TESTS_PTX_EMULATOR_H_
#define TESSERA_TESTS_PTX_EMULATOR_H_

#include "tests/ptx/machine/global_memory.h"
#include "tests/ptx/machine/launch.h"
#include "tests/ptx/machine/program.h"
#include "tests/ptx/machine/registry.h"

namespace tessera::ptx {

const Registry& FullRegistry();

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_EMULATOR_H_
