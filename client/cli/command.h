#ifndef TESSERA_CLIENT_CLI_COMMAND_H_
#define TESSERA_CLIENT_CLI_COMMAND_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/arguments.h"
#include "client/tessera_client.h"
#include "google/protobuf/message.h"

namespace tessera::cli {

// What the program exits with; `tessera --help` documents them.
enum ExitCode {
  kOk = 0,
  kFailed = 1,       // the server refused the call or failed on it
  kUsage = 2,        // the command line is wrong
  kUnavailable = 3,  // the server cannot be reached, or does not serve
  kTimedOut = 4,     // --timeout passed
  kInterrupted = 130,
};

// The server to talk to, and how. Given before the command or after it.
struct Connection {
  ClientOptions options;
  std::string api_key_file;
  std::optional<int64_t> retries;

  // Reads TESSERA_ADDRESS and TESSERA_API_KEY.
  Connection();
  void AddTo(Arguments& arguments);
};

struct Context {
  Connection connection;
  Cancellation cancellation;
};

struct Command {
  const char* name;
  const char* summary;
  int (*run)(Context& context, const std::vector<std::string>& words);
};

// In the order of --help.
const std::vector<Command>& Commands();

int RunGenerate(Context& context, const std::vector<std::string>& words);
int RunEmbed(Context& context, const std::vector<std::string>& words);
int RunTokenize(Context& context, const std::vector<std::string>& words);
int RunDetokenize(Context& context, const std::vector<std::string>& words);
int RunInfo(Context& context, const std::vector<std::string>& words);
int RunAbort(Context& context, const std::vector<std::string>& words);
int RunHealth(Context& context, const std::vector<std::string>& words);
int RunQuantize(Context& context, const std::vector<std::string>& words);
int RunEval(Context& context, const std::vector<std::string>& words);

// Parses, or prints the help or the error: then `exit_code` is set and the words are none of the caller's business.
std::optional<std::vector<std::string>> ParseOrExplain(Arguments& arguments,
                                                       const std::vector<std::string>& words, int* exit_code);

// Prints a wrong use of `command` to standard error.
int UsageError(absl::string_view command, absl::string_view message);

// The client, or null with the error printed and `exit_code` set.
std::unique_ptr<Client> Connect(Context& context, int* exit_code);

// Prints what became of a call to standard error, with a hint where one helps. The exit code.
int Explain(const Context& context, const absl::Status& status);

// A message as JSON with the names of the .proto; every scalar present. One line, or indented.
std::string Json(const google::protobuf::Message& message, bool indented);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_COMMAND_H_
