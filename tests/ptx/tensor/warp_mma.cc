// mma.sync.aligned.m16n8kK.row.col: D = A * B + C by one warp, all operands in registers.
//
// Source: PTX ISA, "Warp-level Matrix Instructions: mma". Shapes whose K is 16 or 32 bytes; f16, bf16, tf32, e4m3, e5m2,
// s8, u8.
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/ptx/machine/registry.h"
#include "tests/ptx/machine/warp.h"
#include "tests/ptx/tensor/fragments.h"
#include "tests/ptx/tensor/handlers.h"
#include "tests/ptx/tensor/matmul.h"

namespace tessera::ptx {
namespace {

constexpr int kM = 16;
constexpr int kN = 8;
constexpr int kMaxK = 32;
constexpr uint32_t kNanF32 = 0x7fffffff;  // as RoundAccumulator makes it

struct MmaPayload : Payload {
  int k = 0;
  ElementType d = ElementType::kF32, a = ElementType::kBF16, b = ElementType::kBF16, c = ElementType::kF32;
  bool saturate = false;
  int a_registers = 0, b_registers = 0;
};

int AccumulatorRegisters(ElementType type) { return type == ElementType::kF16 ? 2 : 4; }

// Decodes register fragments: rows of kMaxK doubles.
template <class Place, class DecodeTo>
void DecodeEach(Warp& warp, const Operand& operand, int each, Place place, DecodeTo decode,
                double (*values)[kMaxK]) {
  const absl::Span<const Operand> registers = Registers(operand);
  for (size_t reg = 0; reg < registers.size(); ++reg) {
    uint32_t scratch[kWarpSize];
    const uint32_t* words = warp.Source<uint32_t>(registers[reg], scratch);
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const FragmentPlace at = place(lane, static_cast<int>(reg));
      decode(words[lane], &values[at.row][at.column * each]);
    }
  }
}

template <class Place>
void Decode(Warp& warp, const Operand& operand, ElementType type, Place place, double (*values)[kMaxK]) {
  if (type == ElementType::kBF16) {  // by far the most frequent
    DecodeEach(
        warp, operand, 2, place,
        [](uint32_t word, double* to) {
          to[0] = std::bit_cast<float>(word << 16);
          to[1] = std::bit_cast<float>(word & 0xffff0000u);
        },
        values);
    return;
  }
  DecodeEach(
      warp, operand, 32 / BitsOf(type), place,
      [type](uint32_t word, double* to) { DecodeWord(type, word, to); }, values);
}

void ExecuteMma(Warp& warp, const Instruction& i) {
  warp.RequireConverged(i);
  const auto& p = i.As<MmaPayload>();
  double a[kM][kMaxK], b[kN][kMaxK], sums[kM][kN];
  Decode(
      warp, i.operands[1], p.a, [](int l, int r) { return PlaceFragmentA(l, r); }, a);
  Decode(
      warp, i.operands[2], p.b, [](int l, int r) { return PlaceFragmentB(l, r); }, b);
  double columns[kMaxK][kN];
  for (int n = 0; n < kN; ++n) {
    for (int k = 0; k < p.k; ++k) columns[k][n] = b[n][k];
  }
  for (int m = 0; m < kM; ++m) {
    double sum[kN] = {};
    for (int k = 0; k < p.k; ++k) {
      for (int n = 0; n < kN; ++n) sum[n] += a[m][k] * columns[k][n];
    }
    std::copy(sum, sum + kN, sums[m]);
  }

  const absl::Span<const Operand> c = Registers(i.operands[3]);
  if (p.c == ElementType::kF16) {
    for (int reg = 0; reg < 2; ++reg) {
      uint32_t scratch[kWarpSize];
      const uint32_t* words = warp.Source<uint32_t>(c[reg], scratch);
      for (int lane = 0; lane < kWarpSize; ++lane) {
        const FragmentPlace at = PlaceFragmentD16(lane, reg);
        double pair[2];
        DecodeWord(ElementType::kF16, words[lane], pair);
        sums[at.row][at.column] += pair[0];
        sums[at.row][at.column + 1] += pair[1];
      }
    }
  } else {
    for (int reg = 0; reg < 4; ++reg) {
      uint32_t scratch[kWarpSize];
      const uint32_t* words = warp.Source<uint32_t>(c[reg], scratch);
      for (int lane = 0; lane < kWarpSize; ++lane) {
        const FragmentPlace at = PlaceFragmentD32(lane, reg);
        sums[at.row][at.column] += p.c == ElementType::kF32 ? std::bit_cast<float>(words[lane])
                                                            : ::tessera::ptx::Decode(p.c, words[lane]);
      }
    }
  }

  const absl::Span<const Operand> d = Registers(i.operands[0]);
  uint32_t words[4][kWarpSize];
  for (int reg = 0; reg < AccumulatorRegisters(p.d); ++reg) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      if (p.d == ElementType::kF32) {
        const FragmentPlace at = PlaceFragmentD32(lane, reg);
        const double sum = sums[at.row][at.column];
        words[reg][lane] = sum == sum ? std::bit_cast<uint32_t>(static_cast<float>(sum)) : kNanF32;
      } else if (p.d == ElementType::kF16) {
        const FragmentPlace at = PlaceFragmentD16(lane, reg);
        words[reg][lane] = RoundToF16(sums[at.row][at.column]) |
                           static_cast<uint32_t>(RoundToF16(sums[at.row][at.column + 1])) << 16;
      } else {
        const FragmentPlace at = PlaceFragmentD32(lane, reg);
        words[reg][lane] = RoundAccumulator(p.d, sums[at.row][at.column], p.saturate);
      }
    }
    warp.Store<uint32_t>(d[reg], words[reg]);
  }
}

