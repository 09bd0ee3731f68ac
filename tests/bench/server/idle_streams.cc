// What an open stream costs that waits for its turn: resident memory of the server's process per Generate call that was
// accepted and has got nothing else, beside bare gRPC reactors whose calls have got their initial metadata.
//
//   idle_streams [--streams=N] [--connections=N] [--bare] [--tokenizer=DIR]
//
// Prints one JSON object.
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
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

class OpenStreams {
 public:
  void OnOpen() {
    std::lock_guard<std::mutex> lock(mu_);
    ++open_;
    changed_.notify_all();
  }
  void OnDone() {
    std::lock_guard<std::mutex> lock(mu_);
    ++failed_;
    changed_.notify_all();
  }
  // False if one has ended instead.
  bool WaitFor(int32_t count) {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [&] { return open_ == count || failed_ > 0; });
    return failed_ == 0;
  }

 private:
  std::mutex mu_;  // guards what follows
  std::condition_variable changed_;
  int32_t open_ = 0, failed_ = 0;
};

// Waits for its first message, or its initial metadata if `bare`, and for ever after.
class Stream final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Stream(OpenStreams* streams, int32_t index, bool bare) : streams_(streams), bare_(bare) {
    for (int32_t i = 0; i < 16; ++i)
      request_.mutable_prompt()->mutable_token_ids()->add_ids(1000 + (index + i) % 6000);
    request_.mutable_stopping()->set_max_tokens(512);
  }
  void Start(v1::Inference::Stub& stub) {
    stub.async()->Generate(&context_, &request_, this);
    StartRead(&event_);
    StartCall();
  }
  void OnReadInitialMetadataDone(bool ok) override {
    if (ok && bare_) streams_->OnOpen();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (!bare_ && event_.has_accepted()) streams_->OnOpen();
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override {
    std::fprintf(stderr, "a stream ended: %s\n", status.error_message().c_str());
    streams_->OnDone();
  }

 private:
  OpenStreams* const streams_;
  const bool bare_;
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateResponse event_;
};

// VmRSS in bytes.
int64_t ResidentBytes(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    long long kib = 0;
    if (std::sscanf(line.c_str(), "VmRSS: %lld kB", &kib) == 1) return 1024 * kib;
  }
  return 0;
}

int Main(int argc, char** argv) {
  int32_t count = 10000, connections = 1;
  bool bare = false;
  RecordedServerOptions options;
  options.tokenizer = "deploy/model";
  options.step_time = absl::Hours(1);  // nothing moves
  options.max_running = 1;
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    if ((absl::ConsumePrefix(&arg, "--streams=") && absl::SimpleAtoi(arg, &count) && count > 0) ||
        (absl::ConsumePrefix(&arg, "--connections=") && absl::SimpleAtoi(arg, &connections) &&
         connections > 0)) {
      continue;
    }
    if (absl::ConsumePrefix(&arg, "--tokenizer=")) {
      options.tokenizer = std::string(arg);
    } else if (arg == "--bare") {
      bare = true;
    } else {
      std::fprintf(stderr,
                   "usage: idle_streams [--streams=N] [--connections=N] [--bare] [--tokenizer=DIR]\n");
      return 2;
    }
  }
  Recording* recording = Recording::Create();
  const ChildProcess server(
      [&] { return bare ? RunBarePacedServer(options, recording) : RunRecordedServer(options, recording); });
  const std::string address = absl::StrCat("127.0.0.1:", WaitForPort(*recording));
  std::vector<std::unique_ptr<v1::Inference::Stub>> stubs;
  for (int32_t i = 0; i < connections; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stubs.push_back(v1::Inference::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments)));
  }
  auto* streams = new OpenStreams;  // and the streams are never freed: the process ends while they are open
  const auto open = [&](int32_t from, int32_t to) {
    for (int32_t i = from; i < to; ++i) (new Stream(streams, i, bare))->Start(*stubs[i % stubs.size()]);
    return streams->WaitFor(to);
  };
  const int32_t first = 100 * connections;  // so that what is allocated once is there
  if (!open(0, first)) return 1;
  const int64_t before = ResidentBytes(server.pid());
  // A part at a time: no more calls may wait to be tokenised than the server's bound.
  for (int32_t done = first; done < first + count;) {
    const int32_t next = std::min(done + 500, first + count);
    if (!open(done, next)) return 1;
    done = next;
  }
  const int64_t after = ResidentBytes(server.pid());
  std::printf("{\"server\": \"%s\", \"streams\": %d, \"bytes_before\": %lld, \"bytes_a_stream\": %.0f}\n",
              bare ? "bare" : "tessera", count, static_cast<long long>(before),
              static_cast<double>(after - before) / count);
  std::fflush(stdout);
  _exit(0);  // the streams are open
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) { return tessera::bench::Main(argc, argv); }
