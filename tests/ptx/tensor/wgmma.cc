// wgmma.fence, wgmma.mma_async, wgmma.commit_group, wgmma.wait_group (sm_90a).
//
// Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". An instruction starts when all four warps of the
// warpgroup have issued it, and completes when the queue says so, in order within the warpgroup. Until the wait that
// covers it its accumulators hold nothing and its A fragments must keep their values.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/registry.h"
#include "tests/ptx/machine/warp.h"
#include "tests/ptx/tensor/fragments.h"
#include "tests/ptx/tensor/handlers.h"
#include "tests/ptx/tensor/wgmma_state.h"

namespace tessera::ptx {
namespace {

// Immediates after the descriptors.
struct Scales {
  double a = 1, b = 1;
  Major a_major = Major::kK, b_major = Major::kK;
};

Scales ReadScales(const Instruction& i, const WgmmaPayload& p) {
  Scales scales;
  size_t at = 4;
  const auto next = [&](std::string_view name, int low, int high) {
    const int value = static_cast<int>(i.operands[at++].value);
    if (value != low && value != high) {
      Raise(Rule::kBadOperand, absl::StrFormat("%s is %d, must be %d or %d", name, value, low, high));
    }
    return value;
  };
  if (at < i.operands.size()) {
    scales.a = next("imm-scale-a", -1, 1);
    scales.b = next("imm-scale-b", -1, 1);
  }
  if (at < i.operands.size() && !p.a_in_registers)
    scales.a_major = next("imm-trans-a", 0, 1) ? Major::kMN : Major::kK;
  if (at < i.operands.size()) scales.b_major = next("imm-trans-b", 0, 1) ? Major::kMN : Major::kK;
  return scales;
}

bool ReadAccumulate(Warp& warp, const Operand& operand) {
  if (operand.kind == Operand::Kind::kImmediate) return operand.value != 0;
  const LaneMask lanes = warp.SourcePredicate(operand) & warp.active();
  if (lanes != 0 && lanes != warp.active())
    Raise(Rule::kWarpUniform, "scale-d differs between the lanes of the warp");
  return lanes != 0;
}

void CheckFence(Frame& frame, const WgmmaWarpState& state, const Operand& reg, std::string_view what) {
  if (!state.fence->Changed(frame, reg)) return;
  Raise(Rule::kUnfinishedOperation,
        absl::StrFormat(
            "%s register %s was written after the last wgmma.fence; registers of wgmma.mma_async need a "
            "wgmma.fence between their last access and the instruction",
            what, reg.name));
}

// Takes the accumulators of this instruction out of use, or goes on with those of an unfinished one.
void ClaimAccumulators(Warp& warp, WgmmaWarpState& state, const WgmmaPayload& p, const Instruction& i,
                       bool accumulate) {
  const absl::Span<const Operand> registers = Registers(i.operands[0]);
  for (int at = 0; at < static_cast<int>(registers.size()); ++at) {
    const Operand& reg = registers[at];
    auto found = state.accumulators.find(reg.reg);
    if (found == state.accumulators.end()) {
      if (accumulate) warp.CheckDefined(reg, warp.active());
      CheckFence(warp.frame(), state, reg, "accumulator");
      warp.Poison(
          reg, warp.active(),
          absl::StrFormat("accumulator of the wgmma.mma_async of line %d; needs wgmma.commit_group and "
                          "wgmma.wait_group",
                          i.where.line));
      state.accumulators[reg.reg] = {state.issued, at, p.n, p.d, reg, warp.shared_frame()};
      continue;
    }
    WgmmaWarpState::InFlight& in_flight = found->second;
    if (in_flight.n != p.n || in_flight.type != p.d || in_flight.position != at) {
      Raise(Rule::kUnfinishedOperation,
            absl::StrFormat(
                "accumulator register %s belongs to an unfinished wgmma.mma_async of another shape (element "
                "%d, N %d, %s; here element %d, N %d, %s); only the same shape may follow without a wait",
                reg.name, in_flight.position, in_flight.n, Name(in_flight.type), at, p.n, Name(p.d)));
    }
    in_flight.last = state.issued;
  }
}

// Fragments of A of one warp, decoded into its 16 rows of the matrix.
void DecodeFragments(const WgmmaWork::PerWarp& warp, ElementType type, int first_row, Matrix& a) {
  const int each = 32 / BitsOf(type);
  for (size_t word = 0; word < warp.a.size(); ++word) {
    const FragmentPlace place =
        PlaceFragmentA(static_cast<int>(word % kWarpSize), static_cast<int>(word / kWarpSize));
    double values[4];
    DecodeWord(type, warp.a[word], values);
    for (int e = 0; e < each; ++e) a.at(first_row + place.row, place.column * each + e) = values[e];
  }
}

void StoreAccumulators(const WgmmaWork::PerWarp& warp, const WgmmaPayload& p, const Instruction& i,
                       bool accumulate, int first_row, const Matrix& sums) {
  const absl::Span<const Operand> registers = Registers(i.operands[0]);
  for (int reg = 0; reg < static_cast<int>(registers.size()); ++reg) {
    uint32_t* words = warp.frame->Lanes<uint32_t>(registers[reg]);
    for (int lane = 0; lane < kWarpSize; ++lane) {
      if (p.d == ElementType::kF16) {
        const FragmentPlace at = PlaceFragmentD16(lane, reg);
        double old[2] = {0, 0};
        if (accumulate) DecodeWord(ElementType::kF16, words[lane], old);
        const int row = first_row + at.row;
        words[lane] = RoundToF16(sums.at(row, at.column) + old[0]) |
                      static_cast<uint32_t>(RoundToF16(sums.at(row, at.column + 1) + old[1])) << 16;
      } else {
        const FragmentPlace at = PlaceFragmentD32(lane, reg);
        const double old = accumulate ? Decode(p.d, words[lane]) : 0;
        words[lane] = RoundAccumulator(p.d, sums.at(first_row + at.row, at.column) + old, p.saturate);
      }
    }
  }
}

void Complete(WgmmaWork& work, const Scales& scales) {
  const Instruction& i = *work.instruction;
  const auto& p = i.As<WgmmaPayload>();
  Matrix a(kWgmmaM, p.k);
  if (work.a) a = work.a->Complete();
  Matrix b = work.b->Complete();
  if (p.a_in_registers) {
    for (int w = 0; w < kWarpgroup; ++w) DecodeFragments(work.warps[w], p.a, 16 * w, a);
  }
  if (scales.a * scales.b < 0) {
    for (double& value : a.values) value = -value;
  }
  const Matrix sums = Multiply(a, b);
  for (int w = 0; w < kWarpgroup; ++w) {
    StoreAccumulators(work.warps[w], p, i, work.accumulate, 16 * w, sums);
    ++work.warps[w].warp->State<WgmmaWarpState>().completed;
  }
}

// The instruction that the other warps of the warpgroup issue as this warp's `count`th, or a new one.
std::shared_ptr<WgmmaWork> JoinWarpgroup(Warp& warp, const Instruction& i, uint64_t count,
                                         uint64_t a_descriptor, uint64_t b_descriptor, bool accumulate) {
  WgmmaCtaState::Warpgroup& group = warp.cta().State<WgmmaCtaState>().warpgroups[warp.index() / kWarpgroup];
  while (count >= group.first + group.open.size()) {
    auto work = std::make_shared<WgmmaWork>();
    work->instruction = &i;
    work->a_descriptor = a_descriptor;
    work->b_descriptor = b_descriptor;
    work->accumulate = accumulate;
    group.open.push_back(std::move(work));
  }
  std::shared_ptr<WgmmaWork> work = group.open[count - group.first];
  if (work->instruction != &i) {
    Raise(Rule::kDivergence,
          absl::StrFormat(
              "the warps of a warpgroup must issue the same wgmma.mma_async: another warp's instruction %d "
              "is `%s` (line %d)",
              count, work->instruction->text, work->instruction->where.line));
  }
  if (work->a_descriptor != a_descriptor || work->b_descriptor != b_descriptor ||
      work->accumulate != accumulate) {
    Raise(Rule::kWarpUniform,
          absl::StrFormat(
              "descriptors or scale-d differ between the warps of the warpgroup: A 0x%x, B 0x%x, scale-d %d; "
              "another warp has A 0x%x, B 0x%x, scale-d %d",
              a_descriptor, b_descriptor, accumulate, work->a_descriptor, work->b_descriptor,
              work->accumulate));
  }
  if (++work->issuers == kWarpgroup) {
    group.open.pop_front();
    ++group.first;
  }
  return work;
}

void RequireWarpgroup(Warp& warp, const Instruction& i) {
  warp.RequireConverged(i);
  const auto& warps = warp.cta().warps();
  const size_t first = warp.index() / kWarpgroup * kWarpgroup;
  for (size_t w = first; w < first + kWarpgroup; ++w) {
    if (w >= warps.size()) {
      Raise(Rule::kDivergence, absl::StrFormat("wgmma needs the four warps %d-%d; the CTA has %d", first,
                                               first + 3, warps.size()));
    }
    if (warps[w]->live() != kAllLanes) {
      Raise(Rule::kDivergence,
            absl::StrFormat("wgmma needs all lanes of the warpgroup; warp %d has exited lanes", w));
    }
  }
}

void ExecuteMma(Warp& warp, const Instruction& i) {
  RequireWarpgroup(warp, i);
  const auto& p = i.As<WgmmaPayload>();
  auto& state = warp.State<WgmmaWarpState>();
  if (!state.fence) {
    Raise(Rule::kUnfinishedOperation, "wgmma.mma_async without a wgmma.fence before it in this warp");
  }
  const Scales scales = ReadScales(i, p);
  const uint64_t a_descriptor =
      p.a_in_registers ? 0 : warp.SourceUniform(i.operands[1], "the descriptor of A");
  const uint64_t b_descriptor = warp.SourceUniform(i.operands[2], "the descriptor of B");
  const bool accumulate = ReadAccumulate(warp, i.operands[3]);

  const uint64_t count = state.issued++;
  WgmmaWork::PerWarp mine{&warp, warp.shared_frame(), {}};
  if (p.a_in_registers) {
    for (const Operand& reg : Registers(i.operands[1])) {
      uint32_t scratch[kWarpSize];
      const uint32_t* words = warp.Source<uint32_t>(reg, scratch);
      CheckFence(warp.frame(), state, reg, "A");
      mine.a.insert(mine.a.end(), words, words + kWarpSize);
      state.fragments.push_back(
          {state.issued, reg, mine.frame, std::vector<uint32_t>(words, words + kWarpSize)});
    }
  }
  ClaimAccumulators(warp, state, p, i, accumulate);
  std::shared_ptr<WgmmaWork> work = JoinWarpgroup(warp, i, count, a_descriptor, b_descriptor, accumulate);
  work->warps[warp.index() % kWarpgroup] = std::move(mine);
  if (work->issuers < kWarpgroup) return;

  Cta& cta = warp.cta();
  if (!p.a_in_registers) {
    work->a.emplace(cta, DescriptorTarget::kSm90, a_descriptor, "A", scales.a_major, p.a, Packing::kDense,
                    kWgmmaM, p.k);
    work->a->Issue();
  }
  work->b.emplace(cta, DescriptorTarget::kSm90, b_descriptor, "B", scales.b_major, p.b, Packing::kDense, p.n,
                  p.k);
  work->b->Issue();
  auto& group = cta.State<WgmmaCtaState>().warpgroups[warp.index() / kWarpgroup];
  warp.cluster().async().Post(warp, {absl::StrFormat("wgmma.mma_async of warpgroup %d (line %d)",
                                                     warp.index() / kWarpgroup, i.where.line),
                                     ChainOf(&group), [work, scales] { Complete(*work, scales); }});
}

void ExecuteFence(Warp& warp, const Instruction& i) {
  warp.RequireConverged(i);
  auto& state = warp.State<WgmmaWarpState>();
  if (!state.fence) state.fence.emplace();
  state.fence->Take(warp.shared_frame());
}

void ExecuteCommit(Warp& warp, const Instruction& i) {
  warp.RequireConverged(i);
  auto& state = warp.State<WgmmaWarpState>();
  state.committed = state.issued;
  state.group_end.push_back(state.issued);
}

// Gives back the registers of the first `done` instructions.
void Release(WgmmaWarpState& state, uint64_t done) {
  for (auto it = state.accumulators.begin(); it != state.accumulators.end();) {
    WgmmaWarpState::InFlight& in_flight = it->second;
    if (in_flight.last > done) {
      ++it;
      continue;
    }
    Frame& frame = *in_flight.frame;
    if (frame.defined[in_flight.reg.reg] != 0) {
      Raise(Rule::kUnfinishedOperation,
            absl::StrFormat("accumulator register %s was written while its wgmma.mma_async was under way",
                            in_flight.reg.name));
    }
    frame.defined[in_flight.reg.reg] = kAllLanes;
    frame.poison.erase(in_flight.reg.reg);
    state.fence->Update(frame, in_flight.reg);
    it = state.accumulators.erase(it);
  }
  while (!state.fragments.empty() && state.fragments.front().instruction <= done) {
    const WgmmaWarpState::Fragment& fragment = state.fragments.front();
    if (std::memcmp(fragment.frame->Lanes<uint32_t>(fragment.reg), fragment.values.data(),
                    sizeof(uint32_t) * kWarpSize) != 0) {
      Raise(Rule::kUnfinishedOperation,
            absl::StrFormat(
                "A register %s was written while its wgmma.mma_async was under way; wait for the group "
                "before reusing the fragment",
                fragment.reg.name));
    }
    state.fragments.pop_front();
  }
}

void ExecuteWait(Warp& warp, const Instruction& i) {
  warp.RequireConverged(i);
  auto& state = warp.State<WgmmaWarpState>();
  const uint64_t keep = i.operands[0].value;
  if (state.group_end.size() <= keep) return;
  const uint64_t done = state.group_end[state.group_end.size() - 1 - keep];
  if (state.completed < done) {
    warp.Wait(
        {[&state, done] { return state.completed >= done; },
         absl::StrFormat("wgmma.wait_group %d: %d of %d instructions complete%s", keep, state.completed, done,
                         state.completed == state.issued ? ""
                                                         : " (the other warps of the warpgroup must issue "
                                                           "theirs too)")});
    return;
  }
  Release(state, done);
  while (state.group_end.size() > keep) state.group_end.pop_front();
}

absl::Status CheckTypes(const WgmmaPayload& p) {
  const auto is = [](ElementType type, std::initializer_list<ElementType> allowed) {
    return std::find(allowed.begin(), allowed.end(), type) != allowed.end();
  };
  using enum ElementType;
  const bool bytes = is(p.a, {kE4M3, kE5M2}) && is(p.b, {kE4M3, kE5M2});
  const bool integers = is(p.a, {kS8, kU8}) && is(p.b, {kS8, kU8});
  const bool halves = p.a == p.b && is(p.a, {kF16, kBF16});
  const bool tf32 = p.a == p.b && p.a == kTF32;
  if (!bytes && !integers && !halves && !tf32) {
    return absl::InvalidArgumentError(absl::StrFormat("wgmma takes no %s by %s", Name(p.a), Name(p.b)));
  }
  const bool f16_allowed = bytes || p.a == kF16;
  const bool fits = integers ? p.d == kS32 : p.d == kF32 || (p.d == kF16 && f16_allowed);
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrFormat("wgmma of %s by %s has no accumulator of %s", Name(p.a), Name(p.b), Name(p.d)));
  }
  if (p.k != 256 / BitsOf(p.a)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("wgmma of %s has K %d, not %d", Name(p.a), 256 / BitsOf(p.a), p.k));
  }
  const int step = integers && p.n > 32 ? 16 : 8;
  if (p.n < 8 || p.n > 256 || p.n % step != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("wgmma of %s: N is %d, must be a multiple of %d up to 256", Name(p.a), p.n, step));
  }
  return absl::OkStatus();
}

