// A warp: up to 32 lanes that run in one or more groups, each with its own program counter. A branch that lanes decide
// differently splits a group; groups that meet at the same instruction of the same call merge. Of the groups, the one
// in the earliest basic block (parser/control_flow.h) runs first, so lanes meet again where the branches join.
//
// What handlers use: active(), the Source/Store/Predicate accessors, the memory of cta(), Wait, Require*.
#ifndef TESSERA_TESTS_PTX_MACHINE_WARP_H_
#define TESSERA_TESTS_PTX_MACHINE_WARP_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/ptx/machine/extension.h"
#include "tests/ptx/machine/fault.h"
#include "tests/ptx/machine/frame.h"
#include "tests/ptx/machine/global_memory.h"
#include "tests/ptx/machine/lanes.h"
#include "tests/ptx/machine/local_memory.h"
#include "tests/ptx/parser/module.h"
#include "tests/ptx/parser/special.h"

namespace tessera::ptx {

class Cta;
class Cluster;

// Why a group does not run. `ready` is polled by the scheduler.
struct WaitCondition {
  enum class Then {
    kRetry,  // execute the instruction again: the usual way, the handler looks at the state anew
    kNext,   // the instruction is done when `ready`
  };
  std::function<bool()> ready;
  std::string
      what;  // for the deadlock report: "mbarrier [smem 0x400] phase parity 0: 1 of 2 arrivals pending"
  Then then = Then::kRetry;
  // A wait that hardware gives up after a while (mbarrier.try_wait): if nothing else can run it is retried with
  // Warp::timed_out() set. Repeated without any progress, that is a deadlock too.
  bool may_time_out = false;
  // A wait for other lanes of this warp (bar.warp.sync, shfl.sync): the warp's other groups run meanwhile.
  bool for_own_warp = false;
};

class Warp : public Extensible {
 public:
  Warp(Cta& cta, int index, int cluster_index, LaneMask lanes);
  ~Warp();

  Cta& cta() { return cta_; }
  Cluster& cluster();
  int index() const { return index_; }                  // in its CTA
  int cluster_index() const { return cluster_index_; }  // among all warps of the cluster
  const GlobalMemory& global();

  // ---- Lanes
  LaneMask active() const {
    return active_;
  }  // execute the present instruction: the group's lanes whose guard holds
  LaneMask group() const { return current_->lanes; }
  LaneMask live() const { return live_; }  // not exited
  int first_active() const { return std::countr_zero(active_); }
  // For .aligned instructions, before they do anything: every live lane of the warp is in this group and passes the
  // guard. Leaves the handler, to come back later, if lanes that were overtaken may still come.
  void RequireConverged(const Instruction& i) const;
  void RequireSingleLane(const Instruction& i) const;

  // ---- Registers. T has the operand's storage width (frame.h); Source converts width and broadcasts immediates.
  Frame& frame() { return *current_->frame; }
  std::shared_ptr<Frame> shared_frame() { return current_->frame; }

  // All 32 lanes of a source operand (register, immediate, special register, variable address). Registers are checked
  // for active lanes that were never written. Inactive lanes hold anything. Narrower T truncates; wider T
  // zero-extends. Points into the frame when the widths match, else into `scratch`.
  template <class T>
  const T* Source(const Operand& operand, T (&scratch)[kWarpSize]) {
    if (operand.IsRegister() && sizeof(T) == operand.width) {
      CheckDefined(operand, active_);
      return frame().Lanes<T>(operand);
    }
    FillSource(operand, scratch, sizeof(T));
    return scratch;
  }
  uint64_t SourceLane(const Operand& operand, int lane);  // one lane, zero-extended
  unsigned __int128 SourceLane128(const Operand& operand, int lane);
  // The value, which must be the same in all active lanes; raises kWarpUniform otherwise.
  uint64_t SourceUniform(const Operand& operand, const char* name);
  LaneMask SourcePredicate(const Operand& operand);  // with the operand's negation

  // Writes the active lanes; a sink `_` takes anything. A register wider than T gets the value zero-extended (Store) or
  // sign-extended (StoreSigned).
  template <class T>
  void Store(const Operand& operand, const T* values) {
    if (operand.IsRegister() && sizeof(T) == operand.width) {
      T* to = frame().Lanes<T>(operand);
      if (active_ == kAllLanes) {
        std::memcpy(to, values, sizeof(T) * kWarpSize);
      } else {
        ForLanes(active_, [&](int l) { to[l] = values[l]; });
      }
      frame().defined[operand.reg] |= active_;
      return;
    }
    DrainStore(operand, values, sizeof(T), false);
  }
  template <class T>
  void StoreSigned(const Operand& operand, const T* values) {
    if (operand.IsRegister() && sizeof(T) == operand.width) return Store(operand, values);
    DrainStore(operand, values, sizeof(T), true);
  }
  void StoreLane(const Operand& operand, int lane, uint64_t value);  // truncates
  void StorePredicate(const Operand& operand, LaneMask values);

