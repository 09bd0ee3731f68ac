#include "server/app/server_app.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpc/grpc.h"
#include "grpc/support/log.h"
#include "server/app/model_host.h"
#include "server/app/signals.h"
#include "server/logging/logging.h"
#include "server/metrics/metrics_endpoint.h"
#include "server/rpc/listen_address.h"
#include "server/rpc/rpc_server.h"

namespace tessera {
namespace {

// When this process was started by the kernel, to its clock's 10 ms; so that start times include the dynamic linker.
absl::Time ProcessStart() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return absl::Now();
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < 19; ++i) fields >> skipped;
  int64_t ticks = 0;  // since the machine came up
  timespec since_boot = {};
  if (!(fields >> ticks) || clock_gettime(CLOCK_BOOTTIME, &since_boot) != 0) return absl::Now();
  const absl::Duration age =
      absl::DurationFromTimespec(since_boot) - absl::Seconds(ticks) / sysconf(_SC_CLK_TCK);
  return absl::Now() - age;
}

// gRPC's listener gives up for good when it finds no free file descriptor. Then nobody new gets in, and the process is
// better restarted: liveness says so.
std::atomic<bool> listener_lost{false};

// What gRPC logs (by default errors alone) goes into this process's log.
void LogOfGrpc(gpr_log_func_args* args) {
  const LogLevel level = args->severity == GPR_LOG_SEVERITY_ERROR  ? LogLevel::kError
                         : args->severity == GPR_LOG_SEVERITY_INFO ? LogLevel::kInfo
                                                                   : LogLevel::kDebug;
  Log(level, args->message, {{"source", "grpc"}});
  if (absl::StrContains(args->message, "accept4") &&
      absl::StrContains(args->message, "Too many open files")) {
    LogError(
        "out of file descriptors: no new connections are accepted; restart with a higher limit (ulimit -n)");
    listener_lost = true;
  }
}

// As many open files as the hard limit allows: each connection is one.
void RaiseFileLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

// Written beside it and moved into place, so that a reader never sees a part.
absl::Status WritePortFile(const std::string& path, int port, int metrics_port) {
  const std::string temporary = absl::StrCat(path, ".", getpid());
  std::ofstream file(temporary);
  file << port << "\n" << metrics_port << "\n";
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    std::remove(temporary.c_str());
    return absl::UnavailableError(absl::StrCat("--port-file: ", path, ": ", std::strerror(error)));
  }
  return absl::OkStatus();
}

bool IsLoopback(const std::string& address) {
  return absl::StartsWith(address, "127.") || absl::StartsWith(address, "[::1]") ||
         absl::StartsWith(address, "localhost:") || absl::StartsWith(address, "unix:");
}

absl::StatusOr<RpcServerOptions> MakeRpcOptions(const ServerOptions& options) {
  RpcServerOptions out;
  out.listen = options.listen;
  out.version = TESSERA_VERSION;
  out.tls = {options.tls_cert, options.tls_key, options.tls_client_ca};
  if (!options.api_key_file.empty()) {
    absl::StatusOr<ApiKeys> keys = ApiKeys::Load(options.api_key_file);
    if (!keys.ok())
      return absl::Status(keys.status().code(), absl::StrCat("--api-key-file: ", keys.status().message()));
    out.api_keys = *std::move(keys);
    if (!out.tls.enabled() && !IsLoopback(options.listen)) {
      LogWarning("API keys travel in the clear without TLS: set --tls-cert and --tls-key");
    }
  }
  out.max_request_bytes = options.max_request_bytes;
  out.max_concurrent_streams = options.max_concurrent_streams;
  out.max_connection_age = options.max_connection_age;
  out.max_connection_age_grace = options.max_connection_age_grace;
  out.slow_reader_timeout = options.slow_reader_timeout;
  out.reflection = !options.no_reflection;
  out.channelz = options.channelz;
  out.log_requests = options.log_requests;
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  out.tokenizer_threads = std::clamp(cores / 2, 2, 8);  // one of them is kept for short prompts
  out.writer_threads = std::clamp(cores / 4, 1, 4);
  return out;
}

