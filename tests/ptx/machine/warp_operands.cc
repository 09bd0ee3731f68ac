// Warp: operands, addresses and the memory of one lane.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>

#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/launch.h"
#include "tests/ptx/machine/warp.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

// Widest scalar that FillSource and DrainStore handle a lane at a time.
void PutLane(void* to, uint32_t bytes, int lane, uint64_t value) {
  std::byte* at = static_cast<std::byte*>(to) + lane * bytes;
  if (bytes <= 8) {
    std::memcpy(at, &value, bytes);
  } else {
    std::memcpy(at, &value, 8);
    std::memset(at + 8, 0, bytes - 8);
  }
}

uint64_t ImmediateBits(const Operand& operand, uint32_t bytes) {
  if (!operand.is_float) return operand.value;
  if (operand.type == Type::kF32 && bytes == 8) {
    return std::bit_cast<uint64_t>(double{std::bit_cast<float>(static_cast<uint32_t>(operand.value))});
  }
  if (operand.type == Type::kF64 && bytes == 4) {
    return std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(operand.value)));
  }
  return operand.value;
}

}  // namespace

uint64_t Warp::AddressOf(const Variable& v) {
  switch (v.space) {
    case Space::kSharedCta:
      return cta_.window_base() + (v.elements == 0 ? cta_.dynamic_shared_offset() : v.address);
    case Space::kLocal:
      return frame().local_base + v.address;
    case Space::kParam: {
      // A kernel's own parameter, or one of a call in the frame.
      const Function& f = frame().function;
      const bool of_kernel =
          f.is_entry && std::any_of(f.params.begin(), f.params.end(), [&](auto& p) { return p.get() == &v; });
      return of_kernel ? reinterpret_cast<uint64_t>(cta_.grid().params) + v.address
                       : frame().local_base + v.address;
    }
    default:
      return v.address;
  }
}

void Warp::FillSpecial(Special special, uint64_t* values) {
  const GridContext& grid = cta_.grid();
  const Dim3 block = grid.config.block, shape = grid.config.grid, cluster_shape = grid.config.cluster;
  const Dim3 id = cta_.id(), cluster_id = cluster().id();
  const uint32_t rank = cta_.rank();
  uint64_t value = 0;
  switch (special) {
    case Special::kTidX:
    case Special::kTidY:
    case Special::kTidZ:
      for (int l = 0; l < kWarpSize; ++l)
        values[l] = tid_[static_cast<int>(special) - static_cast<int>(Special::kTidX)][l];
      return;
    case Special::kLaneid:
      for (int l = 0; l < kWarpSize; ++l) values[l] = l;
      return;
    case Special::kLanemaskEq:
      for (int l = 0; l < kWarpSize; ++l) values[l] = 1u << l;
      return;
    case Special::kLanemaskLt:
      for (int l = 0; l < kWarpSize; ++l) values[l] = (1u << l) - 1;
      return;
    case Special::kLanemaskLe:
      for (int l = 0; l < kWarpSize; ++l) values[l] = (1u << l) - 1 + (1u << l);
      return;
    case Special::kLanemaskGt:
      for (int l = 0; l < kWarpSize; ++l) values[l] = ~((1u << l) - 1 + (1u << l));
      return;
    case Special::kLanemaskGe:
      for (int l = 0; l < kWarpSize; ++l) values[l] = ~((1u << l) - 1);
      return;
    // clang-format off
    case Special::kNtidX: value = block.x; break;
    case Special::kNtidY: value = block.y; break;
    case Special::kNtidZ: value = block.z; break;
    case Special::kCtaidX: value = id.x; break;
    case Special::kCtaidY: value = id.y; break;
    case Special::kCtaidZ: value = id.z; break;
    case Special::kNctaidX: value = shape.x; break;
    case Special::kNctaidY: value = shape.y; break;
    case Special::kNctaidZ: value = shape.z; break;
    case Special::kWarpid: value = index_; break;
    case Special::kNwarpid: value = (block.Count() + kWarpSize - 1) / kWarpSize; break;
    case Special::kSmid: value = (id.x + shape.x * (id.y + uint64_t{shape.y} * id.z)) % grid.options.resident_ctas; break;
    case Special::kNsmid: value = grid.options.resident_ctas; break;
    case Special::kGridid: value = 1; break;
    case Special::kClusteridX: value = cluster_id.x; break;
    case Special::kClusteridY: value = cluster_id.y; break;
    case Special::kClusteridZ: value = cluster_id.z; break;
    case Special::kNclusteridX: value = shape.x / cluster_shape.x; break;
    case Special::kNclusteridY: value = shape.y / cluster_shape.y; break;
    case Special::kNclusteridZ: value = shape.z / cluster_shape.z; break;
    case Special::kClusterCtaidX: value = id.x % cluster_shape.x; break;
    case Special::kClusterCtaidY: value = id.y % cluster_shape.y; break;
    case Special::kClusterCtaidZ: value = id.z % cluster_shape.z; break;
    case Special::kClusterNctaidX: value = cluster_shape.x; break;
    case Special::kClusterNctaidY: value = cluster_shape.y; break;
    case Special::kClusterNctaidZ: value = cluster_shape.z; break;
    case Special::kClusterCtarank: value = rank; break;
    case Special::kClusterNctarank: value = cluster_shape.Count(); break;
    case Special::kIsExplicitCluster: value = cluster_shape.Count() > 1; break;
    case Special::kDynamicSmemSize: value = grid.config.dynamic_shared_bytes; break;
    case Special::kTotalSmemSize:
    case Special::kAggrSmemSize: value = cta_.shared().end() - kSharedReserved; break;
    case Special::kReservedSmemBegin: value = 0; break;
    case Special::kReservedSmemEnd:
    case Special::kReservedSmemCap: value = kSharedReserved; break;
    // clang-format on
    case Special::kClock:
    case Special::kClock64:
      value = cluster().now();
      break;
    case Special::kClockHi:
      value = cluster().now() >> 32;
      break;
    case Special::kGlobaltimer:
    case Special::kGlobaltimerLo:
    case Special::kGlobaltimerHi:
      value = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::system_clock::now().time_since_epoch())
                                        .count());
      if (special == Special::kGlobaltimerLo) value = static_cast<uint32_t>(value);
      if (special == Special::kGlobaltimerHi) value >>= 32;
      break;
    case Special::kCurrentGraphExec:
      break;
  }
  std::fill(values, values + kWarpSize, value);
}

