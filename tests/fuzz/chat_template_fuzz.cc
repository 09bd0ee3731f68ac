// A chat template, rendered for a small conversation.
#include <cstdint>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "server/tokenizer/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto chat_template = tessera::ChatTemplate::Parse({reinterpret_cast<const char*>(data), size});
  if (!chat_template.ok()) return 0;
  tessera::ChatRequest request;
  const auto add = [&](const char* role, const char* content) {
    request.messages.push_back({{"role", role}, {"content", content}});
  };
  add("system", "Be brief.");
  add("user", "What is a lantern? <|im_end|>");
  add("assistant", "A light.");
  const auto rendered = chat_template->Render(request);
  if (!rendered.ok()) return 0;
  size_t end = 0;
  for (const tessera::ByteRange& range : rendered->trusted) {
    if (range.begin < end || range.end < range.begin || range.end > rendered->text.size()) abort();
    end = range.end;
  }
  return 0;
}
