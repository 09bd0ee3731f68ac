// Runs a grid.
#ifndef TESSERA_TESTS_PTX_MACHINE_LAUNCH_H_
#define TESSERA_TESTS_PTX_MACHINE_LAUNCH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "tests/ptx/machine/async_queue.h"
#include "tests/ptx/machine/global_memory.h"
#include "tests/ptx/machine/lanes.h"
#include "tests/ptx/machine/program.h"

namespace tessera::ptx {

struct LaunchConfig {
  Dim3 grid, block;
  Dim3 cluster;  // 1,1,1: none, or what the kernel's .reqnctapercluster says
  uint32_t dynamic_shared_bytes = 0;
};

struct ExecutionOptions {
  int threads = 0;  // host threads; 0: as many as cores
  AsyncPolicy async = AsyncPolicy::kLazy;
  uint64_t seed = 0;        // 0: warps take turns in order; else order and turn length vary
  int resident_ctas = 132;  // CTAs that take turns; a grid that spins on others needs them all resident
  uint64_t instruction_limit = uint64_t{1} << 40;  // warp instructions of one cluster
  bool check_races = false;                        // machine/race_detector.h
  // Called for every instruction executed, with a line of text. From many threads unless threads is 1.
  std::function<void(const std::string&)> trace;
  // Device printf and assert messages; stdout and stderr if not set.
  std::function<void(const std::string&)> print;
};

struct LaunchStatistics {
  uint64_t warp_instructions = 0;
  uint64_t lane_instructions = 0;
  double seconds = 0;
};

// What all clusters of a launch share.
struct GridContext {
  const Program* program;
  const Function* entry;
  LaunchConfig config;
  ExecutionOptions options;
  const GlobalMemory* memory;
  const std::byte* params;  // aligned 64; its address is what cvta.param gives
  uint32_t param_bytes;
  std::atomic<uint64_t> warp_instructions{0};
  std::atomic<uint64_t> lane_instructions{0};
  std::atomic<bool> stop{false};
};

// Runs to the end of the grid or to the first fault, whose status says where and which rule:
//   FailedPrecondition "misaligned address: ld.global.v4.u32 at 0x... needs 16 bytes; kernel ..., line 12 ..."
// Bad launch parameters are InvalidArgument. `params` holds the kernel's parameters at their offsets (Variable::address
// in entry.params), entry.param_bytes of them. `memory` must be the one that the program was loaded with.
absl::Status Launch(const Program& program, const Function& entry, const LaunchConfig& config,
                    std::span<const std::byte> params, GlobalMemory& memory, const ExecutionOptions& options,
                    LaunchStatistics* statistics = nullptr);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_MACHINE_LAUNCH_H_
