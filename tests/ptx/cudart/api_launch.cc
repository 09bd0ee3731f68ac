// Registration of device code and launches of kernels. The functions with two underscores are what nvcc's host code
// calls; crt/host_runtime.h and crt/device_functions.h declare them.
#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/ptx/cudart/runtime.h"
#include "tests/ptx/machine/shared_memory.h"

namespace tessera::ptx {
namespace {

struct PendingLaunch {
  dim3 grid, block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};
thread_local std::vector<PendingLaunch> pending_launches;

Dim3 ToDim3(const dim3& d) { return {d.x, d.y, d.z}; }

std::string ToString(const Dim3& d) { return absl::StrCat(d.x, "x", d.y, "x", d.z); }

// A kernel's name as it is written in C++.
std::string ReadableName(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : mangled;
}

cudaError_t FailToFind(const absl::Status& status) {
  return Runtime::Get().Fail(
      absl::IsFailedPrecondition(status) ? cudaErrorNoKernelImageForDevice : cudaErrorInvalidDeviceFunction,
      std::string(status.message()));
}

cudaError_t FindKernel(const void* function, Kernel** kernel) {
  absl::StatusOr<Kernel*> found = Runtime::Get().kernels.FindKernel(function);
  if (!found.ok()) return FailToFind(found.status());
  *kernel = *found;
  return cudaSuccess;
}

uint32_t MaxDynamicShared(const Kernel& kernel) {
  const uint32_t reserved = std::min(kernel.entry->static_shared, kSharedWithoutOptIn);
  return kernel.max_dynamic_shared.value_or(kSharedWithoutOptIn - reserved);
}

// CTAs of this size that an SM holds. The registers that ptxas would give a thread are not known: a kernel's
// __launch_bounds__ are taken at their word, else registers are no limit.
int CtasPerSm(const Kernel& kernel, uint64_t threads, uint64_t dynamic_shared) {
  if (threads == 0 || threads > kMaxThreadsPerBlock || dynamic_shared > MaxDynamicShared(kernel)) return 0;
  const uint64_t warps = (threads + 31) / 32;
  const uint64_t shared = kernel.entry->static_shared + dynamic_shared + kSharedReserved;
  return static_cast<int>(
      std::min<uint64_t>({kMaxBlocksPerSm, kMaxThreadsPerSm / 32 / warps, kSharedPerSm / shared}));
}

cudaError_t CheckLaunch(const Kernel& kernel, const LaunchConfig& config) {
  Runtime& r = Runtime::Get();
  const auto fail = [&](cudaError_t error, const std::string& reason) {
    return r.Fail(error, absl::StrCat(ReadableName(kernel.name), ": ", reason));
  };
  const Dim3 &grid = config.grid, &block = config.block, &cluster = config.cluster;
  if (grid.Count() == 0 || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) {
    return fail(cudaErrorInvalidConfiguration,
                absl::StrCat("a grid of ", ToString(grid), "; expected 1 to 2147483647, 65535 and 65535"));
  }
  if (block.Count() == 0 || block.Count() > kMaxThreadsPerBlock || block.z > 64) {
    return fail(cudaErrorInvalidConfiguration,
                absl::StrCat("a block of ", ToString(block), " threads; expected 1 to 1024, z at most 64"));
  }
  const Function& entry = *kernel.entry;
  const uint64_t most = uint64_t{entry.max_threads[0]} * std::max(1u, entry.max_threads[1]) *
                        std::max(1u, entry.max_threads[2]);
  if (most != 0 && block.Count() > most) {
    return fail(
        cudaErrorLaunchOutOfResources,
        absl::StrCat("a block of ", block.Count(), " threads; __launch_bounds__ says at most ", most));
  }
  if (config.dynamic_shared_bytes > MaxDynamicShared(kernel)) {
    return fail(cudaErrorInvalidValue,
                absl::StrCat(config.dynamic_shared_bytes, " bytes of dynamic shared memory; ",
                             kernel.max_dynamic_shared ? "cudaFuncSetAttribute allowed "
                                                       : "without cudaFuncSetAttribute at most ",
                             MaxDynamicShared(kernel)));
  }
  const uint64_t ctas = cluster.Count();
  if (ctas == 0 || grid.x % cluster.x != 0 || grid.y % cluster.y != 0 || grid.z % cluster.z != 0) {
    return fail(cudaErrorInvalidConfiguration,
                absl::StrCat("clusters of ", ToString(cluster), " do not divide a grid of ", ToString(grid)));
  }
  if (ctas > (kernel.non_portable_cluster ? 16u : 8u)) {
    return fail(cudaErrorInvalidConfiguration,
                absl::StrCat("clusters of ", ctas,
                             " CTAs; at most 8, or 16 with cudaFuncAttributeNonPortableClusterSizeAllowed"));
  }
  return cudaSuccess;
}

// Runs a grid. Parameters were copied when the kernel was launched.
cudaError_t RunKernel(const Kernel& kernel, const LaunchConfig& config, const std::vector<std::byte>& params,
                      bool cooperative) {
  Runtime& r = Runtime::Get();
  ExecutionOptions options = r.device.execution;
  const uint64_t resident = uint64_t(r.device.sms) *
                            std::max(1, CtasPerSm(kernel, config.block.Count(), config.dynamic_shared_bytes));
  if (cooperative && config.grid.Count() > resident) {
    return r.Fail(cudaErrorCooperativeLaunchTooLarge,
                  absl::StrCat(kernel.name, ": ", config.grid.Count(), " CTAs; the device holds ", resident));
  }
  options.resident_ctas = static_cast<int>(std::min<uint64_t>(resident, 1 << 20));
  LaunchStatistics statistics;
  const absl::Status status =
      Launch(r.kernels.ProgramOf(kernel), *kernel.entry, config, params, r.memory, options, &statistics);
  if (r.device.verbose) {
    std::fprintf(stderr, "emulated %s<<<%s, %s, %u>>>: %.3f s, %llu warp instructions\n",
                 ReadableName(kernel.name).c_str(), ToString(config.grid).c_str(),
                 ToString(config.block).c_str(), config.dynamic_shared_bytes, statistics.seconds,
                 static_cast<unsigned long long>(statistics.warp_instructions));
  }
  if (status.ok()) return cudaSuccess;
  return r.Fault(cudaErrorLaunchFailure,
                 absl::StrReplaceAll(status.message(), {{kernel.name, ReadableName(kernel.name)}}));
}

cudaError_t EnqueueKernel(Kernel* kernel, LaunchConfig config, void** arguments, cudaStream_t handle,
                          bool cooperative) {
  Runtime& r = Runtime::Get();
  if (absl::Status status = r.kernels.Load(kernel); !status.ok()) return FailToFind(status);
  const Function& entry = *kernel->entry;
  if (config.cluster.Count() == 1 && entry.required_cluster[0] != 0) {
    config.cluster = {entry.required_cluster[0], std::max(1u, entry.required_cluster[1]),
                      std::max(1u, entry.required_cluster[2])};
  }
  if (const cudaError_t error = CheckLaunch(*kernel, config); error != cudaSuccess) return error;
  EmulatedStream* stream = r.streams.Find(handle);
  if (stream == nullptr) return r.Fail(cudaErrorInvalidResourceHandle, "no such stream");
  auto params = std::make_shared<std::vector<std::byte>>(entry.param_bytes);
  for (size_t i = 0; i < entry.params.size(); ++i) {
    if (arguments == nullptr || arguments[i] == nullptr) {
      return r.Fail(cudaErrorInvalidValue, absl::StrCat(kernel->name, ": argument ", i, " is missing"));
    }
    std::memcpy(params->data() + entry.params[i]->address, arguments[i], entry.params[i]->Size());
  }
  return r.streams.Enqueue(stream, [=] { return RunKernel(*kernel, config, *params, cooperative); });
}

LaunchConfig MakeConfig(const dim3& grid, const dim3& block, size_t shared) {
  LaunchConfig config;
  config.grid = ToDim3(grid);
  config.block = ToDim3(block);
  config.dynamic_shared_bytes = static_cast<uint32_t>(std::min<size_t>(shared, ~uint32_t{0}));
  return config;
}

}  // namespace
}  // namespace tessera::ptx

