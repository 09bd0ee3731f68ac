#include "tests/bench/client/load_options.h"

#include <cstdlib>
#include <iostream>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/arguments.h"

namespace tessera::bench {
namespace {

constexpr int64_t kMaxConcurrency = 20000;

[[noreturn]] void Fail(absl::string_view message) {
  std::cerr << "load_generator: " << message << "\nSee: load_generator --help\n";
  std::exit(2);
}

Range ParseRange(const std::string& name, const std::string& text) {
  const std::pair<std::string, std::string> ends = absl::StrSplit(text, absl::MaxSplits(':', 1));
  Range range;
  const std::string& high = ends.second.empty() ? ends.first : ends.second;
  if (!absl::SimpleAtoi(ends.first, &range.low) || !absl::SimpleAtoi(high, &range.high) || range.low < 1 ||
      range.high < range.low) {
    Fail(absl::StrCat("--", name, ": got '", text, "'; expected N or LOW:HIGH, at least 1"));
  }
  return range;
}

}  // namespace

LoadOptions ParseLoadOptions(const std::vector<std::string>& words) {
  LoadOptions options;
  std::optional<int64_t> connections, concurrency, requests, server_pid;
  std::optional<double> rate, shared_prefix, cancel, temperature;
  std::optional<absl::Duration> duration;
  std::optional<uint64_t> seed;
  std::string prompt_tokens = "64", output_tokens = "64";
  cli::Arguments arguments("load_generator [OPTION...]",
                           "Loads a Tessera server with Generate streams of random token ids and prints "
                           "latencies and rates. The same "
                           "--seed sends the same requests.");
  arguments.Group("Options");
  arguments.AddString("address", "HOST:PORT", "The server. Default 127.0.0.1:50051.", &options.address);
  arguments.AddInt("connections", "N", "HTTP/2 connections to spread streams over. Default 1.", 1, 1024,
                   &connections);
  arguments.AddInt("concurrency", "N", "Streams at one time. Default 8.", 1, kMaxConcurrency, &concurrency);
  arguments.AddDouble("rate", "X",
                      "Arrivals a second (Poisson), at most --concurrency at one time. Default: closed loop.",
                      &rate);
  arguments.AddInt("requests", "N", "Requests to send. Default 100.", 1, 1000000000, &requests);
  arguments.AddDuration("duration", "TIME", "Stop sending after this long. Default: never.", &duration);
  arguments.AddString("prompt-tokens", "N|LOW:HIGH", "Length of prompts. Default 64.", &prompt_tokens);
  arguments.AddString("output-tokens", "N|LOW:HIGH", "Length of outputs. Default 64.", &output_tokens);
  arguments.AddDouble("shared-prefix", "X", "Share of the prompt that all have in common, 0 to 1. Default 0.",
                      &shared_prefix);
  arguments.AddDouble("cancel", "X", "Share of requests cancelled on the way, 0 to 1. Default 0.", &cancel);
  arguments.AddUint64("seed", "N", "Default 1.", &seed);
  arguments.AddDouble("temperature", "X", "Default 0.", &temperature);
  arguments.AddInt("server-pid", "PID", "Report the CPU time of this process too.", 1, INT32_MAX,
                   &server_pid);
  arguments.AddFlag("json", "Print JSON.", &options.json);
  const auto rest = arguments.Parse(words);
  if (!rest.ok()) Fail(rest.status().message());
  if (arguments.help_wanted()) {
    std::cout << arguments.Help();
    std::exit(0);
  }
  if (!rest->empty()) Fail(absl::StrCat("unexpected word '", rest->front(), "'"));
  options.connections = static_cast<int>(connections.value_or(options.connections));
  options.concurrency = static_cast<int>(concurrency.value_or(options.concurrency));
  options.requests = requests.value_or(duration.has_value() ? INT64_MAX : options.requests);
  options.duration = duration.value_or(options.duration);
  options.rate = rate.value_or(0);
  options.shared_prefix = shared_prefix.value_or(0);
  options.cancel = cancel.value_or(0);
  options.temperature = temperature.value_or(0);
  options.seed = seed.value_or(options.seed);
  options.server_pid = server_pid.value_or(0);
  options.prompt_tokens = ParseRange("prompt-tokens", prompt_tokens);
  options.output_tokens = ParseRange("output-tokens", output_tokens);
  if (options.rate < 0) Fail("--rate: expected a number above 0");
  if (options.shared_prefix < 0 || options.shared_prefix > 1) Fail("--shared-prefix: expected 0 to 1");
  if (options.cancel < 0 || options.cancel > 1) Fail("--cancel: expected 0 to 1");
  return options;
}

}  // namespace tessera::bench
