#include "tests/ptx/tma/copy_engine.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/ptx/machine/fault.h"
#include "tests/ptx/tma/bulk_groups.h"

namespace tessera::ptx {
namespace {

// Runs of pieces that follow each other in shared memory, as one range each: most boxes are a single one.
std::vector<std::pair<uint32_t, uint32_t>> SharedRanges(const std::vector<BoxPiece>& pieces) {
  std::vector<std::pair<uint32_t, uint32_t>> ranges;  // begin, end
  for (const BoxPiece& piece : pieces) ranges.emplace_back(piece.shared, piece.shared + piece.bytes);
  std::sort(ranges.begin(), ranges.end());
  size_t last = 0;
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first == ranges[last].second) {
      ranges[last].second = ranges[i].second;
    } else {
      ranges[++last] = ranges[i];
    }
  }
  ranges.resize(std::min(ranges.size(), last + 1));
  return ranges;
}

// Calls f(global address, bytes) for runs of pieces that lie inside the tensor and follow each other in global memory.
template <class F>
void ForEachGlobalRun(const std::vector<BoxPiece>& pieces, F&& f) {
  uint64_t begin = 0, end = 0;
  for (const BoxPiece& piece : pieces) {
    if (piece.begin == piece.end) continue;
    if (piece.global + piece.begin != end || begin == end) {
      if (begin != end) f(begin, end - begin);
      begin = piece.global + piece.begin;
    }
    end = piece.global + piece.end;
  }
  if (begin != end) f(begin, end - begin);
}

// Reads for a copy, which moves bytes and does not use them: what nothing has written arrives as 0xFF, a NaN in every
// floating-point format, so that a kernel that does use it is found out by its result.
void ReadForCopy(const GlobalMemory& memory, uint64_t address, uint64_t bytes, uint8_t* out,
                 const GlobalMemory::Allocation** hint) {
  const GlobalMemory::Allocation& allocation = memory.Check(address, bytes, hint, "bulk copy");
  std::memcpy(out, reinterpret_cast<const void*>(address), bytes);
  if (allocation.defined == nullptr) return;
  for (uint64_t i = 0; i < bytes; ++i) {
    const uint64_t at = address - allocation.base + i;
    if ((allocation.defined[at / 8].load(std::memory_order_relaxed) >> at % 8 & 1) == 0) out[i] = 0xFF;
  }
}

void ReadPieces(const GlobalMemory& memory, const LoadCopy& copy, std::vector<uint8_t>* bytes) {
  bytes->clear();
  const GlobalMemory::Allocation* hint = nullptr;
  for (size_t i = 0; i < copy.pieces.size();) {
    // Whole pieces that follow each other in global memory are read at once.
    const BoxPiece& piece = copy.pieces[i];
    size_t next = i + 1;
    uint64_t size = piece.bytes;
    if (piece.begin == 0 && piece.end == piece.bytes) {
      while (next < copy.pieces.size() && copy.pieces[next].global == piece.global + size &&
             copy.pieces[next].begin == 0 && copy.pieces[next].end == copy.pieces[next].bytes) {
        size += copy.pieces[next++].bytes;
      }
    }
    const size_t at = bytes->size();
    bytes->resize(at + size);
    for (uint32_t b = 0; b < piece.bytes; ++b) {
      if (b < piece.begin || b >= piece.end) (*bytes)[at + b] = copy.fill ? copy.fill(b) : 0;
    }
    if (piece.begin < piece.end) {
      const uint64_t inside = next == i + 1 ? piece.end - piece.begin : size;
      ReadForCopy(memory, piece.global + piece.begin, inside, bytes->data() + at + piece.begin, &hint);
    }
    i = next;
  }
}

// Reductions of different CTAs, which run on different threads, must not mix.
std::mutex& ReduceMutex() {
  static std::mutex mutex;
  return mutex;
}

void WritePieces(const GlobalMemory& memory, const StoreCopy& copy, const std::vector<uint8_t>& bytes) {
  const GlobalMemory::Allocation* hint = nullptr;
  size_t at = 0;
  for (const BoxPiece& piece : copy.pieces) {
    const uint64_t global = piece.global + piece.begin;
    const uint32_t size = piece.end - piece.begin;
    const uint8_t* source = bytes.data() + at + piece.begin;
    at += piece.bytes;
    if (size == 0) continue;
    if (copy.reduce) {
      std::lock_guard lock(ReduceMutex());
      std::vector<uint8_t> values(size);
      memory.Read(global, size, values.data(), &hint);
      copy.reduce(values.data(), source, size);
      memory.Write(global, size, values.data(), &hint);
    } else if (copy.byte_mask == 0xFFFF) {
      memory.Write(global, size, source, &hint);
    } else {
      for (uint32_t b = 0; b < size; ++b) {
        if (copy.byte_mask >> (b % 16) & 1) memory.Write(global + b, 1, source + b, &hint);
      }
    }
  }
}

}  // namespace

SharedPlace ResolveShared(Warp& warp, const Operand& operand, int lane, bool own, const char* name) {
  SharedPlace place;
  place.cta = &warp.cluster().Resolve(warp.AddressLane(operand, lane), &place.offset);
  if (own && place.cta != &warp.cta()) {
    RaiseAt(
        lane, Rule::kWrongSpace,
        absl::StrCat(name, " is .shared::cta, but its address is in the shared memory of the cluster's CTA ",
                     place.cta->rank()));
  }
  return place;
}

