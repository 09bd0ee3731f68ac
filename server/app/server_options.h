#ifndef TESSERA_SERVER_APP_SERVER_OPTIONS_H_
#define TESSERA_SERVER_APP_SERVER_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/logging/logging.h"

namespace tessera {

// What tessera-server was started with. Checked as far as that goes without the model.
struct ServerOptions {
  bool help = false;
  bool version = false;

  std::string model;  // empty: the bundled one
  std::string model_name;
  std::string device = "auto";
  int32_t threads = 0;
  bool dummy_weights = false;

  std::string listen = "127.0.0.1:50051";
  std::string metrics = "127.0.0.1:9464";
  std::string port_file;
  std::string tls_cert, tls_key, tls_client_ca;
  std::string api_key_file;
  int64_t max_request_bytes = 64 << 20;
  int32_t max_concurrent_streams = 4096;
  absl::Duration max_connection_age = absl::InfiniteDuration();
  absl::Duration max_connection_age_grace = absl::InfiniteDuration();
  bool no_reflection = false;
  bool channelz = false;

  int64_t kv_cache_bytes = 0;  // 0: from the memory there is
  int32_t kv_blocks = 0;       // 0: from kv_cache_bytes
  int32_t block_size = 16;
  int32_t max_running = 256;
  int32_t max_batched_tokens = 2048;
  int32_t max_prefill_chunk = 0;  // 0: what suits the device (PrefillChunk)
  int32_t max_context = 0;  // 0: the model's
  int32_t max_queued = 1024;
  int32_t default_max_tokens = 256;
  bool no_prefix_cache = false;
  bool no_run_ahead = false;
  bool bf16_activations = false;
  absl::Duration slow_reader_timeout = absl::Seconds(30);
  absl::Duration watchdog_timeout = absl::Seconds(60);
  absl::Duration drain_timeout = absl::Seconds(30);

  std::vector<double> latency_buckets;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
  bool log_requests = false;
};

// INVALID_ARGUMENT lists every mistake, one a line.
absl::StatusOr<ServerOptions> ParseServerOptions(const std::vector<std::string>& arguments,
                                                 const std::function<const char*(const char*)>& getenv);
std::string ServerHelp();

// Prompt tokens of one sequence in one step. A GPU reads all experts in a step, however few tokens it has: the whole step
// unless told otherwise.
int32_t PrefillChunk(const ServerOptions& options, bool gpu);

}  // namespace tessera

#endif  // TESSERA_SERVER_APP_SERVER_OPTIONS_H_