void Warp::FillSource(const Operand& operand, void* to, uint32_t bytes) {
  switch (operand.kind) {
    case Operand::Kind::kRegister: {
      if (operand.width == 0)
        Raise(Rule::kBadOperand, Cat("predicate ", operand.name, " where a value is expected"));
      CheckDefined(operand, active_);
      const std::byte* from = frame().Lanes<std::byte>(operand);
      const uint32_t width = operand.width;
      if (bytes > 8 || width > 8) {
        for (int l = 0; l < kWarpSize; ++l) {
          std::byte* at = static_cast<std::byte*>(to) + l * bytes;
          std::memset(at, 0, bytes);
          std::memcpy(at, from + l * width, std::min(bytes, width));
        }
        return;
      }
      for (int l = 0; l < kWarpSize; ++l) {
        uint64_t value = 0;
        std::memcpy(&value, from + l * width, width);
        PutLane(to, bytes, l, value);
      }
      return;
    }
    case Operand::Kind::kSpecial: {
      uint64_t values[kWarpSize];
      FillSpecial(static_cast<Special>(operand.special), values);
      for (int l = 0; l < kWarpSize; ++l) PutLane(to, bytes, l, values[l]);
      return;
    }
    case Operand::Kind::kImmediate:
    case Operand::Kind::kVariable:
    case Operand::Kind::kFunction: {
      uint64_t value;
      if (operand.kind == Operand::Kind::kImmediate)
        value = ImmediateBits(operand, bytes);
      else if (operand.kind == Operand::Kind::kVariable)
        value = AddressOf(*operand.variable) + operand.value;
      else
        value = reinterpret_cast<uint64_t>(operand.function);
      if (bytes == 4) {
        std::fill_n(static_cast<uint32_t*>(to), kWarpSize, static_cast<uint32_t>(value));
      } else if (bytes == 8) {
        std::fill_n(static_cast<uint64_t*>(to), kWarpSize, value);
      } else {
        for (int l = 0; l < kWarpSize; ++l) PutLane(to, bytes, l, value);
        // A negative immediate of 128 bits.
        if (bytes == 16 && operand.kind == Operand::Kind::kImmediate && !operand.is_float &&
            value >> 63 != 0) {
          for (int l = 0; l < kWarpSize; ++l) std::memset(static_cast<std::byte*>(to) + l * 16 + 8, 0xFF, 8);
        }
      }
      return;
    }
    default:
      Raise(Rule::kBadOperand, Cat("'", operand.name, "' is no source operand"));
  }
}

