#include "tests/ptx/machine/cluster.h"

#include <algorithm>

#include "tests/ptx/machine/fault.h"
#include "tests/ptx/machine/launch.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

// Rounds in which nothing but timed-out waits ran, before that counts as a deadlock.
constexpr int kStuckRounds = 200;
// Rounds in which every warp that ran gave way, before other clusters have their turn: the warps may poll what those write.
constexpr int kPollingRounds = 8;
// Warp instructions of one turn.
constexpr int kTurn = 256;

uint32_t WarpsOf(const GridContext& grid) {
  return static_cast<uint32_t>((grid.config.block.Count() + kWarpSize - 1) / kWarpSize);
}

uint32_t DynamicOffset(const GridContext& grid) {
  uint32_t align = 16;
  for (const auto& v : grid.program->module().variables) {
    if (v->space == Space::kSharedCta && v->elements == 0) align = std::max(align, v->align);
  }
  return (kSharedReserved + grid.entry->static_shared + align - 1) / align * align;
}

}  // namespace

Cta::Cta(Cluster& cluster, Dim3 id, uint32_t rank)
    : cluster_(cluster),
      id_(id),
      rank_(rank),
      dynamic_shared_offset_(DynamicOffset(cluster.grid())),
      shared_(dynamic_shared_offset_ - kSharedReserved + cluster.grid().config.dynamic_shared_bytes,
              static_cast<int>(WarpsOf(cluster.grid()) * cluster.grid().config.cluster.Count())) {
  const uint64_t threads = grid().config.block.Count();
  const uint32_t warps = WarpsOf(grid());
  for (uint32_t w = 0; w < warps; ++w) {
    const uint64_t lanes = std::min<uint64_t>(threads - uint64_t{w} * kWarpSize, kWarpSize);
    const LaneMask mask = lanes == kWarpSize ? kAllLanes : (LaneMask{1} << lanes) - 1;
    warps_.push_back(std::make_unique<Warp>(*this, w, rank * warps + w, mask));
  }
}

const GridContext& Cta::grid() const { return cluster_.grid(); }

bool Cta::exited() const {
  return std::all_of(warps_.begin(), warps_.end(), [](const auto& w) { return w->exited(); });
}

Cluster::Cluster(GridContext& grid, Dim3 id, uint64_t seed)
    : grid_(grid), id_(id), random_(seed), async_(grid.options.async, seed ^ 0x9E3779B97F4A7C15u) {
  const Dim3 shape = grid.config.cluster;
  barrier_.SetThreads(static_cast<uint32_t>(grid.config.block.Count() * shape.Count()));
  if (grid.options.check_races) {
    races_ = std::make_unique<RaceDetector>(static_cast<int>(WarpsOf(grid) * shape.Count()));
  }
  for (uint32_t rank = 0; rank < shape.Count(); ++rank) {
    const Dim3 cta{id.x * shape.x + rank % shape.x, id.y * shape.y + rank / shape.x % shape.y,
                   id.z * shape.z + rank / shape.x / shape.y};
    ctas_.push_back(std::make_unique<Cta>(*this, cta, rank));
    if (races_ != nullptr) ctas_.back()->shared().DetectRaces(*races_);
    for (auto& warp : ctas_.back()->warps()) warps_.push_back(warp.get());
  }
}

Cluster::~Cluster() = default;

Cta& Cluster::Resolve(uint64_t address, uint32_t* offset) {
  const uint64_t rank = address >> kSharedWindowBits;
  if (rank >= ctas_.size()) {
    Raise(Rule::kOutOfBounds, Cat("shared address ", Hex(address), " is in the window of CTA ", rank,
                                  " of a cluster of ", ctas_.size()));
  }
  if (ctas_[rank]->exited()) {
    Raise(Rule::kOutOfBounds, Cat("shared address ", Hex(address), " belongs to CTA ", rank,
                                  " of the cluster, all of whose threads have exited"));
  }
  *offset = static_cast<uint32_t>(address & ((1u << kSharedWindowBits) - 1));
  return *ctas_[rank];
}

void Cluster::NoteSynchronised(const Warp& warp) {
  for (auto& cta : ctas_) cta->shared().NoteSynchronised(warp.cluster_index());
}

void Cluster::FenceProxyAsync(const Warp& warp) {
  for (auto& cta : ctas_) cta->shared().FenceProxyAsync(warp.cluster_index());
}

std::string Cluster::DescribeWaits() const {
  std::string text;
  for (Warp* warp : warps_) {
    if (!warp->exited()) text += warp->Describe();
  }
  for (const auto& cta : ctas_) {
    for (const auto& [offset, barrier] : cta->shared().mbarriers()) {
      text += Cat("\n  mbarrier at shared offset ", Hex(offset), " of CTA rank ", cta->rank(), ": ",
                  barrier.Describe());
    }
  }
  return text + async_.Describe();
}

bool Cluster::Run(uint64_t budget) {
  const uint64_t end = now_ + budget;
  const bool vary = grid_.options.seed != 0;
  int polling = 0;  // rounds
  while (now_ < end && !grid_.stop.load(std::memory_order_relaxed)) {
    const auto turn = [&](Warp* warp, bool desperate) {
      int ran = 0;
      warp->Run(vary ? 1 + static_cast<int>(random_() % (2 * kTurn)) : kTurn, desperate, &ran);
      now_ += ran;
      async_.CompleteDue(now_);
      return ran > 0;
    };
    if (vary) std::shuffle(warps_.begin(), warps_.end(), random_);
    bool ran = false, worked = false, all_exited = true;
    for (Warp* warp : warps_) {
      if (warp->exited()) continue;
      all_exited = false;
      if (!turn(warp, false)) continue;
      ran = true;
      worked |= !warp->yielded();
    }
    if (all_exited) {
      Finish();
      return true;
    }
    if (now_ > grid_.options.instruction_limit) {
      Raise(Rule::kInstructionLimit,
            Cat("the cluster has executed ", now_, " warp instructions without an end:", DescribeWaits()));
    }
    polling = ran && !worked ? polling + 1 : 0;
    if (polling >= kPollingRounds) return false;
    if (ran) continue;
    if (async_.CompleteOne()) {
      stuck_ = 0;
      continue;
    }
    // Nothing goes on by itself. Lanes behind their warp's first group may, and waits that time out.
    if (progress_ != stuck_since_) stuck_ = 0;
    stuck_since_ = progress_;
    ++stuck_;
    for (Warp* warp : warps_) {
      if (warp->exited() || !turn(warp, true)) continue;
      ran = true;
      if (!warp->ran_by_timeout()) stuck_ = 0;
    }
    if (!ran || stuck_ > kStuckRounds) {
      Raise(Rule::kDeadlock,
            Cat("no thread of the cluster can go on, and no asynchronous operation is under way:",
                DescribeWaits()));
    }
  }
  return false;
}

void Cluster::Finish() {
  while (async_.CompleteOne()) {
  }
  for (auto& cta : ctas_) {
    for (auto& [type, state] : cta->states_) state->OnCtaExit(*cta);
  }
}

}  // namespace tessera::ptx
