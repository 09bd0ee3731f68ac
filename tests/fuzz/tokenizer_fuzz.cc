// tokenizer.json and, after a NUL, tokenizer_config.json.
#include <cstdint>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "server/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::string_view json = text.substr(0, text.find('\0'));
  const absl::string_view config =
      json.size() < text.size() ? text.substr(json.size() + 1) : absl::string_view();
  const auto tokenizer = tessera::Tokenizer::Parse(json, config);
  if (!tokenizer.ok()) return 0;
  for (const char* sample :
       {"", "Hello, world! <|im_end|>", "  \xe2\x82\xac\xf0\x9f\x98\x80 caf\xc3\xa9\n\t12345"}) {
    const auto ids =
        (*tokenizer)->Encode(sample, {.add_special_tokens = true, .parse_special = true, .max_tokens = 4096});
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) {
      if (!(*tokenizer)->IsValidId(id)) abort();
    }
    (void)(*tokenizer)->Decode(*ids);
  }
  return 0;
}
