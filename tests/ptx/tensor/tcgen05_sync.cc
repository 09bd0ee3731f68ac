// tcgen05.commit, tcgen05.fence::before_thread_sync, tcgen05.fence::after_thread_sync.
//
// Source: PTX ISA, "TensorCore 5th Generation Async Synchronization Operations". A commit arrives on its mbarrier, once,
// when all mma and cp that the thread issued before it are complete.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/registry.h"
#include "tests/ptx/machine/warp.h"
#include "tests/ptx/tensor/handlers.h"
#include "tests/ptx/tensor/tcgen05.h"
#include "tests/ptx/tensor/tensor_memory.h"

namespace tessera::ptx {
namespace {

struct CommitPayload : Payload {
  int cta_group = 1;
  bool generic = true;
  bool multicast = false;
};

void ExecuteCommit(Warp& warp, const Instruction& i) {
  warp.RequireSingleLane(i);
  const auto& p = i.As<CommitPayload>();
  RequireCtaGroup(warp, p.cta_group);
  const int lane = warp.first_active();
  uint64_t address = warp.AddressLane(i.operands[0], lane);
  if (p.generic && Warp::Classify(address, &address) != Space::kSharedCluster) {
    RaiseAt(lane, Rule::kWrongSpace,
            absl::StrFormat("tcgen05.commit: the mbarrier's address 0x%x is not in shared memory",
                            warp.AddressLane(i.operands[0], lane)));
  }
  uint32_t offset;
  Cta& named = warp.cluster().Resolve(address, &offset);
  std::vector<Cta*> targets;
  if (p.multicast) {
    const auto mask = static_cast<uint32_t>(warp.SourceLane(i.operands[1], lane) & 0xffff);
    auto& ctas = warp.cluster().ctas();
    for (uint32_t rank = 0; rank < 16; ++rank) {
      if (!(mask >> rank & 1)) continue;
      if (rank >= ctas.size()) {
        RaiseAt(lane, Rule::kBadOperand,
                absl::StrFormat("tcgen05.commit: the CTA mask 0x%x names rank %d of a cluster of "
                                "%d CTAs",
                                mask, rank, ctas.size()));
      }
      targets.push_back(ctas[rank].get());
    }
  } else {
    targets.push_back(&named);
  }
  for (Cta* target : targets) target->shared().At(offset);  // raises if there is no mbarrier
  Cluster& cluster = warp.cluster();
  auto& cluster_state = cluster.State<TmemClusterState>();
  std::vector<TmemOperation*> covered = std::exchange(warp.State<TmemWarpState>().uncommitted[lane], {});
  cluster.async().Post(
      warp, {absl::StrFormat("tcgen05.commit (line %d)", i.where.line), TensorCoreChain(warp),
             [targets = std::move(targets), covered = std::move(covered), offset, &cluster, &cluster_state] {
               const uint64_t now = ++cluster_state.tick;
               for (TmemOperation* operation : covered) operation->done = now;
               for (Cta* target : targets) target->shared().At(offset).Arrive(1);
               cluster.NoteProgress();
             }});
}

absl::Status PrepareCommit(Instruction& i) {
  absl::StatusOr<int> cta_group = ParseCtaGroup(i);
  if (!cta_group.ok()) return cta_group.status();
  auto payload = std::make_unique<CommitPayload>();
  payload->cta_group = *cta_group;
  payload->generic = !i.Has("shared::cluster");
  payload->multicast = i.Has("multicast::cluster");
  if (!i.Has("mbarrier::arrive::one")) return absl::InvalidArgumentError("needs .mbarrier::arrive::one");
  if (i.operands.size() != (payload->multicast ? 2u : 1u) || i.operands[0].kind != Operand::Kind::kAddress) {
    return absl::InvalidArgumentError(payload->multicast ? "takes [mbar] and a CTA mask" : "takes [mbar]");
  }
  i.payload = std::move(payload);
  i.execute = ExecuteCommit;
  return absl::OkStatus();
}

template <uint64_t (TmemWarpState::*kFences)[kWarpSize]>
void ExecuteFence(Warp& warp, const Instruction&) {
  const uint64_t now = ++warp.cluster().State<TmemClusterState>().tick;
  auto& fences = warp.State<TmemWarpState>().*kFences;
  ForLanes(warp.active(), [&](int lane) { fences[lane] = now; });
}

template <uint64_t (TmemWarpState::*kFences)[kWarpSize]>
absl::Status PrepareFence(Instruction& i) {
  i.execute = ExecuteFence<kFences>;
  return absl::OkStatus();
}

}  // namespace

void RegisterTcgen05Sync(Registry& registry) {
  registry.Add("tcgen05.commit", PrepareCommit);
  registry.Add("tcgen05.fence::before_thread_sync", PrepareFence<&TmemWarpState::before_fence>);
  registry.Add("tcgen05.fence::after_thread_sync", PrepareFence<&TmemWarpState::after_fence>);
}

}  // namespace tessera::ptx
