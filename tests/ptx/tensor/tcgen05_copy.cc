// tcgen05.cp: shared memory to tensor memory, asynchronously.
//
// Source: PTX ISA, "tcgen05.cp". The source is read as a K-major operand without a transpose: rows of one or two
// 16-byte columns. Row r goes to the lanes that the shape and its multicast say, its bytes to successive columns.
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/registry.h"
#include "tests/ptx/machine/warp.h"
#include "tests/ptx/tensor/handlers.h"
#include "tests/ptx/tensor/smem_operand.h"
#include "tests/ptx/tensor/tcgen05.h"
#include "tests/ptx/tensor/tensor_memory.h"

namespace tessera::ptx {
namespace {

struct CopyPayload : Payload {
  int cta_group = 1;
  CopyShape shape = CopyShape::k32x128bWarpx4;
  CopyDecompress decompress = CopyDecompress::kNone;
};

struct CopyWork {
  CopyPayload payload;
  MatrixDescriptor descriptor;
  TmemAddress target;
  std::vector<Cta*> ctas;
  std::vector<SmemRange> sources;
  TmemOperation* operation = nullptr;
};

void Complete(CopyWork& work) {
  const CopyShape shape = work.payload.shape;
  for (size_t c = 0; c < work.ctas.size(); ++c) {
    TensorMemory& memory = work.ctas[c]->State<TensorMemory>();
    for (int row = 0; row < CopyRows(shape); ++row) {
      for (int chunk = 0; chunk < CopyChunks(shape); ++chunk) {
        uint8_t source[kChunkBytes], target[kChunkBytes];
        work.ctas[c]->shared().AsyncLoad(KMajorChunkAddress(work.descriptor, row, chunk), kChunkBytes,
                                         source);
        DecompressChunk(work.payload.decompress, source, target);
        for (int lane : CopyLanes(shape, row)) {
          for (int word = 0; word < 4; ++word) {
            uint32_t value;
            std::memcpy(&value, target + 4 * word, 4);
            memory.Write(static_cast<int>(work.target.lane) + lane,
                         static_cast<int>(work.target.column) + 4 * chunk + word, value);
          }
        }
      }
    }
    work.sources[c].End();
  }
}

void ExecuteCopy(Warp& warp, const Instruction& i) {
  warp.RequireSingleLane(i);
  const auto& p = i.As<CopyPayload>();
  RequireCtaGroup(warp, p.cta_group);
  const int lane = warp.first_active();
  const auto work = std::make_shared<CopyWork>();
  work->payload = p;
  work->target = SplitTmemAddress(static_cast<uint32_t>(warp.AddressLane(i.operands[0], lane)));
  work->descriptor =
      RequireDescriptor(DescriptorTarget::kSm100, warp.SourceLane(i.operands[1], lane), "the source");
  RaiseIfError(CheckOperand(work->descriptor, Major::kK, 8, CopyRows(p.shape), CopyChunks(p.shape)),
               Rule::kDescriptor);
  // 4x256b writes one lane of each quarter, any; the others write whole quarters.
  if (work->target.lane >= (p.shape == CopyShape::k4x256b ? kTmemQuarter : 1)) {
    Raise(Rule::kTensorMemory,
          absl::StrFormat("tcgen05.cp to lane %d; this shape starts at lane 0", work->target.lane));
  }
  std::vector<uint32_t> chunks;
  for (int row = 0; row < CopyRows(p.shape); ++row) {
    for (int chunk = 0; chunk < CopyChunks(p.shape); ++chunk) {
      chunks.push_back(KMajorChunkAddress(work->descriptor, row, chunk));
    }
  }
  work->operation =
      warp.cluster().State<TmemClusterState>().NewOperation(TmemOperation::Kind::kCopy, warp, lane, i);
  work->ctas = CtasOf(warp.cta(), p.cta_group);
  for (Cta* cta : work->ctas) {
    TensorMemory& memory = cta->State<TensorMemory>();
    const int columns = 4 * CopyChunks(p.shape);
    memory.RequireAllocated(work->target.column, columns, "tcgen05.cp");
    memory.Note(work->operation, TmemUse::kWrite, 0, kTmemLanes, static_cast<int>(work->target.column),
                columns);
    work->sources.emplace_back(*cta, chunks);
    work->sources.back().CheckReadable();
    work->sources.back().Begin();
  }
  warp.cluster().async().Post(warp, {absl::StrFormat("tcgen05.cp (line %d)", i.where.line),
                                     TensorCoreChain(warp), [work] { Complete(*work); }});
}

absl::Status PrepareCopy(Instruction& i) {
  absl::StatusOr<int> cta_group = ParseCtaGroup(i);
  if (!cta_group.ok()) return cta_group.status();
  auto payload = std::make_unique<CopyPayload>();
  payload->cta_group = *cta_group;
  std::string shape, multicast;
  bool to_bytes = false;
  for (const std::string& modifier : i.modifiers) {
    if (absl::EndsWith(modifier, "b") && absl::StrContains(modifier, 'x') && modifier[0] != 'b') {
      shape = modifier;
    } else if (absl::StartsWith(modifier, "warpx")) {
      multicast = modifier;
    } else if (modifier == "b8x16") {
      to_bytes = true;
    } else if (modifier == "b6x16_p32") {
      payload->decompress = CopyDecompress::kB6x16P32;
    } else if (modifier == "b4x16_p64") {
      payload->decompress = CopyDecompress::kB4x16P64;
    } else if (modifier != "cp" && !absl::StartsWith(modifier, "cta_group")) {
      return absl::UnimplementedError(absl::StrFormat("tcgen05.cp with .%s", modifier));
    }
  }
  if (to_bytes != (payload->decompress != CopyDecompress::kNone)) {
    return absl::InvalidArgumentError(".b8x16 goes with .b6x16_p32 or .b4x16_p64");
  }
  absl::StatusOr<CopyShape> parsed = ParseCopyShape(shape, multicast);
  if (!parsed.ok()) return parsed.status();
  payload->shape = *parsed;
  if (i.operands.size() != 2 || i.operands[0].kind != Operand::Kind::kAddress) {
    return absl::InvalidArgumentError("takes [taddr] and a matrix descriptor");
  }
  i.payload = std::move(payload);
  i.execute = ExecuteCopy;
  return absl::OkStatus();
}

}  // namespace

void RegisterTcgen05Copy(Registry& registry) { registry.Add("tcgen05.cp", PrepareCopy); }

}  // namespace tessera::ptx
