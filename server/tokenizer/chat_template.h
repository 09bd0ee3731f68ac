// A model's chat template: Jinja, rendered as Hugging Face `transformers` renders it (jinja2's sandboxed
// environment with trim_blocks and lstrip_blocks, loop controls, `generation` tags, `raise_exception`,
// `strftime_now` and transformers' `tojson`).
//
// The rendering remembers which bytes the template wrote and which came from the messages, so that a user who
// types "<|im_end|>" gets those characters encoded and not the control token:
//
//   ChatTemplate t = *ChatTemplate::Load(dir, *tokenizer);
//   RenderedPrompt p = *t.Render({.messages = messages});
//   auto ids = tokenizer->EncodeTrusted(p.text, p.trusted);       // no BOS is added: the template writes its
//   own
//
// or in one step, EncodeChat.
#ifndef TESSERA_SERVER_TOKENIZER_CHAT_TEMPLATE_H_
#define TESSERA_SERVER_TOKENIZER_CHAT_TEMPLATE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "server/tokenizer/tokenizer.h"

namespace tessera {

// Keeps the order of keys, which `tojson` and iteration in templates show.
using OrderedJson = nlohmann::ordered_json;

// Reads JSON that a client sent, for a ChatRequest: `what`, if not empty, names it in the error. INVALID_ARGUMENT if it is not JSON
// or nested so deeply (beyond 64 levels) that handling it could exhaust the stack.
absl::StatusOr<OrderedJson> ParseChatJson(absl::string_view text, absl::string_view what);

struct ChatRequest {
  // An array of objects, each with at least "role"; "content" is a string or an array of parts. Keys beyond
  // these ("tool_calls", "name", "reasoning_content", ...) are passed to the template as they are.
  OrderedJson messages = OrderedJson::array();
  // An array of tool definitions, or null.
  OrderedJson tools = nullptr;
  // More variables for the template ("enable_thinking": false). An object; may not redefine "messages",
  // "tools" or "add_generation_prompt".
  OrderedJson variables = OrderedJson::object();
  // Ends the prompt with the opening of the assistant's turn.
  bool add_generation_prompt = true;
  // The time that strftime_now sees, seconds since 1970, UTC. Negative: the present.
  int64_t now_unix_seconds = -1;
};

struct RenderedPrompt {
  std::string text;
  // The bytes written by the template itself (its literals and the named special tokens): sorted, disjoint.
  // All others stem from the request's messages, tools and variables.
  std::vector<ByteRange> trusted;
};

// Immutable and thread-safe after Parse; copies share the parsed template.
class ChatTemplate {
 public:
  // INVALID_ARGUMENT with line and cause if `source` is not a template that can be rendered. `named_tokens`
  // are visible to the template as trusted text (bos_token, eos_token, ...).
  static absl::StatusOr<ChatTemplate> Parse(absl::string_view source);
  static absl::StatusOr<ChatTemplate> Parse(
      absl::string_view source, absl::Span<const std::pair<std::string, std::string>> named_tokens);

  // From chat_template.jinja, or the chat_template of tokenizer_config.json (where there are several by name:
  // "default", and "tool_use" for requests with tools). NOT_FOUND if the model has none.
  static absl::StatusOr<ChatTemplate> Load(const std::string& directory, const Tokenizer& tokenizer);

  // INVALID_ARGUMENT with the template's own message when it calls raise_exception, with line and cause when
  // it fails otherwise (an undefined operand, a wrong type); RESOURCE_EXHAUSTED beyond the limits on steps,
  // depth and output that keep a hostile template from holding the server.
  absl::StatusOr<RenderedPrompt> Render(const ChatRequest& request) const;

  // Render, then EncodeTrusted. No special tokens are added beyond the template's own. More than max_tokens are
  // OUT_OF_RANGE, or cut off.
  absl::StatusOr<std::vector<int32_t>> EncodeChat(const ChatRequest& request, const Tokenizer& tokenizer,
                                                  size_t max_tokens = kAnyNumberOfTokens,
                                                  bool truncate = false) const;

  // The template's text.
  const std::string& source() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_CHAT_TEMPLATE_H_
