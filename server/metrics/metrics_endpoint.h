#ifndef TESSERA_SERVER_METRICS_METRICS_ENDPOINT_H_
#define TESSERA_SERVER_METRICS_METRICS_ENDPOINT_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/metrics/metrics.h"

struct mg_context;
struct mg_connection;

namespace tessera {

// The HTTP side of the metrics, on threads of its own:
//   /metrics  the text exposition
//   /healthz  200 when requests are served, else 503 (a readiness probe)
//   /livez    200 unless the engine has failed, else 503 (a liveness probe)
// The two probes serve where gRPC's own health check can't be used, for example behind TLS.
class MetricsEndpoint {
 public:
  struct Probes {
    std::function<bool()> ready;
    std::function<bool()> alive;
  };

  // Listens on `address`, HOST:PORT or [IPV6]:PORT, port 0 for any free one. UNAVAILABLE naming address and cause if
  // it can't. `metrics` must outlive the endpoint.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& address,
                                                                const Metrics* metrics, Probes probes);
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  int port() const { return port_; }

 private:
  MetricsEndpoint(const Metrics* metrics, Probes probes) : metrics_(metrics), probes_(std::move(probes)) {}

  const Metrics* const metrics_;
  const Probes probes_;
  mg_context* context_ = nullptr;
  std::string host_;  // where this process reaches itself
  int port_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_METRICS_METRICS_ENDPOINT_H_
