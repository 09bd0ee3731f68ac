#include "tests/ptx/tma/bulk_groups.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/fault.h"
#include "tests/ptx/machine/warp.h"
#include "tests/ptx/tma/register.h"

namespace tessera::ptx {

template <class F>
void BulkGroups::ForEachCovered(LaneMask lanes, uint64_t keep, F&& f) const {
  ForLanes(lanes, [&](int lane) {
    const auto& committed = lanes_[lane].committed;
    for (size_t i = 0; i + keep < committed.size(); ++i) {
      for (const auto& operation : committed[i]) f(*operation);
    }
  });
}

std::shared_ptr<BulkOperation> BulkGroups::Begin(int lane, std::string what) {
  lanes_[lane].open.push_back(std::make_shared<BulkOperation>(BulkOperation{std::move(what)}));
  return lanes_[lane].open.back();
}

void BulkGroups::Commit(int lane) { lanes_[lane].committed.push_back(std::exchange(lanes_[lane].open, {})); }

bool BulkGroups::Ready(LaneMask lanes, uint64_t keep, bool read) const {
  bool ready = true;
  ForEachCovered(lanes, keep, [&](const BulkOperation& o) { ready = ready && (read ? o.read : o.done); });
  return ready;
}

std::string BulkGroups::Describe(LaneMask lanes, uint64_t keep, bool read) const {
  std::string first;
  ForEachCovered(lanes, keep, [&](const BulkOperation& o) {
    if (first.empty() && !(read ? o.read : o.done)) first = o.what;
  });
  return absl::StrCat("all but the latest ", keep, " bulk groups to have ",
                      read ? "read their sources" : "completed",
                      "; pending: ", first.empty() ? "nothing" : first);
}

void BulkGroups::Finish(LaneMask lanes, uint64_t keep) {
  ForEachCovered(lanes, keep, [](BulkOperation& o) { o.waited = true; });
  ForLanes(lanes, [&](int lane) {
    auto& committed = lanes_[lane].committed;
    while (committed.size() > keep) {
      for (const auto& operation : committed.front()) {
        if (!operation->done) return;
      }
      committed.pop_front();
    }
  });
}

void BulkGroups::CheckAllWaited() const {
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const auto check = [&](const Group& group, const char* state) {
      for (const auto& operation : group) {
        if (operation->waited) continue;
        RaiseAt(
            lane, Rule::kGroup,
            absl::StrCat(
                operation->what, " was ", state,
                " when the CTA ended: its shared memory could be reused while it is still being read "
                "(expected cp.async.bulk.commit_group and cp.async.bulk.wait_group or .wait_group.read)"));
      }
    };
    for (const Group& group : lanes_[lane].committed) check(group, "not waited for");
    check(lanes_[lane].open, "in no committed group");
  }
}

BulkGroups& CtaBulkGroups::Of(Warp& warp) { return warp.cta().State<CtaBulkGroups>().warps_[warp.index()]; }

void CtaBulkGroups::OnCtaExit(Cta&) {
  for (const auto& [warp, groups] : warps_) groups.CheckAllWaited();
}

namespace {

absl::Status PrepareCommit(Instruction& i) {
  i.execute = [](Warp& warp, const Instruction&) {
    BulkGroups& groups = CtaBulkGroups::Of(warp);
    ForLanes(warp.active(), [&](int lane) { groups.Commit(lane); });
  };
  return absl::OkStatus();
}

absl::Status PrepareWait(Instruction& i) {
  if (i.operands.size() != 1 || i.operands[0].kind != Operand::Kind::kImmediate) {
    return absl::InvalidArgumentError(
        "expected one immediate operand, the number of groups that may be pending");
  }
  i.execute = [](Warp& warp, const Instruction& i) {
    BulkGroups& groups = CtaBulkGroups::Of(warp);
    const uint64_t keep = i.operands[0].value;
    const bool read = i.Has("read");
    const LaneMask lanes = warp.active();
    if (!groups.Ready(lanes, keep, read)) {
      WaitCondition wait;
      wait.ready = [&groups, lanes, keep, read] { return groups.Ready(lanes, keep, read); };
      wait.what = groups.Describe(lanes, keep, read);
      warp.Wait(std::move(wait));
      return;
    }
    groups.Finish(lanes, keep);
  };
  return absl::OkStatus();
}

}  // namespace

void RegisterBulkGroups(Registry& registry) {
  registry.Add("cp.async.bulk.commit_group", PrepareCommit);
  registry.Add("cp.async.bulk.wait_group", PrepareWait);
}

}  // namespace tessera::ptx
