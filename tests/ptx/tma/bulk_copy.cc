// cp.async.bulk, cp.reduce.async.bulk and cp.async.bulk.prefetch (PTX ISA, "Bulk copy").
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/ptx/machine/fault.h"
#include "tests/ptx/tma/copy_engine.h"
#include "tests/ptx/tma/reduction.h"
#include "tests/ptx/tma/register.h"

namespace tessera::ptx {
namespace {

struct BulkPayload : Payload {
  bool own_destination = false;  // .shared::cta
  bool cache_hint = false;
  bool multicast = false;
  bool byte_mask = false;
  ReduceFn reduce = nullptr;
};

constexpr uint32_t kAlignment = 16;

// The size operand, checked.
uint32_t SizeOf(Warp& warp, const Instruction& i, const Operand& operand, int lane) {
  const uint32_t size = static_cast<uint32_t>(warp.SourceLane(operand, lane));
  if (size == 0 || size % kAlignment != 0) {
    RaiseAt(lane, Rule::kBadOperand,
            absl::StrCat(i.opcode, ".", i.modifiers[0], "... of ", size,
                         " bytes; expected a positive multiple of 16"));
  }
  return size;
}

// Global to shared memory: [dst], [src], size, [mbar] {, mask} {, policy}.
void LoadBulk(Warp& warp, const Instruction& i) {
  const BulkPayload& payload = i.As<BulkPayload>();
  ForLanes(warp.active(), [&](int lane) {
    const SharedPlace destination =
        ResolveShared(warp, i.operands[0], lane, payload.own_destination, "the destination");
    const uint64_t source = warp.AddressLane(i.operands[1], lane);
    const uint32_t size = SizeOf(warp, i, i.operands[2], lane);
    RequireAligned(lane, destination.offset, kAlignment, "the destination's shared-memory address");
    RequireAligned(lane, source, kAlignment, "the source's global address");
    const SharedPlace barrier = ResolveBarrier(warp, i.operands[3], lane, destination, false);
    LoadCopy copy;
    copy.what = absl::StrCat("cp.async.bulk of ", size, " bytes into shared memory");
    copy.pieces.push_back({destination.offset, source, size, 0, size, 0});
    copy.bytes = size;
    if (payload.multicast) {
      const uint64_t mask = warp.SourceLane(i.operands[4], lane) & 0xFFFF;
      MulticastTo(warp, lane, mask, barrier, false, &copy);
    } else {
      copy.destinations = {destination.cta};
      copy.barriers = {barrier};
    }
    PostLoad(warp, std::move(copy));
  });
}

// Shared to global memory: [dst], [src], size {, policy} {, byte mask}.
void StoreBulk(Warp& warp, const Instruction& i) {
  const BulkPayload& payload = i.As<BulkPayload>();
  ForLanes(warp.active(), [&](int lane) {
    const uint64_t destination = warp.AddressLane(i.operands[0], lane);
    const SharedPlace source = ResolveShared(warp, i.operands[1], lane, true, "the source");
    const uint32_t size = SizeOf(warp, i, i.operands[2], lane);
    RequireAligned(lane, destination, kAlignment, "the destination's global address");
    RequireAligned(lane, source.offset, kAlignment, "the source's shared-memory address");
    StoreCopy copy;
    copy.what = absl::StrCat(payload.reduce ? "cp.reduce.async.bulk" : "cp.async.bulk", " of ", size,
                             " bytes into global memory");
    copy.pieces.push_back({source.offset, destination, size, 0, size, 0});
    copy.source = source.cta;
    if (payload.reduce) copy.reduce = payload.reduce;
    if (payload.byte_mask) {
      copy.byte_mask = static_cast<uint16_t>(warp.SourceLane(i.operands[payload.cache_hint ? 4 : 3], lane));
    }
    PostStore(warp, lane, std::move(copy));
  });
}

// Shared memory of one CTA to that of another: [dst], [src], size, [mbar].
void CopyInCluster(Warp& warp, const Instruction& i) {
  const BulkPayload& payload = i.As<BulkPayload>();
  ForLanes(warp.active(), [&](int lane) {
    const SharedPlace destination = ResolveShared(warp, i.operands[0], lane, false, "the destination");
    const SharedPlace source = ResolveShared(warp, i.operands[1], lane, true, "the source");
    const uint32_t size = SizeOf(warp, i, i.operands[2], lane);
    RequireAligned(lane, destination.offset, kAlignment, "the destination's shared-memory address");
    RequireAligned(lane, source.offset, kAlignment, "the source's shared-memory address");
    const SharedPlace barrier = ResolveBarrier(warp, i.operands[3], lane, destination, false);
    barrier.cta->shared().At(barrier.offset);
    SharedMemory& from = source.cta->shared();
    SharedMemory& to = destination.cta->shared();
    from.CheckAsyncReadable(source.offset, size);
    from.BeginAsyncRead(source.offset, size);
    to.BeginAsyncWrite(destination.offset, size);
    AsyncOperation operation;
    operation.what = absl::StrCat("cp.async.bulk of ", size, " bytes to CTA ", destination.cta->rank());
    operation.complete = [&from, &to, source, destination, barrier, size, reduce = payload.reduce] {
      std::vector<uint8_t> bytes(size);
      from.AsyncLoad(source.offset, size, bytes.data());
      from.EndAsyncRead(source.offset, size);
      if (reduce != nullptr) {
        std::vector<uint8_t> old(size);
        to.AsyncLoad(destination.offset, size, old.data());
        reduce(old.data(), bytes.data(), size);
        bytes.swap(old);
      }
      to.AsyncStore(destination.offset, size, bytes.data());
      to.EndAsyncWrite(destination.offset, size);
      barrier.cta->shared().At(barrier.offset).CompleteTx(size);
    };
    warp.cluster().async().Post(warp, std::move(operation));
  });
}

absl::Status RequireOperands(const Instruction& i, size_t count) {
  if (i.operands.size() == count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(i.operands.size(), " operands; expected ", count));
}

absl::Status PrepareBulk(Instruction& i) {
  auto payload = std::make_unique<BulkPayload>();
  payload->cache_hint = i.Has("L2::cache_hint");
  payload->multicast = i.Has("multicast::cluster");
  payload->byte_mask = i.Has("cp_mask");
  const bool is_reduce = i.opcode == "cp" && i.modifiers[0] == "reduce";
  // "async.bulk.DST.SRC..." or "reduce.async.bulk.DST.SRC...".
  const size_t first = is_reduce ? 3 : 2;
  if (i.modifiers.size() < first + 3)
    return absl::InvalidArgumentError("expected .dst.src.completion_mechanism");
  const std::string destination = i.modifiers[first], source = i.modifiers[first + 1],
                    by = i.modifiers[first + 2];
  if (is_reduce) {
    absl::StatusOr<ReduceFn> reduce = FindReduction(i, destination == "global");
    if (!reduce.ok()) return reduce.status();
    payload->reduce = *reduce;
  }
  payload->own_destination = destination == "shared::cta";
  const bool by_barrier = by == "mbarrier::complete_tx::bytes";
  absl::Status status;
  if (destination == "global" && source == "shared::cta" && by == "bulk_group") {
    status = RequireOperands(i, 3 + payload->cache_hint + payload->byte_mask);
    i.execute = StoreBulk;
  } else if (destination == "shared::cluster" && source == "shared::cta" && by_barrier) {
    status = RequireOperands(i, 4);
    i.execute = CopyInCluster;
  } else if (destination.starts_with("shared::c") && source == "global" && by_barrier && !is_reduce) {
    status = RequireOperands(i, 4 + payload->multicast + payload->cache_hint);
    i.execute = LoadBulk;
  } else {
    return absl::InvalidArgumentError(absl::StrCat("there is no bulk copy .", destination, ".", source, ".",
                                                   by, " (destination, source, completion)"));
  }
  i.payload = std::move(payload);
  return status;
}

absl::Status PreparePrefetch(Instruction& i) {
  i.execute = [](Warp& warp, const Instruction& i) {
    ForLanes(warp.active(), [&](int lane) {
      RequireAligned(lane, warp.AddressLane(i.operands[0], lane), kAlignment, "the address to prefetch");
      SizeOf(warp, i, i.operands[1], lane);
    });
  };
  return i.operands.size() >= 2 ? absl::OkStatus() : RequireOperands(i, 2);
}

}  // namespace

void RegisterBulkCopies(Registry& registry) {
  registry.Add("cp.async.bulk", PrepareBulk);
  registry.Add("cp.reduce.async.bulk", PrepareBulk);
  registry.Add("cp.async.bulk.prefetch", PreparePrefetch);
}

}  // namespace tessera::ptx