absl::Status PrepareMma(Instruction& i) {
  auto payload = std::make_unique<MmaPayload>();
  std::optional<MmaShape> shape;
  std::vector<ElementType> types;
  std::vector<std::string> layouts;
  for (const std::string& modifier : i.modifiers) {
    if (std::optional<MmaShape> parsed = ParseMmaShape(modifier)) {
      shape = parsed;
    } else if (std::optional<ElementType> type = ParseElementType(modifier)) {
      types.push_back(*type);
    } else if (modifier == "row" || modifier == "col") {
      layouts.push_back(modifier);
    } else if (modifier == "satfinite") {
      payload->saturate = true;
    } else if (modifier != "sync" && modifier != "aligned") {
      return absl::UnimplementedError(absl::StrFormat("mma.sync with .%s", modifier));
    }
  }
  if (!shape || shape->m != kM || shape->n != kN || types.size() != 4) {
    return absl::UnimplementedError("mma.sync of another shape than m16n8kK, or without its four types");
  }
  if (layouts != std::vector<std::string>{"row", "col"}) {
    return absl::UnimplementedError("mma.sync of other layouts than .row.col");
  }
  payload->k = shape->k;
  payload->d = types[0];
  payload->a = types[1];
  payload->b = types[2];
  payload->c = types[3];
  const int bits = BitsOf(payload->a);
  if (BitsOf(payload->b) != bits || bits < 8 || (bits == 32 && payload->a != ElementType::kTF32)) {
    return absl::UnimplementedError(
        absl::StrFormat("mma.sync of %s by %s", Name(payload->a), Name(payload->b)));
  }
  const int k_bytes = payload->k * bits / 8;
  if (k_bytes != 16 && k_bytes != 32) {
    return absl::InvalidArgumentError(absl::StrFormat("mma.sync: K %d of %s is %d bytes, must be 16 or 32",
                                                      payload->k, Name(payload->a), k_bytes));
  }
  for (ElementType type : {payload->d, payload->c}) {
    const bool fits = IsInteger(payload->a) ? type == ElementType::kS32
                                            : type == ElementType::kF32 || type == ElementType::kF16;
    if (!fits)
      return absl::InvalidArgumentError(absl::StrFormat("mma.sync with an accumulator of %s", Name(type)));
  }
  payload->a_registers = k_bytes / 8;
  payload->b_registers = k_bytes / 16;
  const struct {
    size_t count;
    std::string_view name;
  } kOperands[] = {{static_cast<size_t>(AccumulatorRegisters(payload->d)), "D"},
                   {static_cast<size_t>(payload->a_registers), "A"},
                   {static_cast<size_t>(payload->b_registers), "B"},
                   {static_cast<size_t>(AccumulatorRegisters(payload->c)), "C"}};
  for (size_t at = 0; at < 4; ++at) {
    absl::Status s = RequireRegisters(i, at, kOperands[at].count, kOperands[at].name);
    if (!s.ok()) return s;
  }
  i.payload = std::move(payload);
  i.execute = ExecuteMma;
  return absl::OkStatus();
}

}  // namespace

void RegisterWarpMma(Registry& registry) { registry.Add("mma.sync", PrepareMma); }

}  // namespace tessera::ptx
