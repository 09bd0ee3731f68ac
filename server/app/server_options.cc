#include "server/app/server_options.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/app/flag_set.h"
#include "server/rpc/listen_address.h"

namespace tessera {
namespace {

constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();

absl::Status ParseBuckets(const std::string& text, std::vector<double>* buckets) {
  buckets->clear();
  for (absl::string_view word : absl::StrSplit(text, ',')) {
    double bound = 0;
    if (!absl::SimpleAtod(word, &bound) || !std::isfinite(bound) ||
        bound <= (buckets->empty() ? 0.0 : buckets->back())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "found \"", text, "\", expected seconds, above 0 and increasing, such as 0.001,0.01,0.1,1"));
    }
    buckets->push_back(bound);
  }
  return absl::OkStatus();
}

FlagSet MakeFlags(ServerOptions* o) {
  FlagSet flags(
      "usage: tessera-server [flags]",
      "Serves a mixture-of-experts language model over gRPC. Without flags: the bundled model, on this\n"
      "machine alone. Each flag may also come from the environment: TESSERA_MAX_RUNNING for --max-running.");
  auto address = [](std::string* target, bool may_be_empty) {
    return [target, may_be_empty](const std::string& value) -> absl::Status {
      if (!(may_be_empty && value.empty()) && !absl::StartsWith(value, "unix:")) {
        if (absl::Status status = ParseHostPort(value).status(); !status.ok()) return status;
      }
      *target = value;
      return absl::OkStatus();
    };
  };

  flags.Group("Model");
  flags.String("model", &o->model, "DIR",
               "directory with config.json, tokenizer.json and *.safetensors "
               "(default: the bundled model)");
  flags.String("model-name", &o->model_name, "NAME",
               "name that requests may give (default: that of the directory)");
  flags.Custom("device", "auto|cpu|cuda|null",
               "what computes; null answers by a rule, for tests of what is around", o->device,
               [o](const std::string& value) {
                 if (value != "auto" && value != "cpu" && value != "cuda" && value != "null") {
                   return absl::InvalidArgumentError(
                       absl::StrCat("found \"", value, "\", expected auto, cpu, cuda or null"));
                 }
                 o->device = value;
                 return absl::OkStatus();
               });
  flags.Int("threads", &o->threads, 0, 4096, "threads that compute on a CPU; 0 for one a core");
  flags.Custom(
      "load-format", "auto|dummy", "dummy makes weights up from config.json alone, to time shapes", "auto",
      [o](const std::string& value) {
        if (value != "auto" && value != "dummy") {
          return absl::InvalidArgumentError(absl::StrCat("found \"", value, "\", expected auto or dummy"));
        }
        o->dummy_weights = value == "dummy";
        return absl::OkStatus();
      });

  flags.Group("Network");
  flags.Custom("listen", "HOST:PORT", "where gRPC listens; port 0 for any free one; or unix:PATH", o->listen,
               address(&o->listen, false));
  flags.Custom("metrics", "HOST:PORT", "where HTTP serves /metrics, /healthz and /livez; \"\" for nowhere",
               o->metrics, [o](const std::string& value) -> absl::Status {
                 if (!value.empty()) {
                   if (absl::Status status = ParseHostPort(value).status(); !status.ok()) return status;
                 }
                 o->metrics = value;
                 return absl::OkStatus();
               });
  flags.String("port-file", &o->port_file, "FILE",
               "once serving, write the gRPC port and, on a second line, the metrics port");
  flags.String("tls-cert", &o->tls_cert, "FILE", "PEM certificate chain; with --tls-key, serve TLS");
  flags.String("tls-key", &o->tls_key, "FILE", "PEM private key");
  flags.String("tls-client-ca", &o->tls_client_ca, "FILE",
               "PEM certificates that must have signed the callers' own");
  flags.String("api-key-file", &o->api_key_file, "FILE",
               "one key a line; callers send `authorization: Bearer KEY` (health needs none)");
  flags.Bytes("max-request-bytes", &o->max_request_bytes, 1024, "largest request message");
  flags.Int("max-concurrent-streams", &o->max_concurrent_streams, 1, kMaxInt,
            "calls at once on one connection");
  flags.Duration("max-connection-age", &o->max_connection_age,
                 "tell clients to reconnect after this, so that balancers see new servers");
  flags.Duration("max-connection-age-grace", &o->max_connection_age_grace,
                 "then wait this long for their calls");
  flags.Switch("no-reflection", &o->no_reflection, "do not serve gRPC reflection");
  flags.Switch("channelz", &o->channelz,
               "serve grpc.channelz.v1, which shows callers' addresses to all callers");

  flags.Group("Batching and memory");
  flags.Bytes("kv-cache-bytes", &o->kv_cache_bytes, 1,
              "memory for keys and values (default: a quarter of what is free, at most 4G)");
  flags.Int("kv-blocks", &o->kv_blocks, 0, kMaxInt,
            "the same as a number of blocks; 0 for from --kv-cache-bytes");
  flags.Int("block-size", &o->block_size, 1, 1024,
            "tokens in a block, a power of two, at least 16 (null: 1)");
  flags.Int("max-running", &o->max_running, 1, 65536, "sequences in one step, at most --max-batched-tokens");
  flags.Int("max-batched-tokens", &o->max_batched_tokens, 1, kMaxInt, "tokens in one step");
  flags.Int("max-prefill-chunk", &o->max_prefill_chunk, 0, kMaxInt,
            "prompt tokens of one sequence in one step; 0 for 512, on a GPU --max-batched-tokens");
  flags.Int("max-context", &o->max_context, 0, kMaxInt,
            "tokens of prompt and output together; 0 for the model's");
  flags.Int("max-queued", &o->max_queued, 1, kMaxInt, "sequences that may wait; more are refused");
  flags.Int("default-max-tokens", &o->default_max_tokens, 1, kMaxInt, "for requests without max_tokens");
  flags.Switch("no-prefix-cache", &o->no_prefix_cache, "do not keep prompts for later requests");
  flags.Switch("no-run-ahead", &o->no_run_ahead,
               "on a GPU: start a step only when the tokens of the one before are known; to compare");
  flags.Switch("bf16-activations", &o->bf16_activations,
               "on Blackwell: keep activations in BF16 where a checkpoint has scales for NVFP4 ones");

  flags.Group("Time limits");
  flags.Duration("slow-reader-timeout", &o->slow_reader_timeout,
                 "abort a request whose caller does not read for this");
  flags.Duration("watchdog-timeout", &o->watchdog_timeout, "health is NOT_SERVING when a step takes longer");
  flags.Duration("drain-timeout", &o->drain_timeout, "on SIGTERM, time for running requests to finish");

  flags.Group("Observation");
  flags.Custom("latency-buckets", "LIST",
               "bounds of the latency histograms in seconds, such as 0.001,0.01,0.1,1 "
               "(default: 0.0001 to 640)",
               "", [o](const std::string& value) { return ParseBuckets(value, &o->latency_buckets); });
  flags.Custom("log-level", "LEVEL", "debug, info, warning, error or off", "info",
               [o](const std::string& value) { return ParseLogLevel(value, &o->log_level); });
  flags.Custom("log-format", "text|json", "on standard error", "text",
               [o](const std::string& value) { return ParseLogFormat(value, &o->log_format); });
  flags.Switch("log-requests", &o->log_requests,
               "a line for each request: id, counts, durations; never its text");

  flags.Group("Other");
  flags.Switch("help", &o->help, "print this");
  flags.Switch("version", &o->version, "print the version");
  return flags;
}

}  // namespace

