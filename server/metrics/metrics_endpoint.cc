#include "server/metrics/metrics_endpoint.h"

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "civetweb.h"

namespace tessera {
namespace {

constexpr char kTextFormat[] = "text/plain; version=0.0.4; charset=utf-8";

int Reply(mg_connection* connection, const char* status, const char* content_type, const std::string& body) {
  const bool head = std::string(mg_get_request_info(connection)->request_method) == "HEAD";
  const std::string header = absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Type: ", content_type,
                                          "\r\nContent-Length: ", body.size(),
                                          "\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n");
  mg_disable_keep_alive(connection);
  mg_write(connection, header.data(), header.size());
  if (!head) mg_write(connection, body.data(), body.size());
  return 200;
}

bool IsRead(mg_connection* connection) {
  const std::string method = mg_get_request_info(connection)->request_method;
  return method == "GET" || method == "HEAD";
}

int OnMetrics(mg_connection* connection, void* metrics) {
  if (!IsRead(connection)) return Reply(connection, "405 Method Not Allowed", "text/plain", "use GET\n");
  return Reply(connection, "200 OK", kTextFormat, static_cast<const Metrics*>(metrics)->Expose());
}

int OnProbe(mg_connection* connection, void* probe) {
  if (!IsRead(connection)) return Reply(connection, "405 Method Not Allowed", "text/plain", "use GET\n");
  const bool ok = (*static_cast<const std::function<bool()>*>(probe))();
  return ok ? Reply(connection, "200 OK", "text/plain", "ok\n")
            : Reply(connection, "503 Service Unavailable", "text/plain", "not ready\n");
}

int OnOther(mg_connection* connection, void*) {
  return Reply(connection, "404 Not Found", "text/plain", "Tessera: /metrics, /healthz, /livez\n");
}

int DropMessage(const mg_connection*, const char*) { return 1; }  // errors are returned, not printed

// The host of HOST:PORT, or the loopback address where HOST stands for all addresses.
std::string HostToReach(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  return host.empty() || host == "0.0.0.0" || host == "::" || host == "+" ? "localhost" : host;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(const std::string& address,
                                                                        const Metrics* metrics,
                                                                        Probes probes) {
  std::unique_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint(metrics, std::move(probes)));
  static const bool initialised = mg_init_library(0) == 0;
  (void)initialised;
  mg_callbacks callbacks = {};
  callbacks.log_message = DropMessage;
  callbacks.log_access = DropMessage;
  // A connection holds a thread while it sends its request: enough of them, and not for long, so that probes are answered
  // beside clients that dawdle.
  const char* options[] = {"listening_ports",    address.c_str(), "num_threads", "32",
                           "request_timeout_ms", "2000",          nullptr};
  mg_init_data init = {&callbacks, endpoint.get(), options};
  std::array<char, 256> text = {};
  unsigned code = 0;
  mg_error_data error = {&code, text.data(), text.size()};
  endpoint->context_ = mg_start2(&init, &error);
  if (endpoint->context_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address, " for metrics: ", text.data()));
  }
  endpoint->host_ = HostToReach(address);
  mg_server_port ports[1] = {};
  if (mg_get_server_ports(endpoint->context_, 1, ports) == 1) endpoint->port_ = ports[0].port;
  mg_set_request_handler(endpoint->context_, "/metrics$", OnMetrics, const_cast<Metrics*>(metrics));
  mg_set_request_handler(endpoint->context_, "/healthz$", OnProbe,
                         const_cast<std::function<bool()>*>(&endpoint->probes_.ready));
  mg_set_request_handler(endpoint->context_, "/livez$", OnProbe,
                         const_cast<std::function<bool()>*>(&endpoint->probes_.alive));
  mg_set_request_handler(endpoint->context_, "/", OnOther, nullptr);
  return endpoint;
}

MetricsEndpoint::~MetricsEndpoint() {
  if (context_ == nullptr) return;
  // mg_stop sets a flag that civetweb's accepting thread reads after its poll, which lasts 2 s unless something comes
  // in; so connect until it has noticed.
  std::atomic<bool> stopped = false;
  std::thread wake([this, &stopped] {
    while (!stopped) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      char error[64];
      if (mg_connection* connection = mg_connect_client(host_.c_str(), port_, 0, error, sizeof(error))) {
        mg_close_connection(connection);
      }
    }
  });
  mg_stop(context_);
  stopped = true;
  wake.join();
}

}  // namespace tessera
