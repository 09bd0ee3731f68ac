// The non-bulk cp.async: copies of 4, 8 or 16 bytes a lane from global to shared memory, in groups of the thread (PTX ISA,
// "Data Movement and Conversion Instructions: Asynchronous copy").
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tests/ptx/isa/scalar.h"
#include "tests/ptx/machine/cluster.h"

namespace tessera::ptx {
namespace {

// Copies of one lane between two commits.
struct Group {
  int pending = 0;
  std::vector<std::function<void()>> when_done;

  void Complete() {
    if (--pending > 0) return;
    for (auto& f : when_done) f();
    when_done.clear();
  }
};

struct CopyGroups : ExtensionState {
  struct Lane {
    std::shared_ptr<Group> open = std::make_shared<Group>();
    std::vector<std::shared_ptr<Group>> committed;  // oldest first
  };
  Lane lanes[kWarpSize];
};

struct Copy {
  int lane;
  uint64_t from;
  uint32_t to;
  uint32_t read;  // bytes; the rest is zero
  Cta* cta;
  std::shared_ptr<Group> group;
};

void CopyAsync(Warp& w, const Instruction& i) {
  auto copies = std::make_shared<std::vector<Copy>>();
  auto& groups = w.State<CopyGroups>();
  const auto bytes = static_cast<uint32_t>(i.operands[2].value);
  const Operand* limit = i.operands.size() > 3 ? &i.operands[3] : nullptr;
  // The fourth operand is a source size or a predicate that ignores the source; a policy has 64 bits.
  const bool ignores = limit != nullptr && limit->IsRegister() && limit->width == 0;
  const bool sizes = limit != nullptr && !ignores && !(limit->IsRegister() && limit->width == 8);
  const LaneMask ignored = ignores ? w.SourcePredicate(*limit) : 0;
  ForLanes(w.active(), [&](int l) {
    const uint64_t from = w.AddressLane(i.operands[1], l);
    const uint64_t to = w.AddressLane(i.operands[0], l);
    const uint32_t read = InMask(ignored, l) ? 0
                          : sizes            ? static_cast<uint32_t>(w.SourceLane(*limit, l))
                                             : bytes;
    if (read > bytes)
      RaiseAt(l, Rule::kBadOperand, Cat("cp.async with a source of ", read, " bytes for ", bytes));
    if (from % bytes != 0 || to % bytes != 0) {
      RaiseAt(l, Rule::kMisalignedAddress,
              Cat("cp.async of ", bytes, " bytes from ", Hex(from), " to shared ", Hex(to)));
    }
    if (read > 0) w.global().Check(from, read, w.global_hint(), "cp.async");
    uint32_t offset;
    Cta& cta = w.cluster().Resolve(to, &offset);
    if (&cta != &w.cta()) RaiseAt(l, Rule::kWrongSpace, "cp.async to another CTA's shared memory");
    cta.shared().BeginAsyncWrite(offset, bytes);
    auto& group = groups.lanes[l].open;
    ++group->pending;
    copies->push_back({l, from, offset, read, &cta, group});
  });
  w.cluster().async().Post(w, {Cat("cp.async of ", bytes, " bytes a lane"), 0, [&w, copies, bytes] {
                                 for (const Copy& copy : *copies) {
                                   uint8_t data[16] = {};
                                   if (copy.read > 0) w.global().Read(copy.from, copy.read, data);
                                   copy.cta->shared().EndAsyncWrite(copy.to, bytes);
                                   copy.cta->shared().Store(copy.to, bytes, data, w.cluster_index());
                                   copy.group->Complete();
                                 }
                                 w.cluster().NoteProgress();
                               }});
}

absl::Status PrepareCopy(Instruction& i) {
  if (i.operands.size() < 3 || i.operands[2].kind != Operand::Kind::kImmediate) return NeedOperands(i, 3);
  const uint64_t bytes = i.operands[2].value;
  const bool allowed = i.Has("cg") ? bytes == 16 : bytes == 4 || bytes == 8 || bytes == 16;
  if (!allowed) return absl::InvalidArgumentError(Cat("cp.async of ", bytes, " bytes"));
  i.execute = CopyAsync;
  return absl::OkStatus();
}

void CommitGroup(Warp& w, const Instruction&) {
  auto& groups = w.State<CopyGroups>();
  ForLanes(w.active(), [&](int l) {
    auto& lane = groups.lanes[l];
    lane.committed.push_back(std::move(lane.open));
    lane.open = std::make_shared<Group>();
    // Forget the oldest that are done.
    const auto first = std::find_if(lane.committed.begin(), lane.committed.end(),
                                    [](const auto& g) { return g->pending > 0; });
    lane.committed.erase(lane.committed.begin(), first);
  });
}

// All but the n most recent groups are done.
bool MayGoOn(CopyGroups& groups, LaneMask lanes, uint64_t n, bool all) {
  bool good = true;
  ForLanes(lanes, [&](int l) {
    auto& lane = groups.lanes[l];
    if (all && lane.open->pending > 0) good = false;
    const size_t count = lane.committed.size();
    for (size_t k = 0; k + n < count; ++k) good &= lane.committed[k]->pending == 0;
  });
  return good;
}

void WaitGroup(Warp& w, const Instruction& i) {
  auto& groups = w.State<CopyGroups>();
  const bool all = i.Has("wait_all");
  const uint64_t n = all ? 0 : i.operands[0].value;
  if (MayGoOn(groups, w.active(), n, all)) return;
  w.Wait({.ready = [&groups, lanes = w.active(), n, all] { return MayGoOn(groups, lanes, n, all); },
          .what = all ? "cp.async.wait_all" : Cat("cp.async.wait_group ", n)});
}

// cp.async.mbarrier.arrive{.noinc}.shared.b64 [address]: an arrival when the thread's copies so far are done.
void ArriveWhenDone(Warp& w, const Instruction& i) {
  auto& groups = w.State<CopyGroups>();
  ForLanes(w.active(), [&](int l) {
    uint64_t address = w.AddressLane(i.operands[0], l);
    if (Warp::Classify(address, &address) == Space::kGlobal && address >> 32 != 0) {
      RaiseAt(l, Rule::kWrongSpace, Cat("mbarrier at ", Hex(address), ", which is no shared memory"));
    }
    uint32_t offset;
    SharedMemory& memory = w.cluster().Resolve(address, &offset).shared();
    if (!i.Has("noinc")) memory.At(offset).AddPending();
    std::vector<std::shared_ptr<Group>> pending;
    auto& lane = groups.lanes[l];
    for (auto& g : lane.committed) {
      if (g->pending > 0) pending.push_back(g);
    }
    if (lane.open->pending > 0) pending.push_back(lane.open);
    if (pending.empty()) {
      memory.At(offset).Arrive(1);
      return;
    }
    auto left = std::make_shared<size_t>(pending.size());
    for (auto& g : pending) {
      g->when_done.push_back([left, &memory, offset] {
        if (--*left == 0) memory.At(offset).Arrive(1);
      });
    }
  });
  w.cluster().NoteProgress();
}

template <ExecuteFn kExecute, size_t kOperands>
absl::Status PrepareAs(Instruction& i) {
  i.execute = kExecute;
  return NeedOperands(i, kOperands);
}

}  // namespace

void RegisterCopyAsync(Registry& registry) {
  registry.Add("cp.async", PrepareCopy);
  registry.Add("cp.async.commit_group", PrepareAs<CommitGroup, 0>);
  registry.Add("cp.async.wait_group", PrepareAs<WaitGroup, 1>);
  registry.Add("cp.async.wait_all", PrepareAs<WaitGroup, 0>);
  registry.Add("cp.async.mbarrier.arrive", PrepareAs<ArriveWhenDone, 1>);
}

}  // namespace tessera::ptx
