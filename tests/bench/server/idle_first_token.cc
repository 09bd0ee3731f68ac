// How long a request waits for its first token where nothing came for a while: servers that do nothing else, each with
// one blocking client that pauses between requests.
//
//   idle_first_token [--servers=N] [--requests=N] [--pause-ms=N] [--tokenizer=DIR]
//
// --requests: of each server. Pauses are drawn from half to one and a half times --pause-ms. Prints one JSON object;
// milliseconds.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"
#include "tessera/v1/inference.grpc.pb.h"
#include "tests/bench/server/recorded_server.h"

namespace tessera::bench {
namespace {

// Of one request; below 0 if it failed.
double FirstTokenMs(v1::Inference::Stub& stub) {
  v1::GenerateRequest request;
  for (int32_t id = 0; id < 16; ++id) request.mutable_prompt()->mutable_token_ids()->add_ids(1000 + id);
  request.mutable_stopping()->set_max_tokens(1);
  request.mutable_sampling()->set_temperature(0);
  grpc::ClientContext context;
  const int64_t begin = MonotonicNanos();
  const auto reader = stub.Generate(&context, request);
  double first = -1;
  for (v1::GenerateResponse event; reader->Read(&event);) {
    if (event.has_delta() && first < 0) first = 1e-6 * static_cast<double>(MonotonicNanos() - begin);
  }
  return reader->Finish().ok() ? first : -1;
}

int Main(int argc, char** argv) {
  int32_t servers = 8, requests = 25, pause_ms = 1500;
  RecordedServerOptions options;
  options.tokenizer = "deploy/model";
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    const auto number = [&arg](absl::string_view name, int32_t* value) {
      return absl::ConsumePrefix(&arg, name) && absl::SimpleAtoi(arg, value) && *value > 0;
    };
    if (number("--servers=", &servers) || number("--requests=", &requests) ||
        number("--pause-ms=", &pause_ms))
      continue;
    if (!absl::ConsumePrefix(&arg, "--tokenizer=")) {
      std::fprintf(stderr,
                   "usage: idle_first_token [--servers=N] [--requests=N] [--pause-ms=N] [--tokenizer=DIR]\n");
      return 2;
    }
    options.tokenizer = std::string(arg);
  }
  std::vector<Recording*> recordings;
  std::vector<std::unique_ptr<ChildProcess>> children;
  for (int32_t i = 0; i < servers; ++i) {
    Recording* recording = Recording::Create();
    recordings.push_back(recording);
    children.push_back(std::make_unique<ChildProcess>([&] { return RunRecordedServer(options, recording); }));
  }
  for (const Recording* recording : recordings) WaitForPort(*recording);

  std::mutex mu;
  std::vector<double> times;
  std::vector<std::thread> clients;
  for (int32_t i = 0; i < servers; ++i) {
    clients.emplace_back([&, i] {
      const auto stub = v1::Inference::NewStub(grpc::CreateChannel(
          absl::StrCat("127.0.0.1:", recordings[i]->port.load()), grpc::InsecureChannelCredentials()));
      std::mt19937_64 random(i);
      FirstTokenMs(*stub);  // connects
      for (int32_t request = 0; request < requests; ++request) {
        absl::SleepFor(
            absl::Microseconds(500 * pause_ms + static_cast<int64_t>(random() % (1000 * pause_ms))));
        const double time = FirstTokenMs(*stub);
        std::lock_guard<std::mutex> lock(mu);
        times.push_back(time);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  std::sort(times.begin(), times.end());
  if (times.front() < 0) {
    std::fprintf(stderr, "idle_first_token: a request failed\n");
    return 1;
  }
  const auto at = [&](double share) {
    return times[std::min(times.size() - 1, static_cast<size_t>(share * static_cast<double>(times.size())))];
  };
  std::printf("{\"requests\": %zu, \"p50\": %.3f, \"p90\": %.3f, \"p99\": %.3f, \"max\": %.3f}\n",
              times.size(), at(0.5), at(0.9), at(0.99), times.back());
  return 0;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) { return tessera::bench::Main(argc, argv); }
