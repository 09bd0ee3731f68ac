// tokenizer.model.
#include "absl/strings/string_view.h"
#include "server/tokenizer/tokenizer.h"
#include "tests/fuzz/exercise_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tokenizer = tessera::Tokenizer::ParseSentencePiece({reinterpret_cast<const char*>(data), size});
  if (tokenizer.ok()) tessera::ExerciseTokenizer(**tokenizer);
  return 0;
}
