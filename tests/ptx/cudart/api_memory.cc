// Memory: allocation, copies, device variables.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/ptx/cudart/runtime.h"

namespace tessera::ptx {
namespace {

Runtime& R() { return Runtime::Get(); }

cudaError_t AllocatePinned(void** pointer, size_t bytes) {
  if (pointer == nullptr) return R().Fail(cudaErrorInvalidValue, "a null pointer");
  *pointer = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (*pointer == nullptr) return cudaErrorMemoryAllocation;
  R().pinned[reinterpret_cast<uint64_t>(*pointer)] = bytes;
  R().memory.Add(*pointer, bytes, "page-locked host memory");
  return cudaSuccess;
}

// A copy in a stream. What leaves pageable host memory has left it when the call returns; what goes to or comes from
// page-locked memory takes its time.
cudaError_t EnqueueCopy(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind,
                        cudaStream_t handle) {
  Runtime& r = R();
  EmulatedStream* stream = r.streams.Find(handle);
  if (stream == nullptr) return r.Fail(cudaErrorInvalidResourceHandle, "no such stream");
  const bool from_host = !r.heap.Owns(source) && r.memory.Find(reinterpret_cast<uint64_t>(source)) == nullptr;
  const bool to_host =
      !r.heap.Owns(destination) && r.memory.Find(reinterpret_cast<uint64_t>(destination)) == nullptr;
  if (stream->capture != nullptr || (!from_host && !to_host)) {
    return r.streams.Enqueue(stream, [=, &r] { return r.Copy(destination, source, bytes, kind); });
  }
  if (from_host && !to_host) {
    auto staged = std::make_shared<std::vector<uint8_t>>(static_cast<const uint8_t*>(source),
                                                         static_cast<const uint8_t*>(source) + bytes);
    return r.streams.Enqueue(stream, [=, &r] { return r.Copy(destination, staged->data(), bytes, kind); });
  }
  const cudaError_t error =
      r.streams.Enqueue(stream, [=, &r] { return r.Copy(destination, source, bytes, kind); });
  return error != cudaSuccess ? error : r.streams.RunAll(stream);
}

// The place that a copy to or from a device variable means.
cudaError_t FindSymbol(const void* symbol, size_t bytes, size_t offset, uint8_t** address) {
  uint64_t size = 0;
  absl::StatusOr<void*> variable = R().kernels.FindVariable(symbol, &size);
  if (!variable.ok()) return R().Fail(cudaErrorInvalidSymbol, std::string(variable.status().message()));
  if (offset > size || bytes > size - offset) {
    return R().Fail(cudaErrorInvalidValue, absl::StrCat(bytes, " bytes at offset ", offset,
                                                        " of a device variable of ", size, " bytes"));
  }
  *address = static_cast<uint8_t*>(*variable) + offset;
  return cudaSuccess;
}

}  // namespace
}  // namespace tessera::ptx

using tessera::ptx::Runtime;

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  Runtime& r = Runtime::Get();
  return r.CallThatMayWait("cudaMalloc", [&] {
    if (pointer == nullptr) return r.Fail(cudaErrorInvalidValue, "cudaMalloc: a null pointer");
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    *pointer = r.heap.Allocate(bytes);
    if (*pointer != nullptr) return cudaSuccess;
    return r.Fail(cudaErrorMemoryAllocation,
                  absl::StrCat(bytes, " bytes; ", r.heap.capacity() - r.heap.used(), " of ",
                               r.heap.capacity(), " are free"));
  });
}

cudaError_t cudaFree(void* pointer) {
  Runtime& r = Runtime::Get();
  if (pointer == nullptr) return cudaSuccess;
  return r.CallThatMayWait("cudaFree", [&] {
    const cudaError_t error = r.streams.RunEverything();
    if (!r.heap.Free(pointer)) return r.Fail(cudaErrorInvalidValue, "cudaFree: no allocation starts there");
    return error;
  });
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return Runtime::Get().CallThatMayWait("cudaMallocHost",
                                        [&] { return tessera::ptx::AllocatePinned(pointer, bytes); });
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int) {
  return Runtime::Get().CallThatMayWait("cudaHostAlloc",
                                        [&] { return tessera::ptx::AllocatePinned(pointer, bytes); });
}

