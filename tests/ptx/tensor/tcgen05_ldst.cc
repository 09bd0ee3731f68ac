// tcgen05.ld, tcgen05.st, tcgen05.wait::ld, tcgen05.wait::st.
//
// Source: PTX ISA, "Tensor Memory and Register Load/Store Instructions". Registers of a load can be read at once (PTX
// keeps true register dependencies); its columns may be reused only after wait::ld.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/registry.h"
#include "tests/ptx/machine/warp.h"
#include "tests/ptx/tensor/handlers.h"
#include "tests/ptx/tensor/tensor_memory.h"

namespace tessera::ptx {
namespace {

struct LdStPayload : Payload {
  TmemShape shape = TmemShape::k32x32b;
  int num = 1;
  int registers = 1;
  bool packed = false;  // pack::16b, unpack::16b
  bool is_load = true;
  int columns = 1;  // of one image
  int split = 0;    // 16x32bx2: columns from the first image to the second
  size_t register_operand = 0;
  size_t address_operand = 1;
};

int ShapeColumns(TmemShape shape) {
  switch (shape) {
    case TmemShape::k16x64b:
      return 2;
    case TmemShape::k16x128b:
      return 4;
    case TmemShape::k16x256b:
      return 8;
    default:
      return 1;
  }
}

// The address, checked against the warp's quarter and the shape.
TmemAddress RequireAddress(Warp& warp, const Instruction& i, const LdStPayload& p) {
  warp.RequireConverged(i);
  if (warp.active() != kAllLanes)
    Raise(Rule::kDivergence, "needs all 32 lanes of the warp; some have exited");
  uint64_t scratch[kWarpSize];
  const uint64_t* addresses = warp.Addresses(i.operands[p.address_operand], scratch);
  for (int lane = 1; lane < kWarpSize; ++lane) {
    if (addresses[lane] == addresses[0]) continue;
    RaiseAt(
        lane, Rule::kWarpUniform,
        absl::StrFormat("all lanes must give the same tensor memory address: lane 0 has 0x%x, lane %d 0x%x",
                        addresses[0], lane, addresses[lane]));
  }
  const TmemAddress at = SplitTmemAddress(static_cast<uint32_t>(addresses[0]));
  const int quarter = warp.index() % 4;
  const uint32_t first = static_cast<uint32_t>(quarter * kTmemQuarter);
  const bool half_allowed = TmemShapeLanes(p.shape) == 16;
  if (at.lane == first || (half_allowed && at.lane == first + 16)) return at;
  if (at.lane / kTmemQuarter != static_cast<uint32_t>(quarter)) {
    Raise(Rule::kTensorMemory,
          absl::StrFormat(
              "warp %d reaches lanes %d-%d of tensor memory (its index modulo 4 is %d); the address 0x%x is "
              "lane %d, column %d",
              warp.index(), first, first + 31, quarter, addresses[0], at.lane, at.column));
  }
  Raise(Rule::kMisalignedAddress,
        absl::StrFormat(".%s starts at lane %d%s of the warp's quarter; the address 0x%x is lane %d",
                        Name(p.shape), first, half_allowed ? absl::StrFormat(" or %d", first + 16) : "",
                        addresses[0], at.lane));
}

// Checks allocation and order of the one or two images.
TensorMemory& Claim(Warp& warp, const Instruction& i, const LdStPayload& p, TmemAddress at) {
  TensorMemory& memory = warp.cta().State<TensorMemory>();
  auto& state = warp.State<TmemWarpState>();
  TmemOperation* operation = warp.cluster().State<TmemClusterState>().NewOperation(
      p.is_load ? TmemOperation::Kind::kLoad : TmemOperation::Kind::kStore, warp, -1, i);
  const int images = p.shape == TmemShape::k16x32bx2 ? 2 : 1;
  for (int image = 0; image < images; ++image) {
    const int column = static_cast<int>(at.column) + image * p.split;
    memory.RequireAllocated(column, p.columns, p.is_load ? "tcgen05.ld" : "tcgen05.st");
    memory.Note(operation, p.is_load ? TmemUse::kRead : TmemUse::kWrite, at.lane, TmemShapeLanes(p.shape),
                column, p.columns);
  }
  (p.is_load ? state.loads : state.stores).push_back(operation);
  return memory;
}

struct Place {
  int lane;
  int column;
};

Place PlaceOf(const LdStPayload& p, TmemAddress at, int lane, int reg) {
  const TmemWord word = TmemShapeWord(p.shape, lane, reg);
  const int column = p.packed ? 2 * word.column : word.column;
  return {static_cast<int>(at.lane) + word.lane,
          static_cast<int>(at.column) + column + (word.second ? p.split : 0)};
}

void ExecuteLd(Warp& warp, const Instruction& i) {
  const auto& p = i.As<LdStPayload>();
  const TmemAddress at = RequireAddress(warp, i, p);
  const TensorMemory& memory = Claim(warp, i, p, at);
  const absl::Span<const Operand> registers = Registers(i.operands[p.register_operand]);
  for (int reg = 0; reg < p.registers; ++reg) {
    uint32_t words[kWarpSize];
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const Place place = PlaceOf(p, at, lane, reg);
      words[lane] = memory.Read(place.lane, place.column);
      if (p.packed) words[lane] = (words[lane] & 0xffff) | memory.Read(place.lane, place.column + 1) << 16;
    }
    warp.Store<uint32_t>(registers[reg], words);
  }
}

void ExecuteSt(Warp& warp, const Instruction& i) {
  const auto& p = i.As<LdStPayload>();
  const TmemAddress at = RequireAddress(warp, i, p);
  TensorMemory& memory = Claim(warp, i, p, at);
  const absl::Span<const Operand> registers = Registers(i.operands[p.register_operand]);
  for (int reg = 0; reg < p.registers; ++reg) {
    uint32_t scratch[kWarpSize];
    const uint32_t* words = warp.Source<uint32_t>(registers[reg], scratch);
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const Place place = PlaceOf(p, at, lane, reg);
      memory.Write(place.lane, place.column, p.packed ? words[lane] & 0xffff : words[lane]);
      if (p.packed) memory.Write(place.lane, place.column + 1, words[lane] >> 16);
    }
  }
}

