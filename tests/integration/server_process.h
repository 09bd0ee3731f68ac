#ifndef TESSERA_TESTS_INTEGRATION_SERVER_PROCESS_H_
#define TESSERA_TESTS_INTEGRATION_SERVER_PROCESS_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/tessera_client.h"
#include "gtest/gtest.h"
#include "tests/integration/child_process.h"

namespace tessera::testing {

inline constexpr char kServerProgram[] = TESSERA_BINARY_DIR "/tessera-server";
inline constexpr char kClientProgram[] = TESSERA_BINARY_DIR "/tessera";
inline constexpr char kBundledModel[] = TESSERA_SOURCE_DIR "/deploy/model";

// Samples of a scrape by name and labels as exposed, for example `tessera_requests_total{kind="embed",...}`.
using MetricSamples = std::map<std::string, double>;

// The answer to `GET path`, headers included; empty if there was none. Does not wait for a connection.
std::string HttpGet(int port, const std::string& path);

// A tessera-server of its own on free ports of the loopback. Its log is shown if the test fails while it exists.
class ServerProcess {
 public:
  // `flags` come after `--model`, `--listen`, `--metrics` and `--port-file`, so they can replace them; `command` is the
  // program, perhaps with arguments before these. Waits until the server says that it serves; null, with the test
  // failed, if it does not.
  static std::unique_ptr<ServerProcess> Start(const std::vector<std::string>& flags = {},
                                              const std::vector<std::string>& command = {kServerProgram});
  ~ServerProcess();

  ChildProcess& process() { return *process_; }
  int port() const { return port_; }
  int metrics_port() const { return metrics_port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  std::string log() const { return process_->Output(); }

  // Shared by the test's threads, on one connection; never retries.
  Client& client() { return *client_; }
  // On a connection of its own.
  std::unique_ptr<Client> NewClient() const;

  // Empty, with the test failed, if the scrape fails.
  MetricSamples Scrape() const;
  // One sample; -1, with the test failed, if there is none of this name.
  double Metric(const std::string& name) const;
  // Waits until no sequence runs or waits and none holds key-value blocks.
  bool WaitUntilIdle(absl::Duration timeout = absl::Seconds(30)) const;
  // Resident memory, bytes.
  int64_t ResidentBytes() const;

  // SIGTERM, then the exit code; nullopt if the server still runs after a minute.
  std::optional<int> Terminate();

 private:
  ServerProcess() = default;

  ScratchDirectory scratch_;
  std::unique_ptr<ChildProcess> process_;
  int port_ = 0;
  int metrics_port_ = 0;
  std::unique_ptr<Client> client_;
};

// The sum of all samples whose name begins with `prefix`.
double SumOf(const MetricSamples& samples, const std::string& prefix);

// For tests that need no flags of their own: one server for all tests of a suite, which must end well.
class SharedServerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite();
  static void TearDownTestSuite();
  void SetUp() override { ASSERT_NE(shared_, nullptr); }

  static ServerProcess& server() { return *shared_; }
  static Client& client() { return shared_->client(); }

 private:
  static std::unique_ptr<ServerProcess> shared_;
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_INTEGRATION_SERVER_PROCESS_H_
