#include "server/rpc/prompt.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

constexpr int kMaxMessages = 4096;
constexpr size_t kMaxRoleBytes = 64;
constexpr size_t kMaxTemplateVariablesBytes = 65536;
// No text that fits the context is longer than this for each of its tokens; more is refused before it costs time.
constexpr int64_t kMaxBytesPerToken = 1024;
constexpr int kMaxIdsNamed = 3;

void CheckText(const std::string& text, const std::string& path, const ServedModel& model,
               Violations* violations) {
  const int64_t limit = kMaxBytesPerToken * model.info.max_context();
  if (static_cast<int64_t>(text.size()) > limit) {
    violations->Add(path, absl::StrCat("found ", text.size(), " bytes, expected at most ", limit, " (",
                                       kMaxBytesPerToken, " for each token of the model's context)"));
  }
}

void CheckChat(const v1::Chat& chat, const std::string& path, const ServedModel& model,
               Violations* violations) {
  if (chat.messages().empty() || chat.messages_size() > kMaxMessages) {
    violations->Add(absl::StrCat(path, ".messages"),
                    absl::StrCat("found ", chat.messages_size(), " messages, expected 1 to ", kMaxMessages));
  }
  int64_t bytes = 0;
  for (int i = 0; i < chat.messages_size(); ++i) {
    const v1::ChatMessage& message = chat.messages(i);
    bytes += static_cast<int64_t>(message.content().size());
    if (message.role().empty() || message.role().size() > kMaxRoleBytes) {
      violations->Add(absl::StrCat(path, ".messages[", i, "].role"),
                      message.role().empty() ? std::string("required, for example \"user\"")
                                             : absl::StrCat("found ", message.role().size(),
                                                            " bytes, expected at most ", kMaxRoleBytes));
    }
  }
  const int64_t limit = kMaxBytesPerToken * model.info.max_context();
  if (bytes > limit) {
    violations->Add(absl::StrCat(path, ".messages"),
                    absl::StrCat("found ", bytes, " bytes of content, expected at most ", limit, " (",
                                 kMaxBytesPerToken, " for each token of the model's context)"));
  }
  const std::string& variables = chat.template_variables_json();
  if (variables.empty()) return;
  const std::string variables_path = absl::StrCat(path, ".template_variables_json");
  if (variables.size() > kMaxTemplateVariablesBytes) {
    violations->Add(variables_path, absl::StrCat("found ", variables.size(), " bytes, expected at most ",
                                                 kMaxTemplateVariablesBytes));
    return;
  }
  const absl::StatusOr<OrderedJson> json = ParseChatJson(variables, "");
  if (!json.ok()) {
    violations->Add(variables_path, absl::StrCat("found ", Quoted(variables),
                                                 ", expected a JSON object: ", json.status().message()));
    return;
  }
  if (!json->is_object()) {
    violations->Add(variables_path, absl::StrCat("found ", Quoted(variables), ", expected a JSON object"));
    return;
  }
  for (const char* reserved : {"messages", "tools", "add_generation_prompt"}) {
    if (json->contains(reserved)) {
      violations->Add(variables_path, absl::StrCat("may not define \"", reserved, "\""));
    }
  }
}

absl::StatusOr<std::vector<int32_t>> TokenizeChat(const v1::Chat& chat, const std::string& path,
                                                  const ServedModel& model, const TextOptions& options) {
  if (!model.chat_template) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": the model \"", model.info.name(),
                                                      "\" has no chat template; send text or token ids"));
  }
  ChatRequest request;
  for (const v1::ChatMessage& message : chat.messages()) {
    request.messages.push_back({{"role", message.role()}, {"content", message.content()}});
  }
  if (!chat.template_variables_json().empty()) {
    const std::string field = absl::StrCat(path, ".template_variables_json");
    absl::StatusOr<OrderedJson> variables = ParseChatJson(chat.template_variables_json(), field);
    if (!variables.ok()) return variables.status();
    request.variables = *std::move(variables);
  }
  if (chat.has_add_generation_prompt()) request.add_generation_prompt = chat.add_generation_prompt();
  absl::StatusOr<std::vector<int32_t>> ids =
      model.chat_template->EncodeChat(request, *model.tokenizer, options.max_tokens, options.truncate);
  if (ids.ok() || absl::IsInternal(ids.status()) || absl::IsOutOfRange(ids.status())) return ids;
  return InvalidField(
      path, absl::StrCat("the model's chat template refused the conversation: ", ids.status().message()));
}

}  // namespace

void CheckTokenIds(const google::protobuf::RepeatedField<int32_t>& ids, const std::string& path,
                   const ServedModel& model, Violations* violations) {
  const int32_t vocab_size = model.info.vocab_size();
  int named = 0;
  int64_t wrong = 0;
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    ++wrong;
    if (named == kMaxIdsNamed) continue;
    violations->Add(absl::StrCat(path, "[", i, "]"),
                    absl::StrCat("found ", ids[i], ", expected 0 to ", vocab_size - 1));
    ++named;
  }
  if (wrong > named) {
    violations->Add(
        path, absl::StrCat(wrong - named, " more ids are not in the vocabulary (0 to ", vocab_size - 1, ")"));
  }
}

void CheckPrompt(const v1::Prompt& prompt, const std::string& path, const ServedModel& model,
                 Violations* violations) {
  switch (prompt.kind_case()) {
    case v1::Prompt::kText:
      CheckText(prompt.text(), absl::StrCat(path, ".text"), model, violations);
      break;
    case v1::Prompt::kTokenIds:
      if (prompt.token_ids().ids().empty()) {
        violations->Add(absl::StrCat(path, ".token_ids.ids"), "found none, expected at least one");
      }
      CheckTokenIds(prompt.token_ids().ids(), absl::StrCat(path, ".token_ids.ids"), model, violations);
      break;
    case v1::Prompt::kChat:
      CheckChat(prompt.chat(), absl::StrCat(path, ".chat"), model, violations);
      break;
    case v1::Prompt::KIND_NOT_SET:
      violations->Add(path, "required: text, token_ids or chat");
      break;
  }
}

absl::StatusOr<std::vector<int32_t>> TokenizePrompt(const v1::Prompt& prompt, const std::string& path,
                                                    const ServedModel& model, const TextOptions& options) {
  if (prompt.has_token_ids()) {
    return std::vector<int32_t>(prompt.token_ids().ids().begin(), prompt.token_ids().ids().end());
  }
  if (model.tokenizer == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": the model \"", model.info.name(),
                                                      "\" is served without a tokenizer; send token ids"));
  }
  absl::StatusOr<std::vector<int32_t>> ids;
  if (prompt.has_chat()) {
    ids = TokenizeChat(prompt.chat(), absl::StrCat(path, ".chat"), model, options);
  } else {
    EncodeOptions encode;
    encode.add_special_tokens = options.add_special_tokens;
    encode.parse_special = options.parse_special;
    encode.max_tokens = options.max_tokens;
    encode.truncate = options.truncate;
    ids = model.tokenizer->Encode(prompt.text(), encode);
    if (absl::IsInvalidArgument(ids.status())) {
      return InvalidField(absl::StrCat(path, ".text"), std::string(ids.status().message()));
    }
  }
  return ids;
}

}  // namespace tessera
