#include "tests/ptx/machine/warp.h"

#include <algorithm>
#include <utility>

#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/launch.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

// A group that keeps the warp for so long lets the others have a turn: it may be spinning on what they will write.
constexpr int kLongBurst = 1 << 16;

// Thrown by RequireConverged out of the handler.
struct WaitForConvergence {};

}  // namespace

Warp::Warp(Cta& cta, int index, int cluster_index, LaneMask lanes)
    : cta_(cta), index_(index), cluster_index_(cluster_index), live_(lanes) {
  const GridContext& grid = cta.grid();
  auto group = std::make_unique<Group>();
  group->lanes = lanes;
  group->frame = std::make_shared<Frame>(*grid.entry, 0, nullptr, 0);
  local_.Grow(grid.entry->local_bytes);
  groups_.push_back(std::move(group));
  current_ = groups_[0].get();
  const Dim3 block = grid.config.block;
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    const uint32_t thread = index * kWarpSize + lane;
    tid_[0][lane] = thread % block.x;
    tid_[1][lane] = thread / block.x % block.y;
    tid_[2][lane] = thread / block.x / block.y;
  }
}

Warp::~Warp() = default;

Cluster& Warp::cluster() { return cta_.cluster(); }
const GlobalMemory& Warp::global() { return *cta_.grid().memory; }

const Instruction* Warp::current_instruction() const { return &current_->frame->function.body[current_->pc]; }

// ---- Rules

void Warp::RequireConverged(const Instruction& i) const {
  if (active_ == live_) return;
  // Lanes that are before this instruction may still come: this group was let past them for progress alone.
  if (EarlierGroupThan(*current_)) throw WaitForConvergence{};
  const LaneMask missing = live_ & ~active_;
  std::string where;
  for (const auto& group : groups_) {
    if (group.get() == current_) continue;
    where +=
        Cat("; lanes ", Hex(group->lanes), " are at line ", group->frame->function.body[group->pc].where.line,
            group->waiting ? " waiting for " + group->wait.what : "");
  }
  if ((current_->lanes & missing) != 0)
    where += Cat("; the guard is false for lanes ", Hex(current_->lanes & missing));
  Raise(Rule::kDivergence, Cat(i.opcode, " needs all lanes of the warp together, but only ", Hex(active_),
                               " of ", Hex(live_), " execute it", where));
}

void Warp::RequireSingleLane(const Instruction& i) const {
  if (std::has_single_bit(active_)) return;
  Raise(Rule::kDivergence,
        Cat(i.opcode, " is meant to be issued by one thread, but lanes ", Hex(active_), " execute it"));
}

void Warp::UndefinedRegister(const Operand& reg, LaneMask lanes) const {
  const auto& poison = current_->frame->poison;
  const int lane = std::countr_zero(lanes);
  if (const auto it = poison.find(reg.reg); it != poison.end()) {
    RaiseAt(lane, Rule::kUnfinishedOperation, Cat("register ", reg.name, " is not ready: ", it->second));
  }
  RaiseAt(lane, Rule::kUninitialisedRegister, Cat("register ", reg.name, " is read but was never written"));
}

void Warp::Poison(const Operand& reg, LaneMask lanes, std::string why) {
  frame().defined[reg.reg] &= ~lanes;
  frame().halves.erase(reg.reg);
  frame().poison[reg.reg] = std::move(why);
}

Frame::Halves Warp::DefinedHalves(const Operand& reg) {
  const LaneMask whole = frame().defined[reg.reg];
  const auto it = frame().halves.find(reg.reg);
  if (it == frame().halves.end()) return {whole, whole};
  return {whole | it->second.low, whole | it->second.high};
}

void Warp::CopyUndefined(const Operand& to, LaneMask whole, Frame::Halves halves) {
  const LaneMask lanes = active_ & ~whole;
  if (lanes == 0 || !to.IsRegister()) return;
  frame().defined[to.reg] &= ~lanes;
  Frame::Halves& kept = frame().halves[to.reg];
  kept.low = (kept.low & ~active_) | (halves.low & active_);
  kept.high = (kept.high & ~active_) | (halves.high & active_);
}

