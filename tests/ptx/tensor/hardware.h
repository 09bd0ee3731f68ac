// Runs PTX text on a GPU through the CUDA driver, to hold the emulator against hardware. Nothing of CUDA is needed to build
// this: the driver's library is opened when asked for.
#ifndef TESSERA_TESTS_PTX_TENSOR_HARDWARE_H_
#define TESSERA_TESTS_PTX_TENSOR_HARDWARE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace tessera::ptx {

// A buffer of device memory whose address goes into the parameters.
struct HardwareBuffer {
  size_t param_offset = 0;
  void* data = nullptr;  // copied in before and out after the launch
  size_t bytes = 0;
};

// Compiles `ptx` with the driver and launches `entry` in `ctas` blocks of `threads`. `params` is the block of parameters.
// Unavailable without a driver or a device; Internal with the driver's words otherwise.
absl::Status RunOnHardware(const std::string& ptx, const std::string& entry, uint32_t ctas, uint32_t threads,
                           uint32_t shared_bytes, std::vector<std::byte> params,
                           const std::vector<HardwareBuffer>& buffers);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TENSOR_HARDWARE_H_
