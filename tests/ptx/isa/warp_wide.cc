// Instructions among the lanes of a warp: shfl, vote, match, redux, elect, activemask, bar.warp.sync.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "tests/ptx/isa/rounding.h"
#include "tests/ptx/isa/scalar.h"

namespace tessera::ptx {
namespace {

// Waits for the lanes of the member mask. False: not all have come, try again later.
bool Gather(Warp& w, const Instruction& i, const Operand& mask) {
  const auto members = static_cast<LaneMask>(w.SourceUniform(mask, "the member mask"));
  const std::string name = Cat(i.opcode, ".", i.modifiers.empty() ? "" : i.modifiers[0]);
  return w.GatherLanes(members, true, name.c_str());
}

enum class Mode : uint32_t { kUp, kDown, kBfly, kIdx };

// shfl.sync.mode.b32 d|p, a, b, c, mask. A lane that reads one which does not take part gets nothing defined.
void Shuffle(Warp& w, const Instruction& i) {
  const bool pair = i.operands[1].is_pair_second;
  const size_t first = pair ? 2 : 1;
  if (!Gather(w, i, i.operands[first + 3])) return;
  const Operand& source = i.operands[first];
  uint32_t sa[kWarpSize], sb[kWarpSize], sc[kWarpSize], r[kWarpSize];
  LaneMask defined = w.active();
  const uint32_t* a;
  if (source.IsRegister() && source.width == 4) {
    w.CheckNotPoisoned(source, w.active());
    defined &= w.Defined(source);
    a = w.frame().Lanes<uint32_t>(source);
  } else {
    a = w.Source(source, sa);
  }
  const uint32_t* b = w.Source(i.operands[first + 1], sb);
  const uint32_t* c = w.Source(i.operands[first + 2], sc);
  LaneMask in_range = 0, good = 0;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const int offset = b[lane] & 31, clamp = c[lane] & 31, segment = c[lane] >> 8 & 31;
    const int max = (lane & segment) | (clamp & ~segment), min = lane & segment;
    int j = 0;
    bool p = false;
    switch (static_cast<Mode>(i.flags)) {
      case Mode::kUp:
        j = lane - offset;
        p = j >= max;
        break;
      case Mode::kDown:
        j = lane + offset;
        p = j <= max;
        break;
      case Mode::kBfly:
        j = lane ^ offset;
        p = j <= max;
        break;
      case Mode::kIdx:
        j = min | (offset & ~segment);
        p = j <= max;
        break;
    }
    if (!p) j = lane;
    r[lane] = a[j];
    in_range |= LaneMask{p} << lane;
    good |= LaneMask{InMask(defined, j)} << lane;
  }
  w.Store(i.operands[0], r);
  w.CopyUndefined(i.operands[0], good, {});
  if (pair) w.StorePredicate(i.operands[1], in_range);
}

absl::Status PrepareShuffle(Instruction& i) {
  if (!i.Has("sync")) return absl::UnimplementedError("shfl without .sync is not in sm_70 and later");
  i.flags = static_cast<uint32_t>(i.Has("up")     ? Mode::kUp
                                  : i.Has("down") ? Mode::kDown
                                  : i.Has("bfly") ? Mode::kBfly
                                                  : Mode::kIdx);
  i.execute = Shuffle;
  const bool pair = i.operands.size() > 1 && i.operands[1].is_pair_second;
  return NeedOperands(i, pair ? 6 : 5);
}

// vote.sync.{all,any,uni}.pred p, a, mask; vote.sync.ballot.b32 d, a, mask
void Vote(Warp& w, const Instruction& i) {
  if (!Gather(w, i, i.operands[2])) return;
  const LaneMask active = w.active(), a = w.SourcePredicate(i.operands[1]) & active;
  if (i.Has("ballot")) {
    uint32_t r[kWarpSize];
    std::fill(r, r + kWarpSize, a);
    w.Store(i.operands[0], r);
    return;
  }
  const bool result = i.Has("all") ? a == active : i.Has("any") ? a != 0 : a == 0 || a == active;
  w.StorePredicate(i.operands[0], result ? kAllLanes : 0);
}

// match.any.sync.type d, a, mask; match.all.sync.type d|p, a, mask
void Match(Warp& w, const Instruction& i) {
  const bool pair = i.operands[1].is_pair_second;
  const size_t first = pair ? 2 : 1;
  if (!Gather(w, i, i.operands[first + 1])) return;
  uint64_t scratch[kWarpSize];
  uint32_t r[kWarpSize] = {};
  const uint64_t* a = SourceBits(w, i.operands[first], Bits(i.type), scratch);
  const LaneMask active = w.active();
  bool all = true;
  ForLanes(active, [&](int l) {
    ForLanes(active, [&](int other) { r[l] |= LaneMask{a[l] == a[other]} << other; });
    all &= r[l] == active;
  });
  if (i.Has("all")) std::fill(r, r + kWarpSize, all ? active : 0);
  w.Store(i.operands[0], r);
  if (pair) w.StorePredicate(i.operands[1], all ? kAllLanes : 0);
}

// redux.sync.op.type d, a, mask
void Redux(Warp& w, const Instruction& i) {
  if (!Gather(w, i, i.operands[2])) return;
  uint32_t scratch[kWarpSize], r[kWarpSize];
  const uint32_t* a = w.Source(i.operands[1], scratch);
  const bool add = i.Has("add"), min = i.Has("min"), max = i.Has("max"), both = i.Has("and"),
             either = i.Has("or");
  bool first = true, nan = false;
  uint32_t result = 0;
  ForLanes(w.active(), [&](int l) {
    uint32_t x = a[l];
    if (i.type == Type::kF32) {
      if (i.Has("abs")) x &= 0x7FFFFFFF;
      const float f = std::bit_cast<float>(x), have = std::bit_cast<float>(result);
      nan |= f != f;
      result = first ? x : std::bit_cast<uint32_t>(min ? std::fmin(have, f) : std::fmax(have, f));
    } else if (first) {
      result = x;
    } else if (add) {
      result += x;
    } else if (min || max) {
      const bool less =
          i.type == Type::kS32 ? static_cast<int32_t>(x) < static_cast<int32_t>(result) : x < result;
      if (less == min && x != result) result = x;
    } else {
      result = both ? result & x : either ? result | x : result ^ x;
    }
    first = false;
  });
  if (i.type == Type::kF32) {
    if (nan && i.Has("NaN")) result = kNanF32;
    result = std::bit_cast<uint32_t>(CanonicalNan(std::bit_cast<float>(result)));
  }
  std::fill(r, r + kWarpSize, result);
  w.Store(i.operands[0], r);
}

// elect.sync d|p, mask: the lowest lane.
void Elect(Warp& w, const Instruction& i) {
  if (!Gather(w, i, i.operands[2])) return;
  const int leader = w.first_active();
  uint32_t r[kWarpSize];
  std::fill(r, r + kWarpSize, leader);
  w.Store(i.operands[0], r);
  w.StorePredicate(i.operands[1], LaneMask{1} << leader);
}

void ActiveMask(Warp& w, const Instruction& i) {
  uint32_t r[kWarpSize];
  std::fill(r, r + kWarpSize, w.active());
  w.Store(i.operands[0], r);
}

void WarpBarrier(Warp& w, const Instruction& i) {
  const auto members = static_cast<LaneMask>(w.SourceUniform(i.operands[0], "the member mask"));
  w.GatherLanes(members, false, "bar.warp.sync");
}

template <ExecuteFn kExecute, size_t kOperands>
absl::Status PrepareAs(Instruction& i) {
  FindTypes(i);
  i.execute = kExecute;
  return NeedOperands(i, kOperands);
}

}  // namespace

void RegisterWarpWide(Registry& registry) {
  registry.Add("shfl", PrepareShuffle);
  registry.Add("vote.sync", PrepareAs<Vote, 3>);
  registry.Add("match", [](Instruction& i) {
    FindTypes(i);
    i.execute = Match;
    const bool pair = i.operands.size() > 1 && i.operands[1].is_pair_second;
    return NeedOperands(i, pair ? 4 : 3);
  });
  registry.Add("redux.sync", PrepareAs<Redux, 3>);
  registry.Add("elect.sync", PrepareAs<Elect, 3>);
  registry.Add("activemask", PrepareAs<ActiveMask, 1>);
  registry.Add("bar.warp.sync", PrepareAs<WarpBarrier, 1>);
}

}  // namespace tessera::ptx
