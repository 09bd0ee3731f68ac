// tokenizer.json and, after a NUL, tokenizer_config.json.
#include "absl/strings/string_view.h"
#include "server/tokenizer/tokenizer.h"
#include "tests/fuzz/exercise_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::string_view json = text.substr(0, text.find('\0'));
  const absl::string_view config =
      json.size() < text.size() ? text.substr(json.size() + 1) : absl::string_view();
  const auto tokenizer = tessera::Tokenizer::Parse(json, config);
  if (tokenizer.ok()) tessera::ExerciseTokenizer(**tokenizer);
  return 0;
}