void Warp::CheckNotPoisoned(const Operand& from, LaneMask lanes) {
  if ((lanes & ~frame().defined[from.reg]) != 0 && frame().poison.contains(from.reg))
    CheckDefined(from, lanes);
}

// ---- Groups

void Warp::Wait(WaitCondition condition) {
  current_->waiting = true;
  current_->timed_out = false;
  current_->wait = std::move(condition);
}

bool Warp::RunsBefore(const Group& a, const Group& b) {
  const auto depth = [](const Frame* f) {
    int n = 0;
    for (; f->caller != nullptr; f = f->caller.get()) ++n;
    return n;
  };
  // Where both are in the deepest call that they share.
  const Frame* fa = a.frame.get();
  const Frame* fb = b.frame.get();
  int pa = a.pc, pb = b.pc;
  const auto up = [](const Frame** f, int* pc) {
    *pc = (*f)->return_index - 1;
    *f = (*f)->caller.get();
  };
  if (fa != fb) {
    int da = depth(fa), db = depth(fb);
    for (; da > db; --da) up(&fa, &pa);
    for (; db > da; --db) up(&fb, &pb);
    while (fa != fb) {
      up(&fa, &pa);
      up(&fb, &pb);
    }
  }
  return fa->function.body[pa].priority < fb->function.body[pb].priority;
}

bool Warp::EarlierGroupThan(const Group& group) const {
  for (const auto& other : groups_) {
    if (other.get() != &group && other->lanes != 0 && RunsBefore(*other, group)) return true;
  }
  return false;
}

// The exception of RequireConverged: the instruction is tried again when no lane is before it any more. Lanes that come
// to the same place join the group there.
void Warp::AwaitConvergence() {
  Group* self = current_;
  self->converging = true;
  Wait({.ready = [this, self] { return !EarlierGroupThan(*self); },
        .what = "the warp's other lanes, to execute this together",
        .for_own_warp = true});
}

Warp::Group* Warp::Choose(bool desperate, bool may_time_out) {
  const auto runnable = [&](Group& g, bool time_out) {
    if (!g.waiting) return true;
    if (!g.wait.ready()) {
      if (!time_out || !g.wait.may_time_out) return false;
      g.timed_out = timed_out_ = true;
    }
    g.waiting = g.converging = false;
    g.arrived = 0;
    if (g.wait.then == WaitCondition::Then::kNext) {
      ++g.pc;
      g.timed_out = false;
    }
    return true;
  };
  if (groups_.size() == 1) return runnable(*groups_[0], may_time_out) ? groups_[0].get() : nullptr;
  // In order, so that the first that may run is it. Those that wait for lanes of their own warp stand aside.
  std::vector<Group*> order;
  for (auto& g : groups_) order.push_back(g.get());
  std::stable_sort(order.begin(), order.end(), [](Group* a, Group* b) { return RunsBefore(*a, *b); });
  if (burst_ > kLongBurst) {
    burst_ = 0;
    std::rotate(order.begin(), order.begin() + 1, order.end());
    desperate = true;
  }
  for (Group* g : order) {
    if (runnable(*g, false)) return g;
    if (!desperate && !g->wait.for_own_warp) return nullptr;
  }
  for (Group* g : order) {
    if (may_time_out && runnable(*g, true)) return g;
  }
  return nullptr;
}

void Warp::MergeInto(Group* group) {
  for (auto& other : groups_) {
    if (other.get() == group || other->lanes == 0 || (other->waiting && !other->converging)) continue;
    if (other->pc == group->pc && other->frame == group->frame && !other->timed_out && !group->timed_out) {
      group->lanes |= other->lanes;
      other->lanes = 0;
    }
  }
  RemoveEmptyGroups();
}

void Warp::RemoveEmptyGroups() {
  std::erase_if(groups_, [](const auto& g) { return g->lanes == 0; });
}

