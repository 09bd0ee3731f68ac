// ldmatrix, stmatrix, movmatrix: 8x8 matrices of 16-bit elements between shared memory and the registers of a warp.
#include <cstdint>
#include <cstring>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "tests/ptx/machine/registry.h"
#include "tests/ptx/machine/warp.h"
#include "tests/ptx/tensor/fragments.h"
#include "tests/ptx/tensor/handlers.h"

namespace tessera::ptx {
namespace {

struct MatrixPayload : Payload {
  int count = 1;
  bool transposed = false;
  Space space = Space::kGeneric;
};

using Matrix8x8 = uint16_t[8][8];

uint32_t Gather(const Matrix8x8& matrix, int lane, bool transposed) {
  const FragmentPlace place = PlaceMatrix8x8(lane);
  const uint32_t low = transposed ? matrix[place.column][place.row] : matrix[place.row][place.column];
  const uint32_t high =
      transposed ? matrix[place.column + 1][place.row] : matrix[place.row][place.column + 1];
  return low | high << 16;
}

void Scatter(Matrix8x8& matrix, int lane, bool transposed, uint32_t word) {
  const FragmentPlace place = PlaceMatrix8x8(lane);
  for (int i = 0; i < 2; ++i) {
    uint16_t& element =
        transposed ? matrix[place.column + i][place.row] : matrix[place.row][place.column + i];
    element = static_cast<uint16_t>(word >> (16 * i));
  }
}

absl::StatusOr<std::unique_ptr<MatrixPayload>> Decode(const Instruction& i, size_t registers) {
  auto payload = std::make_unique<MatrixPayload>();
  bool shape = false;
  for (const std::string& modifier : i.modifiers) {
    if (modifier == "m8n8") {
      shape = true;
    } else if (modifier == "x1" || modifier == "x2" || modifier == "x4") {
      payload->count = modifier[1] - '0';
    } else if (modifier == "trans") {
      payload->transposed = true;
    } else if (modifier == "shared" || modifier == "shared::cta") {
      payload->space = Space::kSharedCta;
    } else if (modifier != "sync" && modifier != "aligned" && modifier != "b16") {
      return absl::UnimplementedError(absl::StrFormat("%s with .%s", i.opcode, modifier));
    }
  }
  if (!shape) return absl::InvalidArgumentError(absl::StrFormat("%s without its shape .m8n8", i.opcode));
  if (absl::Status s = RequireRegisters(i, registers, payload->count, "the fragment"); !s.ok()) return s;
  return payload;
}

// Lanes 8 m .. 8 m + 7 give the addresses of the rows of matrix m.
void ExecuteLdmatrix(Warp& warp, const Instruction& i) {
  warp.RequireConverged(i);
  const auto& p = i.As<MatrixPayload>();
  uint64_t scratch[kWarpSize];
  const uint64_t* addresses = warp.Addresses(i.operands[1], scratch);
  Matrix8x8 matrices[4];
  for (int lane = 0; lane < 8 * p.count; ++lane) {
    warp.LoadLane(lane, p.space, addresses[lane], 16, matrices[lane / 8][lane % 8]);
  }
  const absl::Span<const Operand> registers = Registers(i.operands[0]);
  for (int m = 0; m < p.count; ++m) {
    uint32_t words[kWarpSize];
    for (int lane = 0; lane < kWarpSize; ++lane) words[lane] = Gather(matrices[m], lane, p.transposed);
    warp.Store<uint32_t>(registers[m], words);
  }
}

void ExecuteStmatrix(Warp& warp, const Instruction& i) {
  warp.RequireConverged(i);
  const auto& p = i.As<MatrixPayload>();
  uint64_t scratch[kWarpSize];
  const uint64_t* addresses = warp.Addresses(i.operands[0], scratch);
  const absl::Span<const Operand> registers = Registers(i.operands[1]);
  for (int m = 0; m < p.count; ++m) {
    uint32_t words[kWarpSize];
    const uint32_t* source = warp.Source<uint32_t>(registers[m], words);
    Matrix8x8 matrix;
    for (int lane = 0; lane < kWarpSize; ++lane) Scatter(matrix, lane, p.transposed, source[lane]);
    for (int row = 0; row < 8; ++row)
      warp.StoreLane(8 * m + row, p.space, addresses[8 * m + row], 16, matrix[row]);
  }
}

void ExecuteMovmatrix(Warp& warp, const Instruction& i) {
  warp.RequireConverged(i);
  uint32_t scratch[kWarpSize];
  const uint32_t* source = warp.Source<uint32_t>(i.operands[1], scratch);
  Matrix8x8 matrix;
  for (int lane = 0; lane < kWarpSize; ++lane) Scatter(matrix, lane, false, source[lane]);
  uint32_t words[kWarpSize];
  for (int lane = 0; lane < kWarpSize; ++lane) words[lane] = Gather(matrix, lane, true);
  warp.Store<uint32_t>(i.operands[0], words);
}

template <ExecuteFn kExecute, int kFragment>
absl::Status Prepare(Instruction& i) {
  if (i.operands.size() != 2) return absl::InvalidArgumentError("needs two operands");
  absl::StatusOr<std::unique_ptr<MatrixPayload>> payload = Decode(i, kFragment);
  if (!payload.ok()) return payload.status();
  i.payload = *std::move(payload);
  i.execute = kExecute;
  return absl::OkStatus();
}

}  // namespace

void RegisterWarpMatrix(Registry& registry) {
  registry.Add("ldmatrix", Prepare<ExecuteLdmatrix, 0>);
  registry.Add("stmatrix", Prepare<ExecuteStmatrix, 1>);
  registry.Add("movmatrix", Prepare<ExecuteMovmatrix, 1>);
}

}  // namespace tessera::ptx
