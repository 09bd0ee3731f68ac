#include "tests/ptx/machine/launch.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/fault.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

// Warp instructions that a cluster runs before the thread looks at its other clusters.
constexpr uint64_t kClusterTurn = 1 << 20;

absl::Status Check(const Function& entry, LaunchConfig& config, size_t params) {
  const auto invalid = [&](std::string what) {
    return absl::InvalidArgumentError(Cat("launch of ", entry.name, ": ", what));
  };
  if (!entry.is_entry || !entry.has_body) return invalid("not a kernel");
  const Dim3 grid = config.grid, block = config.block;
  if (grid.Count() == 0 || block.Count() == 0) return invalid("a grid or block without threads");
  if (grid.x > 0x7FFFFFFF || grid.y > 65535 || grid.z > 65535) {
    return invalid(
        Cat("grid of ", grid.x, " x ", grid.y, " x ", grid.z, "; the limits are 2^31-1, 65535 and 65535"));
  }
  if (block.x > 1024 || block.y > 1024 || block.z > 64 || block.Count() > 1024) {
    return invalid(Cat("block of ", block.x, " x ", block.y, " x ", block.z, "; the limit is 1024 threads"));
  }
  const uint32_t* limit = entry.max_threads;
  if (limit[0] != 0 && block.Count() > uint64_t{limit[0]} * limit[1] * limit[2]) {
    return invalid(Cat("block of ", block.Count(), " threads; .maxntid allows ",
                       uint64_t{limit[0]} * limit[1] * limit[2]));
  }
  const uint32_t* required = entry.required_threads;
  if (required[0] != 0 && !(block == Dim3{required[0], required[1], required[2]})) {
    return invalid(Cat("block of ", block.x, " x ", block.y, " x ", block.z, "; .reqntid says ", required[0],
                       " x ", required[1], " x ", required[2]));
  }
  if (entry.required_cluster[0] != 0) {
    const Dim3 fixed{entry.required_cluster[0], entry.required_cluster[1], entry.required_cluster[2]};
    if (config.cluster.Count() != 1 && !(config.cluster == fixed))
      return invalid("cluster differs from .reqnctapercluster");
    config.cluster = fixed;
  }
  const Dim3 cluster = config.cluster;
  if (cluster.Count() == 0 || cluster.Count() > 16)
    return invalid(Cat("cluster of ", cluster.Count(), " CTAs; the limit is 16"));
  if (grid.x % cluster.x != 0 || grid.y % cluster.y != 0 || grid.z % cluster.z != 0) {
    return invalid("the grid is no multiple of the cluster");
  }
  const uint64_t shared = uint64_t{entry.static_shared} + config.dynamic_shared_bytes;
  if (shared > kMaxSharedPerCta) {
    return invalid(Cat(shared, " bytes of shared memory (", entry.static_shared, " static, ",
                       config.dynamic_shared_bytes, " dynamic); the limit is ", kMaxSharedPerCta,
                       " (227 KB)"));
  }
  if (params < entry.param_bytes)
    return invalid(Cat(params, " bytes of parameters; the kernel takes ", entry.param_bytes));
  return absl::OkStatus();
}

class GridRunner {
 public:
  explicit GridRunner(GridContext& grid) : grid_(grid) {
    const Dim3 g = grid.config.grid, c = grid.config.cluster;
    shape_ = {g.x / c.x, g.y / c.y, g.z / c.z};
  }

  absl::Status Run() {
    uint64_t threads =
        grid_.options.threads > 0 ? grid_.options.threads : std::max(1u, std::thread::hardware_concurrency());
    threads = std::min<uint64_t>(threads, shape_.Count());
    const uint64_t resident =
        std::max<uint64_t>(1, grid_.options.resident_ctas / grid_.config.cluster.Count());
    const size_t each = std::max<uint64_t>(1, (resident + threads - 1) / threads);
    std::vector<std::thread> others;
    for (uint64_t t = 1; t < threads; ++t) others.emplace_back([this, each] { Work(each); });
    Work(each);
    for (std::thread& t : others) t.join();
    return status_;
  }

 private:
  // Runs clusters in turns. A new one starts when those at hand have had a turn without an end, or have ended.
  void Work(size_t resident) {
    std::vector<std::unique_ptr<Cluster>> clusters;
    bool more = true;
    while (!grid_.stop.load(std::memory_order_relaxed)) {
      if (more && clusters.size() < resident) {
        const uint64_t n = next_.fetch_add(1);
        if (n < shape_.Count()) {
          const Dim3 id{static_cast<uint32_t>(n % shape_.x), static_cast<uint32_t>(n / shape_.x % shape_.y),
                        static_cast<uint32_t>(n / shape_.x / shape_.y)};
          clusters.push_back(
              std::make_unique<Cluster>(grid_, id, grid_.options.seed * 0x9E3779B97F4A7C15u + n));
        } else {
          more = false;
        }
      }
      if (clusters.empty()) return;
      try {
        std::erase_if(clusters, [&](auto& cluster) {
          if (!cluster->Run(kClusterTurn)) return false;
          grid_.warp_instructions.fetch_add(cluster->now(), std::memory_order_relaxed);
          return true;
        });
      } catch (const FaultError& fault) {
        std::lock_guard lock(mutex_);
        grid_.stop = true;
        if (status_.ok()) {
          std::string text = Cat(RuleName(fault.rule), ": ", fault.message);
          text += fault.location.empty() ? Cat("\n  in kernel ", grid_.entry->name)
                                         : Cat("\n  at ", fault.location);
          status_ = absl::FailedPreconditionError(text);
        }
      }
    }
  }

  GridContext& grid_;
  Dim3 shape_;
  std::atomic<uint64_t> next_{0};
  std::mutex mutex_;
  absl::Status status_;
};

}  // namespace

absl::Status Launch(const Program& program, const Function& entry, const LaunchConfig& config,
                    std::span<const std::byte> params, GlobalMemory& memory, const ExecutionOptions& options,
                    LaunchStatistics* statistics) {
  GridContext grid;
  grid.program = &program;
  grid.entry = &entry;
  grid.config = config;
  grid.options = options;
  grid.options.resident_ctas = std::max(1, options.resident_ctas);
  grid.memory = &memory;
  if (absl::Status status = Check(entry, grid.config, params.size()); !status.ok()) return status;

  // Aligned as a tensor map in it wants to be.
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{128}); }
  };
  const size_t bytes = std::max<size_t>(entry.param_bytes, 1);
  std::unique_ptr<std::byte[], Free> block(
      static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{128})));
  std::memcpy(block.get(), params.data(), entry.param_bytes);
  grid.params = block.get();
  grid.param_bytes = entry.param_bytes;

  const auto start = std::chrono::steady_clock::now();
  const absl::Status status = GridRunner(grid).Run();
  if (statistics != nullptr) {
    statistics->warp_instructions = grid.warp_instructions;
    statistics->lane_instructions = grid.lane_instructions;
    statistics->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  return status;
}

}  // namespace tessera::ptx
