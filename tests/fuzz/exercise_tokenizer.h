#ifndef TESSERA_TESTS_FUZZ_EXERCISE_TOKENIZER_H_
#define TESSERA_TESTS_FUZZ_EXERCISE_TOKENIZER_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "server/tokenizer/tokenizer.h"

namespace tessera {

// Encodes and decodes a few texts; ends the process where the result breaks a promise.
inline void ExerciseTokenizer(const Tokenizer& tokenizer) {
  for (const char* text :
       {"", "Hello, world! <|im_end|>", "  \xe2\x82\xac\xf0\x9f\x98\x80 caf\xc3\xa9\n\t12345"}) {
    EncodeOptions options{.add_special_tokens = true, .parse_special = true, .max_tokens = 4096};
    const auto ids = tokenizer.Encode(text, options);
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) {
      if (!tokenizer.IsValidId(id)) std::abort();
    }
    (void)tokenizer.Decode(*ids);
    options.max_tokens = 3;
    options.truncate = true;
    const auto head = tokenizer.Encode(text, options);
    if (!head.ok() || head->size() != std::min<size_t>(3, ids->size())) std::abort();
    if (!std::equal(head->begin(), head->end(), ids->begin())) std::abort();
  }
}

}  // namespace tessera

#endif  // TESSERA_TESTS_FUZZ_EXERCISE_TOKENIZER_H_