absl::Status PrepareMma(Instruction& i) {
  auto payload = std::make_unique<WgmmaPayload>();
  std::optional<MmaShape> shape;
  std::vector<ElementType> types;
  for (const std::string& modifier : i.modifiers) {
    if (std::optional<MmaShape> parsed = ParseMmaShape(modifier)) {
      shape = parsed;
    } else if (std::optional<ElementType> type = ParseElementType(modifier)) {
      types.push_back(*type);
    } else if (modifier == "satfinite") {
      payload->saturate = true;
    } else if (modifier != "mma_async" && modifier != "sync" && modifier != "aligned") {
      return absl::UnimplementedError(absl::StrFormat("wgmma.mma_async with .%s", modifier));
    }
  }
  if (!shape || shape->m != kWgmmaM || types.size() != 3) {
    return absl::InvalidArgumentError("wgmma.mma_async without its shape m64nNkK or its three types");
  }
  payload->n = shape->n;
  payload->k = shape->k;
  payload->d = types[0];
  payload->a = types[1];
  payload->b = types[2];
  if (absl::Status s = CheckTypes(*payload); !s.ok()) return s;
  if (i.operands.size() < 4)
    return absl::InvalidArgumentError("wgmma.mma_async needs at least four operands");
  payload->a_in_registers = i.operands[1].kind == Operand::Kind::kVector;
  if (absl::Status s =
          RequireRegisters(i, 0, payload->d == ElementType::kF16 ? payload->n / 4 : payload->n / 2, "D");
      !s.ok()) {
    return s;
  }
  if (payload->a_in_registers) {
    if (absl::Status s = RequireRegisters(i, 1, 4, "A"); !s.ok()) return s;
  }
  const size_t immediates = IsInteger(payload->a)      ? 0
                            : BitsOf(payload->a) != 16 ? 2
                            : payload->a_in_registers  ? 3
                                                       : 4;
  if (i.operands.size() != 4 + immediates) {
    return absl::InvalidArgumentError(absl::StrFormat("this form of wgmma.mma_async has %d operands, not %d",
                                                      4 + immediates, i.operands.size()));
  }
  i.payload = std::move(payload);
  i.execute = ExecuteMma;
  return absl::OkStatus();
}

template <ExecuteFn kExecute, size_t kOperands>
absl::Status Prepare(Instruction& i) {
  if (i.operands.size() != kOperands) {
    return absl::InvalidArgumentError(absl::StrFormat("needs %d operands", kOperands));
  }
  i.execute = kExecute;
  return absl::OkStatus();
}

}  // namespace

void RegisterWgmma(Registry& registry) {
  registry.Add("wgmma.mma_async", PrepareMma);
  registry.Add("wgmma.fence", Prepare<ExecuteFence, 0>);
  registry.Add("wgmma.commit_group", Prepare<ExecuteCommit, 0>);
  registry.Add("wgmma.wait_group", Prepare<ExecuteWait, 1>);
}

}  // namespace tessera::ptx
