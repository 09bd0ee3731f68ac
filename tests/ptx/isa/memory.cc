// ld, st and their kin (PTX ISA, "Data Movement and Conversion Instructions"). Caching, ordering and scope modifiers are
// accepted; a weak and a volatile access do the same here.
#include <cstdint>
#include <cstring>

#include "tests/ptx/isa/memory_form.h"
#include "tests/ptx/isa/scalar.h"
#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/machine/launch.h"

namespace tessera::ptx {

Space SpaceOf(const Instruction& i) {
  for (const std::string& m : i.modifiers) {
    if (m == "global") return Space::kGlobal;
    if (m == "shared" || m == "shared::cta") return Space::kSharedCta;
    if (m == "shared::cluster") return Space::kSharedCluster;
    if (m == "local") return Space::kLocal;
    if (m == "const") return Space::kConst;
    if (m == "param" || m == "param::entry" || m == "param::func") return Space::kParam;
  }
  return Space::kGeneric;
}

namespace {

// Instruction::type the element, ::extra elements an access, ::flags the space and kStrong.
constexpr uint32_t kStrong = 0x100;   // not a weak access: may synchronise
constexpr uint32_t kAcquire = 0x200;  // may be a poll
Space FormSpace(const Instruction& i) { return static_cast<Space>(i.flags & 0xFF); }

// Calls f around what a strong access makes known, and learns.
template <class F>
void Synchronising(Warp& w, const Instruction& i, const uint64_t* address, F f) {
  RaceDetector* const races = w.cluster().races();
  if (races == nullptr || (i.flags & kStrong) == 0) return f();
  const auto each = [&](auto act) {
    ForLanes(w.active(), [&](int l) {
      uint64_t place;
      Warp::Classify(address[l], &place);
      act(place);
    });
  };
  each([&](uint64_t place) { races->AcquireAt(place); });
  f();
  each([&](uint64_t place) { races->ReleaseAt(place); });
}

absl::Status PrepareAccess(Instruction& i) {
  FindTypes(i);
  if (i.type == Type::kNone || Bits(i.type) < 8) return NoSuchType(i);
  i.flags = static_cast<uint32_t>(SpaceOf(i));
  for (const char* strong : {"volatile", "relaxed", "acquire", "release", "mmio"}) {
    if (i.Has(strong)) i.flags |= kStrong;
  }
  if (i.Has("acquire")) i.flags |= kAcquire;
  i.extra = i.Has("v2") ? 2 : i.Has("v4") ? 4 : i.Has("v8") ? 8 : 1;
  if (Bytes(i.type) * i.extra > 32) return absl::InvalidArgumentError("an access of more than 32 bytes");
  const size_t at = i.opcode.starts_with("st") ? 0 : 1;
  if (i.operands.size() < 2 || i.operands[at].kind != Operand::Kind::kAddress) {
    return absl::InvalidArgumentError(Cat(i.opcode, " needs an address and a register"));
  }
  const Operand& value = i.operands[1 - at];
  const size_t values = value.kind == Operand::Kind::kVector ? value.elements.size() : 1;
  if (values != i.extra)
    return absl::InvalidArgumentError(
        Cat(i.opcode, " of ", i.extra, " elements with ", values, " registers"));
  return absl::OkStatus();
}

const Operand& Element(const Operand& value, size_t k) {
  return value.kind == Operand::Kind::kVector ? value.elements[k] : value;
}

// Global memory without a register wider than the element, all in one allocation: most accesses.
template <class T>
bool LoadFast(Warp& w, const Instruction& i, const uint64_t* address) {
  const Operand& value = i.operands[0];
  const uint32_t count = i.extra, bytes = sizeof(T) * count;
  for (uint32_t k = 0; k < count; ++k) {
    const Operand& e = Element(value, k);
    if (!e.IsRegister() || e.width != sizeof(T)) return false;
  }
  T r[4][kWarpSize];
  const GlobalMemory& memory = w.global();
  bool fast = true;
  ForEachLane(w.active(), [&](int l) {
    if (!fast) return;
    uint64_t inside;
    if (address[l] % bytes != 0 || Warp::Classify(address[l], &inside) != Space::kGlobal ||
        address[l] - reinterpret_cast<uint64_t>(w.cta().grid().params) < w.cta().grid().param_bytes) {
      fast = false;
      return;
    }
    T element[4];
    memory.Read(address[l], bytes, element, w.global_hint());
    for (uint32_t k = 0; k < count; ++k) r[k][l] = element[k];
  });
  if (!fast) return false;
  for (uint32_t k = 0; k < count; ++k) w.Store(Element(value, k), r[k]);
  return true;
}

void Load(Warp& w, const Instruction& i) {
  uint64_t scratch[kWarpSize];
  const uint64_t* address = w.Addresses(i.operands[1], scratch);
  const Space space = FormSpace(i);
  if (space == Space::kGlobal && i.extra <= 4 && (i.flags & kStrong) == 0) {
    if (Bits(i.type) == 32 && LoadFast<uint32_t>(w, i, address)) return;
    if (Bits(i.type) == 64 && LoadFast<uint64_t>(w, i, address)) return;
  }
  if ((i.flags & kAcquire) != 0) w.Yield();
  const uint32_t count = i.extra, each = Bytes(i.type), bytes = each * count;
  uint8_t data[kWarpSize][32];
  Synchronising(w, i, address, [&] {
    ForEachLane(w.active(), [&](int l) { w.LoadLane(l, space, address[l], bytes, data[l]); });
  });
  const bool sign = IsSigned(i.type);
  for (uint32_t k = 0; k < count; ++k) {
    const Operand& to = Element(i.operands[0], k);
    if (each == 16) {
      unsigned __int128 r[kWarpSize];
      ForLanes(w.active(), [&](int l) { std::memcpy(&r[l], data[l] + k * each, 16); });
      w.Store(to, r);
    } else if (each == 4) {
      uint32_t r[kWarpSize];
      ForLanes(w.active(), [&](int l) { std::memcpy(&r[l], data[l] + k * 4, 4); });
      if (sign)
        w.StoreSigned(to, r);
      else
        w.Store(to, r);
    } else {
      uint64_t r[kWarpSize];
      ForLanes(w.active(), [&](int l) {
        r[l] = 0;
        std::memcpy(&r[l], data[l] + k * each, each);
        if (sign && each < 8)
          r[l] = static_cast<uint64_t>(static_cast<int64_t>(r[l] << (64 - 8 * each)) >> (64 - 8 * each));
      });
      w.Store(to, r);
    }
  }
}

void Store(Warp& w, const Instruction& i) {
  uint64_t scratch[kWarpSize];
  const uint64_t* address = w.Addresses(i.operands[0], scratch);
  const Space space = FormSpace(i);
  const uint32_t count = i.extra, each = Bytes(i.type), bytes = each * count;
  uint8_t data[kWarpSize][32];
  for (uint32_t k = 0; k < count; ++k) {
    const Operand& from = Element(i.operands[1], k);
    if (each == 16) {
      ForLanes(w.active(), [&](int l) {
        const unsigned __int128 value = w.SourceLane128(from, l);
        std::memcpy(data[l] + k * each, &value, 16);
      });
    } else if (each == 4) {
      uint32_t s[kWarpSize];
      const uint32_t* value = w.Source(from, s);
      for (int l = 0; l < kWarpSize; ++l) std::memcpy(data[l] + k * 4, &value[l], 4);
    } else {
      uint64_t s[kWarpSize];
      const uint64_t* value = w.Source(from, s);
      for (int l = 0; l < kWarpSize; ++l) std::memcpy(data[l] + k * each, &value[l], each);
    }
  }
  Synchronising(w, i, address, [&] {
    ForEachLane(w.active(), [&](int l) { w.StoreLane(l, space, address[l], bytes, data[l]); });
  });
  w.cluster().NoteProgress();
}

// Hints. The address is evaluated, so that its register must hold something.
void Hint(Warp& w, const Instruction& i) {
  for (const Operand& operand : i.operands) {
    if (operand.kind != Operand::Kind::kAddress) continue;
    uint64_t scratch[kWarpSize];
    w.Addresses(operand, scratch);
  }
}

// An opaque access policy; what uses it ignores it.
void CreatePolicy(Warp& w, const Instruction& i) {
  uint64_t r[kWarpSize];
  std::fill(r, r + kWarpSize, 0x14F0000000000000u);
  w.Store(i.operands[0], r);
}

}  // namespace

void RegisterMemory(Registry& registry) {
  const PrepareFn load = [](Instruction& i) {
    i.execute = Load;
    return PrepareAccess(i);
  };
  const PrepareFn store = [](Instruction& i) {
    i.execute = Store;
    return PrepareAccess(i);
  };
  const PrepareFn hint = [](Instruction& i) {
    i.execute = Hint;
    return absl::OkStatus();
  };
  registry.Add("ld", load);
  registry.Add("ldu", load);
  registry.Add("st", store);
  registry.Add("prefetch", hint);
  registry.Add("prefetchu", hint);
  registry.Add("applypriority", hint);
  registry.Add("discard", hint);
  registry.Add("createpolicy", [](Instruction& i) {
    i.execute = CreatePolicy;
    return i.operands.empty() ? NeedOperands(i, 1) : absl::OkStatus();
  });
}

}  // namespace tessera::ptx
