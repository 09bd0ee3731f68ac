// Fences (PTX ISA, "membar, fence"). Memory here is sequentially consistent among the threads of a cluster; what the
// fences change is what the async proxy may see.
#include <atomic>

#include "tests/ptx/isa/scalar.h"
#include "tests/ptx/machine/cluster.h"

namespace tessera::ptx {
namespace {

void MemoryFence(Warp&, const Instruction&) { std::atomic_thread_fence(std::memory_order_seq_cst); }

void AsyncProxyFence(Warp& w, const Instruction&) { w.cluster().FenceProxyAsync(w); }

void MbarrierInitFence(Warp& w, const Instruction&) {
  for (auto& cta : w.cluster().ctas()) cta->shared().FenceMbarrierInit(w.cluster_index());
}

absl::Status PrepareFence(Instruction& i) {
  i.execute = MemoryFence;
  if (i.Has("mbarrier_init")) i.execute = MbarrierInitFence;
  // The form for global memory alone says nothing of shared memory.
  if (i.Has("proxy") && !i.Has("global")) {
    for (const std::string& m : i.modifiers) {
      if (m.starts_with("async")) i.execute = AsyncProxyFence;
    }
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterFence(Registry& registry) {
  registry.Add("fence", PrepareFence);
  registry.Add("membar", PrepareFence);
}

}  // namespace tessera::ptx
