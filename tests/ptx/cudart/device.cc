#include "tests/ptx/cudart/device.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/ptx/machine/shared_memory.h"

namespace tessera::ptx {
namespace {

absl::Status ReadNumber(const char* name, uint64_t least, uint64_t most, uint64_t* value) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == 0) return absl::OkStatus();
  if (!absl::SimpleAtoi(text, value) || *value < least || *value > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is \"", text, "\"; expected a number from ", least, " to ", most));
  }
  return absl::OkStatus();
}

// The index of the word that the variable holds, or 0.
template <size_t kCount>
absl::Status ReadWord(const char* name, const char* const (&words)[kCount], int* value) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == 0) return absl::OkStatus();
  std::string known;
  for (size_t i = 0; i < kCount; ++i) {
    if (std::strcmp(text, words[i]) == 0) {
      *value = static_cast<int>(i);
      return absl::OkStatus();
    }
    absl::StrAppend(&known, i == 0 ? "" : ", ", words[i]);
  }
  return absl::InvalidArgumentError(absl::StrCat(name, " is \"", text, "\"; expected one of ", known));
}

}  // namespace

absl::StatusOr<EmulatedDevice> EmulatedDevice::FromEnvironment() {
  EmulatedDevice device;
  uint64_t sms = device.sms, gigabytes = 16, threads = 0, races = 0, verbose = 0;
  int arch = 0, async = 0, streams = 0;
  for (const absl::Status& status :
       {ReadWord("TESSERA_EMULATOR_ARCH", {"90", "100"}, &arch),
        ReadNumber("TESSERA_EMULATOR_SMS", 1, 1024, &sms),
        ReadNumber("TESSERA_EMULATOR_MEMORY", 1, 512, &gigabytes),
        ReadNumber("TESSERA_EMULATOR_THREADS", 0, 1024, &threads),
        ReadWord("TESSERA_EMULATOR_ASYNC", {"lazy", "eager", "random"}, &async),
        ReadNumber("TESSERA_EMULATOR_SEED", 0, ~uint64_t{0}, &device.execution.seed),
        ReadNumber("TESSERA_EMULATOR_RACES", 0, 1, &races),
        ReadWord("TESSERA_EMULATOR_STREAMS", {"lazy", "eager"}, &streams),
        ReadNumber("TESSERA_EMULATOR_VERBOSE", 0, 1, &verbose)}) {
    if (!status.ok()) return status;
  }
  const char* ptx_list = std::getenv("TESSERA_EMULATOR_PTX");
  device.ptx_list = ptx_list == nullptr || *ptx_list == 0 ? TESSERA_EMULATOR_PTX : ptx_list;
  device.arch = arch == 0 ? 90 : 100;
  device.sms = static_cast<int>(sms);
  device.memory_bytes = gigabytes << 30;
  device.lazy_streams = streams == 0;
  device.verbose = verbose != 0;
  device.execution.check_races = races != 0;
  device.execution.threads = static_cast<int>(threads);
  device.execution.async = async == 0   ? AsyncPolicy::kLazy
                           : async == 1 ? AsyncPolicy::kEager
                                        : AsyncPolicy::kRandom;
  return device;
}

void EmulatedDevice::FillProperties(cudaDeviceProp* p) const {
  std::memset(p, 0, sizeof(*p));
  const std::string name = absl::StrCat("PTX emulator (sm_", arch, "a, ", sms, " multiprocessors)");
  std::strncpy(p->name, name.c_str(), sizeof(p->name) - 1);
  p->totalGlobalMem = memory_bytes;
  p->sharedMemPerBlock = kSharedWithoutOptIn;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = kMaxThreadsPerBlock;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->major = arch / 10;
  p->minor = arch % 10;
  p->multiProcessorCount = sms;
  p->unifiedAddressing = p->canMapHostMemory = 1;
  p->concurrentKernels = 1;
  p->asyncEngineCount = 1;
  p->l2CacheSize = 50 << 20;
  p->maxThreadsPerMultiProcessor = kMaxThreadsPerSm;
  p->sharedMemPerMultiprocessor = kSharedPerSm;
  p->sharedMemPerBlockOptin = kMaxSharedPerCta;
  p->reservedSharedMemPerBlock = kSharedReserved;
  p->maxBlocksPerMultiProcessor = kMaxBlocksPerSm;
  p->cooperativeLaunch = p->clusterLaunch = 1;
}

bool EmulatedDevice::Attribute(cudaDeviceAttr attribute, int* value) const {
  cudaDeviceProp p;
  FillProperties(&p);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = p.maxThreadsPerBlock;
      return true;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(p.sharedMemPerBlock);
      return true;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(p.sharedMemPerBlockOptin);
      return true;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(p.sharedMemPerMultiprocessor);
      return true;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *value = static_cast<int>(p.reservedSharedMemPerBlock);
      return true;
    case cudaDevAttrWarpSize:
      *value = p.warpSize;
      return true;
    case cudaDevAttrMultiProcessorCount:
      *value = p.multiProcessorCount;
      return true;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = p.maxThreadsPerMultiProcessor;
      return true;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *value = p.maxBlocksPerMultiProcessor;
      return true;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      *value = p.regsPerBlock;
      return true;
    case cudaDevAttrComputeCapabilityMajor:
      *value = p.major;
      return true;
    case cudaDevAttrComputeCapabilityMinor:
      *value = p.minor;
      return true;
    case cudaDevAttrL2CacheSize:
      *value = p.l2CacheSize;
      return true;
    case cudaDevAttrClusterLaunch:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
      *value = 1;
      return true;
    case cudaDevAttrClockRate:  // kHz; figures of time from an emulator mean nothing
    case cudaDevAttrMemoryClockRate:
      *value = 1000000;
      return true;
    default:
      return false;
  }
}

}  // namespace tessera::ptx
