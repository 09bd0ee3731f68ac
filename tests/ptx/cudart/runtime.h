// The state behind the replacement of the CUDA runtime library: one emulated device for the process.
//
// The functions of cuda_runtime_api.h in api_*.cc are thin: each runs its work through Runtime::Call, which holds the
// lock, answers with the fault of an earlier kernel if there was one, and keeps the error for cudaGetLastError. The
// reason of an error, which CUDA does not tell, is part of what cudaGetErrorString says; a kernel's fault is printed on
// stderr as well.
#ifndef TESSERA_TESTS_PTX_CUDART_RUNTIME_H_
#define TESSERA_TESTS_PTX_CUDART_RUNTIME_H_

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/ptx/cudart/device.h"
#include "tests/ptx/cudart/device_heap.h"
#include "tests/ptx/cudart/kernel_table.h"
#include "tests/ptx/cudart/stream.h"
#include "tests/ptx/machine/global_memory.h"

namespace tessera::ptx {

class Runtime {
 public:
  // Never destroyed: static destructors of the program may still call.
  static Runtime& Get();

  // Runs f() -> cudaError_t under the lock.
  template <class F>
  cudaError_t Call(F&& f) {
    std::lock_guard lock(mutex_);
    cudaError_t error = sticky_;
    if (error == cudaSuccess) error = f();
    if (error != cudaSuccess) last_error_ = error;
    return error;
  }
  // The same for calls that may wait for the device, which a capture in this thread forbids.
  template <class F>
  cudaError_t CallThatMayWait(const char* name, F&& f) {
    return Call([&] {
      const cudaError_t error = CheckNoCapture(name);
      return error == cudaSuccess ? f() : error;
    });
  }

  // Keeps the reason for cudaGetErrorString and returns the error.
  cudaError_t Fail(cudaError_t error, std::string reason);
  // A kernel broke a rule: every later call fails with `error`, until cudaDeviceReset.
  cudaError_t Fault(cudaError_t error, std::string reason);
  void Reset();

  cudaError_t TakeLastError(bool reset);
  const char* ErrorString(cudaError_t error);

  // Copies now. The kind is derived from the pointers and compared with what the caller said.
  cudaError_t Copy(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind);
  cudaError_t Set(void* destination, int value, size_t bytes);
  cudaError_t CheckSet(const void* destination, size_t bytes);
  // Fails with a reason unless all the bytes are in one allocation of the device. Host memory passes.
  cudaError_t CheckRange(const void* pointer, size_t bytes, const char* what);

  EmulatedDevice device;
  GlobalMemory memory;
  DeviceHeap heap;
  KernelTable kernels;
  StreamSet streams;
  std::map<uint64_t, uint64_t> pinned;  // page-locked host memory: address, bytes
  std::vector<EmulatedEvent*> events;

  bool IsPinned(const void* pointer) const;

 private:
  explicit Runtime(EmulatedDevice emulated);
  cudaError_t CheckNoCapture(const char* name);

  std::recursive_mutex mutex_;  // host functions of a stream may call back
  cudaError_t sticky_ = cudaSuccess;
  static thread_local cudaError_t last_error_;
  std::map<cudaError_t, std::string> reasons_;
  std::map<std::string, std::string> strings_;  // what ErrorString gave out, by text: never freed
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_CUDART_RUNTIME_H_
