// The device that the emulator claims to be, from environment variables:
//   TESSERA_EMULATOR_ARCH     90 (Hopper, the default) or 100 (Blackwell)
//   TESSERA_EMULATOR_SMS      multiprocessors, 8 by default: fewer than a real device, so that persistent kernels take
//                             many rounds and small grids still leave some idle
//   TESSERA_EMULATOR_MEMORY   GiB of device memory, 16 by default
//   TESSERA_EMULATOR_THREADS  host threads that run CTAs; 0, the default, for one a core
//   TESSERA_EMULATOR_ASYNC    when copies and matrix instructions complete: lazy (the default), eager or random
//   TESSERA_EMULATOR_SEED     order of the warps: 0, the default, in turn, else by this seed
//   TESSERA_EMULATOR_RACES    1: stop at accesses to shared memory that nothing orders (machine/race_detector.h)
//   TESSERA_EMULATOR_STREAMS  when enqueued work runs: lazy (the default: when something waits for it) or eager
//   TESSERA_EMULATOR_PTX      a list of PTX files, for fat binaries without PTX (ptx_files.h); by default those that the
//                             build kept
//   TESSERA_EMULATOR_VERBOSE  1: a line on stderr for each launch
#ifndef TESSERA_TESTS_PTX_CUDART_DEVICE_H_
#define TESSERA_TESTS_PTX_CUDART_DEVICE_H_

#include <driver_types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tests/ptx/machine/launch.h"

namespace tessera::ptx {

struct EmulatedDevice {
  int arch = 90;
  int sms = 8;
  uint64_t memory_bytes = uint64_t{16} << 30;
  bool lazy_streams = true;
  bool verbose = false;
  std::string ptx_list;
  ExecutionOptions execution;

  // InvalidArgument names the variable, its value and what it may be.
  static absl::StatusOr<EmulatedDevice> FromEnvironment();

  void FillProperties(cudaDeviceProp* properties) const;
  // False for an attribute that the emulator does not know.
  bool Attribute(cudaDeviceAttr attribute, int* value) const;
};

// Limits of both architectures.
inline constexpr int kMaxThreadsPerBlock = 1024;
inline constexpr int kMaxThreadsPerSm = 2048;
inline constexpr int kMaxBlocksPerSm = 32;
inline constexpr uint32_t kSharedPerSm = 228 * 1024;
inline constexpr uint32_t kSharedWithoutOptIn = 48 * 1024;

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_CUDART_DEVICE_H_
