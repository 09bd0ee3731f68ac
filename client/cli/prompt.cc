#include "client/cli/prompt.h"

#include <algorithm>
#include <iostream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/terminal.h"

namespace tessera::cli {

std::string JoinOrReadStdin(const std::vector<std::string>& words) {
  if (!words.empty() && words != std::vector<std::string>{"-"}) return absl::StrJoin(words, " ");
  if (StdinIsTerminal()) std::cerr << "Reading from the terminal; Ctrl-D ends the text.\n";
  std::string text = ReadStdin();
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

absl::StatusOr<std::vector<int32_t>> ParseTokenIds(absl::string_view text) {
  std::vector<int32_t> ids;
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" ,\n\r\t[]"), absl::SkipEmpty())) {
    int32_t id;
    if (!absl::SimpleAtoi(word, &id)) {
      return absl::InvalidArgumentError(absl::StrCat("got '", word, "'; expected token ids, whole numbers"));
    }
    ids.push_back(id);
  }
  return ids;
}

void PromptOptions::AddTo(Arguments& arguments, bool with_ids) {
  arguments.Group("Prompt");
  if (with_ids) {
    arguments.AddFlag("ids", "The prompt is token ids, not text.", &ids_);
  }
  arguments.AddFlag("chat", "The prompt is a user's message; use the model's chat template.", &chat_);
  arguments.AddString("system", "TEXT", "A system message before it; implies --chat.", &system_);
  arguments.AddString("template-variables", "JSON",
                      "More variables for the template, for example '{\"enable_thinking\": false}'.",
                      &template_variables_);
}

void PromptOptions::AddSystemMessage(v1::Chat* chat) const {
  chat->set_template_variables_json(template_variables_);
  if (system_.empty()) return;
  v1::ChatMessage* message = chat->add_messages();
  message->set_role("system");
  message->set_content(system_);
}

absl::StatusOr<v1::Prompt> PromptOptions::Build(const std::vector<std::string>& words) const {
  if (ids_ && chat()) return absl::InvalidArgumentError("--ids and --chat exclude each other");
  if (!template_variables_.empty() && !chat())
    return absl::InvalidArgumentError("--template-variables needs --chat");
  std::string text = JoinOrReadStdin(words);
  if (text.empty())
    return absl::InvalidArgumentError("the prompt is empty; give it as words or on standard input");
  const std::pair<const char*, const std::string*> checked[] = {
      {"the prompt", &text}, {"--system", &system_}, {"--template-variables", &template_variables_}};
  for (const auto& [name, value] : checked) {
    if (const size_t at = FirstInvalidUtf8(*value); at != absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is not UTF-8 from byte ", at, " on"));
    }
  }
  v1::Prompt prompt;
  if (ids_) {
    absl::StatusOr<std::vector<int32_t>> ids = ParseTokenIds(text);
    if (!ids.ok()) return ids.status();
    prompt.mutable_token_ids()->mutable_ids()->Assign(ids->begin(), ids->end());
  } else if (chat()) {
    AddSystemMessage(prompt.mutable_chat());
    v1::ChatMessage* message = prompt.mutable_chat()->add_messages();
    message->set_role("user");
    message->set_content(std::move(text));
  } else {
    prompt.set_text(std::move(text));
  }
  return prompt;
}

}  // namespace tessera::cli
