// tcgen05.mma: D = A * B (+ D), A in shared or tensor memory, B in shared memory, D in tensor memory, by one CTA or by a
// pair. With scale factors: D = (A * scale A) * (B * scale B) (+ D).
//
// Source: PTX ISA, "TensorCore 5th Generation Matrix Multiply and accumulate Operations". Of a pair each CTA holds half
// of the rows of A and half of the columns of B, at the same addresses.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/registry.h"
#include "tests/ptx/machine/warp.h"
#include "tests/ptx/tensor/handlers.h"
#include "tests/ptx/tensor/instruction_descriptor.h"
#include "tests/ptx/tensor/matmul.h"
#include "tests/ptx/tensor/smem_operand.h"
#include "tests/ptx/tensor/tcgen05.h"
#include "tests/ptx/tensor/tensor_memory.h"

namespace tessera::ptx {
namespace {

struct MmaPayload : Payload {
  MmaKind kind = MmaKind::kF16;
  MmaQualifiers qualifiers;
  int mask_operand = -1;  // disable-output-lane
  int accumulate_operand = 4;
  int scale_d_operand = -1;
  int scale_a_operand = -1, scale_b_operand = -1;
  int zero_mask_operand = -1;  // .ws: zero-column mask descriptor
};

struct MmaWork {
  const MmaPayload* payload = nullptr;
  InstructionDescriptor descriptor;
  DataPath path = DataPath::kD;
  int k = 0;
  bool accumulate = false;
  double scale_d = 1;
  std::array<uint32_t, 8> disabled_lanes{};
  TmemAddress d, a, scale_a, scale_b;
  std::vector<Cta*> ctas;
  std::vector<SmemOperand> a_operands, b_operands;
  TmemOperation* operation = nullptr;
};

Packing PackingOf(MmaKind kind, ElementType type) {
  return StorageBits(kind, type) != BitsOf(type) ? Packing::kPadded : Packing::kDense;
}

// The value that hardware reads from an 8-bit container in tensor memory.
double DecodeContainer(ElementType type, uint32_t byte) {
  return Decode(type, type == ElementType::kE2M1 ? byte >> 2 : byte);
}

// ---- Completion

Matrix LoadAFromTmem(const MmaWork& work) {
  const ElementType type = work.descriptor.a_type;
  const int bits = StorageBits(work.payload->kind, type);
  const int each = 32 / bits;
  Matrix a(work.descriptor.m, work.k);
  for (int row = 0; row < a.rows; ++row) {
    const OperandPlace place = PlaceOperandA(work.path, row);
    const TensorMemory& memory = work.ctas[place.cta]->State<TensorMemory>();
    const int lane = static_cast<int>(work.a.lane) + place.lane;
    for (int word = 0; word < work.k / each; ++word) {
      const int column = static_cast<int>(work.a.column) + word;
      const uint32_t value = memory.Read(lane, column);
      for (int copy = 1; copy < place.copies; ++copy) {
        if (memory.Read(lane + 64 * copy, column) == value) continue;
        Raise(Rule::kTensorMemory, absl::StrFormat("A in tensor memory for M = 128 of a pair must be in "
                                                   "lanes 0-63 and again in 64-127; lanes %d "
                                                   "and %d differ in column %d",
                                                   lane, lane + 64 * copy, column));
      }
      for (int e = 0; e < each; ++e) {
        const uint32_t element = value >> (e * bits);
        a.at(row, word * each + e) =
            bits == 8 && BitsOf(type) < 8 ? DecodeContainer(type, element & 0xff) : Decode(type, element);
      }
    }
  }
  return a;
}

// The word with the scales of one row, which must be the same in all its copies, in every CTA that has one.
uint32_t ReadScales(const MmaWork& work, const ScalePlace& place, TmemAddress base, uint32_t used,
                    std::string_view name, int row) {
  uint32_t value = 0;
  bool first = true;
  for (int c = 0; c < static_cast<int>(work.ctas.size()); ++c) {
    if (place.cta >= 0 && place.cta != c) continue;
    const TensorMemory& memory = work.ctas[c]->State<TensorMemory>();
    const int column = static_cast<int>(base.column) + place.column;
    for (int lane : place.lanes) {
      const uint32_t word = memory.Read(lane, column);
      if (first) {
        value = word;
        first = false;
      } else if ((word & used) != (value & used)) {
        Raise(Rule::kTensorMemory,
              absl::StrFormat("the scale factors of %s must be the same in all quarters of tensor memory: "
                              "index %d has 0x%x "
                              "in lane %d of column %d of CTA rank %d, 0x%x in another copy",
                              name, row, word, lane, column, work.ctas[c]->rank(), value));
      }
    }
  }
  return value;
}

void ApplyScales(const MmaWork& work, bool is_a, Matrix& matrix) {
  const int vector = work.payload->qualifiers.scale_vector;
  const int id = is_a ? work.descriptor.a_scale_id : work.descriptor.b_scale_id;
  const uint32_t used = (vector == 4 ? ~0u : (1u << (8 * vector)) - 1) << (8 * id);
  const int block = work.k / vector;
  for (int row = 0; row < matrix.rows; ++row) {
    const ScalePlace place =
        is_a ? PlaceScaleA(work.path, row) : PlaceScaleB(work.path, work.descriptor.n, row);
    const uint32_t word =
        ReadScales(work, place, is_a ? work.scale_a : work.scale_b, used, is_a ? "A" : "B", row);
    for (int k = 0; k < work.k; ++k) {
      matrix.at(row, k) *= Decode(work.descriptor.scale_type, word >> (8 * (id + k / block)));
    }
  }
}

Matrix Gather(std::vector<SmemOperand>& operands, int rows, int k) {
  if (operands.size() == 1) return operands[0].Complete();
  Matrix all(rows, k);
  auto at = all.values.begin();
  for (SmemOperand& operand : operands) {
    const Matrix part = operand.Complete();
    at = std::copy(part.values.begin(), part.values.end(), at);
  }
  return all;
}

void Negate(Matrix& matrix) {
  for (double& value : matrix.values) value = -value;
}

bool Disabled(const MmaWork& work, int cta, int lane) {
  return work.disabled_lanes[cta * 4 + lane / 32] >> (lane % 32) & 1;
}

void Complete(MmaWork& work) {
  const InstructionDescriptor& desc = work.descriptor;
  Matrix a =
      work.payload->qualifiers.a_in_tmem ? LoadAFromTmem(work) : Gather(work.a_operands, desc.m, work.k);
  Matrix b = Gather(work.b_operands, desc.n, work.k);
  if (desc.negate_a) Negate(a);
  if (desc.negate_b) Negate(b);
  if (work.payload->qualifiers.scale_vector != 0) {
    ApplyScales(work, true, a);
    ApplyScales(work, false, b);
  }
  const Matrix sums = Multiply(a, b);
  TensorMemory* memories[2];
  for (size_t c = 0; c < work.ctas.size(); ++c) memories[c] = &work.ctas[c]->State<TensorMemory>();
  // Columns come in runs that lie in one lane.
  const int run = AccumulatorColumns(work.path, desc.n);
  for (int row = 0; row < desc.m; ++row) {
    for (int n = 0; n < desc.n; n += run) {
      const AccumulatorPlace place = PlaceAccumulator(work.path, desc.n, row, n);
      const int lane = static_cast<int>(work.d.lane) + place.lane;
      const int column = static_cast<int>(work.d.column) + place.column;
      if (Disabled(work, place.cta, lane)) continue;
      TensorMemory& memory = *memories[place.cta];
      const uint32_t* old = work.accumulate ? memory.ReadRow(lane, column, run) : nullptr;
      RoundAccumulatorRow(desc.d_type, &sums.values[static_cast<size_t>(row) * desc.n + n], old, work.scale_d,
                          desc.saturate, run, memory.WriteRow(lane, column, run));
    }
  }
}

// ---- Issue

TmemAddress ReadTmemAddress(Warp& warp, const Operand& operand, int lane) {
  return SplitTmemAddress(static_cast<uint32_t>(warp.AddressLane(operand, lane)));
}

void RequireBaseLane(DataPath path, TmemAddress at, std::string_view name) {
  if (ValidBaseLane(path, at.lane)) return;
  Raise(Rule::kMisalignedAddress, absl::StrFormat("%s starts at lane %d; layout %s starts at lane 0%s", name,
                                                  at.lane, Name(path), path == DataPath::kF ? " or 16" : ""));
}

// Lanes that a layout covers from its base, for the order of uses.
void NoteLanes(TensorMemory& memory, TmemOperation* operation, TmemUse use, DataPath path, TmemAddress at,
               int columns) {
  const int column = static_cast<int>(at.column);
  if (path != DataPath::kF) {
    memory.Note(operation, use, 0, kTmemLanes, column, columns);
    return;
  }
  for (int quarter = 0; quarter < 4; ++quarter) {
    memory.Note(operation, use, quarter * kTmemQuarter + static_cast<int>(at.lane), 16, column, columns);
  }
}

void ReadMasks(Warp& warp, const Instruction& i, const MmaPayload& p, int lane, MmaWork& work) {
  if (p.mask_operand < 0) return;
  const absl::Span<const Operand> masks = Registers(i.operands[p.mask_operand]);
  for (size_t m = 0; m < masks.size(); ++m) {
    work.disabled_lanes[m] = static_cast<uint32_t>(warp.SourceLane(masks[m], lane));
  }
}

// Checks and remembers every use of tensor memory.
void ClaimTmem(MmaWork& work) {
  const MmaPayload& p = *work.payload;
  const InstructionDescriptor& desc = work.descriptor;
  const int d_columns = AccumulatorColumns(work.path, desc.n);
  const int a_columns = work.k * StorageBits(p.kind, desc.a_type) / 32;
  for (Cta* cta : work.ctas) {
    TensorMemory& memory = cta->State<TensorMemory>();
    if (p.qualifiers.a_in_tmem) {
      memory.RequireAllocated(work.a.column, a_columns, "A of tcgen05.mma");
      NoteLanes(memory, work.operation, TmemUse::kRead, work.path, work.a, a_columns);
    }
    if (p.qualifiers.scale_vector != 0) {
      const int rows_a = work.path == DataPath::kB ? 64 : 128;
      const int rows_b = work.path == DataPath::kB ? desc.n / 2 : desc.n;
      for (auto [at, rows, name] : {std::tuple{work.scale_a, rows_a, "scale factors of A"},
                                    std::tuple{work.scale_b, rows_b, "scale factors of B"}}) {
        const int columns = (rows + 31) / 32;
        memory.RequireAllocated(at.column, columns, name);
        memory.Note(work.operation, TmemUse::kRead, 0, kTmemLanes, static_cast<int>(at.column), columns);
      }
    }
    memory.RequireAllocated(work.d.column, d_columns, "D of tcgen05.mma");
    NoteLanes(memory, work.operation, TmemUse::kAccumulate, work.path, work.d, d_columns);
  }
}

void ClaimShared(Warp& warp, const Instruction& i, int lane, MmaWork& work) {
  const MmaPayload& p = *work.payload;
  const InstructionDescriptor& desc = work.descriptor;
  const int ctas = static_cast<int>(work.ctas.size());
  const uint64_t b = warp.SourceLane(i.operands[2], lane);
  for (Cta* cta : work.ctas) {
    if (!p.qualifiers.a_in_tmem) {
      work.a_operands.emplace_back(*cta, DescriptorTarget::kSm100, warp.SourceLane(i.operands[1], lane), "A",
                                   desc.a_major, desc.a_type, PackingOf(p.kind, desc.a_type), desc.m / ctas,
                                   work.k);
    }
    work.b_operands.emplace_back(*cta, DescriptorTarget::kSm100, b, "B", desc.b_major, desc.b_type,
                                 PackingOf(p.kind, desc.b_type), desc.n / ctas, work.k);
  }
  for (auto* operands : {&work.a_operands, &work.b_operands}) {
    for (SmemOperand& operand : *operands) operand.Issue();
  }
}

void ExecuteMma(Warp& warp, const Instruction& i) {
  warp.RequireSingleLane(i);
  const auto& p = i.As<MmaPayload>();
  RequireCtaGroup(warp, p.qualifiers.cta_group);
  const int lane = warp.first_active();

  const auto work = std::make_shared<MmaWork>();
  work->payload = &p;
  const auto bits = static_cast<uint32_t>(warp.SourceLane(i.operands[3], lane));
  absl::StatusOr<InstructionDescriptor> descriptor = DecodeInstructionDescriptor(p.kind, bits);
  RaiseIfError(descriptor.status(), Rule::kDescriptor);
  work->descriptor = *descriptor;
  RaiseIfError(CheckInstruction(p.kind, *descriptor, p.qualifiers), Rule::kShape);
  work->path = DataPathOf(descriptor->m, p.qualifiers.cta_group, p.qualifiers.weight_stationary);
  work->k = KOf(p.kind);
  work->ctas = CtasOf(warp.cta(), p.qualifiers.cta_group);

  const Operand& enable = i.operands[p.accumulate_operand];
  work->accumulate = enable.kind == Operand::Kind::kImmediate ? enable.value != 0
                                                              : InMask(warp.SourcePredicate(enable), lane);
  if (p.scale_d_operand >= 0) {
    const uint64_t shift = i.operands[p.scale_d_operand].value;
    if (shift > 15) Raise(Rule::kBadOperand, absl::StrFormat("scale-input-d is %d, must be 0 to 15", shift));
    work->scale_d = 1.0 / static_cast<double>(1 << shift);
  }
  if (p.zero_mask_operand >= 0 && warp.SourceLane(i.operands[p.zero_mask_operand], lane) != 0) {
    Raise(Rule::kUnsupported, "tcgen05.mma.ws with a zero-column mask");
  }
  ReadMasks(warp, i, p, lane, *work);

  work->d = ReadTmemAddress(warp, i.operands[0], lane);
  RequireBaseLane(work->path, work->d, "D");
  if (p.qualifiers.a_in_tmem) {
    if (work->path == DataPath::kE || work->path == DataPath::kG) {
      Raise(Rule::kUnsupported, "A in tensor memory for tcgen05.mma.ws with M below 128");
    }
    work->a = ReadTmemAddress(warp, i.operands[1], lane);
    RequireBaseLane(work->path, work->a, "A");
    if (work->a.lane != work->d.lane) {
      Raise(Rule::kMisalignedAddress,
            absl::StrFormat("A is in lanes %d.. and D in lanes %d.. of each quarter; layout F "
                            "needs both in the same half",
                            work->a.lane, work->d.lane));
    }
  }
  if (p.qualifiers.scale_vector != 0) {
    // Bits 30-31 of these addresses may repeat the scale-factor id.
    for (auto [operand, at, name] :
         {std::tuple{p.scale_a_operand, &work->scale_a, "the scale factors of A"},
          std::tuple{p.scale_b_operand, &work->scale_b, "the scale factors of B"}}) {
      *at = SplitTmemAddress(static_cast<uint32_t>(warp.AddressLane(i.operands[operand], lane)) & 0x3fffffff);
      if (at->lane != 0) {
        Raise(Rule::kMisalignedAddress,
              absl::StrFormat("%s start at lane %d, must be lane 0", name, at->lane));
      }
    }
  }
  work->operation =
      warp.cluster().State<TmemClusterState>().NewOperation(TmemOperation::Kind::kMma, warp, lane, i);
  work->operation->shape = static_cast<uint32_t>(p.kind) | static_cast<uint32_t>(descriptor->m) << 8 |
                           static_cast<uint32_t>(descriptor->n) << 20;
  ClaimTmem(*work);
  ClaimShared(warp, i, lane, *work);
  warp.cluster().async().Post(warp, {absl::StrFormat("tcgen05.mma (line %d)", i.where.line),
                                     TensorCoreChain(warp), [work] { Complete(*work); }});
}

// Finds the operands after the instruction descriptor.
absl::Status PlaceOperands(const Instruction& i, MmaPayload& p) {
  const size_t count = i.operands.size();
  size_t at = 4;
  const auto is_address = [&](size_t operand) {
    return operand < count && i.operands[operand].kind == Operand::Kind::kAddress;
  };
  if (IsBlockScaled(p.kind)) {
    if (!is_address(4) || !is_address(5)) return absl::InvalidArgumentError("needs [scale-A] and [scale-B]");
    p.scale_a_operand = 4;
    p.scale_b_operand = 5;
    at = 6;
  } else if (at < count && i.operands[at].kind == Operand::Kind::kVector) {
    const size_t words = p.qualifiers.cta_group == 2 ? 8 : 4;
    if (absl::Status s = RequireRegisters(i, at, words, "disable-output-lane"); !s.ok()) return s;
    p.mask_operand = static_cast<int>(at++);
  }
  if (at >= count) return absl::InvalidArgumentError("enable-input-d is missing");
  p.accumulate_operand = static_cast<int>(at++);
  if (at < count) {
    if (p.qualifiers.weight_stationary) {
      p.zero_mask_operand = static_cast<int>(at++);
    } else if (p.kind == MmaKind::kF16 || p.kind == MmaKind::kTF32) {
      if (i.operands[at].kind != Operand::Kind::kImmediate) {
        return absl::InvalidArgumentError("scale-input-d is an immediate");
      }
      p.scale_d_operand = static_cast<int>(at++);
    }
  }
  if (at != count) {
    return absl::InvalidArgumentError(absl::StrFormat("this form takes %d operands, not %d", at, count));
  }
  return absl::OkStatus();
}

absl::Status PrepareMma(Instruction& i) {
  absl::StatusOr<int> cta_group = ParseCtaGroup(i);
  if (!cta_group.ok()) return cta_group.status();
  auto payload = std::make_unique<MmaPayload>();
  payload->qualifiers.cta_group = *cta_group;
  std::string scale;
  bool kind = false, block_scale = false;
  for (const std::string& modifier : i.modifiers) {
    if (absl::StartsWith(modifier, "kind::")) {
      absl::StatusOr<MmaKind> parsed = ParseMmaKind(std::string_view(modifier).substr(6));
      if (!parsed.ok()) return parsed.status();
      payload->kind = *parsed;
      kind = true;
    } else if (modifier == "block_scale") {
      block_scale = true;
    } else if (absl::StartsWith(modifier, "scale_vec::") || modifier == "block16" || modifier == "block32") {
      scale = modifier;
    } else if (modifier == "ws") {
      payload->qualifiers.weight_stationary = true;
    } else if (modifier != "mma" && !absl::StartsWith(modifier, "cta_group") &&
               !absl::StartsWith(modifier, "collector::")) {  // the collector only saves reads
      return absl::UnimplementedError(absl::StrFormat("tcgen05.mma with .%s", modifier));
    }
  }
  if (!kind) return absl::InvalidArgumentError("needs .kind::...");
  if (block_scale != IsBlockScaled(payload->kind)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("kind::%s %s .block_scale", Name(payload->kind), block_scale ? "has no" : "needs"));
  }
  absl::StatusOr<int> vector = ScaleVector(payload->kind, scale);
  if (!vector.ok()) return vector.status();
  payload->qualifiers.scale_vector = *vector;
  if (i.operands.size() < 5 || i.operands[0].kind != Operand::Kind::kAddress) {
    return absl::InvalidArgumentError("takes [d], A, B, the instruction descriptor, ..., enable-input-d");
  }
  payload->qualifiers.a_in_tmem = i.operands[1].kind == Operand::Kind::kAddress;
  if (absl::Status s = PlaceOperands(i, *payload); !s.ok()) return s;
  i.payload = std::move(payload);
  i.execute = ExecuteMma;
  return absl::OkStatus();
}

}  // namespace

void RegisterTcgen05Mma(Registry& registry) { registry.Add("tcgen05.mma", PrepareMma); }

}  // namespace tessera::ptx
