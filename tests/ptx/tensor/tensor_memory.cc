#include "tests/ptx/tensor/tensor_memory.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_format.h"

namespace tessera::ptx {
namespace {

constexpr std::string_view kKindNames[] = {"tcgen05.ld", "tcgen05.st", "tcgen05.mma", "tcgen05.cp"};

bool IsTensorCore(const TmemOperation& operation) {
  return operation.kind == TmemOperation::Kind::kMma || operation.kind == TmemOperation::Kind::kCopy;
}

// Earliest of the fences of the threads that make up the operation.
uint64_t FenceOf(const uint64_t (&fences)[kWarpSize], int lane) {
  return lane >= 0 ? fences[lane] : *std::min_element(fences, fences + kWarpSize);
}

std::string_view UseName(TmemUse use) { return use == TmemUse::kRead ? "reads" : "writes"; }

// Raises unless `now` is ordered after `earlier`.
void RequireOrdered(const TmemOperation& earlier, TmemUse earlier_use, const TmemOperation& now, TmemUse use,
                    int lane, int column) {
  const auto refuse = [&](std::string_view why) {
    Raise(Rule::kUnfinishedOperation,
          absl::StrFormat("%s %s tensor memory lanes %d-%d, column %d, which %s %s: %s", now.Describe(),
                          UseName(use), lane, lane + 15, column, earlier.Describe(), UseName(earlier_use),
                          why));
  };
  const bool same_warp = earlier.warp == now.warp;
  if (IsTensorCore(earlier) && IsTensorCore(now) && same_warp && earlier.lane == now.lane) {
    const bool both_accumulate = earlier_use == TmemUse::kAccumulate && use == TmemUse::kAccumulate;
    if (both_accumulate && earlier.shape == now.shape) return;
    if (earlier_use != TmemUse::kAccumulate && use != TmemUse::kAccumulate) return;
    if (both_accumulate && earlier.done == 0) {
      refuse(
          "the two have different kinds or shapes, so nothing orders them but tcgen05.commit and a wait on "
          "its mbarrier");
    }
  }
  if (earlier.done == 0) {
    refuse(earlier.kind == TmemOperation::Kind::kLoad ? "that load needs tcgen05.wait::ld by its warp first"
           : earlier.kind == TmemOperation::Kind::kStore
               ? "that store needs tcgen05.wait::st by its warp first"
               : "it has not completed; needs tcgen05.commit and a wait on its "
                 "mbarrier");
  }
  if (!IsTensorCore(earlier)) {
    if (same_warp) return;
    // ld and st belong to all threads of their warp, and each thread fences its own accesses.
    if (FenceOf(earlier.warp->State<TmemWarpState>().before_fence, earlier.lane) < earlier.done) {
      refuse(
          "its warp has not executed tcgen05.fence::before_thread_sync, all 32 threads of it, since its "
          "wait");
    }
  }
  if (FenceOf(now.warp->State<TmemWarpState>().after_fence, now.lane) < earlier.done) {
    refuse("no tcgen05.fence::after_thread_sync by this thread since it completed");
  }
}

}  // namespace

std::string TmemOperation::Describe() const {
  return absl::StrFormat("%s (line %d, CTA rank %d, warp %d)", kKindNames[static_cast<int>(kind)], line,
                         warp->cta().rank(), warp->index());
}

TmemOperation* TmemClusterState::NewOperation(TmemOperation::Kind kind, Warp& warp, int lane,
                                              const Instruction& i) {
  operations.push_back({kind, &warp, lane, i.where.line, 0, 0});
  ++tick;
  if (lane >= 0) warp.State<TmemWarpState>().uncommitted[lane].push_back(&operations.back());
  return &operations.back();
}

void RequireCtaGroup(Warp& warp, int cta_group) {
  int& kernel = warp.cluster().State<TmemClusterState>().cta_group;
  if (kernel == 0) kernel = cta_group;
  if (kernel != cta_group) {
    Raise(Rule::kBadOperand,
          absl::StrFormat("cta_group::%d in a kernel that has used cta_group::%d; all tcgen05 "
                          "instructions of a kernel must have the same",
                          cta_group, kernel));
  }
  if (cta_group == 2) PeerOf(warp.cta());
}

Cta& PeerOf(Cta& cta) {
  auto& ctas = cta.cluster().ctas();
  const uint32_t peer = cta.rank() ^ 1;
  if (peer >= ctas.size()) {
    Raise(Rule::kBadOperand,
          absl::StrFormat("cta_group::2, but CTA rank %d has no peer: the cluster has %d CTAs", cta.rank(),
                          ctas.size()));
  }
  return *ctas[peer];
}

absl::StatusOr<int> ParseCtaGroup(const Instruction& i) {
  if (i.Has("cta_group::1")) return 1;
  if (i.Has("cta_group::2")) return 2;
  return absl::InvalidArgumentError("needs .cta_group::1 or .cta_group::2");
}

int TensorMemory::FindFree(int columns) const {
  // Allocations are powers of two, at multiples of their size.
  for (int base = 0; base + columns <= kTmemColumns; base += columns) {
    const bool taken = std::any_of(allocations_.begin(), allocations_.end(), [&](const Allocation& a) {
      return a.base < base + columns && base < a.base + a.columns;
    });
    if (!taken) return base;
  }
  return -1;
}

void TensorMemory::Allocate(int base, int columns) {
  allocations_.push_back({base, columns});
  last_size = columns;
  for (auto& quarter : defined_) std::fill(quarter + base, quarter + base + columns, 0);
  for (auto& unit : cells_) std::fill(unit + base, unit + base + columns, Cell());
}

void TensorMemory::RequireIdle(int base, int columns) const {
  for (int unit = 0; unit < kTmemLanes / kUnit; ++unit) {
    for (int column = base; column < base + columns; ++column) {
      const Cell& cell = cells_[unit][column];
      for (const TmemOperation* operation : {cell.write, cell.load, cell.operand}) {
        if (operation == nullptr || operation->done != 0) continue;
        Raise(Rule::kTensorMemory,
              absl::StrFormat("column %d is freed while %s uses it; wait for its completion first", column,
                              operation->Describe()));
      }
    }
  }
}

void TensorMemory::Free(uint32_t address, int columns) {
  const TmemAddress at = SplitTmemAddress(address);
  const auto found = std::find_if(allocations_.begin(), allocations_.end(), [&](const Allocation& a) {
    return a.base == static_cast<int>(at.column) && at.lane == 0;
  });
  if (found == allocations_.end()) {
    Raise(Rule::kTensorMemory,
          absl::StrFormat("tcgen05.dealloc of address 0x%x, which tcgen05.alloc has not returned", address));
  }
  if (found->columns != columns) {
    Raise(Rule::kTensorMemory,
          absl::StrFormat("tcgen05.dealloc of %d columns at column %d, which were allocated as %d", columns,
                          found->base, found->columns));
  }
  RequireIdle(found->base, columns);
  allocations_.erase(found);
}

void TensorMemory::RequireAllocated(uint32_t column, int columns, std::string_view what) const {
  for (const Allocation& a : allocations_) {
    if (static_cast<int>(column) >= a.base && static_cast<int>(column) + columns <= a.base + a.columns)
      return;
  }
  std::string list;
  for (const Allocation& a : allocations_) {
    absl::StrAppendFormat(&list, "%s%d-%d", list.empty() ? "" : ", ", a.base, a.base + a.columns - 1);
  }
  Raise(Rule::kTensorMemory, absl::StrFormat("%s touches columns %d-%d of tensor memory; allocated: %s", what,
                                             column, column + columns - 1, list.empty() ? "none" : list));
}

void TensorMemory::OnCtaExit(Cta& cta) {
  if (allocations_.empty()) return;
  Raise(Rule::kTensorMemory,
        absl::StrFormat(
            "the CTA exits with %d columns of tensor memory at column %d not freed (tcgen05.dealloc)",
            allocations_.front().columns, allocations_.front().base));
}

void TensorMemory::Note(TmemOperation* operation, TmemUse use, int lane, int lanes, int column, int columns) {
  for (int unit = lane / kUnit; unit < (lane + lanes) / kUnit; ++unit) {
    for (int c = column; c < column + columns; ++c) {
      Cell& cell = cells_[unit][c];
      const auto check = [&](const TmemOperation* earlier, TmemUse earlier_use) {
        if (earlier != nullptr && earlier != operation) {
          RequireOrdered(*earlier, earlier_use, *operation, use, unit * kUnit, c);
        }
      };
      check(cell.write, cell.write_use);
      if (use == TmemUse::kRead) {
        (operation->kind == TmemOperation::Kind::kLoad ? cell.load : cell.operand) = operation;
        continue;
      }
      check(cell.load, TmemUse::kRead);
      check(cell.operand, TmemUse::kRead);
      cell.write = operation;
      cell.write_use = use;
      cell.load = nullptr;
      cell.operand = nullptr;
    }
  }
}

void TensorMemory::RaiseUndefined(int lane, int column) const {
  Raise(Rule::kUninitialisedMemory,
        absl::StrFormat("tensor memory lane %d, column %d is read but was never written", lane, column));
}

}  // namespace tessera::ptx
