#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/terminal.h"

namespace tessera::cli {
namespace {

constexpr char kEpilogue[] =
    "Exit codes: 0 done, 1 the server refused or failed, 2 wrong command line, 3 the server cannot be "
    "reached or\n"
    "does not serve, 4 timed out, 130 interrupted.\n"
    "\n"
    "Examples:\n"
    "  tessera generate --max-tokens 40 'Define: lantern'\n"
    "  tessera generate --chat 'What is a lantern?'\n"
    "  tessera embed --similarity 'a small dog' 'a puppy' 'a stone bridge'\n"
    "  tessera info --address gpu7:50051";

int Run(const std::vector<std::string>& words) {
  Context context;
  InterruptWatcher watcher(context.cancellation);

  std::string about =
      "The command line of Tessera, a server for mixture-of-experts language models.\n\nCommands:";
  std::vector<std::string> names;
  for (const Command& command : Commands()) {
    absl::StrAppend(&about, "\n  ", command.name, std::string(12 - std::string(command.name).size(), ' '),
                    command.summary);
    names.push_back(command.name);
  }
  absl::StrAppend(&about, "\n\nEach has its own help: tessera COMMAND --help");
  bool version = false;
  Arguments arguments("tessera [OPTION...] COMMAND [ARGUMENT...]", about);
  arguments.Group("Options");
  arguments.AddFlag("version", "Print the version.", &version);
  context.connection.AddTo(arguments);
  arguments.Epilogue(kEpilogue);

  const absl::StatusOr<size_t> command_at = arguments.ParseLeading(words);
  if (!command_at.ok()) {
    std::cerr << "tessera: " << command_at.status().message() << "\nSee: tessera --help\n";
    return kUsage;
  }
  if (version) {
    Print(absl::StrCat("tessera ", TESSERA_VERSION, "\n"));
    return OutputExitCode();
  }
  if (arguments.help_wanted() || (*command_at < words.size() && words[*command_at] == "help")) {
    Print(arguments.Help());
    return OutputExitCode();
  }
  if (*command_at == words.size()) {
    std::cerr << arguments.Help();
    return kUsage;
  }
  const std::string& name = words[*command_at];
  for (const Command& command : Commands()) {
    if (name == command.name) return command.run(context, {words.begin() + *command_at + 1, words.end()});
  }
  const std::string close = ClosestWord(name, names);
  std::cerr << "tessera: unknown command '" << name << "'"
            << (close.empty() ? "" : absl::StrCat("; did you mean '", close, "'?"))
            << "\nSee: tessera --help\n";
  return kUsage;
}

}  // namespace
}  // namespace tessera::cli

int main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // what gRPC would log comes back as a status
  return tessera::cli::Run(std::vector<std::string>(argv + 1, argv + argc));
}
