#include "server/tokenizer/chat_template.h"

#include <ctime>
#include <optional>

#include "absl/strings/str_cat.h"
#include "server/status_macros.h"
#include "server/tokenizer/jinja/interpreter.h"
#include "server/tokenizer/jinja/parser.h"
#include "server/tokenizer/json_view.h"
#include "server/tokenizer/text_file.h"
#include "server/tokenizer/unicode.h"

namespace tessera {
namespace {

using jinja::Value;
using NamedTokens = std::vector<std::pair<std::string, std::string>>;

constexpr int kMaxJsonDepth = 64;

// As transformers does before it renders: a key whose value is null is as good as absent (clients send
// `"content": null`), and a message's reasoning goes by both of the names that templates know it by.
absl::StatusOr<Value> MessageValue(const OrderedJson& message) {
  jinja::Dict out;
  std::optional<Value> reasoning;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const auto it = message.find(name);
    if (it == message.end() || it->is_null()) continue;
    TESSERA_ASSIGN_OR_RETURN(reasoning, Value::FromJson(*it));
    break;
  }
  if (reasoning) out.Set(Value::Str("thinking"), *reasoning);
  for (const auto& [key, value] : message.items()) {
    if (value.is_null()) continue;
    TESSERA_ASSIGN_OR_RETURN(const Value converted, Value::FromJson(value));
    if (unicode::FindInvalid(key) != absl::string_view::npos)
      return absl::InvalidArgumentError("a key is not valid UTF-8");
    out.Set(Value::Str(jinja::Text(key, /*untrusted=*/true)), converted);
  }
  if (reasoning) out.Set(Value::Str("reasoning_content"), *reasoning);
  return Value::FromDict(std::move(out));
}

std::vector<ByteRange> Complement(const std::vector<ByteRange>& ranges, size_t size) {
  std::vector<ByteRange> out;
  size_t done = 0;
  for (const ByteRange& r : ranges) {
    if (done < r.begin) out.push_back({done, r.begin});
    done = r.end;
  }
  if (done < size) out.push_back({done, size});
  return out;
}

}  // namespace

absl::StatusOr<OrderedJson> ParseChatJson(absl::string_view text, absl::string_view what) {
  const std::string prefix = what.empty() ? "" : absl::StrCat(what, ": ");
  bool too_deep = false;
  try {
    OrderedJson json = OrderedJson::parse(text.begin(), text.end(),
                                          [&](int depth, OrderedJson::parse_event_t, OrderedJson&) {
                                            too_deep = too_deep || depth > kMaxJsonDepth;
                                            return !too_deep;
                                          });
    if (too_deep)
      return absl::InvalidArgumentError(
          absl::StrCat(prefix, "nested deeper than ", kMaxJsonDepth, " levels"));
    return json;
  } catch (const OrderedJson::parse_error& e) {
    // Its own message repeats the text.
    return absl::InvalidArgumentError(absl::StrCat(prefix, "not JSON, at byte ", e.byte));
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(prefix, "not JSON: ", e.what()));
  }
}

struct ChatTemplate::Impl {
  std::string source;
  jinja::Template parsed;
  // Named "tool_use": rendered in place of this one if the request has tools.
  std::shared_ptr<const Impl> with_tools;
  NamedTokens named_tokens;
};

ChatTemplate::ChatTemplate(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

const std::string& ChatTemplate::source() const { return impl_->source; }

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(absl::string_view source) { return Parse(source, {}); }

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(
    absl::string_view source, absl::Span<const std::pair<std::string, std::string>> named_tokens) {
  auto impl = std::make_shared<Impl>();
  impl->source.assign(source.data(), source.size());
  impl->named_tokens.assign(named_tokens.begin(), named_tokens.end());
  absl::StatusOr<jinja::Template> parsed = jinja::ParseTemplate(source);
  if (!parsed.ok()) {
    return absl::Status(parsed.status().code(),
                        absl::StrCat("the chat template: ", parsed.status().message()));
  }
  impl->parsed = *std::move(parsed);
  return ChatTemplate(std::move(impl));
}

absl::StatusOr<ChatTemplate> ChatTemplate::Load(const std::string& directory, const Tokenizer& tokenizer) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<std::string> file,
                           ReadTextFile(directory + "/chat_template.jinja"));
  if (file) return Parse(*file, tokenizer.named_tokens());
  // Older checkpoints keep it in JSON.
  for (const char* name : {"chat_template.json", "tokenizer_config.json"}) {
    const std::string path = absl::StrCat(directory, "/", name);
    TESSERA_ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadTextFile(path));
    if (!text) continue;
    TESSERA_ASSIGN_OR_RETURN(const nlohmann::json document, JsonView::ParseDocument(*text, path));
    const JsonView entry = JsonView(document, path + ": ")["chat_template"];
    if (entry.is_null()) continue;
    if (entry.json().is_string()) return Parse(entry.json().get<std::string>(), tokenizer.named_tokens());
    // [{"name": "default", "template": "..."}, ...]
    TESSERA_ASSIGN_OR_RETURN(const std::vector<JsonView> list, entry.Elements());
    std::optional<ChatTemplate> chosen, with_tools;
    for (const JsonView& element : list) {
      TESSERA_ASSIGN_OR_RETURN(const std::string kind, element["name"].String());
      if (kind != "default" && kind != "tool_use") continue;
      TESSERA_ASSIGN_OR_RETURN(const std::string source, element["template"].String());
      TESSERA_ASSIGN_OR_RETURN(ChatTemplate parsed, Parse(source, tokenizer.named_tokens()));
      (kind == "default" ? chosen : with_tools) = std::move(parsed);
    }
    if (!chosen) return entry.Error("there is no template named \"default\"");
    if (!with_tools) return *chosen;
    auto both = std::make_shared<Impl>();
    TESSERA_ASSIGN_OR_RETURN(both->parsed, jinja::ParseTemplate(chosen->source()));
    both->source = chosen->source();
    both->named_tokens = chosen->impl_->named_tokens;
    both->with_tools = with_tools->impl_;
    return ChatTemplate(std::move(both));
  }
  return absl::NotFoundError(absl::StrCat(directory, " has no chat template"));
}

