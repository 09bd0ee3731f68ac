#include "client/cli/command.h"

#include <cstdlib>
#include <fstream>
#include <iostream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/terminal.h"
#include "google/protobuf/util/json_util.h"

namespace tessera::cli {

Connection::Connection() {
  if (const char* address = std::getenv("TESSERA_ADDRESS"); address != nullptr && *address != '\0') {
    options.address = address;
  }
  if (const char* key = std::getenv("TESSERA_API_KEY"); key != nullptr) options.api_key = key;
}

void Connection::AddTo(Arguments& arguments) {
  arguments.Group("Connection");
  arguments.AddString("address", "HOST:PORT",
                      "The server. Default: the environment's TESSERA_ADDRESS, else 127.0.0.1:50051.",
                      &options.address);
  arguments.AddFlag("tls", "Use TLS, trusting the system's certificate authorities.", &options.tls);
  arguments.AddString("tls-ca", "FILE", "Use TLS, trusting these certificates (PEM).", &options.tls_ca_file);
  arguments.AddString("tls-cert", "FILE", "Show this certificate (PEM); with --tls-key.",
                      &options.tls_cert_file);
  arguments.AddString("tls-key", "FILE", "The key of --tls-cert (PEM).", &options.tls_key_file);
  arguments.AddString("tls-server-name", "NAME", "The name to look for in the server's certificate.",
                      &options.tls_server_name);
  arguments.AddString(
      "api-key", "KEY",
      "Sent as bearer token. Better the environment's TESSERA_API_KEY, which other users of this "
      "machine do not see.",
      &options.api_key);
  arguments.AddString("api-key-file", "FILE", "Read the key from the file's first line.", &api_key_file);
  arguments.AddInt("retries", "N", "More tries when the server is unavailable or full. Default 4.", 0, 1000,
                   &retries);
}

const std::vector<Command>& Commands() {
  static const auto& commands = *new std::vector<Command>{
      {"generate", "generate text, streamed as it is made", RunGenerate},
      {"embed", "turn texts into vectors, compare them", RunEmbed},
      {"tokenize", "text to token ids", RunTokenize},
      {"detokenize", "token ids to text", RunDetokenize},
      {"info", "show a server with its model and load, or explain a checkpoint", RunInfo},
      {"health", "ask whether the server serves, or wait until it does", RunHealth},
      {"abort", "end running requests", RunAbort},
      {"quantize", "turn a checkpoint into NVFP4", RunQuantize},
      {"eval", "measure how well checkpoints predict a text", RunEval},
  };
  return commands;
}

std::optional<std::vector<std::string>> ParseOrExplain(Arguments& arguments,
                                                       const std::vector<std::string>& words,
                                                       int* exit_code) {
  absl::StatusOr<std::vector<std::string>> rest = arguments.Parse(words);
  if (!rest.ok()) {
    std::cerr << "tessera: " << rest.status().message() << "\nSee: " << arguments.program() << " --help\n";
    *exit_code = kUsage;
    return std::nullopt;
  }
  if (arguments.help_wanted()) {
    Print(arguments.Help());
    *exit_code = OutputExitCode();
    return std::nullopt;
  }
  return *std::move(rest);
}

int UsageError(absl::string_view command, absl::string_view message) {
  std::cerr << "tessera " << command << ": " << message << "\nSee: tessera " << command << " --help\n";
  return kUsage;
}

std::unique_ptr<Client> Connect(Context& context, int* exit_code) {
  Connection& connection = context.connection;
  if (!connection.api_key_file.empty()) {
    std::ifstream in(connection.api_key_file);
    if (!std::getline(in, connection.options.api_key)) {
      std::cerr << "tessera: cannot read a key from '" << connection.api_key_file << "'\n";
      *exit_code = kUsage;
      return nullptr;
    }
    absl::StripAsciiWhitespace(&connection.options.api_key);
  }
  if (connection.retries.has_value())
    connection.options.retry.max_attempts = static_cast<int>(*connection.retries) + 1;
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(connection.options);
  if (!client.ok()) {
    std::cerr << "tessera: " << client.status().message() << "\n";
    *exit_code = kUsage;
    return nullptr;
  }
  return *std::move(client);
}

int Explain(const Context& context, const absl::Status& status) {
  const std::string& address = context.connection.options.address;
  if (status.ok()) return kOk;
  if (context.cancellation.cancelled()) {
    std::cerr << "tessera: interrupted\n";
    return kInterrupted;
  }
  const std::string message(status.message());
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      if (absl::StrContains(message, "failed to connect") ||
          absl::StrContains(message, "Connection refused") ||
          absl::StrContains(message, "resolution failed")) {
        std::cerr << "tessera: cannot reach a server at " << address << ": " << message
                  << "\nIs tessera-server running there? Another address: --address HOST:PORT\n";
      } else {
        std::cerr << "tessera: " << address << " is unavailable: " << message << "\n";
      }
      return kUnavailable;
    case absl::StatusCode::kDeadlineExceeded:
      std::cerr << "tessera: timed out: " << message << "\n";
      return kTimedOut;
    case absl::StatusCode::kUnauthenticated:
      std::cerr << "tessera: " << message << "\nGive the key with --api-key-file FILE or TESSERA_API_KEY.\n";
      return kFailed;
    case absl::StatusCode::kUnimplemented:
      std::cerr << "tessera: " << address << " does not know this call: " << message
                << "\nIs it a Tessera server of this version (" << TESSERA_VERSION << ")?\n";
      return kFailed;
    default:
      std::cerr << "tessera: " << absl::StatusCodeToString(status.code()) << ": " << message << "\n";
      return kFailed;
  }
}

std::string Json(const google::protobuf::Message& message, bool indented) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  options.add_whitespace = indented;
  std::string json;
  // Cannot fail for messages without Any.
  (void)google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!indented) json.push_back('\n');
  return json;
}

}  // namespace tessera::cli
