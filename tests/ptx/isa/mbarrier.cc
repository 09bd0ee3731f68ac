// mbarrier.* (PTX ISA, "mbarrier"). Lanes act one after the other.
#include <cstdint>
#include <vector>

#include "tests/ptx/isa/memory_form.h"
#include "tests/ptx/isa/scalar.h"
#include "tests/ptx/machine/cluster.h"

namespace tessera::ptx {
namespace {

struct Place {
  SharedMemory* memory;
  uint32_t offset;
  uint32_t rank;
  Mbarrier& barrier() const { return memory->At(offset); }
};

Place Locate(Warp& w, const Instruction& i, int lane, uint64_t address) {
  Space space = SpaceOf(i);
  if (space == Space::kGeneric) {
    space = Warp::Classify(address, &address);
    if (space != Space::kSharedCluster)
      RaiseAt(lane, Rule::kWrongSpace, Cat("mbarrier at ", Hex(address), ", which is no shared memory"));
  }
  uint32_t offset;
  Cta& cta = w.cluster().Resolve(address, &offset);
  if (space == Space::kSharedCta && &cta != &w.cta()) {
    RaiseAt(lane, Rule::kWrongSpace,
            Cat("mbarrier at ", Hex(address), " is in another CTA; .shared::cta is this one's"));
  }
  return {&cta.shared(), offset, cta.rank()};
}

// f(lane, place) for each active lane, with the lane in what it raises.
template <class F>
void EachLane(Warp& w, const Instruction& i, const Operand& address, F f) {
  uint64_t scratch[kWarpSize];
  const uint64_t* at = w.Addresses(address, scratch);
  ForEachLane(w.active(), [&](int l) { f(l, Locate(w, i, l, at[l])); });
  w.cluster().NoteProgress();
}

void Init(Warp& w, const Instruction& i) {
  EachLane(w, i, i.operands[0], [&](int l, Place p) {
    p.memory->InitMbarrier(p.offset, static_cast<uint32_t>(w.SourceLane(i.operands[1], l)),
                           w.cluster_index());
  });
}
void Invalidate(Warp& w, const Instruction& i) {
  EachLane(w, i, i.operands[0], [](int, Place p) { p.memory->InvalidateMbarrier(p.offset); });
}
void ExpectTx(Warp& w, const Instruction& i) {
  EachLane(w, i, i.operands[0], [&](int l, Place p) {
    p.barrier().ExpectTx(static_cast<uint32_t>(w.SourceLane(i.operands[1], l)));
  });
}
void CompleteTx(Warp& w, const Instruction& i) {
  EachLane(w, i, i.operands[0], [&](int l, Place p) {
    p.barrier().CompleteTx(static_cast<uint32_t>(w.SourceLane(i.operands[1], l)));
  });
}

// mbarrier.arrive{_drop}{.expect_tx}{.noComplete} {state|_}, [address]{, count or bytes}
void Arrive(Warp& w, const Instruction& i) {
  const bool expect = i.Has("expect_tx"), drop = i.opcode == "mbarrier" && i.modifiers[0] == "arrive_drop";
  const bool no_complete = i.Has("noComplete");
  // A sink may be left out: arrive [address].
  const size_t at = i.operands[0].kind == Operand::Kind::kAddress ? 0 : 1;
  uint64_t states[kWarpSize] = {};
  EachLane(w, i, i.operands[at], [&](int l, Place p) {
    Mbarrier& barrier = p.barrier();
    if (at == 1 && !i.operands[0].IsSink() && p.rank != w.cta().rank()) {
      RaiseAt(l, Rule::kMbarrier, "an arrival at another CTA's mbarrier cannot return a state");
    }
    states[l] = barrier.Token();
    uint32_t count = 1;
    if (i.operands.size() > at + 1) {
      const auto value = static_cast<uint32_t>(w.SourceLane(i.operands[at + 1], l));
      if (expect)
        barrier.ExpectTx(value);
      else
        count = value;
    }
    if (no_complete && count >= barrier.pending()) {
      RaiseAt(l, Rule::kMbarrier, Cat("arrive.noComplete would complete the phase: ", barrier.Describe()));
    }
    if (drop)
      barrier.ArriveDrop(count);
    else
      barrier.Arrive(count);
  });
  if (at == 1) w.Store(i.operands[0], states);
}

// mbarrier.{test,try}_wait{.parity} p, [address], state or parity{, time}. An unsuccessful test_wait gives way too: a loop
// around it waits for the same thing.
void Wait(Warp& w, const Instruction& i) {
  const bool parity = i.Has("parity");
  struct Awaited {
    Place place;
    uint64_t value;
  };
  std::vector<Awaited> awaited;
  LaneMask done = 0;
  const auto completed = [parity](const Awaited& a) {
    const Mbarrier& barrier = a.place.barrier();
    return parity ? barrier.TestParity(static_cast<uint32_t>(a.value)) : barrier.TestToken(a.value);
  };
  uint64_t scratch[kWarpSize];
  const uint64_t* at = w.Addresses(i.operands[1], scratch);
  ForEachLane(w.active(), [&](int l) {
    const Awaited a{Locate(w, i, l, at[l]), w.SourceLane(i.operands[2], l)};
    if (a.place.rank != w.cta().rank()) RaiseAt(l, Rule::kMbarrier, "a wait on another CTA's mbarrier");
    if (parity && a.value > 1) RaiseAt(l, Rule::kMbarrier, Cat("parity ", a.value, "; it is 0 or 1"));
    if (completed(a)) done |= LaneMask{1} << l;
    // Lanes mostly wait for the same.
    const bool known =
        !awaited.empty() && awaited.back().place.offset == a.place.offset && awaited.back().value == a.value;
    if (!known) awaited.push_back(a);
  });
  if (done == 0 && !w.timed_out()) {
    WaitCondition wait;
    wait.may_time_out = true;
    wait.what = Cat("the mbarrier at shared offset ", Hex(awaited[0].place.offset), ", ",
                    parity ? Cat("parity ", awaited[0].value) : Cat("state ", Hex(awaited[0].value)));
    wait.ready = [awaited, completed] {
      for (const Awaited& a : awaited) {
        if (completed(a)) return true;
      }
      return false;
    };
    w.Wait(std::move(wait));
    return;
  }
  if (done != 0) {
    w.cluster().NoteSynchronised(w);
    for (const Awaited& a : awaited) {
      if (completed(a)) a.place.memory->AcquireMbarrier(a.place.offset);
    }
  }
  w.StorePredicate(i.operands[0], done);
}

void PendingCount(Warp& w, const Instruction& i) {
  uint64_t scratch[kWarpSize];
  uint32_t r[kWarpSize];
  const uint64_t* state = w.Source(i.operands[1], scratch);
  for (int l = 0; l < kWarpSize; ++l) r[l] = static_cast<uint32_t>(state[l] & Mbarrier::kMaxCount);
  w.Store(i.operands[0], r);
}

template <ExecuteFn kExecute, size_t kLeast>
absl::Status PrepareAs(Instruction& i) {
  i.execute = kExecute;
  if (i.operands.size() < kLeast) return NeedOperands(i, kLeast);
  return absl::OkStatus();
}

}  // namespace

void RegisterMbarrier(Registry& registry) {
  registry.Add("mbarrier.init", PrepareAs<Init, 2>);
  registry.Add("mbarrier.inval", PrepareAs<Invalidate, 1>);
  registry.Add("mbarrier.expect_tx", PrepareAs<ExpectTx, 2>);
  registry.Add("mbarrier.complete_tx", PrepareAs<CompleteTx, 2>);
  registry.Add("mbarrier.arrive", PrepareAs<Arrive, 1>);
  registry.Add("mbarrier.arrive_drop", PrepareAs<Arrive, 1>);
  registry.Add("mbarrier.test_wait", PrepareAs<Wait, 3>);
  registry.Add("mbarrier.try_wait", PrepareAs<Wait, 3>);
  registry.Add("mbarrier.pending_count", PrepareAs<PendingCount, 2>);
}

}  // namespace tessera::ptx
