#ifndef TESSERA_KERNELS_CUDA_DEVICE_H_
#define TESSERA_KERNELS_CUDA_DEVICE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::cuda {

// What launches ask of the device.
struct DeviceTraits {
  int32_t major = 0;  // of the compute capability: 9 is Hopper, 10 Blackwell
  int32_t sms = 0;    // multiprocessors
};

// Of the device that was current at the first call: a process uses one. Zeros if there is none.
inline const DeviceTraits& ThisDevice() {
  static const DeviceTraits traits = [] {
    DeviceTraits t;
    int device = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&t.major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&t.sms, cudaDevAttrMultiProcessorCount, device);
    return t;
  }();
  return traits;
}

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_DEVICE_H_
