#include "tests/ptx/tma/reduction.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace tessera::ptx {
namespace {

// The arithmetic type of an element and how it is stored.
template <class T>
struct Plain {
  using Bits = T;
  static T Load(Bits bits) { return bits; }
  static Bits Store(T value) { return value; }
};

struct Bf16 {
  using Bits = uint16_t;
  static float Load(Bits bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
  // Sums of two bf16 numbers rounded to float first lose nothing: float has more than twice the digits.
  static Bits Store(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) return 0x7FFF;
    return static_cast<Bits>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
};

struct F16 {
  using Bits = _Float16;
  static float Load(Bits bits) { return static_cast<float>(bits); }
  static Bits Store(float value) { return static_cast<Bits>(value); }
};

// "The current implementation flushes subnormal inputs and results to sign-preserving zero."
struct F32 {
  using Bits = float;
  static float Flush(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
  static float Load(Bits bits) { return Flush(bits); }
  static Bits Store(float value) { return Flush(value); }
};

struct Add {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_signed_v<T> && std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));  // wraps
    } else {
      return a + b;
    }
  }
};
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
    return std::min(a, b);
  }
};
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
    return std::max(a, b);
  }
};
struct Inc {
  uint32_t operator()(uint32_t a, uint32_t b) const { return a >= b ? 0 : a + 1; }
};
struct Dec {
  uint32_t operator()(uint32_t a, uint32_t b) const { return a == 0 || a > b ? b : a - 1; }
};
struct And {
  template <class T>
  T operator()(T a, T b) const {
    return a & b;
  }
};
struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return a | b;
  }
};
struct Xor {
  template <class T>
  T operator()(T a, T b) const {
    return a ^ b;
  }
};

template <class Element, class Op>
void Reduce(uint8_t* destination, const uint8_t* source, uint32_t bytes) {
  using Bits = typename Element::Bits;
  for (uint32_t at = 0; at + sizeof(Bits) <= bytes; at += sizeof(Bits)) {
    Bits a, b;
    std::memcpy(&a, destination + at, sizeof(Bits));
    std::memcpy(&b, source + at, sizeof(Bits));
    a = Element::Store(Op()(Element::Load(a), Element::Load(b)));
    std::memcpy(destination + at, &a, sizeof(Bits));
  }
}

struct Entry {
  std::string_view op, type;
  bool shared;  // also into shared memory
  ReduceFn reduce;
};

constexpr Entry kEntries[] = {
    {"add", "u32", true, Reduce<Plain<uint32_t>, Add>},  {"add", "s32", true, Reduce<Plain<int32_t>, Add>},
    {"add", "u64", true, Reduce<Plain<uint64_t>, Add>},  {"add", "f32", false, Reduce<F32, Add>},
    {"add", "f64", false, Reduce<Plain<double>, Add>},   {"add", "f16", false, Reduce<F16, Add>},
    {"add", "bf16", false, Reduce<Bf16, Add>},           {"min", "u32", true, Reduce<Plain<uint32_t>, Min>},
    {"min", "s32", true, Reduce<Plain<int32_t>, Min>},   {"min", "u64", false, Reduce<Plain<uint64_t>, Min>},
    {"min", "s64", false, Reduce<Plain<int64_t>, Min>},  {"min", "f16", false, Reduce<F16, Min>},
    {"min", "bf16", false, Reduce<Bf16, Min>},           {"max", "u32", true, Reduce<Plain<uint32_t>, Max>},
    {"max", "s32", true, Reduce<Plain<int32_t>, Max>},   {"max", "u64", false, Reduce<Plain<uint64_t>, Max>},
    {"max", "s64", false, Reduce<Plain<int64_t>, Max>},  {"max", "f16", false, Reduce<F16, Max>},
    {"max", "bf16", false, Reduce<Bf16, Max>},           {"inc", "u32", true, Reduce<Plain<uint32_t>, Inc>},
    {"dec", "u32", true, Reduce<Plain<uint32_t>, Dec>},  {"and", "b32", true, Reduce<Plain<uint32_t>, And>},
    {"and", "b64", false, Reduce<Plain<uint64_t>, And>}, {"or", "b32", true, Reduce<Plain<uint32_t>, Or>},
    {"or", "b64", false, Reduce<Plain<uint64_t>, Or>},   {"xor", "b32", true, Reduce<Plain<uint32_t>, Xor>},
    {"xor", "b64", false, Reduce<Plain<uint64_t>, Xor>},
};

}  // namespace

absl::StatusOr<ReduceFn> FindReduction(std::string_view op, std::string_view type, bool global) {
  for (const Entry& entry : kEntries) {
    if (entry.op == op && entry.type == type && (global || entry.shared)) return entry.reduce;
  }
  return absl::InvalidArgumentError(absl::StrCat("no bulk reduction .", std::string(op), ".",
                                                 std::string(type), " into ", global ? "global" : "shared",
                                                 " memory"));
}

absl::StatusOr<ReduceFn> FindReduction(const Instruction& i, bool global) {
  if (i.modifiers.size() < 2) return absl::InvalidArgumentError("expected .redOp.type");
  const std::string& type = i.modifiers.back();
  const bool noftz = i.Has("noftz");
  const std::string& op = i.modifiers[i.modifiers.size() - (noftz ? 3 : 2)];
  if (op == "add" && (type == "f16" || type == "bf16") && !noftz) {
    return absl::InvalidArgumentError(absl::StrCat(".add.", type, " needs .noftz"));
  }
  return FindReduction(op, type, global);
}

}  // namespace tessera::ptx
