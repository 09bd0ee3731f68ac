#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/terminal.h"

namespace tessera::cli {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(10);
constexpr absl::Duration kProbeTimeout = absl::Seconds(3);

}  // namespace

int RunAbort(Context& context, const std::vector<std::string>& words) {
  bool all = false, json = false;
  Arguments arguments(
      "tessera abort [OPTION...] ID...",
      "Ends running or waiting requests; their streams end with the finish reason abort. Exits with 1 if "
      "an id names none.");
  arguments.Group("Options");
  arguments.AddFlag("all", "End every request.", &all);
  arguments.AddFlag("json", "Print the answer as JSON.", &json);
  context.connection.AddTo(arguments);
  int exit_code;
  const auto rest = ParseOrExplain(arguments, words, &exit_code);
  if (!rest.has_value()) return exit_code;
  if (all != rest->empty()) return UsageError("abort", "give the ids of requests, or --all");
  std::unique_ptr<Client> client = Connect(context, &exit_code);
  if (client == nullptr) return exit_code;

  v1::AbortRequest request;
  request.set_all(all);
  for (const std::string& id : *rest) request.add_request_ids(id);
  const absl::StatusOr<v1::AbortResponse> response =
      client->Abort(request, {.timeout = kTimeout, .cancellation = context.cancellation});
  if (!response.ok()) return Explain(context, response.status());
  if (json) {
    Print(Json(*response, /*indented=*/true));
  } else {
    for (const std::string& id : response->aborted()) Print(absl::StrCat("aborted ", id, "\n"));
    for (const std::string& id : response->not_found()) Print(absl::StrCat("not running: ", id, "\n"));
    if (all && response->aborted().empty()) Print("nothing was running\n");
  }
  if (const int output = OutputExitCode(); output != 0) return output;
  return response->not_found().empty() ? kOk : kFailed;
}

int RunHealth(Context& context, const std::vector<std::string>& words) {
  std::optional<absl::Duration> wait;
  std::string service;
  bool quiet = false;
  Arguments arguments(
      "tessera health [OPTION...]",
      "Asks whether the server serves (grpc.health.v1) and exits with 0 if it does, with 3 if not.");
  arguments.Group("Options");
  arguments.AddDuration("wait", "TIME", "Wait at most this long until it does.", &wait);
  arguments.AddString("service", "NAME", "Ask about one service, for example tessera.v1.Inference.",
                      &service);
  arguments.AddFlag("quiet", "Print nothing.", &quiet);
  context.connection.AddTo(arguments);
  int exit_code;
  const auto rest = ParseOrExplain(arguments, words, &exit_code);
  if (!rest.has_value()) return exit_code;
  if (!rest->empty()) return UsageError("health", absl::StrCat("unexpected word '", rest->front(), "'"));
  if (wait && !service.empty())
    return UsageError("health", "--wait asks about the whole server; leave out --service");
  // While waiting for a start, look again soon.
  context.connection.options.retry.initial_backoff = absl::Milliseconds(20);
  context.connection.options.retry.max_backoff = absl::Milliseconds(500);
  std::unique_ptr<Client> client = Connect(context, &exit_code);
  if (client == nullptr) return exit_code;

  const absl::Status status =
      wait ? client->WaitUntilServing({.timeout = *wait, .cancellation = context.cancellation})
           : client->CheckHealth(service, {.timeout = kProbeTimeout, .cancellation = context.cancellation});
  if (status.ok()) {
    if (!quiet) Print("SERVING\n");
    return OutputExitCode();
  }
  if (!quiet) {
    const int code = Explain(context, status);
    if (code == kInterrupted) return code;
  }
  return kUnavailable;
}

}  // namespace tessera::cli
