// What wgmma keeps beside the machine: of each warp, its groups and the registers of unfinished instructions; of each
// warpgroup, the instructions that some of its four warps have issued and others not yet.
#ifndef TESSERA_TESTS_PTX_TENSOR_WGMMA_STATE_H_
#define TESSERA_TESTS_PTX_TENSOR_WGMMA_STATE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/extension.h"
#include "tests/ptx/machine/frame.h"
#include "tests/ptx/tensor/formats.h"
#include "tests/ptx/tensor/smem_operand.h"

namespace tessera::ptx {

inline constexpr int kWarpgroup = 4;
inline constexpr int kWgmmaM = 64;

struct WgmmaPayload : Payload {
  int n = 0, k = 0;
  ElementType d = ElementType::kF32, a = ElementType::kBF16, b = ElementType::kBF16;
  bool saturate = false;
  bool a_in_registers = false;
};

// The values of all registers when wgmma.fence ran: registers of a later wgmma must still hold them.
struct RegisterSnapshot {
  std::shared_ptr<Frame> frame;
  std::vector<std::byte> bytes;
  std::vector<LaneMask> defined;

  void Take(const std::shared_ptr<Frame>& frame);
  // Whether the register was written since; false in another frame.
  bool Changed(Frame& frame, const Operand& reg) const;
  void Update(Frame& frame, const Operand& reg);
};

struct WgmmaWarpState : ExtensionState {
  std::optional<RegisterSnapshot> fence;  // none before the first wgmma.fence
  uint64_t issued = 0;                    // instructions so far
  uint64_t completed = 0;
  uint64_t committed = 0;          // instructions in groups that are closed
  std::deque<uint64_t> group_end;  // of the groups not waited for: instructions issued when they were closed
  // Accumulators of unfinished instructions, by register index.
  struct InFlight {
    uint64_t last = 0;  // count of the last instruction that writes it
    int position = 0;   // in the accumulator
    int n = 0;
    ElementType type = ElementType::kF32;
    Operand reg;
    std::shared_ptr<Frame> frame;
  };
  std::map<uint32_t, InFlight> accumulators;
  // A fragments of unfinished instructions, with the values they were issued with.
  struct Fragment {
    uint64_t instruction = 0;
    Operand reg;
    std::shared_ptr<Frame> frame;
    std::vector<uint32_t> values;
  };
  std::deque<Fragment> fragments;
};

// One instruction of a warpgroup.
struct WgmmaWork {
  const Instruction* instruction = nullptr;
  uint64_t a_descriptor = 0, b_descriptor = 0;
  bool accumulate = false;
  int issuers = 0;
  struct PerWarp {
    Warp* warp = nullptr;
    std::shared_ptr<Frame> frame;
    std::vector<uint32_t> a;  // register * 32 + lane
  };
  PerWarp warps[kWarpgroup];
  std::optional<SmemOperand> a, b;
};

struct WgmmaCtaState : ExtensionState {
  struct Warpgroup {
    uint64_t first = 0;  // count of open[0]
    std::deque<std::shared_ptr<WgmmaWork>> open;
  };
  std::map<int, Warpgroup> warpgroups;

  void OnCtaExit(Cta& cta) override;
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TENSOR_WGMMA_STATE_H_
