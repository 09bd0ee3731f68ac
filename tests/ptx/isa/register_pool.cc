// setmaxnreg: a CTA's warps hand registers on to each other, within what the CTA was launched with.
#include <algorithm>
#include <vector>

#include "tests/ptx/isa/scalar.h"
#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/launch.h"

namespace tessera::ptx {
namespace {

constexpr uint32_t kRegistersPerSm = 65536;
constexpr int kMostPerThread = 256;

// Registers a thread is launched with: ptxas gives a kernel with setmaxnreg the most that its launch bounds let be, in
// steps of 8.
int AtLaunch(const GridContext& grid) {
  const uint32_t* limit =
      grid.entry->max_threads[0] != 0 ? grid.entry->max_threads : grid.entry->required_threads;
  const uint64_t threads =
      limit[0] != 0 ? uint64_t{limit[0]} * limit[1] * limit[2] : grid.config.block.Count();
  const uint64_t warps = (threads + kWarpSize - 1) / kWarpSize;
  const uint64_t each = kRegistersPerSm / (warps * kWarpSize * std::max(1u, grid.entry->min_ctas));
  return static_cast<int>(std::min<uint64_t>(each, kMostPerThread) / 8 * 8);
}

struct RegisterPool : ExtensionState {
  int launched = 0;       // of each warp
  std::vector<int> each;  // of a warp's threads, by warp
  int free = 0;           // given back, in registers a thread of one warp

  RegisterPool& For(Cta& cta) {
    if (each.empty()) {
      launched = AtLaunch(cta.grid());
      each.assign(cta.warps().size(), launched);
    }
    return *this;
  }
};

void SetMaxRegisters(Warp& w, const Instruction& i) {
  w.RequireConverged(i);
  RegisterPool& pool = w.cta().State<RegisterPool>().For(w.cta());
  const int wanted = static_cast<int>(i.operands[0].value);
  int& mine = pool.each[w.index()];
  const bool grows = i.Has("inc");
  if (grows ? wanted < mine : wanted > mine) {
    Raise(Rule::kResource, Cat("setmaxnreg.", grows ? "inc" : "dec", " to ", wanted,
                               " registers a thread; the warp has ", mine));
  }
  if (wanted - mine > pool.free) {
    w.Wait({.ready = [&pool, more = wanted - mine] { return more <= pool.free; },
            .what = Cat("setmaxnreg.inc to ", wanted, ": ", wanted - mine,
                        " registers a thread more than the warp's ", mine, "; other warps have given back ",
                        pool.free, " (the CTA was launched with ", pool.launched, " a thread)")});
    return;
  }
  pool.free -= wanted - mine;
  mine = wanted;
}

// setmaxnreg.{inc,dec}.sync.aligned.u32 n
absl::Status PrepareSetMaxRegisters(Instruction& i) {
  if (i.operands.size() != 1 || i.operands[0].kind != Operand::Kind::kImmediate) {
    return absl::InvalidArgumentError("setmaxnreg takes an immediate");
  }
  const uint64_t n = i.operands[0].value;
  if (n < 24 || n > 256 || n % 8 != 0) {
    return absl::InvalidArgumentError(Cat("setmaxnreg of ", n, "; 24 to 256 in steps of 8 are allowed"));
  }
  i.execute = SetMaxRegisters;
  return absl::OkStatus();
}

}  // namespace

void RegisterRegisterPool(Registry& registry) { registry.Add("setmaxnreg", PrepareSetMaxRegisters); }

}  // namespace tessera::ptx