bool Warp::GatherLanes(LaneMask mask, bool same_instruction, const char* name) {
  if ((active_ & ~mask) != 0) {
    RaiseAt(std::countr_zero(active_ & ~mask), Rule::kBadOperand,
            Cat(name, " by a lane that is not in its member mask ", Hex(mask)));
  }
  Group* self = current_;
  const auto meets = [self, same_instruction](const Group& g) {
    return g.waiting && g.wait.for_own_warp && !g.converging &&
           (!same_instruction || (g.pc == self->pc && g.frame == self->frame));
  };
  LaneMask arrived = active_;
  for (auto& g : groups_) {
    if (g.get() != self && meets(*g)) arrived |= g->arrived;
  }
  if ((mask & live_ & ~arrived) == 0) {
    for (auto& g : groups_) {
      if (g.get() == self || !meets(*g) || (g->arrived & mask) == 0) continue;
      if (g->pc == self->pc && g->frame == self->frame) {
        active_ |= g->arrived;
        self->lanes |= g->lanes;
        g->lanes = 0;
      } else {
        g->waiting = false;
        g->arrived = 0;
        ++g->pc;
      }
    }
    RemoveEmptyGroups();
    return true;
  }
  self->arrived = active_;
  WaitCondition wait;
  wait.for_own_warp = true;
  wait.what = Cat(name, ": lanes ", Hex(mask & live_ & ~arrived), " of its member mask have not come");
  wait.ready = [this, self, mask, same_instruction] {
    LaneMask come = self->arrived;
    for (auto& g : groups_) {
      const bool meets = g->waiting && g->wait.for_own_warp && !g->converging &&
                         (!same_instruction || (g->pc == self->pc && g->frame == self->frame));
      if (meets) come |= g->arrived;
    }
    return (mask & live_ & ~come) == 0;
  };
  Wait(std::move(wait));
  return false;
}

Warp::Group* Warp::Split(LaneMask lanes) {
  moved_ = true;
  if (lanes == current_->lanes) return current_;
  auto group = std::make_unique<Group>();
  group->lanes = lanes;
  group->frame = current_->frame;
  current_->lanes &= ~lanes;
  ++current_->pc;
  groups_.push_back(std::move(group));
  return groups_.back().get();
}

void Warp::Branch(LaneMask taken, int target) { Split(taken)->pc = target; }

void Warp::BranchEach(LaneMask lanes, const int32_t* targets) {
  // All but the last set of lanes leave the current group.
  while (lanes != 0) {
    const int32_t target = targets[std::countr_zero(lanes)];
    LaneMask same = 0;
    ForLanes(lanes, [&](int l) { same |= targets[l] == target ? LaneMask{1} << l : 0; });
    lanes &= ~same;
    const int here = current_->pc;
    Split(same)->pc = target;
    if (lanes != 0) current_->pc = here;
  }
}

void Warp::Call(const Function& function, const Instruction& call) {
  const uint32_t base = frame().local_base + frame().function.local_bytes;
  auto callee = std::make_shared<Frame>(function, base, current_->frame, current_->pc + 1);
  callee->call = &call;
  local_.Grow(base + function.local_bytes);
  local_.Forget(active_, base, function.local_bytes);
  Group* group = Split(active_);
  group->frame = std::move(callee);
  group->pc = 0;
}

void Warp::Return(LaneMask lanes) {
  if (current_->frame->caller == nullptr) return Exit(lanes);
  Group* group = Split(lanes);
  group->pc = group->frame->return_index;
  group->frame = std::shared_ptr<Frame>(group->frame->caller);
}

void Warp::Exit(LaneMask lanes) {
  moved_ = true;
  ++current_->pc;
  current_->lanes &= ~lanes;
  Retire(lanes);
}

void Warp::Retire(LaneMask lanes) {
  live_ &= ~lanes;
  uint32_t live = 0;
  for (auto& warp : cta_.warps()) live += std::popcount(warp->live_);
  cta_.barriers().OnExit(live);
  const auto& arrival = State<ClusterArrival>();
  uint32_t arrived = 0;
  ForLanes(lanes & arrival.arrived,
           [&](int l) { arrived += arrival.generation[l] == cluster().barrier().generation(); });
  cluster().barrier().OnExit(std::popcount(lanes), arrived);
}

