#include "tests/integration/server_process.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <iostream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace tessera::testing {

std::string HttpGet(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval timeout = {10, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    const std::string request =
        absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
      char buffer[16384];
      ssize_t count;
      while ((count = recv(fd, buffer, sizeof buffer, 0)) > 0) answer.append(buffer, count);
    }
  }
  close(fd);
  return answer;
}

std::unique_ptr<ServerProcess> ServerProcess::Start(const std::vector<std::string>& flags,
                                                    const std::vector<std::string>& command) {
  std::unique_ptr<ServerProcess> server(new ServerProcess);
  const std::string port_file = server->scratch_.path() + "/ports";
  std::vector<std::string> arguments(command.begin() + 1, command.end());
  arguments.insert(arguments.end(), {"--model", kBundledModel, "--listen", "127.0.0.1:0", "--metrics",
                                     "127.0.0.1:0", "--port-file", port_file});
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  server->process_ = std::make_unique<ChildProcess>(command.front(), arguments);
  const auto serves = [&] {
    std::ifstream file(port_file);
    return static_cast<bool>(file >> server->port_ >> server->metrics_port_);
  };
  WaitFor([&] { return serves() || !server->process_->Running(); }, absl::Minutes(1));
  if (server->port_ == 0) {
    ADD_FAILURE() << "tessera-server did not come up";
    return nullptr;
  }
  server->client_ = server->NewClient();
  const absl::Status status = server->client_->WaitUntilServing({.timeout = absl::Minutes(1)});
  if (!status.ok()) {
    ADD_FAILURE() << status;
    return nullptr;
  }
  return server;
}

ServerProcess::~ServerProcess() {
  if (::testing::UnitTest::GetInstance()->current_test_info() != nullptr
          ? ::testing::Test::HasFailure()
          : ::testing::UnitTest::GetInstance()->Failed()) {
    std::cerr << "--- log of tessera-server, process " << process_->pid() << " ---\n" << log() << "---\n";
  }
}

std::unique_ptr<Client> ServerProcess::NewClient() const {
  ClientOptions options;
  options.address = address();
  options.retry.max_attempts = 1;
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(options);
  if (!client.ok()) ADD_FAILURE() << client.status();
  return client.ok() ? *std::move(client) : nullptr;
}

MetricSamples ServerProcess::Scrape() const {
  const std::string answer = HttpGet(metrics_port_, "/metrics");
  EXPECT_EQ(answer.substr(0, 15), "HTTP/1.1 200 OK");
  MetricSamples samples;
  for (absl::string_view line : absl::StrSplit(answer, '\n')) {
    const size_t space = line.rfind(' ');
    double value = 0;
    if (line.substr(0, 8) != "tessera_" || space == line.npos ||
        !absl::SimpleAtod(line.substr(space + 1), &value)) {
      continue;
    }
    samples[std::string(line.substr(0, space))] = value;
  }
  EXPECT_FALSE(samples.empty()) << answer;
  return samples;
}

double ServerProcess::Metric(const std::string& name) const {
  const MetricSamples samples = Scrape();
  const auto found = samples.find(name);
  if (found == samples.end()) {
    ADD_FAILURE() << "no metric " << name;
    return -1;
  }
  return found->second;
}

bool ServerProcess::WaitUntilIdle(absl::Duration timeout) const {
  return WaitFor(
      [this] {
        const MetricSamples samples = Scrape();
        return !samples.empty() && SumOf(samples, "tessera_running") == 0 &&
               SumOf(samples, "tessera_waiting") == 0 &&
               SumOf(samples, "tessera_kv_cache_blocks{state=\"used\"}") == 0;
      },
      timeout);
}

int64_t ServerProcess::ResidentBytes() const {
  std::ifstream file(absl::StrCat("/proc/", process_->pid(), "/statm"));
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

std::optional<int> ServerProcess::Terminate() {
  process_->Signal(SIGTERM);
  return process_->WaitForExit(absl::Minutes(1));
}

std::unique_ptr<ServerProcess> SharedServerTest::shared_;

void SharedServerTest::SetUpTestSuite() { shared_ = ServerProcess::Start(); }

void SharedServerTest::TearDownTestSuite() {
  if (shared_ != nullptr) {
    EXPECT_EQ(shared_->Terminate(), 0);
  }
  shared_.reset();
}

double SumOf(const MetricSamples& samples, const std::string& prefix) {
  double sum = 0;
  for (auto it = samples.lower_bound(prefix);
       it != samples.end() && it->first.compare(0, prefix.size(), prefix) == 0; ++it) {
    sum += it->second;
  }
  return sum;
}

}  // namespace tessera::testing