absl::StatusOr<RenderedPrompt> ChatTemplate::Render(const ChatRequest& request) const {
  const bool has_tools = !request.tools.is_null() && !(request.tools.is_array() && request.tools.empty());
  const Impl& impl = has_tools && impl_->with_tools != nullptr ? *impl_->with_tools : *impl_;
  if (!request.messages.is_array()) return absl::InvalidArgumentError("messages: expected an array");
  if (!request.tools.is_null() && !request.tools.is_array())
    return absl::InvalidArgumentError("tools: expected an array");
  if (!request.variables.is_object() && !request.variables.is_null()) {
    return absl::InvalidArgumentError("the template's variables: expected an object");
  }
  jinja::Dict variables;
  for (const auto& [name, text] : impl.named_tokens) variables.Set(Value::Str(name), Value::Str(text));
  if (request.variables.is_object()) {
    TESSERA_ASSIGN_OR_RETURN(const Value extra, Value::FromJson(request.variables));
    for (const jinja::Dict::Entry& e : extra.dict()->entries()) {
      const std::string& name = e.key.text()->bytes();
      const Value* taken = variables.Find(name);
      if (name == "messages" || name == "tools" || name == "add_generation_prompt" || taken != nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("the template's variable \"", name, "\" cannot be set"));
      }
      variables.Set(e.key, e.value);
    }
  }
  std::vector<Value> messages;
  for (size_t i = 0; i < request.messages.size(); ++i) {
    if (!request.messages[i].is_object()) {
      return absl::InvalidArgumentError(absl::StrCat("messages[", i, "]: expected an object"));
    }
    absl::StatusOr<Value> message = MessageValue(request.messages[i]);
    if (!message.ok())
      return absl::InvalidArgumentError(absl::StrCat("messages[", i, "]: ", message.status().message()));
    messages.push_back(*std::move(message));
  }
  TESSERA_ASSIGN_OR_RETURN(const Value message_list, Value::List(std::move(messages)));
  variables.Set(Value::Str("messages"), message_list);
  Value tools = Value::MakeNone();
  if (!request.tools.is_null()) {
    TESSERA_ASSIGN_OR_RETURN(tools, Value::FromJson(request.tools));
  }
  variables.Set(Value::Str("tools"), tools);
  variables.Set(Value::Str("documents"), Value::MakeNone());
  variables.Set(Value::Str("add_generation_prompt"), Value::Bool(request.add_generation_prompt));

  const int64_t now =
      request.now_unix_seconds >= 0 ? request.now_unix_seconds : static_cast<int64_t>(std::time(nullptr));
  jinja::Interpreter interpreter(impl.parsed, variables, now);
  TESSERA_ASSIGN_OR_RETURN(const jinja::Text text, interpreter.Run());
  RenderedPrompt prompt;
  prompt.text = text.bytes();
  prompt.trusted = Complement(text.untrusted(), text.size());
  return prompt;
}

absl::StatusOr<std::vector<int32_t>> ChatTemplate::EncodeChat(const ChatRequest& request,
                                                              const Tokenizer& tokenizer, size_t max_tokens,
                                                              bool truncate) const {
  TESSERA_ASSIGN_OR_RETURN(const RenderedPrompt prompt, Render(request));
  return tokenizer.EncodeTrusted(prompt.text, prompt.trusted, /*add_special_tokens=*/false, max_tokens,
                                 truncate);
}

}  // namespace tessera
