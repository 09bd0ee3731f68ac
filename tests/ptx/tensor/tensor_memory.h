// The tensor memory of a CTA: words, which of them were written, allocations, and who used which part last, so that an
// access that nothing orders after an earlier one faults.
//
// Order (PTX ISA, "Memory Consistency Model for 5th generation of TensorCore operations"), as it is checked here for two
// accesses to the same words of which one writes:
//   - mma and cp of one thread run in the order of issue. PTX promises that for mma after mma on the same accumulator
//     with the same shape and for mma after cp; cp after mma is taken as ordered too, as CUTLASS's block-scaled kernels
//     rely on it. An accumulator read as A, or continued with another shape, is not.
//   - anything after mma or cp otherwise: tcgen05.commit, a wait on its mbarrier, tcgen05.fence::after_thread_sync.
//   - anything after ld or st: tcgen05.wait::ld or wait::st by the warp that issued it; if another warp follows, also
//     fence::before_thread_sync there, and fence::after_thread_sync here.
// Uses are remembered for 16 lanes of a column together, the finest unit that instructions address.
#ifndef TESSERA_TESTS_PTX_TENSOR_TENSOR_MEMORY_H_
#define TESSERA_TESTS_PTX_TENSOR_TENSOR_MEMORY_H_

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/extension.h"
#include "tests/ptx/machine/warp.h"
#include "tests/ptx/tensor/tmem_layout.h"

namespace tessera::ptx {

// One executed instruction that touches tensor memory.
struct TmemOperation {
  enum class Kind : uint8_t { kLoad, kStore, kMma, kCopy };
  Kind kind = Kind::kLoad;
  Warp* warp = nullptr;
  int lane = -1;  // the issuing thread of mma and cp; -1: the whole warp
  int line = 0;   // in the PTX
  uint64_t done =
      0;  // tick of its wait (ld, st), or of the completion of a commit after it (mma, cp); 0: under way
  uint32_t shape = 0;  // mma: what must agree for the next one to go on with its accumulator

  std::string Describe() const;  // "tcgen05.mma (line 12, warp 0)"
};

enum class TmemUse : uint8_t { kRead, kWrite, kAccumulate };

// Fences of each thread, and the operations of the warp that no wait has covered yet.
struct TmemWarpState : ExtensionState {
  uint64_t before_fence[kWarpSize] = {};
  uint64_t after_fence[kWarpSize] = {};
  std::vector<TmemOperation*> loads, stores;
  std::vector<TmemOperation*> uncommitted[kWarpSize];  // mma and cp of each thread since its last commit
};

// Of a cluster: time, the operations, and what its CTAs must agree on.
struct TmemClusterState : ExtensionState {
  uint64_t tick = 0;
  int cta_group = 0;  // of the kernel's tcgen05 instructions; 0: none yet
  std::deque<TmemOperation> operations;

  TmemOperation* NewOperation(TmemOperation::Kind kind, Warp& warp, int lane, const Instruction& i);
};

// Raises unless all tcgen05 instructions of the kernel have this .cta_group, and for 2, unless the CTA has a peer.
void RequireCtaGroup(Warp& warp, int cta_group);

// The other CTA of the pair. Raises if there is none.
Cta& PeerOf(Cta& cta);

// 1 or 2 from the modifier; InvalidArgument without one.
absl::StatusOr<int> ParseCtaGroup(const Instruction& i);

class TensorMemory : public ExtensionState {
 public:
  // --- allocation
  // First of `columns` free columns, or -1.
  int FindFree(int columns) const;
  void Allocate(int base, int columns);
  // Raises unless the address and size are those of an allocation that nothing under way uses.
  void Free(uint32_t address, int columns);
  // Raises unless all the columns belong to one allocation.
  void RequireAllocated(uint32_t column, int columns, std::string_view what) const;

  int last_size = 0;  // of the last allocation; 0: none yet
  bool relinquished = false;
  uint64_t allocation_arrivals = 0,
           deallocation_arrivals = 0;  // of cta_group::2, which both CTAs take part in

  void OnCtaExit(Cta& cta) override;

  // --- order
  // Checks `operation` against earlier uses of lanes [lane, lane + lanes) of columns [column, column + columns) and
  // remembers it. `lane` and `lanes` are multiples of 16.
  void Note(TmemOperation* operation, TmemUse use, int lane, int lanes, int column, int columns);

  // --- words. Reading one never written raises.
  uint32_t Read(int lane, int column) const {
    if (!(defined_[lane / kTmemQuarter][column] >> (lane % kTmemQuarter) & 1)) RaiseUndefined(lane, column);
    return words_[lane][column];
  }
  // A run of columns of one lane: for reading, all of it written before, or for writing.
  const uint32_t* ReadRow(int lane, int column, int columns) const {
    for (int c = column; c < column + columns; ++c) {
      if (!(defined_[lane / kTmemQuarter][c] >> (lane % kTmemQuarter) & 1)) RaiseUndefined(lane, c);
    }
    return &words_[lane][column];
  }
  uint32_t* WriteRow(int lane, int column, int columns) {
    for (int c = column; c < column + columns; ++c)
      defined_[lane / kTmemQuarter][c] |= 1u << (lane % kTmemQuarter);
    return &words_[lane][column];
  }
  void Write(int lane, int column, uint32_t value) {
    words_[lane][column] = value;
    defined_[lane / kTmemQuarter][column] |= 1u << (lane % kTmemQuarter);
  }

 private:
  struct Cell {
    const TmemOperation* write = nullptr;
    const TmemOperation* load = nullptr;     // last tcgen05.ld
    const TmemOperation* operand = nullptr;  // last mma that read it as A or as scales
    TmemUse write_use = TmemUse::kWrite;
  };
  struct Allocation {
    int base;
    int columns;
  };
  static constexpr int kUnit = 16;

  [[noreturn]] void RaiseUndefined(int lane, int column) const;
  void RequireIdle(int base, int columns) const;

  uint32_t words_[kTmemLanes][kTmemColumns];
  LaneMask defined_[kTmemLanes / kTmemQuarter][kTmemColumns] = {};
  Cell cells_[kTmemLanes / kUnit][kTmemColumns];
  std::vector<Allocation> allocations_;
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TENSOR_TENSOR_MEMORY_H_
