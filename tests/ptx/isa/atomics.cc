// atom, red (PTX ISA, "Parallel Synchronization and Communication Instructions"). Lanes go one after the other, from the
// lowest. Global ones are atomic among host threads too. Every order and scope is as strong as .acq_rel.sys.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>

#include "tests/ptx/isa/memory_form.h"
#include "tests/ptx/isa/rounding.h"
#include "tests/ptx/isa/scalar.h"
#include "tests/ptx/machine/cluster.h"
#include "tests/ptx/tensor/formats.h"

namespace tessera::ptx {
namespace {

enum class Op { kAdd, kMin, kMax, kInc, kDec, kExch, kCas, kAnd, kOr, kXor };

struct AtomicPayload : Payload {
  Op op;
  Space space;
  Type type;
  uint32_t vector = 1;
  bool returns;  // atom, not red
};

uint32_t PairOf(uint32_t a, uint32_t b, ElementType type, Op op) {
  uint32_t r = 0;
  for (int k = 0; k < 2; ++k) {
    const double x = Decode(type, a >> 16 * k & 0xFFFF), y = Decode(type, b >> 16 * k & 0xFFFF);
    const double v = op == Op::kAdd ? SumOdd(x, y) : op == Op::kMin ? std::fmin(x, y) : std::fmax(x, y);
    r |= (v != v ? uint32_t{kNanHalf} : Encode(type, v, Overflow::kSpecial)) << 16 * k;
  }
  return r;
}

uint64_t Apply(Op op, Type type, uint64_t old, uint64_t b, uint64_t c) {
  const int bits = Bits(type);
  const auto as_signed = [bits](uint64_t x) { return static_cast<int64_t>(x << (64 - bits)) >> (64 - bits); };
  switch (op) {
    case Op::kExch:
      return b;
    case Op::kCas:
      return old == b ? c : old;
    case Op::kAnd:
      return old & b;
    case Op::kOr:
      return old | b;
    case Op::kXor:
      return old ^ b;
    case Op::kInc:
      return old >= b ? 0 : old + 1;
    case Op::kDec:
      return old == 0 || old > b ? b : old - 1;
    default:
      break;
  }
  switch (type) {
    case Type::kF32: {
      const float x = std::bit_cast<float>(uint32_t(old)), y = std::bit_cast<float>(uint32_t(b));
      const float v = op == Op::kAdd ? x + y : op == Op::kMin ? std::fmin(x, y) : std::fmax(x, y);
      return std::bit_cast<uint32_t>(CanonicalNan(v));
    }
    case Type::kF64: {
      const double x = std::bit_cast<double>(old), y = std::bit_cast<double>(b);
      return std::bit_cast<uint64_t>(op == Op::kAdd   ? x + y
                                     : op == Op::kMin ? std::fmin(x, y)
                                                      : std::fmax(x, y));
    }
    case Type::kF16:
    case Type::kF16x2:
      return PairOf(uint32_t(old), uint32_t(b), ElementType::kF16, op) & (bits == 16 ? 0xFFFFu : ~0u);
    case Type::kBf16:
    case Type::kBf16x2:
      return PairOf(uint32_t(old), uint32_t(b), ElementType::kBF16, op) & (bits == 16 ? 0xFFFFu : ~0u);
    default:
      break;
  }
  if (op == Op::kAdd) return old + b;
  if (IsSigned(type))
    return static_cast<uint64_t>(op == Op::kMin ? std::min(as_signed(old), as_signed(b))
                                                : std::max(as_signed(old), as_signed(b)));
  return op == Op::kMin ? std::min(old, b) : std::max(old, b);
}

template <class T>
uint64_t GlobalAtomic(uint64_t address, const AtomicPayload& p, uint64_t b, uint64_t c) {
  std::atomic_ref<T> memory(*reinterpret_cast<T*>(address));
  T old = memory.load();
  while (!memory.compare_exchange_weak(old, static_cast<T>(Apply(p.op, p.type, old, b, c)))) {
  }
  return old;
}

// One element of one lane. Returns the old value.
uint64_t Access(Warp& w, int lane, const AtomicPayload& p, uint64_t address, uint64_t b, uint64_t c) {
  const uint32_t bytes = Bytes(p.type);
  Space space = p.space;
  if (space == Space::kGeneric) space = Warp::Classify(address, &address);
  if (address % bytes != 0)
    RaiseAt(lane, Rule::kMisalignedAddress, Cat("atomic of ", bytes, " bytes at ", Hex(address)));
  if (space == Space::kGlobal) {
    const GlobalMemory::Allocation& a = w.global().Check(address, bytes, w.global_hint(), "atomic");
    if (!a.writable) RaiseAt(lane, Rule::kReadOnly, Cat("atomic at ", Hex(address), ", in ", a.name));
    GlobalMemory::CheckDefined(a, address, bytes);
    switch (bytes) {
      case 2:
        return GlobalAtomic<uint16_t>(address, p, b, c);
      case 4:
        return GlobalAtomic<uint32_t>(address, p, b, c);
      default:
        return GlobalAtomic<uint64_t>(address, p, b, c);
    }
  }
  uint64_t old = 0;
  w.LoadLane(lane, space, address, bytes, &old);
  const uint64_t value = Apply(p.op, p.type, old, b, c);
  w.StoreLane(lane, space, address, bytes, &value);
  return old;
}

uint64_t One(Warp& w, int lane, const AtomicPayload& p, uint64_t address, uint64_t b, uint64_t c) {
  RaceDetector* const races = w.cluster().races();
  if (races == nullptr) return Access(w, lane, p, address, b, c);
  uint64_t place;
  Warp::Classify(address, &place);
  races->AcquireAt(place);
  const uint64_t old = Access(w, lane, p, address, b, c);
  races->ReleaseAt(place);
  return old;
}

// 128 bits: exch and cas. Not atomic among host threads beyond what a lock gives, so it takes one.
void Wide(Warp& w, const Instruction& i) {
  static std::atomic_flag lock = ATOMIC_FLAG_INIT;
  const auto& p = i.As<AtomicPayload>();
  uint64_t scratch[kWarpSize];
  const uint64_t* address = w.Addresses(i.operands[1], scratch);
  unsigned __int128 r[kWarpSize] = {};
  ForLanes(w.active(), [&](int l) {
    const unsigned __int128 b = w.SourceLane128(i.operands[2], l);
    const unsigned __int128 c = p.op == Op::kCas ? w.SourceLane128(i.operands[3], l) : 0;
    while (lock.test_and_set()) {
    }
    try {
      w.LoadLane(l, p.space, address[l], 16, &r[l]);
      const unsigned __int128 value = p.op == Op::kExch ? b : r[l] == b ? c : r[l];
      w.StoreLane(l, p.space, address[l], 16, &value);
    } catch (...) {
      lock.clear();
      throw;
    }
    lock.clear();
  });
  w.Store(i.operands[0], r);
}

void Execute(Warp& w, const Instruction& i) {
  const auto& p = i.As<AtomicPayload>();
  const size_t at = p.returns ? 1 : 0;
  uint64_t scratch[kWarpSize];
  const uint64_t* address = w.Addresses(i.operands[at], scratch);
  const Operand& ob = i.operands[at + 1];
  for (uint32_t k = 0; k < p.vector; ++k) {
    uint64_t sb[kWarpSize], sc[kWarpSize], r[kWarpSize] = {};
    const uint64_t* b = SourceBits(w, p.vector > 1 ? ob.elements[k] : ob, Bits(p.type), sb);
    const uint64_t* c = p.op == Op::kCas ? SourceBits(w, i.operands[at + 2], Bits(p.type), sc) : nullptr;
    ForEachLane(w.active(), [&](int l) {
      r[l] = One(w, l, p, address[l] + uint64_t{k} * Bytes(p.type), b[l], c != nullptr ? c[l] : 0);
    });
    if (p.returns) w.Store(p.vector > 1 ? i.operands[0].elements[k] : i.operands[0], r);
  }
  w.cluster().NoteProgress();
}

absl::Status PrepareAtomic(Instruction& i) {
  FindTypes(i);
  static const struct {
    const char* name;
    Op op;
  } kOps[] = {{"add", Op::kAdd}, {"min", Op::kMin},   {"max", Op::kMax}, {"inc", Op::kInc},
              {"dec", Op::kDec}, {"exch", Op::kExch}, {"cas", Op::kCas}, {"and", Op::kAnd},
              {"or", Op::kOr},   {"xor", Op::kXor}};
  auto p = std::make_unique<AtomicPayload>();
  bool found = false;
  for (const auto& op : kOps) {
    if (!i.Has(op.name)) continue;
    p->op = op.op;
    found = true;
  }
  if (!found) return absl::InvalidArgumentError(Cat(i.opcode, " without an operation"));
  p->space = SpaceOf(i);
  p->type = i.type;
  p->returns = i.opcode == "atom";
  p->vector = i.Has("v2") ? 2 : i.Has("v4") ? 4 : i.Has("v8") ? 8 : 1;
  if (i.type == Type::kNone || Bits(i.type) < 16) return NoSuchType(i);
  const size_t needed = (p->returns ? 3 : 2) + (p->op == Op::kCas ? 1 : 0);
  const size_t have = i.operands.size();
  if (have != needed && have != needed + 1) return NeedOperands(i, needed);  // one more: a cache policy
  i.execute = Bits(i.type) == 128 ? Wide : Execute;
  i.payload = std::move(p);
  return absl::OkStatus();
}

}  // namespace

void RegisterAtomics(Registry& registry) {
  registry.Add("atom", PrepareAtomic);
  registry.Add("red", PrepareAtomic);
}

}  // namespace tessera::ptx
