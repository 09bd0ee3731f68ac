// The fundamental types of PTX (PTX ISA, "Types") as one enum, and what the emulator needs to know of each.
#ifndef TESSERA_TESTS_PTX_PARSER_TYPE_H_
#define TESSERA_TESTS_PTX_PARSER_TYPE_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera::ptx {

// clang-format off
enum class Type : uint8_t {
  kNone, kPred,
  kB8, kB16, kB32, kB64, kB128,
  kU8, kU16, kU32, kU64,
  kS8, kS16, kS32, kS64,
  kF16, kF16x2, kBf16, kBf16x2, kTf32, kF32, kF32x2, kF64,
  kU16x2, kS16x2,
  kE4m3, kE5m2, kE4m3x2, kE5m2x2, kE2m3x2, kE3m2x2, kE2m1x2, kUe8m0x2,  // only as modifiers
  kE4m3x4, kE5m2x4, kE2m3x4, kE3m2x4, kE2m1x4,
};
// clang-format on

// "u32" -> kU32; nothing if the word is not a type.
std::optional<Type> ParseType(std::string_view word);
std::string_view TypeName(Type type);

// Bits of one value; a predicate has 1.
int Bits(Type type);
inline int Bytes(Type type) { return (Bits(type) + 7) / 8; }
bool IsSigned(Type type);
bool IsFloat(Type type);

// State spaces. kGeneric is the absence of one.
enum class Space : uint8_t {
  kGeneric,
  kRegister,
  kSpecial,
  kConst,
  kGlobal,
  kLocal,
  kParam,
  kSharedCta,      // .shared, .shared::cta
  kSharedCluster,  // .shared::cluster
};
std::string_view SpaceName(Space space);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_PARSER_TYPE_H_
