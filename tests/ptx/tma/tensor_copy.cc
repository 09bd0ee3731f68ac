// cp.async.bulk.tensor, cp.reduce.async.bulk.tensor, their prefetches and prefetch.tensormap (PTX ISA, "Tensor copy").
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/ptx/machine/fault.h"
#include "tests/ptx/machine/launch.h"
#include "tests/ptx/tma/copy_engine.h"
#include "tests/ptx/tma/reduction.h"
#include "tests/ptx/tma/register.h"
#include "tests/ptx/tma/tensor_box.h"
#include "tests/ptx/tma/tensor_map.h"

namespace tessera::ptx {
namespace {

struct TensorPayload : Payload {
  int rank = 0;
  bool four_rows = false;        // gather4, scatter4
  bool own_destination = false;  // .shared::cta
  bool multicast = false;
  bool pair = false;   // .cta_group::2
  std::string reduce;  // redOp, empty for a copy
};

// The tensor map that a generic address points to: a kernel parameter, or .const or .global memory.
TensorMap ReadTensorMap(Warp& warp, uint64_t address, int lane) {
  RequireAligned(lane, address, kTensorMapAlignment, "the tensor map's address");
  uint8_t bytes[kTensorMapBytes];
  const GridContext& grid = warp.cta().grid();
  const uint64_t params = reinterpret_cast<uint64_t>(grid.params);
  if (address >= params && address + kTensorMapBytes <= params + grid.param_bytes) {
    std::memcpy(bytes, grid.params + (address - params), sizeof(bytes));
  } else {
    uint64_t unused;
    if (Warp::Classify(address, &unused) != Space::kGlobal) {
      RaiseAt(lane, Rule::kWrongSpace, "the tensor map is not in .param, .const or .global memory");
    }
    warp.global().Read(address, sizeof(bytes), bytes, warp.global_hint());
  }
  absl::StatusOr<TensorMap> map = DecodeTensorMap(bytes);
  if (!map.ok()) RaiseAt(lane, Rule::kDescriptor, std::string(map.status().message()));
  return *std::move(map);
}

struct TensorAccess {
  TensorMap map;
  std::vector<int32_t> at;
};

// An operand [tensorMap, {c0, c1, ...}].
TensorAccess ReadAccess(Warp& warp, const Instruction& i, const Operand& operand, int lane) {
  const TensorPayload& payload = i.As<TensorPayload>();
  TensorAccess access;
  access.map = ReadTensorMap(warp, warp.AddressLane(operand, lane), lane);
  for (const Operand& coordinate : operand.elements[1].elements) {
    access.at.push_back(static_cast<int32_t>(warp.SourceLane(coordinate, lane)));
  }
  if (payload.rank != access.map.rank) {
    RaiseAt(lane, Rule::kDescriptor,
            absl::StrCat("a ", payload.rank, "-dimensional copy with a tensor map of ", access.map.rank,
                         " dimensions"));
  }
  return access;
}

std::vector<BoxPiece> PiecesOf(const TensorPayload& payload, const TensorAccess& access, uint32_t shared,
                               BoxDirection direction, int lane) {
  absl::StatusOr<std::vector<BoxPiece>> pieces = payload.four_rows
                                                     ? FourRowPieces(access.map, access.at, shared, direction)
                                                     : BoxPieces(access.map, access.at, shared, direction);
  if (!pieces.ok()) {
    RaiseAt(lane, absl::IsUnimplemented(pieces.status()) ? Rule::kUnsupported : Rule::kDescriptor,
            std::string(pieces.status().message()));
  }
  return *std::move(pieces);
}

std::string Describe(const Instruction& i, const TensorAccess& access, uint32_t bytes) {
  std::string coordinates;
  for (int32_t coordinate : access.at)
    absl::StrAppend(&coordinates, coordinates.empty() ? "" : ", ", coordinate);
  return absl::StrCat(i.opcode, ".", i.modifiers[0] == "reduce" ? "reduce." : "",
                      "async.bulk.tensor of the box at (", coordinates, "), ", bytes, " bytes");
}

// [dst], [map, {..}], [mbar] {, mask} {, policy}.
void LoadTensor(Warp& warp, const Instruction& i) {
  const TensorPayload& payload = i.As<TensorPayload>();
  ForLanes(warp.active(), [&](int lane) {
    const SharedPlace destination =
        ResolveShared(warp, i.operands[0], lane, payload.own_destination, "the destination");
    const TensorAccess access = ReadAccess(warp, i, i.operands[1], lane);
    const SharedPlace barrier = ResolveBarrier(warp, i.operands[2], lane, destination, payload.pair);
    LoadCopy copy;
    copy.pieces = PiecesOf(payload, access, destination.offset, BoxDirection::kLoad, lane);
    copy.bytes = access.map.BoxBytes() * (payload.four_rows ? 4 : 1);
    copy.what = Describe(i, access, copy.bytes);
    if (access.map.fill == TensorFill::kNan)
      copy.fill = [map = access.map](uint32_t b) { return FillByte(map, b); };
    if (payload.multicast) {
      MulticastTo(warp, lane, warp.SourceLane(i.operands[3], lane) & 0xFFFF, barrier, payload.pair, &copy);
    } else {
      copy.destinations = {destination.cta};
      copy.barriers = {barrier};
    }
    PostLoad(warp, std::move(copy));
  });
}

const char* PtxTypeOf(TensorElement element) {
  switch (element) {
    case TensorElement::kUint32:
      return "u32";
    case TensorElement::kInt32:
      return "s32";
    case TensorElement::kUint64:
      return "u64";
    case TensorElement::kInt64:
      return "s64";
    case TensorElement::kFloat16:
      return "f16";
    case TensorElement::kBfloat16:
      return "bf16";
    case TensorElement::kFloat32:
    case TensorElement::kFloat32Ftz:
      return "f32";
    case TensorElement::kFloat64:
      return "f64";
    default:
      return "";
  }
}

// [map, {..}], [src] {, policy}.
void StoreTensor(Warp& warp, const Instruction& i) {
  const TensorPayload& payload = i.As<TensorPayload>();
  ForLanes(warp.active(), [&](int lane) {
    const TensorAccess access = ReadAccess(warp, i, i.operands[0], lane);
    const SharedPlace source = ResolveShared(warp, i.operands[1], lane, true, "the source");
    StoreCopy copy;
    copy.pieces = PiecesOf(payload, access, source.offset, BoxDirection::kStore, lane);
    copy.source = source.cta;
    copy.what = Describe(i, access, access.map.BoxBytes() * (payload.four_rows ? 4 : 1));
    if (!payload.reduce.empty()) {
      std::string type = PtxTypeOf(access.map.element);
      const bool bitwise = payload.reduce == "and" || payload.reduce == "or" || payload.reduce == "xor";
      if (bitwise && !type.empty() && type[0] != 'f') type[0] = 'b';
      absl::StatusOr<ReduceFn> reduce = FindReduction(payload.reduce, type, true);
      if (!reduce.ok()) {
        RaiseAt(
            lane, Rule::kDescriptor,
            absl::StrCat("no reduction .", payload.reduce, " of ", TensorElementName(access.map.element)));
      }
      copy.reduce = *reduce;
    }
    PostStore(warp, lane, std::move(copy));
  });
}

void PrefetchTensor(Warp& warp, const Instruction& i) {
  ForLanes(warp.active(), [&](int lane) { ReadAccess(warp, i, i.operands[0], lane); });
}

// Operand forms that the parser gives to [map, {c0, ...}].
absl::Status CheckAccess(const Instruction& i, size_t operand, size_t coordinates) {
  if (operand >= i.operands.size() || i.operands[operand].kind != Operand::Kind::kAddress ||
      i.operands[operand].elements.size() != 2 ||
      i.operands[operand].elements[1].kind != Operand::Kind::kVector ||
      i.operands[operand].elements[1].elements.size() != coordinates) {
    return absl::InvalidArgumentError(
        absl::StrCat("operand ", operand + 1, ": expected [tensorMap, {", coordinates, " coordinates}]"));
  }
  return absl::OkStatus();
}

absl::Status PrepareTensor(Instruction& i) {
  auto payload = std::make_unique<TensorPayload>();
  std::vector<std::string> spaces;
  bool load = false, prefetch = false, cache_hint = false;
  for (const std::string& m : i.modifiers) {
    if (m.size() == 2 && m[1] == 'd' && m[0] >= '1' && m[0] <= '5') payload->rank = m[0] - '0';
    if (m.starts_with("im2col")) return absl::UnimplementedError("im2col modes are not emulated");
    if (m == "tile::gather4" || m == "tile::scatter4") payload->four_rows = true;
    if (m == "shared::cta" || m == "shared::cluster" || m == "global") spaces.push_back(m);
    if (m == "multicast::cluster") payload->multicast = true;
    if (m == "cta_group::2") payload->pair = true;
    if (m == "L2::cache_hint") cache_hint = true;
    if (m == "mbarrier::complete_tx::bytes") load = true;
    if (m == "prefetch") prefetch = true;
    for (const char* op : {"add", "min", "max", "inc", "dec", "and", "or", "xor"}) {
      if (m == op) payload->reduce = op;
    }
  }
  if (payload->rank == 0) return absl::InvalidArgumentError("expected a dimension, .1d to .5d");
  const size_t coordinates = payload->four_rows ? 5 : payload->rank;
  size_t operands = 0;
  absl::Status status;
  if (prefetch) {
    operands = 1;
    status = CheckAccess(i, 0, coordinates);
    i.execute = PrefetchTensor;
  } else if (load && spaces.size() == 2 && spaces[0] != "global" && spaces[1] == "global") {
    payload->own_destination = spaces[0] == "shared::cta";
    operands = 3 + payload->multicast;
    status = CheckAccess(i, 1, coordinates);
    i.execute = LoadTensor;
  } else if (!load && i.Has("bulk_group") && spaces.size() == 2 && spaces[0] == "global" &&
             spaces[1] == "shared::cta") {
    operands = 2;
    status = CheckAccess(i, 0, coordinates);
    i.execute = StoreTensor;
  } else {
    return absl::InvalidArgumentError(
        "expected .shared::cluster.global or .shared::cta.global with .mbarrier::complete_tx::bytes, or "
        ".global.shared::cta with .bulk_group");
  }
  if (status.ok() && i.operands.size() != operands + cache_hint) {
    status = absl::InvalidArgumentError(
        absl::StrCat(i.operands.size(), " operands; expected ", operands + cache_hint));
  }
  i.payload = std::move(payload);
  return status;
}

absl::Status PreparePrefetchMap(Instruction& i) {
  i.execute = [](Warp& warp, const Instruction& i) {
    ForLanes(warp.active(),
             [&](int lane) { ReadTensorMap(warp, warp.AddressLane(i.operands[0], lane), lane); });
  };
  return absl::OkStatus();
}

}  // namespace

void RegisterTensorCopies(Registry& registry) {
  registry.Add("cp.async.bulk.tensor", PrepareTensor);
  registry.Add("cp.async.bulk.prefetch.tensor", PrepareTensor);
  registry.Add("cp.reduce.async.bulk.tensor", PrepareTensor);
  registry.Add("prefetch.tensormap", PreparePrefetchMap);
  registry.Add("prefetch.param.tensormap", PreparePrefetchMap);
  registry.Add("prefetch.const.tensormap", PreparePrefetchMap);
}

}  // namespace tessera::ptx
