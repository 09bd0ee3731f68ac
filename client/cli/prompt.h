#ifndef TESSERA_CLIENT_CLI_PROMPT_H_
#define TESSERA_CLIENT_CLI_PROMPT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/arguments.h"
#include "tessera/v1/types.pb.h"

namespace tessera::cli {

// The prompt of a command: words of the command line or standard input, as text, as a chat message, or as token ids.
class PromptOptions {
 public:
  void AddTo(Arguments& arguments, bool with_ids);

  // From the command's words; from standard input if there are none, or the one word is "-". INVALID_ARGUMENT if they
  // do not fit the options.
  absl::StatusOr<v1::Prompt> Build(const std::vector<std::string>& words) const;
  void AddSystemMessage(v1::Chat* chat) const;

  bool chat() const { return chat_ || !system_.empty(); }

 private:
  bool chat_ = false;
  bool ids_ = false;
  std::string system_;
  std::string template_variables_;
};

// Whole numbers separated by spaces, commas or line ends, with brackets around them or not, as `tokenize` prints them.
absl::StatusOr<std::vector<int32_t>> ParseTokenIds(absl::string_view text);

// The words joined by spaces; standard input, less a final line end, if there are none or the one word is "-".
std::string JoinOrReadStdin(const std::vector<std::string>& words);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_PROMPT_H_
