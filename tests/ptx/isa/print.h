// Device printf, assert and the other functions that CUDA's device runtime supplies.
#ifndef TESSERA_TESTS_PTX_ISA_PRINT_H_
#define TESSERA_TESTS_PTX_ISA_PRINT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/ptx/machine/warp.h"

namespace tessera::ptx {

// True if the emulator supplies the function; then runs it for the active lanes. `arguments[k]` holds the 32 lanes of
// argument k; `result` those of the return value.
bool CallDeviceRuntime(Warp& w, const std::string& name, const std::vector<std::vector<uint64_t>>& arguments,
                       uint64_t* result);
bool IsDeviceRuntime(const std::string& name);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_ISA_PRINT_H_