absl::StatusOr<ServerOptions> ParseServerOptions(const std::vector<std::string>& arguments,
                                                 const std::function<const char*(const char*)>& getenv) {
  ServerOptions options;
  FlagSet flags = MakeFlags(&options);
  const absl::Status parsed = flags.Parse(arguments, getenv);
  if (options.help || options.version) return options;

  // What flags have to do with each other.
  std::vector<std::string> mistakes;
  if (!parsed.ok()) mistakes.push_back(std::string(parsed.message()));
  if ((options.block_size & (options.block_size - 1)) != 0) {
    mistakes.push_back(absl::StrCat("--block-size: found ", options.block_size, ", expected a power of two"));
  }
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    mistakes.push_back(options.tls_cert.empty() ? "--tls-cert: required with --tls-key"
                                                : "--tls-key: required with --tls-cert");
  } else if (!options.tls_client_ca.empty() && options.tls_cert.empty()) {
    mistakes.push_back("--tls-client-ca: needs --tls-cert and --tls-key");
  }
  if (options.kv_blocks > 0 && options.kv_cache_bytes > 0) {
    mistakes.push_back("--kv-blocks: set together with --kv-cache-bytes; one says it all");
  }
  if (options.slow_reader_timeout <= absl::ZeroDuration()) {
    mistakes.push_back("--slow-reader-timeout: found 0s, expected more, or inf");
  }
  if (options.max_request_bytes > kMaxInt) {
    mistakes.push_back("--max-request-bytes: expected less than 2G, which is as large as a message can be");
  }
  if (!mistakes.empty()) return absl::InvalidArgumentError(absl::StrJoin(mistakes, "\n"));
  options.max_running =
      std::min(options.max_running, options.max_batched_tokens);  // a sequence is at least a token
  return options;
}

int32_t PrefillChunk(const ServerOptions& options, bool gpu) {
  if (options.max_prefill_chunk > 0) return options.max_prefill_chunk;
  return gpu ? options.max_batched_tokens : 512;
}

std::string ServerHelp() {
  ServerOptions defaults;
  return MakeFlags(&defaults).Help();
}

}  // namespace tessera
