#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/prompt.h"
#include "client/cli/terminal.h"

namespace tessera::cli {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(30);

CallOptions Call(const Context& context) {
  return {.timeout = kTimeout, .cancellation = context.cancellation};
}

}  // namespace

int RunTokenize(Context& context, const std::vector<std::string>& words) {
  PromptOptions prompt_options;
  bool json = false, pieces = false, count = false, no_special = false, parse_special = false;
  Arguments arguments(
      "tessera tokenize [OPTION...] [TEXT...]",
      "Prints the token ids of a text (the words joined by spaces, or standard input), as generate "
      "would see them.");
  prompt_options.AddTo(arguments, /*with_ids=*/false);
  arguments.AddFlag("no-special", "Leave out the special tokens that generate would add.", &no_special);
  arguments.AddFlag("parse-special", "Read text that spells a special token as that token.", &parse_special);
  arguments.Group("Output");
  arguments.AddFlag("pieces", "A line a token: id and bytes.", &pieces);
  arguments.AddFlag("count", "Print only how many there are.", &count);
  arguments.AddFlag("json", "Print the answer as JSON (pieces in base64).", &json);
  context.connection.AddTo(arguments);
  int exit_code;
  const auto rest = ParseOrExplain(arguments, words, &exit_code);
  if (!rest.has_value()) return exit_code;
  absl::StatusOr<v1::Prompt> prompt = prompt_options.Build(*rest);
  if (!prompt.ok()) return UsageError("tokenize", prompt.status().message());
  std::unique_ptr<Client> client = Connect(context, &exit_code);
  if (client == nullptr) return exit_code;

  v1::TokenizeRequest request;
  *request.mutable_prompt() = *std::move(prompt);
  if (no_special) request.set_add_special_tokens(false);
  request.set_parse_special(parse_special);
  request.set_return_pieces(pieces || json);
  const absl::StatusOr<v1::TokenizeResponse> response = client->Tokenize(request, Call(context));
  if (!response.ok()) return Explain(context, response.status());
  if (json) {
    Print(Json(*response, /*indented=*/true));
  } else if (count) {
    Print(absl::StrCat(response->token_ids_size(), "\n"));
  } else if (pieces) {
    std::vector<std::vector<std::string>> rows;
    for (int i = 0; i < response->token_ids_size(); ++i) {
      rows.push_back(
          {absl::StrCat(response->token_ids(i)),
           i < response->pieces_size() ? absl::StrCat("\"", Escaped(response->pieces(i)), "\"") : ""});
    }
    Print(Table(rows, "rl"));
  } else {
    Print(absl::StrCat(absl::StrJoin(response->token_ids(), " "), "\n"));
  }
  return OutputExitCode();
}

int RunDetokenize(Context& context, const std::vector<std::string>& words) {
  bool json = false, special = false;
  Arguments arguments(
      "tessera detokenize [OPTION...] [ID...]",
      "Prints the text of token ids: the words given, or standard input; separated by spaces, commas or "
      "line ends.");
  arguments.Group("Options");
  arguments.AddFlag("special", "Show special tokens.", &special);
  arguments.AddFlag("json", "Print the answer as JSON.", &json);
  context.connection.AddTo(arguments);
  arguments.Epilogue("Example:\n  tessera tokenize 'a lantern' | tessera detokenize");
  int exit_code;
  const auto rest = ParseOrExplain(arguments, words, &exit_code);
  if (!rest.has_value()) return exit_code;
  const absl::StatusOr<std::vector<int32_t>> ids = ParseTokenIds(JoinOrReadStdin(*rest));
  if (!ids.ok()) return UsageError("detokenize", ids.status().message());
  std::unique_ptr<Client> client = Connect(context, &exit_code);
  if (client == nullptr) return exit_code;

  v1::DetokenizeRequest request;
  request.mutable_token_ids()->Assign(ids->begin(), ids->end());
  if (special) request.set_skip_special_tokens(false);
  const absl::StatusOr<v1::DetokenizeResponse> response = client->Detokenize(request, Call(context));
  if (!response.ok()) return Explain(context, response.status());
  if (json) {
    Print(Json(*response, /*indented=*/true));
  } else {
    PrintModelText(response->text() + "\n");
  }
  return OutputExitCode();
}

}  // namespace tessera::cli