  LaneMask Defined(const Operand& reg) { return frame().defined[reg.reg]; }
  // Lanes whose lower, upper half holds a value.
  Frame::Halves DefinedHalves(const Operand& reg);
  // For instructions that copy what is not defined as such: of the active lanes, those outside `whole` become undefined
  // but for the halves given. Raises if an asynchronous result is on its way to `from`, a register that was read.
  void CopyUndefined(const Operand& to, LaneMask whole, Frame::Halves halves);
  void CheckNotPoisoned(const Operand& from, LaneMask lanes);
  void SetDefined(const Operand& reg, LaneMask lanes) { frame().defined[reg.reg] |= lanes; }
  void CheckDefined(const Operand& reg, LaneMask lanes) {
    const LaneMask missing = lanes & ~frame().defined[reg.reg];
    if (missing != 0) [[unlikely]]
      UndefinedRegister(reg, missing);
  }
  // An asynchronous operation will write these lanes: reads fault with `why` ("written by wgmma.mma_async; needs
  // wgmma.wait_group") until SetDefined on the same frame.
  void Poison(const Operand& reg, LaneMask lanes, std::string why);

  // ---- Addresses and memory
  // Evaluates [base + offset]: operand is kAddress, or any source. 32-bit bases are zero-extended.
  const uint64_t* Addresses(const Operand& operand, uint64_t (&scratch)[kWarpSize]);
  uint64_t AddressLane(const Operand& operand, int lane);
  // Checked accesses of one lane in any space, generic included (kShared*: window addresses). `bytes` is also the
  // required alignment.
  void LoadLane(int lane, Space space, uint64_t address, uint32_t bytes, void* out);
  void StoreLane(int lane, Space space, uint64_t address, uint32_t bytes, const void* in);
  // The space a generic address is in, with the address inside that space.
  static Space Classify(uint64_t generic, uint64_t* address);
  const GlobalMemory::Allocation** global_hint() { return &global_hint_; }
  LocalMemory& local() { return local_; }

  // ---- Waiting
  // Suspends the group at the present instruction. Return from the handler at once afterwards.
  void Wait(WaitCondition condition);
  bool timed_out() const { return current_->timed_out; }
  // Gives way to the other warps after this instruction (nanosleep, failed test_wait, a load that acquires: a poll perhaps).
  void Yield() { yielded_ = true; }
  bool yielded() const { return yielded_; }

  // ---- Control flow, for isa/control.cc
  void Branch(LaneMask taken, int target);
  void BranchEach(LaneMask lanes, const int32_t* targets);  // by lane
  void Call(const Function& function, const Instruction& call);
  void Return(LaneMask lanes);
  void Exit(LaneMask lanes);
  // Lanes of `mask` that wait at the present instruction in this or other groups; for bar.warp.sync and its like. True
  // once all of them have come, merged into this group if they are at the same instruction.
  bool GatherLanes(LaneMask mask, bool same_instruction, const char* name);

  // ---- For the scheduler
  enum class Step { kRan, kBlocked, kExited };
  // Runs up to `budget` instructions of this warp; kBlocked if none can go on. `desperate`: the other groups may run
  // though an earlier one waits, and if none can, one wait that may time out does.
  Step Run(int budget, bool desperate, int* executed);
  bool exited() const { return live_ == 0; }
  // A wait timed out in the last Run.
  bool ran_by_timeout() const { return timed_out_; }
  // One line for each group: where it is and what it waits for.
  std::string Describe() const;
  // "kernel K, line 12 `add.s32 ...` (a.cu:3), CTA (0,0,0), warp 1, lane 5".
  std::string Location(const Instruction* i, int lane, LaneMask lanes) const;
  std::string Location(int lane) const;
  const Instruction* current_instruction() const;

 private:
  struct Group {
    LaneMask lanes = 0;
    int pc = 0;
    std::shared_ptr<Frame> frame;
    bool waiting = false;
    bool timed_out = false;
    bool converging = false;  // waiting for lanes that are before it
    LaneMask arrived = 0;     // waiting for lanes of its own warp: those that came
    WaitCondition wait;
  };
  void FillSource(const Operand& operand, void* to, uint32_t bytes);
  void DrainStore(const Operand& operand, const void* values, uint32_t bytes, bool sign);
  [[noreturn]] void UndefinedRegister(const Operand& reg, LaneMask lanes) const;
  Group* Choose(bool desperate, bool may_time_out);
  // The group of just these lanes of the current one, which goes on with the rest at the next instruction.
  Group* Split(LaneMask lanes);
  void MergeInto(Group* group);
  bool EarlierGroupThan(const Group& group) const;
  void AwaitConvergence();
  void RemoveEmptyGroups();
  void FillSpecial(Special special, uint64_t* values);
  uint64_t AddressOf(const Variable& variable);
  static bool RunsBefore(const Group& a, const Group& b);
  void Retire(LaneMask lanes);

  Cta& cta_;
  const int index_;
  const int cluster_index_;
  LaneMask live_;
  LaneMask active_ = 0;
  std::vector<std::unique_ptr<Group>> groups_;
  Group* current_ = nullptr;
  bool moved_ = false;  // the handler set the group's counter itself
  int burst_ = 0;       // instructions since the choice of another group
  uint32_t tid_[3][kWarpSize];
  bool yielded_ = false;
  bool timed_out_ = false;
  LocalMemory local_;
  const GlobalMemory::Allocation* global_hint_ = nullptr;
};

// Generic addresses of the shared and local windows. Anything else is global.
inline constexpr uint64_t kSharedWindow = uint64_t{0x0A} << 56;
inline constexpr uint64_t kLocalWindow = uint64_t{0x0B} << 56;

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_MACHINE_WARP_H_
