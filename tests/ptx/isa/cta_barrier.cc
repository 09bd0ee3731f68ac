// barrier.cta and bar (PTX ISA, "bar, barrier"). bar is barrier with .aligned.
#include <bit>
#include <cstdint>

#include "tests/ptx/isa/scalar.h"
#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/launch.h"

namespace tessera::ptx {
namespace {

struct BarrierPayload : Payload {
  enum class Kind { kSync, kArrive, kPopc, kAnd, kOr } kind;
  bool aligned;
  size_t first;  // operand of the barrier's number
  int threads;   // operand of the thread count, or -1
  int predicate = -1;
};

uint32_t LiveThreads(Cta& cta) {
  uint32_t live = 0;
  for (auto& warp : cta.warps()) live += std::popcount(warp->live());
  return live;
}

void StoreResult(const BarrierPayload& p, const Instruction& i, const CtaBarriers::State& s, Frame& frame,
                 LaneMask lanes) {
  const Operand& to = i.operands[0];
  if (p.predicate < 0 || !to.IsRegister()) return;
  if (p.kind == BarrierPayload::Kind::kPopc) {
    uint32_t* r = frame.Lanes<uint32_t>(to);
    ForLanes(lanes, [&](int l) { r[l] = s.result_popc; });
  } else {
    const bool holds = p.kind == BarrierPayload::Kind::kAnd ? s.result_and != 0 : s.result_or != 0;
    LaneMask& r = *frame.Lanes<LaneMask>(to);
    r = holds ? r | lanes : r & ~lanes;
  }
  frame.defined[to.reg] |= lanes;
}

void Execute(Warp& w, const Instruction& i) {
  const auto& p = i.As<BarrierPayload>();
  if (p.aligned) w.RequireConverged(i);
  const uint64_t id = w.SourceUniform(i.operands[p.first], "the barrier's number");
  if (id >= CtaBarriers::kCount) Raise(Rule::kBarrier, Cat("barrier ", id, "; there are 0 to 15"));
  CtaBarriers& barriers = w.cta().barriers();
  CtaBarriers::State& s = barriers[static_cast<int>(id)];
  // With a thread count, a whole warp counts as 32.
  uint32_t arriving = std::popcount(w.active());
  uint32_t expected;
  if (p.threads >= 0) {
    expected = static_cast<uint32_t>(w.SourceUniform(i.operands[p.threads], "the barrier's thread count"));
    if (expected == 0 || expected % kWarpSize != 0) {
      Raise(Rule::kBarrier, Cat("barrier ", id, " with ", expected, " threads, which is no multiple of 32"));
    }
    const uint32_t warps = static_cast<uint32_t>(w.cta().warps().size());
    if (expected > warps * kWarpSize) {
      Raise(Rule::kBarrier, Cat("barrier ", id, " with ", expected, " threads in a CTA of ", warps,
                                " warps: it can never complete"));
    }
    if (w.active() == w.live()) arriving = kWarpSize;
  } else {
    expected = LiveThreads(w.cta());
    barriers.UsesAllThreads(static_cast<int>(id));
  }
  if (p.predicate >= 0) {
    const LaneMask c = w.SourcePredicate(i.operands[p.predicate]) & w.active();
    s.popc += std::popcount(c);
    s.ballot_or |= c != 0;
    s.ballot_and &= c == w.active();
  }
  const uint64_t generation = s.generation;
  RaceDetector* const races = w.cluster().races();
  if (races != nullptr) races->Release(s.known, generation);
  barriers.Arrive(static_cast<int>(id), arriving, expected);
  w.cluster().NoteProgress();
  if (p.kind == BarrierPayload::Kind::kArrive) return;
  if (s.generation != generation) {
    w.cluster().NoteSynchronised(w);
    if (races != nullptr) races->Acquire(s.known, s.generation);
    StoreResult(p, i, s, w.frame(), w.active());
    return;
  }
  WaitCondition wait;
  wait.then = WaitCondition::Then::kNext;
  wait.what = Cat("barrier ", id, " of ", expected, " threads");
  wait.ready = [races, &w, &i, &p, &s, generation, frame = w.shared_frame(), lanes = w.active()] {
    if (s.generation == generation) return false;
    w.cluster().NoteSynchronised(w);
    if (races != nullptr) {
      races->SetActor(w.cluster_index());
      races->Acquire(s.known, s.generation);
      races->SetActor(-1);
    }
    StoreResult(p, i, s, *frame, lanes);
    return true;
  };
  w.Wait(std::move(wait));
}

absl::Status PrepareBarrier(Instruction& i) {
  auto p = std::make_unique<BarrierPayload>();
  using Kind = BarrierPayload::Kind;
  p->aligned = i.opcode == "bar" || i.Has("aligned");
  const size_t count = i.operands.size();
  if (i.Has("red")) {
    p->kind = i.Has("popc") ? Kind::kPopc : i.Has("and") ? Kind::kAnd : Kind::kOr;
    if (count != 3 && count != 4) return NeedOperands(i, 3);
    p->first = 1;
    p->threads = count == 4 ? 2 : -1;
    p->predicate = static_cast<int>(count) - 1;
  } else {
    p->kind = i.Has("arrive") ? Kind::kArrive : Kind::kSync;
    if (count != 1 && count != 2) return NeedOperands(i, 1);
    p->first = 0;
    p->threads = count == 2 ? 1 : -1;
    if (p->kind == Kind::kArrive && count != 2)
      return absl::InvalidArgumentError("barrier.arrive needs a thread count");
  }
  i.payload = std::move(p);
  i.execute = Execute;
  return absl::OkStatus();
}

}  // namespace

void RegisterCtaBarrier(Registry& registry) {
  registry.Add("bar", PrepareBarrier);
  registry.Add("barrier", PrepareBarrier);
}

}  // namespace tessera::ptx
