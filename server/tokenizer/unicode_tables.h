// Tables behind unicode.h; see make_unicode_tables.py, which writes unicode_tables.cc.
#ifndef TESSERA_SERVER_TOKENIZER_UNICODE_TABLES_H_
#define TESSERA_SERVER_TOKENIZER_UNICODE_TABLES_H_

#include <cstddef>
#include <cstdint>

namespace tessera::unicode {

// Full decompositions: `length` code points from `offset` of the pool. The second table has those by compatibility that
// differ from the canonical one.
struct Decomposition {
  char32_t code_point;
  uint16_t offset;
  uint16_t length;
};
extern const Decomposition kDecompositions[];
extern const size_t kDecompositionsSize;
extern const Decomposition kCompatibilityDecompositions[];
extern const size_t kCompatibilityDecompositionsSize;
extern const char32_t kDecompositionPool[];
extern const size_t kDecompositionPoolSize;

// Primary composites, sorted by (first, second); Hangul syllables are composed by arithmetic.
struct Composition {
  char32_t first, second, composed;
};
extern const Composition kCompositions[];
extern const size_t kCompositionsSize;

struct ClassRange {
  char32_t first, last;
  uint8_t combining_class;
};
extern const ClassRange kCombiningClasses[];
extern const size_t kCombiningClassesSize;

// A text without any of these is its own NFC.
struct CodePointRange {
  char32_t first, last;
};
extern const CodePointRange kNfcTouchy[];
extern const size_t kNfcTouchySize;
extern const uint64_t kNfcTouchyPages[];
extern const size_t kNfcTouchyPagesSize;

// Every `stride`th code point from first to last has its lower or upper case at distance `delta`.
struct CaseRange {
  char32_t first, last;
  uint32_t stride;
  int32_t delta;
};
extern const CaseRange kLowerCase[];
extern const size_t kLowerCaseSize;
extern const CaseRange kUpperCase[];
extern const size_t kUpperCaseSize;

// Where upper case is several code points, or not the same as title case. Zero beyond the end.
struct SpecialCase {
  char32_t code_point;
  char32_t upper[3];
  char32_t title[3];
};
extern const SpecialCase kSpecialCases[];
extern const size_t kSpecialCasesSize;

// Code points whose class PCRE2 10.42 (Unicode 14) sees otherwise than the tokenizers library (Unicode 16),
// and one of the same UTF-8 length that PCRE2 puts into the class where these belong.
struct StandIn {
  char32_t first, last, stand_in;
};
extern const StandIn kStandIns[];
extern const size_t kStandInsSize;
extern const uint64_t kStandInPages[];
extern const size_t kStandInPagesSize;

}  // namespace tessera::unicode

#endif  // TESSERA_SERVER_TOKENIZER_UNICODE_TABLES_H_
