// call (PTX ISA, "call"), with arguments in the .param space.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/ptx/isa/print.h"
#include "tests/ptx/isa/scalar.h"
#include "tests/ptx/machine/cluster.h"

namespace tessera::ptx {
namespace {

struct CallPayload : Payload {
  int results = -1, function = 0, arguments = -1;  // operands
};

const std::vector<Operand>& ListOf(const Instruction& i, int operand) {
  static const std::vector<Operand> kNone;
  return operand < 0 ? kNone : i.operands[operand].elements;
}

uint32_t PlaceOf(Warp& w, const Operand& argument) {
  return w.frame().local_base + static_cast<uint32_t>(argument.variable->address);
}

void CallRuntime(Warp& w, const Instruction& i, const std::string& name) {
  const auto& p = i.As<CallPayload>();
  std::vector<std::vector<uint64_t>> arguments;
  for (const Operand& a : ListOf(i, p.arguments)) {
    arguments.emplace_back(kWarpSize);
    const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(a.variable->Size(), 8));
    ForLanes(w.active(), [&](int l) { w.local().Load(l, PlaceOf(w, a), bytes, &arguments.back()[l]); });
  }
  uint64_t result[kWarpSize] = {};
  if (!CallDeviceRuntime(w, name, arguments, result)) {
    Raise(Rule::kUnsupported, Cat("call of ", name, ", which has no body here"));
  }
  for (const Operand& r : ListOf(i, p.results)) {
    ForLanes(w.active(), [&](int l) {
      w.local().Store(l, PlaceOf(w, r), static_cast<uint32_t>(std::min<uint64_t>(r.variable->Size(), 8)),
                      &result[l]);
    });
  }
}

void Call(Warp& w, const Instruction& i) {
  const auto& p = i.As<CallPayload>();
  const Operand& target = i.operands[p.function];
  const Function* function = target.function;
  if (function == nullptr) {
    function = reinterpret_cast<const Function*>(w.SourceUniform(target, "the target of an indirect call"));
    if (function == nullptr) Raise(Rule::kBadOperand, "indirect call of a null pointer");
  }
  if (!function->has_body) return CallRuntime(w, i, function->name);
  const auto& arguments = ListOf(i, p.arguments);
  if (arguments.size() != function->params.size() ||
      ListOf(i, p.results).size() != function->results.size()) {
    Raise(Rule::kBadOperand, Cat("call of ", function->name, " with ", arguments.size(),
                                 " arguments; it takes ", function->params.size()));
  }
  std::vector<uint32_t> places;
  for (const Operand& a : arguments) places.push_back(PlaceOf(w, a));
  const LaneMask lanes = w.active();
  const uint32_t base = w.frame().local_base + w.frame().function.local_bytes;
  w.Call(*function, i);
  for (size_t k = 0; k < places.size(); ++k) {
    const Variable& parameter = *function->params[k];
    const auto bytes = static_cast<uint32_t>(std::min(parameter.Size(), arguments[k].variable->Size()));
    ForLanes(lanes, [&](int l) {
      w.local().Copy(l, base + static_cast<uint32_t>(parameter.address), places[k], bytes);
    });
  }
}

// ret: copies the results into the caller's variables.
void Return(Warp& w, const Instruction&) {
  Frame& callee = w.frame();
  if (callee.call != nullptr) {
    const auto& results = ListOf(*callee.call, callee.call->As<CallPayload>().results);
    for (size_t k = 0; k < results.size(); ++k) {
      const Variable& from = *callee.function.results[k];
      const uint32_t to = callee.caller->local_base + static_cast<uint32_t>(results[k].variable->address);
      const auto bytes = static_cast<uint32_t>(std::min(from.Size(), results[k].variable->Size()));
      ForLanes(w.active(), [&](int l) {
        w.local().Copy(l, to, callee.local_base + static_cast<uint32_t>(from.address), bytes);
      });
    }
  }
  w.Return(w.active());
}

// call{.uni} {(results),} function {, (arguments)} {, prototype}
absl::Status PrepareCall(Instruction& i) {
  auto p = std::make_unique<CallPayload>();
  size_t at = 0;
  if (at < i.operands.size() && i.operands[at].kind == Operand::Kind::kList)
    p->results = static_cast<int>(at++);
  if (at >= i.operands.size()) return absl::InvalidArgumentError("call without a function");
  p->function = static_cast<int>(at++);
  if (at < i.operands.size() && i.operands[at].kind == Operand::Kind::kList)
    p->arguments = static_cast<int>(at++);
  for (const int list : {p->results, p->arguments}) {
    for (const Operand& o : ListOf(i, list)) {
      if (o.kind != Operand::Kind::kVariable)
        return absl::UnimplementedError("call with arguments outside the .param space");
    }
  }
  const Operand& target = i.operands[p->function];
  if (target.function == nullptr && !target.IsRegister())
    return absl::InvalidArgumentError(Cat("call of '", target.name, "'"));
  if (target.function != nullptr && !target.function->has_body && !IsDeviceRuntime(target.function->name)) {
    return absl::UnimplementedError(Cat("function ", target.function->name, " has no body in this module"));
  }
  i.payload = std::move(p);
  i.execute = Call;
  return absl::OkStatus();
}

}  // namespace

void RegisterCall(Registry& registry) {
  registry.Add("call", PrepareCall);
  registry.Add("ret", [](Instruction& i) {
    i.execute = Return;
    return absl::OkStatus();
  });
}

}  // namespace tessera::ptx
