#include "tests/ptx/tensor/instruction_descriptor.h"

#include <optional>
#include <string>

#include "absl/strings/str_format.h"

namespace tessera::ptx {
namespace {

constexpr struct {
  MmaKind kind;
  std::string_view name;
  int k;
} kKinds[] = {
    {MmaKind::kF16, "f16", 16},           {MmaKind::kTF32, "tf32", 8},
    {MmaKind::kF8F6F4, "f8f6f4", 32},     {MmaKind::kI8, "i8", 32},
    {MmaKind::kMxF8F6F4, "mxf8f6f4", 32}, {MmaKind::kMxF4, "mxf4", 64},
    {MmaKind::kMxF4NvF4, "mxf4nvf4", 64},
};

// Which types a kind takes, by their codes.
struct TypeCode {
  ElementType type;
  uint32_t code;
};
constexpr TypeCode kF16Types[] = {{ElementType::kF16, 0}, {ElementType::kBF16, 1}};
constexpr TypeCode kTF32Types[] = {{ElementType::kTF32, 2}};
constexpr TypeCode kF8Types[] = {{ElementType::kE4M3, 0},
                                 {ElementType::kE5M2, 1},
                                 {ElementType::kE2M3, 3},
                                 {ElementType::kE3M2, 4},
                                 {ElementType::kE2M1, 5}};
constexpr TypeCode kI8Types[] = {{ElementType::kU8, 0}, {ElementType::kS8, 1}};
constexpr TypeCode kF4Types[] = {{ElementType::kE2M1, 1}};
constexpr TypeCode kDTypes[] = {{ElementType::kF16, 0}, {ElementType::kF32, 1}, {ElementType::kS32, 2}};

struct TypeCodes {
  const TypeCode* begin_;
  const TypeCode* end_;
  const TypeCode* begin() const { return begin_; }
  const TypeCode* end() const { return end_; }
};

template <size_t N>
TypeCodes Codes(const TypeCode (&codes)[N]) {
  return {codes, codes + N};
}

TypeCodes OperandTypes(MmaKind kind) {
  switch (kind) {
    case MmaKind::kF16:
      return Codes(kF16Types);
    case MmaKind::kTF32:
      return Codes(kTF32Types);
    case MmaKind::kF8F6F4:
    case MmaKind::kMxF8F6F4:
      return Codes(kF8Types);
    case MmaKind::kI8:
      return Codes(kI8Types);
    case MmaKind::kMxF4:
    case MmaKind::kMxF4NvF4:
      return Codes(kF4Types);
  }
  return Codes(kF16Types);
}

std::string ListOf(TypeCodes codes) {
  std::string list;
  for (const TypeCode& code : codes) {
    absl::StrAppendFormat(&list, "%s%s %d", list.empty() ? "" : ", ", Name(code.type), code.code);
  }
  return list;
}

std::optional<ElementType> TypeOf(TypeCodes codes, uint32_t code) {
  for (const TypeCode& entry : codes) {
    if (entry.code == code) return entry.type;
  }
  return std::nullopt;
}

std::optional<uint32_t> CodeOf(TypeCodes codes, ElementType type) {
  for (const TypeCode& entry : codes) {
    if (entry.type == type) return entry.code;
  }
  return std::nullopt;
}

uint32_t Field(uint32_t word, int first, int last) {
  return (word >> first) & ((1u << (last - first + 1)) - 1);
}

template <typename... Args>
absl::Status Refuse(MmaKind kind, const absl::FormatSpec<Args...>& format, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrFormat("instruction descriptor of kind::%s: %s", Name(kind),
                                                    absl::StrFormat(format, args...)));
}

absl::Status RequireZero(MmaKind kind, uint32_t word, int first, int last) {
  const uint32_t value = Field(word, first, last);
  if (value == 0) return absl::OkStatus();
  return Refuse(kind, "reserved bits %d-%d of 0x%08x hold %d, must be 0", first, last, word, value);
}

absl::Status CheckM(MmaKind kind, int m, const MmaQualifiers& qualifiers) {
  const bool pair = qualifiers.cta_group == 2;
  if (qualifiers.weight_stationary) {
    if (m == 32 || m == 64 || m == 128) return absl::OkStatus();
    return Refuse(kind, "M is %d; .ws takes 32, 64 or 128", m);
  }
  if (IsBlockScaled(kind) && !pair) {
    if (m == 128) return absl::OkStatus();
    return Refuse(kind, "M is %d; cta_group::1 takes 128", m);
  }
  if (pair ? (m == 128 || m == 256) : (m == 64 || m == 128)) return absl::OkStatus();
  return Refuse(kind, "M is %d; cta_group::%d takes %s", m, qualifiers.cta_group,
                pair ? "128 or 256" : "64 or 128");
}

absl::Status CheckN(MmaKind kind, const InstructionDescriptor& d, const MmaQualifiers& qualifiers) {
  const bool pair = qualifiers.cta_group == 2;
  if (qualifiers.weight_stationary) {
    if (d.n == 64 || d.n == 128 || d.n == 256) return absl::OkStatus();
    return Refuse(kind, "N is %d; .ws takes 64, 128 or 256", d.n);
  }
  int step = pair ? 16 : 8;
  std::string why;
  if (kind == MmaKind::kI8) {
    step = pair ? 32 : d.n > 32 ? 16 : 8;
    if (!pair && d.n > 32) why = " above 32";
  } else if (d.b_major == Major::kMN && StorageBits(kind, d.b_type) == 8) {
    step = pair ? 32 : 16;
    why = " with an MN-major 8-bit B";
  }
  if (d.n >= step && d.n <= 256 && d.n % step == 0) return absl::OkStatus();
  return Refuse(kind, "N is %d; cta_group::%d%s takes multiples of %d up to 256", d.n, qualifiers.cta_group,
                why, step);
}

absl::Status CheckScales(MmaKind kind, const InstructionDescriptor& d, int scale_vector) {
  if (d.scale_type == ElementType::kUE4M3) {
    if (kind != MmaKind::kMxF4NvF4)
      return Refuse(kind, "bit 23 chooses ue4m3 scales; only kind::mxf4nvf4 has them");
    if (scale_vector != 4) {
      return Refuse(kind, "bit 23 chooses ue4m3 scales, which need scale_vec::4X; the instruction says %dX",
                    scale_vector);
    }
  }
  for (auto [name, id] : {std::pair{"A", d.a_scale_id}, std::pair{"B", d.b_scale_id}}) {
    if (id % scale_vector != 0) {
      return Refuse(kind, "the scale-factor id of %s is %d; scale_vec::%dX takes %s", name,
                    static_cast<int>(id), scale_vector, scale_vector == 4 ? "0" : "0 or 2");
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(MmaKind kind) { return kKinds[static_cast<int>(kind)].name; }

absl::StatusOr<MmaKind> ParseMmaKind(std::string_view name) {
  for (const auto& entry : kKinds) {
    if (entry.name == name) return entry.kind;
  }
  return absl::InvalidArgumentError(absl::StrFormat("there is no .kind::%s", name));
}

bool IsBlockScaled(MmaKind kind) {
  return kind == MmaKind::kMxF8F6F4 || kind == MmaKind::kMxF4 || kind == MmaKind::kMxF4NvF4;
}

int KOf(MmaKind kind) { return kKinds[static_cast<int>(kind)].k; }

int StorageBits(MmaKind kind, ElementType type) {
  if (kind == MmaKind::kF8F6F4 || kind == MmaKind::kMxF8F6F4) return 8;
  return BitsOf(type);
}

absl::StatusOr<int> ScaleVector(MmaKind kind, std::string_view qualifier) {
  if (!IsBlockScaled(kind)) {
    if (qualifier.empty()) return 0;
    return absl::InvalidArgumentError(absl::StrFormat("kind::%s has no .%s", Name(kind), qualifier));
  }
  const int block32 = kind == MmaKind::kMxF8F6F4 ? 1 : 2;
  if (qualifier == "block32") return block32;
  if (qualifier.empty() && kind != MmaKind::kMxF4NvF4) return block32;
  if (qualifier == "scale_vec::1X" && kind == MmaKind::kMxF8F6F4) return 1;
  if (qualifier == "scale_vec::2X" && kind != MmaKind::kMxF8F6F4) return 2;
  if ((qualifier == "scale_vec::4X" || qualifier == "block16") && kind == MmaKind::kMxF4NvF4) return 4;
  if (qualifier.empty()) return absl::InvalidArgumentError("kind::mxf4nvf4 must say its scale vector size");
  return absl::InvalidArgumentError(absl::StrFormat("kind::%s does not take .%s", Name(kind), qualifier));
}

absl::StatusOr<InstructionDescriptor> DecodeInstructionDescriptor(MmaKind kind, uint32_t bits) {
  const bool scaled = IsBlockScaled(kind);
  if (absl::Status s = RequireZero(kind, bits, 6, 6); !s.ok()) return s;
  if (scaled) {
    for (auto [first, last] : {std::pair{0, 1}, std::pair{3, 3}, std::pair{24, 26}}) {
      if (absl::Status s = RequireZero(kind, bits, first, last); !s.ok()) return s;
    }
  } else {
    for (auto [first, last] : {std::pair{23, 23}, std::pair{29, 29}}) {
      if (absl::Status s = RequireZero(kind, bits, first, last); !s.ok()) return s;
    }
  }
  InstructionDescriptor d;
  d.sparse = Field(bits, 2, 2) != 0;
  const TypeCodes types = OperandTypes(kind);
  for (auto [name, first, type] : {std::tuple{"A", 7, &d.a_type}, std::tuple{"B", 10, &d.b_type}}) {
    const uint32_t code = Field(bits, first, first + 2);
    const std::optional<ElementType> found = TypeOf(types, code);
    if (!found) {
      return Refuse(kind, "the format of %s in bits %d-%d of 0x%08x is %d; the kind takes %s", name, first,
                    first + 2, bits, code, ListOf(types));
    }
    *type = *found;
  }
  d.negate_a = Field(bits, 13, 13) != 0;
  d.negate_b = Field(bits, 14, 14) != 0;
  d.a_major = Field(bits, 15, 15) != 0 ? Major::kMN : Major::kK;
  d.b_major = Field(bits, 16, 16) != 0 ? Major::kMN : Major::kK;
  d.n = static_cast<int>(Field(bits, 17, 22)) * 8;
  if (scaled) {
    d.b_scale_id = static_cast<uint8_t>(Field(bits, 4, 5));
    d.scale_type = Field(bits, 23, 23) != 0 ? ElementType::kUE8M0 : ElementType::kUE4M3;
    d.m = static_cast<int>(Field(bits, 27, 28)) * 128;
    d.a_scale_id = static_cast<uint8_t>(Field(bits, 29, 30));
    d.k96 = Field(bits, 31, 31) != 0;
  } else {
    d.sparsity_selector = static_cast<uint8_t>(Field(bits, 0, 1));
    d.saturate = Field(bits, 3, 3) != 0;
    d.m = static_cast<int>(Field(bits, 24, 28)) * 16;
    d.max_shift = static_cast<uint8_t>(Field(bits, 30, 31));
    const std::optional<ElementType> d_type = TypeOf(Codes(kDTypes), Field(bits, 4, 5));
    if (!d_type)
      return Refuse(kind, "the format of D in bits 4-5 of 0x%08x is 3; %s exist", bits,
                    ListOf(Codes(kDTypes)));
    d.d_type = *d_type;
  }
  return d;
}

absl::StatusOr<uint32_t> EncodeInstructionDescriptor(MmaKind kind, const InstructionDescriptor& d) {
  const bool scaled = IsBlockScaled(kind);
  const TypeCodes types = OperandTypes(kind);
  const std::optional<uint32_t> a = CodeOf(types, d.a_type);
  const std::optional<uint32_t> b = CodeOf(types, d.b_type);
  const std::optional<uint32_t> out = CodeOf(Codes(kDTypes), d.d_type);
  if (!a) return Refuse(kind, "A of type %s; the kind takes %s", Name(d.a_type), ListOf(types));
  if (!b) return Refuse(kind, "B of type %s; the kind takes %s", Name(d.b_type), ListOf(types));
  if (!out) return Refuse(kind, "D of type %s; %s exist", Name(d.d_type), ListOf(Codes(kDTypes)));
  if (d.n < 0 || d.n % 8 != 0 || d.n / 8 > 63) return Refuse(kind, "N %d is no multiple of 8 up to 504", d.n);
  const int m_step = scaled ? 128 : 16;
  const int m_limit = scaled ? 3 : 31;
  if (d.m < 0 || d.m % m_step != 0 || d.m / m_step > m_limit) {
    return Refuse(kind, "M %d is no multiple of %d up to %d", d.m, m_step, m_step * m_limit);
  }
  uint32_t bits = static_cast<uint32_t>(d.sparse) << 2 | *a << 7 | *b << 10 |
                  static_cast<uint32_t>(d.negate_a) << 13 | static_cast<uint32_t>(d.negate_b) << 14 |
                  static_cast<uint32_t>(d.a_major == Major::kMN) << 15 |
                  static_cast<uint32_t>(d.b_major == Major::kMN) << 16 | static_cast<uint32_t>(d.n / 8) << 17;
  if (scaled) {
    bits |= static_cast<uint32_t>(d.b_scale_id & 3) << 4 |
            static_cast<uint32_t>(d.scale_type == ElementType::kUE8M0) << 23 |
            static_cast<uint32_t>(d.m / 128) << 27 | static_cast<uint32_t>(d.a_scale_id & 3) << 29 |
            static_cast<uint32_t>(d.k96) << 31;
  } else {
    bits |= (d.sparsity_selector & 3u) | static_cast<uint32_t>(d.saturate) << 3 | *out << 4 |
            static_cast<uint32_t>(d.m / 16) << 24 | static_cast<uint32_t>(d.max_shift & 3) << 30;
  }
  return bits;
}

absl::Status CheckInstruction(MmaKind kind, const InstructionDescriptor& d, const MmaQualifiers& qualifiers) {
  if (d.sparse)
    return absl::UnimplementedError(absl::StrFormat("sparse A (bit 2) with kind::%s", Name(kind)));
  if (d.k96) {
    return absl::UnimplementedError(
        absl::StrFormat("K = 96 (bit 31) with kind::%s, which only sm_103a has", Name(kind)));
  }
  if (qualifiers.weight_stationary && qualifiers.cta_group == 2)
    return Refuse(kind, ".ws has no cta_group::2");
  if (qualifiers.weight_stationary && IsBlockScaled(kind)) return Refuse(kind, "the kind has no .ws");
  if (absl::Status s = CheckM(kind, d.m, qualifiers); !s.ok()) return s;
  if (absl::Status s = CheckN(kind, d, qualifiers); !s.ok()) return s;
  if (IsBlockScaled(kind)) {
    if (absl::Status s = CheckScales(kind, d, qualifiers.scale_vector); !s.ok()) return s;
  } else {
    const bool integer = kind == MmaKind::kI8;
    const bool half_allowed = kind == MmaKind::kF16;
    if (integer != (d.d_type == ElementType::kS32) || (d.d_type == ElementType::kF16 && !half_allowed)) {
      return Refuse(kind, "D is %s; the kind takes %s", Name(d.d_type),
                    integer        ? "s32"
                    : half_allowed ? "f16 or f32"
                                   : "f32");
    }
    if (d.d_type == ElementType::kF16 && (d.a_type != ElementType::kF16 || d.b_type != ElementType::kF16)) {
      return Refuse(kind, "D is f16 with A %s and B %s; an f16 D takes f16 operands", Name(d.a_type),
                    Name(d.b_type));
    }
    if (d.saturate && !integer) return Refuse(kind, "bit 3 (saturate) is for integers");
    if (d.max_shift != 0 && !qualifiers.weight_stationary)
      return Refuse(kind, "bits 30-31 (shift) are for .ws");
  }
  if (kind == MmaKind::kI8 && (d.negate_a || d.negate_b))
    return Refuse(kind, "integers cannot be negated (bits 13, 14)");
  for (auto [name, major, type] :
       {std::tuple{"A", d.a_major, d.a_type}, std::tuple{"B", d.b_major, d.b_type}}) {
    if (major == Major::kMN && BitsOf(type) < 8) {
      return Refuse(kind, "%s of type %s is MN-major; elements below 8 bits are K-major only", name,
                    Name(type));
    }
  }
  if (qualifiers.a_in_tmem && d.a_major == Major::kMN)
    return Refuse(kind, "A in tensor memory is K-major only (bit 15)");
  return absl::OkStatus();
}

}  // namespace tessera::ptx