using tessera::ptx::Kernel;
using tessera::ptx::KernelModule;
using tessera::ptx::Runtime;

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  return reinterpret_cast<void**>(Runtime::Get().kernels.AddModule(wrapper));
}

void __cudaRegisterFatBinaryEnd(void**) {}

// The program is ending; what its static destructors still use stays.
void __cudaUnregisterFatBinary(void**) {}

char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void** module, const char* host, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  Runtime::Get().kernels.AddKernel(reinterpret_cast<KernelModule*>(module), host, name);
}

void __cudaRegisterVar(void** module, char* host, char*, const char* name, int, size_t bytes, int, int) {
  Runtime::Get().kernels.AddVariable(reinterpret_cast<KernelModule*>(module), host, name, bytes);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  tessera::ptx::pending_launches.push_back({grid, block, shared, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  if (tessera::ptx::pending_launches.empty()) return cudaErrorMissingConfiguration;
  const auto launch = tessera::ptx::pending_launches.back();
  tessera::ptx::pending_launches.pop_back();
  *grid = launch.grid;
  *block = launch.block;
  *shared = launch.shared;
  *static_cast<cudaStream_t*>(stream) = launch.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  return Runtime::Get().Call([&] {
    Kernel* found = nullptr;
    const cudaError_t error = tessera::ptx::FindKernel(function, &found);
    *kernel = reinterpret_cast<cudaKernel_t>(found);
    return error;
  });
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                               cudaStream_t stream) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    // Null: __cudaGetKernel failed, and said why.
    if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
    return tessera::ptx::EnqueueKernel(reinterpret_cast<Kernel*>(kernel),
                                       tessera::ptx::MakeConfig(grid, block, shared), arguments, stream,
                                       false);
  });
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                             cudaStream_t stream) {
  return Runtime::Get().Call([&] {
    Kernel* kernel = nullptr;
    const cudaError_t error = tessera::ptx::FindKernel(function, &kernel);
    if (error != cudaSuccess) return error;
    return tessera::ptx::EnqueueKernel(kernel, tessera::ptx::MakeConfig(grid, block, shared), arguments,
                                       stream, false);
  });
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                        size_t shared, cudaStream_t stream) {
  return Runtime::Get().Call([&] {
    Kernel* kernel = nullptr;
    const cudaError_t error = tessera::ptx::FindKernel(function, &kernel);
    if (error != cudaSuccess) return error;
    return tessera::ptx::EnqueueKernel(kernel, tessera::ptx::MakeConfig(grid, block, shared), arguments,
                                       stream, true);
  });
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* launch, const void* function, void** arguments) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    Kernel* kernel = nullptr;
    if (const cudaError_t error = tessera::ptx::FindKernel(function, &kernel); error != cudaSuccess)
      return error;
    tessera::ptx::LaunchConfig config =
        tessera::ptx::MakeConfig(launch->gridDim, launch->blockDim, launch->dynamicSmemBytes);
    bool cooperative = false;
    for (unsigned i = 0; i < launch->numAttrs; ++i) {
      const cudaLaunchAttribute& attribute = launch->attrs[i];
      switch (attribute.id) {
        case cudaLaunchAttributeClusterDimension:
          config.cluster = {attribute.val.clusterDim.x, attribute.val.clusterDim.y,
                            attribute.val.clusterDim.z};
          break;
        case cudaLaunchAttributeCooperative:
          cooperative = attribute.val.cooperative != 0;
          break;
        case cudaLaunchAttributeIgnore:
        case cudaLaunchAttributePriority:
        case cudaLaunchAttributeAccessPolicyWindow:
        case cudaLaunchAttributeClusterSchedulingPolicyPreference:
        case cudaLaunchAttributeProgrammaticStreamSerialization:  // grids of a stream run one after the other
          break;
        default:
          return r.Fail(
              cudaErrorNotSupported,
              absl::StrCat("launch attribute ", static_cast<int>(attribute.id), " is not emulated"));
      }
    }
    return tessera::ptx::EnqueueKernel(kernel, config, arguments, launch->stream, cooperative);
  });
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    Kernel* kernel = nullptr;
    if (const cudaError_t error = tessera::ptx::FindKernel(function, &kernel); error != cudaSuccess)
      return error;
    const uint32_t most = tessera::ptx::kMaxSharedPerCta -
                          std::min(kernel->entry->static_shared, tessera::ptx::kMaxSharedPerCta);
    switch (attribute) {
      case cudaFuncAttributeMaxDynamicSharedMemorySize:
        if (value < 0 || static_cast<uint32_t>(value) > most) {
          return r.Fail(
              cudaErrorInvalidValue,
              absl::StrCat(kernel->name, ": ", value, " bytes of dynamic shared memory; the device has ",
                           most, " beside the ", kernel->entry->static_shared, " static ones"));
        }
        kernel->max_dynamic_shared = value;
        return cudaSuccess;
      case cudaFuncAttributePreferredSharedMemoryCarveout:
        return value >= -1 && value <= 100
                   ? cudaSuccess
                   : r.Fail(cudaErrorInvalidValue, "a carveout is -1 or 0 to 100 percent");
      case cudaFuncAttributeNonPortableClusterSizeAllowed:
        kernel->non_portable_cluster = value != 0;
        return cudaSuccess;
      default:
        return r.Fail(cudaErrorNotSupported,
                      absl::StrCat("function attribute ", static_cast<int>(attribute), " is not emulated"));
    }
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    Kernel* kernel = nullptr;
    if (const cudaError_t error = tessera::ptx::FindKernel(function, &kernel); error != cudaSuccess)
      return error;
    std::memset(attributes, 0, sizeof(*attributes));
    attributes->sharedSizeBytes = kernel->entry->static_shared;
    attributes->maxDynamicSharedSizeBytes = static_cast<int>(tessera::ptx::MaxDynamicShared(*kernel));
    attributes->maxThreadsPerBlock = kernel->entry->max_threads[0] != 0
                                         ? static_cast<int>(kernel->entry->max_threads[0])
                                         : tessera::ptx::kMaxThreadsPerBlock;
    attributes->ptxVersion = attributes->binaryVersion = r.device.arch;
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void* function,
                                                                   int threads, size_t shared, unsigned int) {
  return Runtime::Get().Call([&] {
    Kernel* kernel = nullptr;
    if (const cudaError_t error = tessera::ptx::FindKernel(function, &kernel); error != cudaSuccess)
      return error;
    *count = tessera::ptx::CtasPerSm(*kernel, std::max(0, threads), shared);
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, const void* function, int threads,
                                                          size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count, function, threads, shared, 0);
}

cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void* function,
                                           const cudaLaunchConfig_t* launch) {
  int ctas = 0;
  const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
      &ctas, function, static_cast<int>(launch->blockDim.x * launch->blockDim.y * launch->blockDim.z),
      launch->dynamicSmemBytes, 0);
  unsigned cluster = 1;
  for (unsigned i = 0; i < launch->numAttrs; ++i) {
    if (launch->attrs[i].id != cudaLaunchAttributeClusterDimension) continue;
    const auto& d = launch->attrs[i].val.clusterDim;
    cluster = std::max(1u, d.x * d.y * d.z);
  }
  *count = ctas * Runtime::Get().device.sms / static_cast<int>(cluster);
  return error;
}

}  // extern "C"