void Warp::DrainStore(const Operand& operand, const void* values, uint32_t bytes, bool sign) {
  if (operand.IsSink()) return;
  if (!operand.IsRegister() || operand.width == 0)
    Raise(Rule::kBadOperand, Cat("'", operand.name, "' is no destination register"));
  std::byte* to = frame().Lanes<std::byte>(operand);
  const uint32_t width = operand.width;
  ForLanes(active_, [&](int l) {
    std::byte* at = to + l * width;
    const std::byte* from = static_cast<const std::byte*>(values) + l * bytes;
    const bool negative = sign && (static_cast<uint8_t>(from[bytes - 1]) & 0x80) != 0;
    std::memset(at, negative ? 0xFF : 0, width);
    std::memcpy(at, from, std::min(width, bytes));
  });
  frame().defined[operand.reg] |= active_;
}

uint64_t Warp::SourceLane(const Operand& operand, int lane) {
  if (operand.IsRegister() && operand.width != 0) {
    CheckDefined(operand, LaneMask{1} << lane);
    uint64_t value = 0;
    std::memcpy(&value, frame().Lanes<std::byte>(operand) + lane * operand.width,
                std::min<uint32_t>(operand.width, 8));
    return value;
  }
  uint64_t values[kWarpSize];
  FillSource(operand, values, 8);
  return values[lane];
}

unsigned __int128 Warp::SourceLane128(const Operand& operand, int lane) {
  if (operand.IsRegister() && operand.width == 16) {
    CheckDefined(operand, LaneMask{1} << lane);
    return frame().Lanes<unsigned __int128>(operand)[lane];
  }
  return SourceLane(operand, lane);
}

uint64_t Warp::SourceUniform(const Operand& operand, const char* name) {
  const int first = first_active();
  const uint64_t value = SourceLane(operand, first);
  if (operand.kind == Operand::Kind::kImmediate) return value;
  ForLanes(active_, [&](int l) {
    const uint64_t other = SourceLane(operand, l);
    if (other != value) {
      RaiseAt(l, Rule::kWarpUniform,
              Cat(name, " must be the same in all lanes, but lane ", first, " has ", Hex(value), " and lane ",
                  l, " has ", Hex(other)));
    }
  });
  return value;
}

LaneMask Warp::SourcePredicate(const Operand& operand) {
  if (operand.kind == Operand::Kind::kImmediate)
    return (operand.value != 0) != operand.negated ? kAllLanes : 0;
  if (!operand.IsRegister() || operand.width != 0)
    Raise(Rule::kBadOperand, Cat("'", operand.name, "' is no predicate"));
  CheckDefined(operand, active_);
  const LaneMask value = *frame().Lanes<LaneMask>(operand);
  return operand.negated ? ~value : value;
}

void Warp::StoreLane(const Operand& operand, int lane, uint64_t value) {
  if (operand.IsSink()) return;
  if (!operand.IsRegister() || operand.width == 0)
    Raise(Rule::kBadOperand, Cat("'", operand.name, "' is no destination register"));
  PutLane(frame().Lanes<std::byte>(operand), operand.width, lane, value);
  frame().defined[operand.reg] |= LaneMask{1} << lane;
}

void Warp::StorePredicate(const Operand& operand, LaneMask values) {
  if (operand.IsSink()) return;
  if (!operand.IsRegister() || operand.width != 0)
    Raise(Rule::kBadOperand, Cat("'", operand.name, "' is no predicate"));
  LaneMask& to = *frame().Lanes<LaneMask>(operand);
  to = (to & ~active_) | (values & active_);
  frame().defined[operand.reg] |= active_;
}

const uint64_t* Warp::Addresses(const Operand& operand, uint64_t (&scratch)[kWarpSize]) {
  if (operand.kind != Operand::Kind::kAddress) return Source<uint64_t>(operand, scratch);
  const uint64_t* base = Source<uint64_t>(operand.elements[0], scratch);
  if (operand.value == 0) return base;
  // A 32-bit base wraps in 32 bits.
  const bool narrow = operand.elements[0].IsRegister() && operand.elements[0].width == 4;
  for (int l = 0; l < kWarpSize; ++l) {
    const uint64_t address = base[l] + operand.value;
    scratch[l] = narrow ? static_cast<uint32_t>(address) : address;
  }
  return scratch;
}

