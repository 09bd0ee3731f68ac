#include "tests/ptx/cudart/runtime.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::ptx {
namespace {

const char* PlainErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidSymbol:
      return "invalid device symbol";
    case cudaErrorInvalidMemcpyDirection:
      return "invalid copy direction for memcpy";
    case cudaErrorInvalidDeviceFunction:
      return "invalid device function";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorLaunchOutOfResources:
      return "too many resources requested for launch";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorNotSupported:
      return "operation not supported";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureImplicit:
      return "operation would make the legacy stream depend on a capturing blocking stream";
    default:
      return "error";
  }
}

}  // namespace

thread_local cudaError_t Runtime::last_error_ = cudaSuccess;

Runtime& Runtime::Get() {
  static Runtime* const runtime = [] {
    absl::StatusOr<EmulatedDevice> device = EmulatedDevice::FromEnvironment();
    if (!device.ok()) {
      std::fprintf(stderr, "emulated CUDA runtime: %s\n", std::string(device.status().message()).c_str());
      std::exit(2);
    }
    return new Runtime(*std::move(device));
  }();
  return *runtime;
}

Runtime::Runtime(EmulatedDevice emulated)
    : device(std::move(emulated)),
      heap(memory, device.memory_bytes),
      kernels(memory, device.arch, device.ptx_list),
      streams(device.lazy_streams) {}

cudaError_t Runtime::Fail(cudaError_t error, std::string reason) {
  reasons_[error] = std::move(reason);
  return error;
}

cudaError_t Runtime::Fault(cudaError_t error, std::string reason) {
  std::fprintf(stderr, "emulated kernel failed: %s\n", reason.c_str());
  sticky_ = error;
  streams.DropEverything();
  return Fail(error, std::move(reason));
}

void Runtime::Reset() {
  std::lock_guard lock(mutex_);
  streams.DropEverything();
  sticky_ = last_error_ = cudaSuccess;
  reasons_.clear();
}

cudaError_t Runtime::TakeLastError(bool reset) {
  std::lock_guard lock(mutex_);
  const cudaError_t error = last_error_;
  if (reset) last_error_ = cudaSuccess;
  return sticky_ != cudaSuccess ? sticky_ : error;
}

const char* Runtime::ErrorString(cudaError_t error) {
  std::lock_guard lock(mutex_);
  std::string text = PlainErrorString(error);
  if (text == "error") absl::StrAppend(&text, " ", static_cast<int>(error));
  const auto reason = reasons_.find(error);
  if (error != cudaSuccess && reason != reasons_.end()) absl::StrAppend(&text, ": ", reason->second);
  return strings_.try_emplace(text, text).first->second.c_str();
}

cudaError_t Runtime::CheckNoCapture(const char* name) {
  EmulatedStream* capturing = streams.CaptureOf(std::this_thread::get_id());
  if (capturing == nullptr) return cudaSuccess;
  capturing->broken = absl::StrCat(name, " while a stream is captured");
  return Fail(cudaErrorStreamCaptureUnsupported, capturing->broken);
}

bool Runtime::IsPinned(const void* pointer) const {
  const uint64_t address = reinterpret_cast<uint64_t>(pointer);
  auto after = pinned.upper_bound(address);
  if (after == pinned.begin()) return false;
  --after;
  return address < after->first + after->second;
}

cudaError_t Runtime::CheckRange(const void* pointer, size_t bytes, const char* what) {
  const uint64_t address = reinterpret_cast<uint64_t>(pointer);
  const GlobalMemory::Allocation* allocation = memory.Find(address);
  if (allocation == nullptr && !heap.Owns(pointer)) return cudaSuccess;  // the host's
  if (allocation == nullptr || address + bytes > allocation->base + allocation->size) {
    return Fail(cudaErrorInvalidValue,
                absl::StrCat(what, ": ", bytes, " bytes at 0x", absl::Hex(address),
                             " are not all in one allocation: ",
                             allocation ? absl::StrCat(allocation->name, " has ", allocation->size,
                                                       " bytes from 0x", absl::Hex(allocation->base))
                                        : memory.Nearest(address)));
  }
  return cudaSuccess;
}

cudaError_t Runtime::Copy(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return cudaSuccess;
  if (destination == nullptr || source == nullptr) return Fail(cudaErrorInvalidValue, "copy: a null pointer");
  const auto on_device = [&](const void* p) {
    return heap.Owns(p) || (memory.Find(reinterpret_cast<uint64_t>(p)) && !IsPinned(p));
  };
  const bool to_device = on_device(destination), from_device = on_device(source);
  const bool says_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool says_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  // Pinned memory may be called the device's: it has an address there.
  if (kind != cudaMemcpyDefault && ((says_to != to_device && !(says_to && IsPinned(destination))) ||
                                    (says_from != from_device && !(says_from && IsPinned(source))))) {
    return Fail(
        cudaErrorInvalidMemcpyDirection,
        absl::StrCat("copy from ", from_device ? "device" : "host", " to ", to_device ? "device" : "host",
                     " memory with cudaMemcpyKind ", static_cast<int>(kind)));
  }
  for (const auto& [pointer, what] :
       {std::pair{static_cast<const void*>(destination), "copy to"}, {source, "copy from"}}) {
    if (const cudaError_t error = CheckRange(pointer, bytes, what); error != cudaSuccess) return error;
  }
  if (from_device) {
    const int64_t undefined = memory.FirstUndefined(source, bytes);
    if (undefined >= 0) {
      return Fault(cudaErrorLaunchFailure,
                   absl::StrCat("copy of ", bytes, " bytes from ",
                                memory.Find(reinterpret_cast<uint64_t>(source))->name,
                                ": nothing has written byte ", undefined, " of them"));
    }
  }
  std::memmove(destination, source, bytes);
  if (to_device) memory.MarkDefined(destination, bytes);
  return cudaSuccess;
}

cudaError_t Runtime::CheckSet(const void* destination, size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  if (destination == nullptr) return Fail(cudaErrorInvalidValue, "memset: a null pointer");
  if (memory.Find(reinterpret_cast<uint64_t>(destination)) == nullptr && !heap.Owns(destination)) {
    return Fail(cudaErrorInvalidValue, "memset: not device memory");
  }
  return CheckRange(destination, bytes, "memset");
}

cudaError_t Runtime::Set(void* destination, int value, size_t bytes) {
  if (const cudaError_t error = CheckSet(destination, bytes); error != cudaSuccess || bytes == 0)
    return error;
  std::memset(destination, value, bytes);
  memory.MarkDefined(destination, bytes);
  return cudaSuccess;
}

}  // namespace tessera::ptx