void ExecuteWait(Warp& warp, const Instruction& i) {
  warp.RequireConverged(i);
  auto& state = warp.State<TmemWarpState>();
  const uint64_t now = ++warp.cluster().State<TmemClusterState>().tick;
  std::vector<TmemOperation*>& operations = i.flags != 0 ? state.loads : state.stores;
  for (TmemOperation* operation : operations) operation->done = now;
  operations.clear();
}

absl::Status PrepareLdSt(Instruction& i) {
  auto payload = std::make_unique<LdStPayload>();
  payload->is_load = i.Has("ld");
  bool shape = false;
  for (const std::string& modifier : i.modifiers) {
    int num;
    if (absl::StatusOr<TmemShape> parsed = ParseTmemShape(modifier); parsed.ok()) {
      payload->shape = *parsed;
      shape = true;
    } else if (modifier[0] == 'x' && absl::SimpleAtoi(modifier.substr(1), &num)) {
      payload->num = num;
    } else if (modifier == (payload->is_load ? "pack::16b" : "unpack::16b")) {
      payload->packed = true;
    } else if (modifier != "ld" && modifier != "st" && modifier != "sync" && modifier != "aligned" &&
               modifier != "b32") {
      return absl::UnimplementedError(
          absl::StrFormat("tcgen05.%s with .%s", payload->is_load ? "ld" : "st", modifier));
    }
  }
  if (!shape)
    return absl::InvalidArgumentError("needs a shape: .32x32b, .16x64b, .16x128b, .16x256b or .16x32bx2");
  payload->registers = TmemShapeRegisters(payload->shape, payload->num);
  if (payload->registers == 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("there is no .%s.x%d", Name(payload->shape), payload->num));
  }
  payload->columns = ShapeColumns(payload->shape) * payload->num * (payload->packed ? 2 : 1);
  const bool split = payload->shape == TmemShape::k16x32bx2;
  if (i.operands.size() != (split ? 3u : 2u)) {
    return absl::InvalidArgumentError(absl::StrFormat("needs %d operands", split ? 3 : 2));
  }
  payload->address_operand = payload->is_load ? 1 : 0;
  payload->register_operand = payload->is_load ? 0 : split ? 2 : 1;
  if (split) {
    const Operand& offset = i.operands[payload->is_load ? 2 : 1];
    if (offset.kind != Operand::Kind::kImmediate)
      return absl::InvalidArgumentError("the split offset is an immediate");
    payload->split = static_cast<int>(offset.value);
  }
  if (i.operands[payload->address_operand].kind != Operand::Kind::kAddress) {
    return absl::InvalidArgumentError("the tensor memory address stands in brackets: [taddr]");
  }
  absl::Status s = RequireRegisters(i, payload->register_operand, payload->registers, "the fragment");
  if (!s.ok()) return s;
  i.payload = std::move(payload);
  i.execute = i.Has("ld") ? ExecuteLd : ExecuteSt;
  return absl::OkStatus();
}

template <uint32_t kLoads>
absl::Status PrepareWait(Instruction& i) {
  i.flags = kLoads;
  i.execute = ExecuteWait;
  return absl::OkStatus();
}

}  // namespace

void RegisterTcgen05LdSt(Registry& registry) {
  registry.Add("tcgen05.ld", PrepareLdSt);
  registry.Add("tcgen05.st", PrepareLdSt);
  registry.Add("tcgen05.wait::ld", PrepareWait<1>);
  registry.Add("tcgen05.wait::st", PrepareWait<0>);
}

}  // namespace tessera::ptx