Warp::Step Warp::Run(int budget, bool desperate, int* executed) {
  GridContext& grid = cluster().grid();
  const bool trace = static_cast<bool>(grid.options.trace);
  RaceDetector* const races = cluster().races();
  yielded_ = false;
  timed_out_ = false;
  bool may_time_out = desperate;
  uint64_t lanes = 0;
  Step result = Step::kRan;
  int ran = 0;
  try {
    while (ran < budget) {
      if (live_ == 0) {
        result = Step::kExited;
        break;
      }
      Group* before = current_;
      current_ = Choose(desperate, may_time_out);
      may_time_out = false;  // one wait does, and its group goes on to the next
      if (current_ == nullptr) {
        current_ = before;
        result = Step::kBlocked;
        break;
      }
      if (current_ != before) burst_ = 0;
      // Until something other than this group's next instruction matters.
      while (ran < budget) {
        Group* group = current_;
        const Instruction& i = group->frame->function.body[group->pc];
        active_ = group->lanes;
        ++ran;
        burst_ = groups_.size() > 1 ? burst_ + 1 : 0;  // a warp that is together starves nobody
        if (i.guard.kind != Operand::Kind::kNone) active_ &= SourcePredicate(i.guard);
        if (active_ == 0) {
          ++group->pc;
        } else {
          lanes += std::popcount(active_);
          moved_ = false;
          if (races != nullptr) races->SetActor(cluster_index_);
          try {
            i.execute(*this, i);
          } catch (const WaitForConvergence&) {
            AwaitConvergence();
          }
          if (races != nullptr) races->SetActor(-1);
          if (trace)
            grid.options.trace(
                Cat(Location(&i, -1, active_), group->waiting ? "  waits for " + group->wait.what : ""));
          if (group->waiting) break;
          group->timed_out = false;
          if (!moved_) ++group->pc;
        }
        if (groups_.size() > 1) {
          RemoveEmptyGroups();
          if (groups_.empty()) break;
          const bool gone =
              std::none_of(groups_.begin(), groups_.end(), [&](auto& g) { return g.get() == group; });
          if (gone)
            current_ = groups_[0].get();
          else
            MergeInto(group);
          if (groups_.size() > 1) break;
        } else if (group->lanes == 0) {
          break;
        }
        if (yielded_) break;
      }
      if (yielded_) break;
    }
  } catch (FaultError& fault) {
    if (fault.location.empty()) fault.location = Location(fault.lane);
    throw;
  }
  *executed = ran;
  grid.lane_instructions.fetch_add(lanes, std::memory_order_relaxed);
  return result;
}

// ---- Describing

std::string Warp::Location(const Instruction* i, int lane, LaneMask lanes) const {
  const Dim3 id = cta_.id();
  std::string text = Cat("kernel ", cta_.grid().entry->name);
  if (i != nullptr) {
    if (!i->function->is_entry) text += Cat(", function ", i->function->name);
    text += Cat(", ", cta_.grid().program->module().name, ":", i->where.line, " `", i->text, "`");
    const auto& files = cta_.grid().program->module().files;
    if (i->where.file > 0 && i->where.file < static_cast<int>(files.size())) {
      text += Cat(" (", files[i->where.file], ":", i->where.source_line, ")");
    }
  }
  text += Cat(", CTA (", id.x, ",", id.y, ",", id.z, "), warp ", index_);
  if (lane >= 0)
    text += Cat(", lane ", lane);
  else
    text += Cat(", lanes ", Hex(lanes));
  return text;
}

std::string Warp::Location(int lane) const { return Location(current_instruction(), lane, active_); }

std::string Warp::Describe() const {
  std::string text;
  for (const auto& g : groups_) {
    const Instruction& i = g->frame->function.body[g->pc];
    text += Cat("\n  ", Location(&i, -1, g->lanes), g->waiting ? " waits for " + g->wait.what : " could run");
  }
  return text;
}

}  // namespace tessera::ptx