uint64_t Warp::AddressLane(const Operand& operand, int lane) {
  if (operand.kind != Operand::Kind::kAddress) return SourceLane(operand, lane);
  const uint64_t address = SourceLane(operand.elements[0], lane) + operand.value;
  const bool narrow = operand.elements[0].IsRegister() && operand.elements[0].width == 4;
  return narrow ? static_cast<uint32_t>(address) : address;
}

Space Warp::Classify(uint64_t generic, uint64_t* address) {
  *address = generic & 0xFFFFFFFF;
  if (generic >> 32 == kSharedWindow >> 32) return Space::kSharedCluster;
  if (generic >> 32 == kLocalWindow >> 32) return Space::kLocal;
  *address = generic;
  return Space::kGlobal;
}

namespace {

bool InParameters(const GridContext& grid, uint64_t address) {
  return address - reinterpret_cast<uint64_t>(grid.params) < grid.param_bytes;
}

void CheckAligned(int lane, uint64_t address, uint32_t bytes, const char* what) {
  if ((address & (bytes - 1)) == 0) [[likely]]
    return;
  RaiseAt(lane, Rule::kMisalignedAddress,
          Cat(what, " of ", bytes, " bytes at ", Hex(address), ", which is no multiple of ", bytes));
}

}  // namespace

void Warp::LoadLane(int lane, Space space, uint64_t address, uint32_t bytes, void* out) {
  if (space == Space::kGeneric) space = Classify(address, &address);
  CheckAligned(lane, address, bytes, "load");
  switch (space) {
    case Space::kSharedCta:
      if (address >> kSharedWindowBits != cta_.rank()) {
        RaiseAt(lane, Rule::kWrongSpace,
                Cat("ld.shared::cta at ", Hex(address), ", which is not in the CTA's own window"));
      }
      cta_.shared().Load(address & ((1u << kSharedWindowBits) - 1), bytes, out);
      return;
    case Space::kSharedCluster: {
      uint32_t offset;
      cluster().Resolve(address, &offset).shared().Load(offset, bytes, out);
      return;
    }
    case Space::kLocal:
      local_.Load(lane, address, bytes, out);
      return;
    case Space::kParam:
    case Space::kGlobal:
    case Space::kConst:
      if (InParameters(cta_.grid(), address)) {
        if (address + bytes > reinterpret_cast<uint64_t>(cta_.grid().params) + cta_.grid().param_bytes) {
          RaiseAt(lane, Rule::kOutOfBounds, "load past the end of the kernel's parameters");
        }
        std::memcpy(out, reinterpret_cast<const void*>(address), bytes);
      } else if (space == Space::kParam) {
        local_.Load(lane, address, bytes, out);
      } else {
        global().Read(address, bytes, out, &global_hint_);
      }
      return;
    default:
      RaiseAt(lane, Rule::kWrongSpace, Cat("load from ", SpaceName(space)));
  }
}

void Warp::StoreLane(int lane, Space space, uint64_t address, uint32_t bytes, const void* in) {
  if (space == Space::kGeneric) space = Classify(address, &address);
  CheckAligned(lane, address, bytes, "store");
  switch (space) {
    case Space::kSharedCta:
      if (address >> kSharedWindowBits != cta_.rank()) {
        RaiseAt(lane, Rule::kWrongSpace,
                Cat("st.shared::cta at ", Hex(address), ", which is not in the CTA's own window"));
      }
      cta_.shared().Store(address & ((1u << kSharedWindowBits) - 1), bytes, in, cluster_index_);
      return;
    case Space::kSharedCluster: {
      uint32_t offset;
      cluster().Resolve(address, &offset).shared().Store(offset, bytes, in, cluster_index_);
      return;
    }
    case Space::kLocal:
    case Space::kParam:
      local_.Store(lane, address, bytes, in);
      return;
    case Space::kGlobal:
      if (InParameters(cta_.grid(), address))
        RaiseAt(lane, Rule::kReadOnly, "store to the kernel's parameters");
      global().Write(address, bytes, in, &global_hint_);
      return;
    default:
      RaiseAt(lane, Rule::kReadOnly, Cat("store to .", SpaceName(space)));
  }
}

}  // namespace tessera::ptx
