#include "tests/ptx/parser/type.h"

namespace tessera::ptx {
namespace {

struct TypeInfo {
  Type type;
  std::string_view name;
  int bits;
  char kind;  // b, u, s, f, p
};

constexpr TypeInfo kTypes[] = {
    {Type::kNone, "", 0, 'b'},
    {Type::kPred, "pred", 1, 'p'},
    {Type::kB8, "b8", 8, 'b'},
    {Type::kB16, "b16", 16, 'b'},
    {Type::kB32, "b32", 32, 'b'},
    {Type::kB64, "b64", 64, 'b'},
    {Type::kB128, "b128", 128, 'b'},
    {Type::kU8, "u8", 8, 'u'},
    {Type::kU16, "u16", 16, 'u'},
    {Type::kU32, "u32", 32, 'u'},
    {Type::kU64, "u64", 64, 'u'},
    {Type::kS8, "s8", 8, 's'},
    {Type::kS16, "s16", 16, 's'},
    {Type::kS32, "s32", 32, 's'},
    {Type::kS64, "s64", 64, 's'},
    {Type::kF16, "f16", 16, 'f'},
    {Type::kF16x2, "f16x2", 32, 'f'},
    {Type::kBf16, "bf16", 16, 'f'},
    {Type::kBf16x2, "bf16x2", 32, 'f'},
    {Type::kTf32, "tf32", 32, 'f'},
    {Type::kF32, "f32", 32, 'f'},
    {Type::kF32x2, "f32x2", 64, 'f'},
    {Type::kF64, "f64", 64, 'f'},
    {Type::kU16x2, "u16x2", 32, 'u'},
    {Type::kS16x2, "s16x2", 32, 's'},
    {Type::kE4m3, "e4m3", 8, 'f'},
    {Type::kE5m2, "e5m2", 8, 'f'},
    {Type::kE4m3x2, "e4m3x2", 16, 'f'},
    {Type::kE5m2x2, "e5m2x2", 16, 'f'},
    {Type::kE2m3x2, "e2m3x2", 16, 'f'},
    {Type::kE3m2x2, "e3m2x2", 16, 'f'},
    {Type::kE2m1x2, "e2m1x2", 8, 'f'},
    {Type::kUe8m0x2, "ue8m0x2", 16, 'f'},
    {Type::kE4m3x4, "e4m3x4", 32, 'f'},
    {Type::kE5m2x4, "e5m2x4", 32, 'f'},
    {Type::kE2m3x4, "e2m3x4", 32, 'f'},
    {Type::kE3m2x4, "e3m2x4", 32, 'f'},
    {Type::kE2m1x4, "e2m1x4", 16, 'f'},
};

const TypeInfo& Info(Type type) { return kTypes[static_cast<int>(type)]; }

}  // namespace

std::optional<Type> ParseType(std::string_view word) {
  if (word.empty()) return std::nullopt;
  for (const TypeInfo& info : kTypes) {
    if (info.name == word) return info.type;
  }
  return std::nullopt;
}

std::string_view TypeName(Type type) { return Info(type).name; }
int Bits(Type type) { return Info(type).bits; }
bool IsSigned(Type type) { return Info(type).kind == 's'; }
bool IsFloat(Type type) { return Info(type).kind == 'f'; }

std::string_view SpaceName(Space space) {
  switch (space) {
    case Space::kGeneric:
      return "generic";
    case Space::kRegister:
      return "register";
    case Space::kSpecial:
      return "special";
    case Space::kConst:
      return "const";
    case Space::kGlobal:
      return "global";
    case Space::kLocal:
      return "local";
    case Space::kParam:
      return "param";
    case Space::kSharedCta:
      return "shared";
    case Space::kSharedCluster:
      return "shared::cluster";
  }
  return "?";
}

}  // namespace tessera::ptx