cudaError_t cudaFreeHost(void* pointer) {
  Runtime& r = Runtime::Get();
  if (pointer == nullptr) return cudaSuccess;
  return r.CallThatMayWait("cudaFreeHost", [&] {
    const cudaError_t error = r.streams.RunEverything();
    if (r.pinned.erase(reinterpret_cast<uint64_t>(pointer)) == 0) {
      return r.Fail(cudaErrorInvalidValue, "cudaFreeHost: no allocation starts there");
    }
    r.memory.Remove(pointer);
    std::free(pointer);
    return error;
  });
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned int) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    if (!r.IsPinned(host))
      return r.Fail(cudaErrorInvalidValue, "cudaHostGetDevicePointer: not page-locked memory");
    *device = host;
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    *total = r.heap.capacity();
    *free = r.heap.capacity() - r.heap.used();
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpy(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind) {
  Runtime& r = Runtime::Get();
  return r.CallThatMayWait("cudaMemcpy", [&] {
    cudaError_t error = r.streams.Enqueue(r.streams.default_stream(),
                                          [&] { return r.Copy(destination, source, bytes, kind); });
    return error != cudaSuccess ? error : r.streams.RunAll(r.streams.default_stream());
  });
}

cudaError_t cudaMemcpyAsync(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return Runtime::Get().Call(
      [&] { return tessera::ptx::EnqueueCopy(destination, source, bytes, kind, stream); });
}

cudaError_t cudaMemcpy2DAsync(void* destination, size_t destination_pitch, const void* source,
                              size_t source_pitch, size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return Runtime::Get().Call([&] {
    for (size_t row = 0; row < height; ++row) {
      const cudaError_t error = tessera::ptx::EnqueueCopy(
          static_cast<uint8_t*>(destination) + row * destination_pitch,
          static_cast<const uint8_t*>(source) + row * source_pitch, width, kind, stream);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemset(void* destination, int value, size_t bytes) {
  Runtime& r = Runtime::Get();
  return r.CallThatMayWait("cudaMemset", [&] {
    if (const cudaError_t error = r.CheckSet(destination, bytes); error != cudaSuccess) return error;
    return r.streams.Enqueue(r.streams.default_stream(),
                             [=, &r] { return r.Set(destination, value, bytes); });
  });
}

cudaError_t cudaMemsetAsync(void* destination, int value, size_t bytes, cudaStream_t handle) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    if (const cudaError_t error = r.CheckSet(destination, bytes); error != cudaSuccess) return error;
    tessera::ptx::EmulatedStream* stream = r.streams.Find(handle);
    if (stream == nullptr) return r.Fail(cudaErrorInvalidResourceHandle, "no such stream");
    return r.streams.Enqueue(stream, [=, &r] { return r.Set(destination, value, bytes); });
  });
}

cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  return Runtime::Get().Call(
      [&] { return tessera::ptx::FindSymbol(symbol, 0, 0, reinterpret_cast<uint8_t**>(address)); });
}

cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    uint64_t size = 0;
    absl::StatusOr<void*> variable = r.kernels.FindVariable(symbol, &size);
    if (!variable.ok()) return r.Fail(cudaErrorInvalidSymbol, std::string(variable.status().message()));
    *bytes = size;
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* source, size_t bytes, size_t offset,
                               cudaMemcpyKind kind) {
  Runtime& r = Runtime::Get();
  return r.CallThatMayWait("cudaMemcpyToSymbol", [&] {
    uint8_t* address = nullptr;
    cudaError_t error = tessera::ptx::FindSymbol(symbol, bytes, offset, &address);
    if (error == cudaSuccess) error = tessera::ptx::EnqueueCopy(address, source, bytes, kind, nullptr);
    return error != cudaSuccess ? error : r.streams.RunAll(r.streams.default_stream());
  });
}

cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* source, size_t bytes, size_t offset,
                                    cudaMemcpyKind kind, cudaStream_t stream) {
  return Runtime::Get().Call([&] {
    uint8_t* address = nullptr;
    const cudaError_t error = tessera::ptx::FindSymbol(symbol, bytes, offset, &address);
    return error != cudaSuccess ? error : tessera::ptx::EnqueueCopy(address, source, bytes, kind, stream);
  });
}

cudaError_t cudaMemcpyFromSymbol(void* destination, const void* symbol, size_t bytes, size_t offset,
                                 cudaMemcpyKind kind) {
  Runtime& r = Runtime::Get();
  return r.CallThatMayWait("cudaMemcpyFromSymbol", [&] {
    uint8_t* address = nullptr;
    cudaError_t error = tessera::ptx::FindSymbol(symbol, bytes, offset, &address);
    if (error == cudaSuccess) error = tessera::ptx::EnqueueCopy(destination, address, bytes, kind, nullptr);
    return error != cudaSuccess ? error : r.streams.RunAll(r.streams.default_stream());
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    std::memset(attributes, 0, sizeof(*attributes));
    const bool device = r.heap.Owns(pointer), pinned = r.IsPinned(pointer);
    attributes->type = device   ? cudaMemoryTypeDevice
                       : pinned ? cudaMemoryTypeHost
                                : cudaMemoryTypeUnregistered;
    if (device || pinned) attributes->devicePointer = const_cast<void*>(pointer);
    if (!device) attributes->hostPointer = const_cast<void*>(pointer);
    return cudaSuccess;
  });
}

}  // extern "C"
