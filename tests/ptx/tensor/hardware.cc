#include "tests/ptx/tensor/hardware.h"

#include <dlfcn.h>

#include <cstring>

#include "absl/strings/str_format.h"

namespace tessera::ptx {
namespace {

// The few functions of the CUDA driver API that are needed, by their stable names and signatures.
struct Driver {
  using Result = int;
  using Address = unsigned long long;
  Result (*Init)(unsigned) = nullptr;
  Result (*DeviceGet)(int*, int) = nullptr;
  Result (*PrimaryCtxRetain)(void**, int) = nullptr;
  Result (*CtxSetCurrent)(void*) = nullptr;
  Result (*CtxSynchronize)() = nullptr;
  Result (*ModuleLoadDataEx)(void**, const void*, unsigned, int*, void**) = nullptr;
  Result (*ModuleUnload)(void*) = nullptr;
  Result (*ModuleGetFunction)(void**, void*, const char*) = nullptr;
  Result (*FuncSetAttribute)(void*, int, int) = nullptr;
  Result (*MemAlloc)(Address*, size_t) = nullptr;
  Result (*MemFree)(Address) = nullptr;
  Result (*MemcpyHtoD)(Address, const void*, size_t) = nullptr;
  Result (*MemcpyDtoH)(void*, Address, size_t) = nullptr;
  Result (*LaunchKernel)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                         void**, void**) = nullptr;
  bool ready = false;
};

template <class F>
bool Find(void* library, const char* name, F*& function) {
  function = reinterpret_cast<F*>(dlsym(library, name));
  return function != nullptr;
}

const Driver& LoadDriver() {
  static const Driver driver = [] {
    Driver d;
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return d;
    const bool found =
        Find(library, "cuInit", d.Init) && Find(library, "cuDeviceGet", d.DeviceGet) &&
        Find(library, "cuDevicePrimaryCtxRetain", d.PrimaryCtxRetain) &&
        Find(library, "cuCtxSetCurrent", d.CtxSetCurrent) &&
        Find(library, "cuCtxSynchronize", d.CtxSynchronize) &&
        Find(library, "cuModuleLoadDataEx", d.ModuleLoadDataEx) &&
        Find(library, "cuModuleUnload", d.ModuleUnload) &&
        Find(library, "cuModuleGetFunction", d.ModuleGetFunction) &&
        Find(library, "cuFuncSetAttribute", d.FuncSetAttribute) &&
        Find(library, "cuMemAlloc_v2", d.MemAlloc) && Find(library, "cuMemFree_v2", d.MemFree) &&
        Find(library, "cuMemcpyHtoD_v2", d.MemcpyHtoD) && Find(library, "cuMemcpyDtoH_v2", d.MemcpyDtoH) &&
        Find(library, "cuLaunchKernel", d.LaunchKernel);
    int device;
    void* context;
    d.ready = found && d.Init(0) == 0 && d.DeviceGet(&device, 0) == 0 &&
              d.PrimaryCtxRetain(&context, device) == 0 && d.CtxSetCurrent(context) == 0;
    return d;
  }();
  return driver;
}

absl::Status Failed(const char* what, Driver::Result result) {
  return absl::InternalError(absl::StrFormat("CUDA driver: %s failed with code %d", what, result));
}

}  // namespace

absl::Status RunOnHardware(const std::string& ptx, const std::string& entry, uint32_t ctas, uint32_t threads,
                           uint32_t shared_bytes, std::vector<std::byte> params,
                           const std::vector<HardwareBuffer>& buffers) {
  const Driver& driver = LoadDriver();
  if (!driver.ready) return absl::UnavailableError("no CUDA driver or no device");
  constexpr int kErrorLog = 5, kErrorLogBytes = 6;  // CU_JIT_ERROR_LOG_BUFFER and its size
  constexpr int kMaxDynamicShared = 8;              // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
  char log[4096] = {};
  int options[] = {kErrorLog, kErrorLogBytes};
  void* values[] = {log, reinterpret_cast<void*>(sizeof(log))};
  void* module;
  if (int r = driver.ModuleLoadDataEx(&module, ptx.c_str(), 2, options, values); r != 0) {
    return absl::InternalError(
        absl::StrFormat("CUDA driver: the PTX does not compile (code %d): %s", r, log));
  }
  void* function;
  if (int r = driver.ModuleGetFunction(&function, module, entry.c_str()); r != 0)
    return Failed("cuModuleGetFunction", r);
  if (int r = driver.FuncSetAttribute(function, kMaxDynamicShared, static_cast<int>(shared_bytes)); r != 0) {
    return Failed("cuFuncSetAttribute", r);
  }
  std::vector<Driver::Address> addresses(buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (int r = driver.MemAlloc(&addresses[i], buffers[i].bytes); r != 0) return Failed("cuMemAlloc", r);
    if (int r = driver.MemcpyHtoD(addresses[i], buffers[i].data, buffers[i].bytes); r != 0)
      return Failed("copy in", r);
    std::memcpy(&params[buffers[i].param_offset], &addresses[i], sizeof(addresses[i]));
  }
  // CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END.
  size_t param_bytes = params.size();
  void* config[] = {reinterpret_cast<void*>(1), params.data(), reinterpret_cast<void*>(2), &param_bytes,
                    nullptr};
  if (int r =
          driver.LaunchKernel(function, ctas, 1, 1, threads, 1, 1, shared_bytes, nullptr, nullptr, config);
      r != 0) {
    return Failed("cuLaunchKernel", r);
  }
  if (int r = driver.CtxSynchronize(); r != 0) return Failed("the kernel", r);
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (int r = driver.MemcpyDtoH(buffers[i].data, addresses[i], buffers[i].bytes); r != 0)
      return Failed("copy out", r);
    driver.MemFree(addresses[i]);
  }
  driver.ModuleUnload(module);
  return absl::OkStatus();
}

}  // namespace tessera::ptx