void RequireAligned(int lane, uint64_t value, uint64_t alignment, const char* name) {
  if (value % alignment != 0) {
    RaiseAt(lane, Rule::kMisalignedAddress,
            absl::StrCat(name, " is 0x", absl::Hex(value), "; expected a multiple of ", alignment));
  }
}

SharedPlace ResolveBarrier(Warp& warp, const Operand& operand, int lane, const SharedPlace& destination,
                           bool pair) {
  const SharedPlace barrier = ResolveShared(warp, operand, lane, false, "the mbarrier operand");
  const uint32_t rank = barrier.cta->rank(), expected = destination.cta->rank();
  if (rank != expected && !(pair && (rank ^ 1) == expected)) {
    RaiseAt(
        lane, Rule::kMbarrier,
        absl::StrCat("the mbarrier is in CTA ", rank, " of the cluster and the destination in CTA ", expected,
                     pair ? "; with .cta_group::2 they must be in the same CTA pair"
                          : "; they must be in the same CTA"));
  }
  return barrier;
}

void MulticastTo(Warp& warp, int lane, uint64_t mask, const SharedPlace& barrier, bool pair, LoadCopy* copy) {
  auto& ctas = warp.cluster().ctas();
  if (mask == 0 || mask >> ctas.size() != 0) {
    RaiseAt(
        lane, Rule::kBadOperand,
        absl::StrCat("the multicast mask is 0x", absl::Hex(mask), " in a cluster of ", ctas.size(), " CTAs"));
  }
  for (uint32_t rank = 0; rank < ctas.size(); ++rank) {
    if ((mask >> rank & 1) == 0) continue;
    copy->destinations.push_back(ctas[rank].get());
    const uint32_t signalled = pair ? (rank & ~1u) | (barrier.cta->rank() & 1) : rank;
    copy->barriers.push_back({ctas[signalled].get(), barrier.offset});
  }
}

void PostLoad(Warp& warp, LoadCopy copy) {
  const GlobalMemory& memory = warp.global();
  const char* what = copy.what.c_str();
  ForEachGlobalRun(copy.pieces, [&](uint64_t address, uint64_t bytes) {
    memory.Check(address, bytes, warp.global_hint(), what);
  });
  const auto ranges = SharedRanges(copy.pieces);
  for (const SharedPlace& barrier : copy.barriers) barrier.cta->shared().At(barrier.offset);
  for (Cta* cta : copy.destinations) {
    for (const auto& [begin, end] : ranges) cta->shared().BeginAsyncWrite(begin, end - begin);
  }
  AsyncOperation operation;
  operation.what = copy.what;
  operation.complete = [copy = std::move(copy), ranges, &memory] {
    std::vector<uint8_t> bytes;
    ReadPieces(memory, copy, &bytes);
    for (Cta* cta : copy.destinations) {
      size_t at = 0;
      for (const BoxPiece& piece : copy.pieces) {
        cta->shared().AsyncStore(piece.shared, piece.bytes, bytes.data() + at);
        at += piece.bytes;
      }
      for (const auto& [begin, end] : ranges) cta->shared().EndAsyncWrite(begin, end - begin);
    }
    for (const SharedPlace& barrier : copy.barriers)
      barrier.cta->shared().At(barrier.offset).CompleteTx(copy.bytes);
  };
  warp.cluster().async().Post(warp, std::move(operation));
}

void PostStore(Warp& warp, int lane, StoreCopy copy) {
  const GlobalMemory& memory = warp.global();
  ForEachGlobalRun(copy.pieces, [&](uint64_t address, uint64_t bytes) {
    const auto& allocation = memory.Check(address, bytes, warp.global_hint(), copy.what.c_str());
    if (!allocation.writable)
      RaiseAt(lane, Rule::kReadOnly, absl::StrCat(copy.what, " into ", allocation.name));
  });
  SharedMemory& shared = copy.source->shared();
  const auto ranges = SharedRanges(copy.pieces);
  for (const BoxPiece& piece : copy.pieces) shared.CheckAsyncReadable(piece.shared, piece.bytes);
  for (const auto& [begin, end] : ranges) shared.BeginAsyncRead(begin, end - begin);
  auto state = CtaBulkGroups::Of(warp).Begin(lane, copy.what);
  AsyncQueue& queue = warp.cluster().async();
  AsyncOperation operation;
  operation.what = absl::StrCat(copy.what, " (reading its source)");
  operation.complete = [copy = std::make_shared<StoreCopy>(std::move(copy)), ranges, state, &shared, &memory,
                        &queue] {
    auto bytes = std::make_shared<std::vector<uint8_t>>();
    for (const BoxPiece& piece : copy->pieces) {
      bytes->resize(bytes->size() + piece.bytes);
      shared.AsyncLoad(piece.shared, piece.bytes, bytes->data() + bytes->size() - piece.bytes);
    }
    for (const auto& [begin, end] : ranges) shared.EndAsyncRead(begin, end - begin);
    state->read = true;
    AsyncOperation write;
    write.what = absl::StrCat(copy->what, " (writing)");
    write.complete = [copy, bytes, state, &memory] {
      WritePieces(memory, *copy, *bytes);
      state->done = true;
    };
    queue.PostFollowUp(std::move(write));
  };
  queue.Post(warp, std::move(operation));
}

}  // namespace tessera::ptx
