// The number formats that tensor cores read and write, on the host.
//
// Sources: OCP OFP8 1.0 (E4M3, E5M2), OCP Microscaling Formats 1.0 (E2M3, E3M2, E2M1, E8M0), PTX ISA "Alternate
// Floating-Point Data Formats" (bf16, tf32, ue4m3, ue8m0). Every value of every format is exact in a double.
#ifndef TESSERA_TESTS_PTX_TENSOR_FORMATS_H_
#define TESSERA_TESTS_PTX_TENSOR_FORMATS_H_

#include <cstdint>
#include <string_view>

namespace tessera::ptx {

enum class ElementType : uint8_t {
  kF16,    // IEEE binary16
  kBF16,   // upper half of a binary32
  kTF32,   // binary32 whose 13 low bits are ignored
  kF32,    // IEEE binary32
  kE4M3,   // bias 7, no infinity, 0x7f and 0xff are NaN
  kE5M2,   // bias 15, infinities and NaN as in IEEE
  kE2M3,   // bias 1, six bits, no infinity, no NaN
  kE3M2,   // bias 3, six bits, no infinity, no NaN
  kE2M1,   // bias 1, four bits, no infinity, no NaN
  kUE8M0,  // 2^(code - 127), 0xff is NaN
  kUE4M3,  // E4M3 without a sign: bit 7 is ignored
  kS8,
  kU8,
  kS32,
};

// "e4m3", "bf16", ...: as PTX spells it.
std::string_view Name(ElementType type);

// Width of the value itself: 4 for E2M1, 6 for E2M3 and E3M2, 32 for TF32.
int BitsOf(ElementType type);

// Whether the type is one of the integers.
bool IsInteger(ElementType type);

// Value of the low BitsOf(type) bits of `bits`; the bits above are ignored.
double Decode(ElementType type, uint32_t bits);

// Values of the elements of one 32-bit word, lowest bits first: 32 / BitsOf(type) of them. Types of 8, 16, 32 bits.
void DecodeWord(ElementType type, uint32_t word, double* values);

// What Encode does with values beyond the largest finite one.
enum class Overflow : uint8_t {
  kSpecial,   // infinity if the type has it, else NaN
  kSaturate,  // the largest finite value, infinities included (cvt's .satfinite)
};

// Nearest code of a floating-point type with a sign (f16 to e2m1), ties to the even mantissa. TF32 comes in the form of
// a binary32. A NaN becomes the type's NaN (0x7f for e4m3 and e5m2, 0x7fff for f16, bf16, the low thirteen bits clear
// for tf32); a type without one gives its largest positive value, as cvt does. Not for ue8m0 and integers.
uint32_t Encode(ElementType type, double value, Overflow overflow);

// cvt.rz and cvt.rp to ue8m0: the power of two not above, or not below, |value|; saturates to 2^-127 .. 2^127 (NaN:
// 0xff).
uint8_t EncodeUE8M0(double value, bool round_up);

// Nearest binary32, ties to even, in bits. A NaN becomes 0x7fffffff, the one that the tensor cores produce.
uint32_t RoundToF32(double value);

// Nearest binary16, ties to even, rounded once, in bits. Overflow gives infinity; a NaN becomes 0x7fff.
uint16_t RoundToF16(double value);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TENSOR_FORMATS_H_