absl::Status Run(const ServerOptions& options, absl::Time process_start, Signals* signals) {
  absl::StatusOr<std::unique_ptr<Metrics>> metrics =
      Metrics::Create({{.version = TESSERA_VERSION}, options.latency_buckets});
  if (!metrics.ok()) return metrics.status();
  absl::StatusOr<RpcServerOptions> rpc_options = MakeRpcOptions(options);
  if (!rpc_options.ok()) return rpc_options.status();

  // The port is open, and health says NOT_SERVING, while the model loads. Destruction is in reverse: no call outlives
  // the engine.
  LoadedModel model;
  absl::StatusOr<std::unique_ptr<RpcServer>> rpc = RpcServer::Start(*std::move(rpc_options), metrics->get());
  if (!rpc.ok()) return rpc.status();
  std::unique_ptr<MetricsEndpoint> endpoint;
  if (!options.metrics.empty()) {
    // civetweb does not say why it can't listen.
    if (absl::Status status = CheckCanListen(options.metrics); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("--metrics: ", status.message()));
    }
    absl::StatusOr<std::unique_ptr<MetricsEndpoint>> started =
        MetricsEndpoint::Start(options.metrics, metrics->get(),
                               {[server = rpc->get()] { return server->ready(); },
                                [server = rpc->get()] { return server->alive() && !listener_lost; }});
    if (!started.ok()) return started.status();
    endpoint = *std::move(started);
  }

  absl::StatusOr<LoadedModel> loaded = LoadModel(options, metrics->get());
  if (!loaded.ok()) return loaded.status();
  model = *std::move(loaded);
  const std::string name = model.served.info.name();
  const BackendInfo device = model.engine->backend_info();
  const SchedulerConfig scheduler = model.engine->config().scheduler;
  LogInfo("model loaded",
          {{"model", name},
           {"architecture", model.served.info.architecture()},
           {"parameters", model.served.info.num_parameters()},
           {"weight_bytes", device.weight_bytes},
           {"device", device.device},
           {"device_description", device.device_description},
           {"context", model.served.info.max_context()},
           {"kv_blocks", scheduler.num_blocks},
           {"kv_bytes", device.kv_bytes_per_token * scheduler.num_blocks * scheduler.block_size}});
  model.engine->Start();
  signals->ExpectSignals();
  (*rpc)->Serve(std::move(model.served), model.engine.get());
  const absl::Duration startup = absl::Now() - process_start;
  (*metrics)->OnStartupPhase("total", startup);

  if (!options.port_file.empty()) {
    absl::Status status =
        WritePortFile(options.port_file, (*rpc)->port(), endpoint == nullptr ? 0 : endpoint->port());
    if (!status.ok()) return status;
  }
  const std::string metrics_address =
      endpoint == nullptr
          ? ""
          : absl::StrCat(options.metrics.substr(0, options.metrics.rfind(':')), ":", endpoint->port());
  std::printf("serving %s on %s%s, ready in %lld ms\n", name.c_str(), (*rpc)->address().c_str(),
              metrics_address.empty() ? "" : absl::StrCat(" (metrics ", metrics_address, "/metrics)").c_str(),
              static_cast<long long>(absl::ToInt64Milliseconds(startup)));
  std::fflush(stdout);

  const int signal = signals->WaitForSignal();
  LogInfo("draining: no new requests; running ones may finish",
          {{"signal", signal}, {"drain_timeout_seconds", options.drain_timeout}});
  const bool all = (*rpc)->DrainAndShutdown(absl::Now() + options.drain_timeout);
  LogInfo(all ? "stopped" : "stopped; requests that took longer than --drain-timeout were ended");
  endpoint.reset();
  if (!model.engine->Healthy()) {
    // Its thread can't be joined.
    LogError("the engine hangs or has failed: exiting without it");
    _exit(1);
  }
  return absl::OkStatus();
}

}  // namespace

int RunServer(const ServerOptions& options) try {
  // Descriptors 0 to 2 must be something: what is opened later would be taken for standard output.
  int null = open("/dev/null", O_RDWR);
  while (null >= 0 && null <= 2) null = open("/dev/null", O_RDWR);
  if (null > 2) close(null);
  const absl::Time process_start = ProcessStart();
  InitLogging(options.log_level, options.log_format);
  Signals signals;
  RaiseFileLimit();
  // Never balanced: when its last user goes, the library waits for a poll of up to 10 s, which would delay the exit.
  gpr_set_log_function(LogOfGrpc);
  grpc_init();
  const absl::Status status = Run(options, process_start, &signals);
  if (status.ok()) return 0;
  std::fprintf(stderr, "tessera-server: %s\n", std::string(status.message()).c_str());
  return 1;
} catch (const std::bad_alloc&) {
  std::fprintf(stderr, "tessera-server: out of memory\n");
  return 1;
} catch (const std::system_error& error) {
  std::fprintf(stderr, "tessera-server: the system refused a thread or other resource: %s\n", error.what());
  return 1;
}

}  // namespace tessera
