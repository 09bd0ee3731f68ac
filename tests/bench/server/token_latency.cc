// What the server adds between the end of a step and the client's receipt of its tokens, against bare gRPC reactors that
// write one prepared message a stream when a clock says so.
//
//   token_latency [--streams=N] [--tokens=N] [--step-us=N] [--bare] [--tokenizer=DIR]
//
// The server runs in a process of its own; the client, a callback stream a call over one loopback connection, in this
// one. Both read CLOCK_MONOTONIC. A token tells which step made it (recorded_server.h). The first quarter of each stream
// is not counted. Prints one JSON object; microseconds.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
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

struct Options {
  int32_t streams = 64;
  int32_t tokens = 400;
  int64_t step_us = 5000;
  bool bare = false;
  std::string tokenizer = "deploy/model";
};

class Client;

class Stream final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Stream(Client* client, const Options& options, int32_t index);
  void Start(v1::Inference::Stub& stub) {
    stub.async()->Generate(&context_, &request_, this);
    StartRead(&event_);
    StartCall();
  }
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  Client* const client_;
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateResponse event_;
  int32_t tokens_ = 0;
  std::vector<int64_t> latencies_;
};

class Client {
 public:
  Client(const Options& options, const Recording* recording, StepTokens step_tokens)
      : options_(options), recording_(recording), step_tokens_(step_tokens) {}

  int Run() {
    auto channel = grpc::CreateChannel(absl::StrCat("127.0.0.1:", WaitForPort(*recording_)),
                                       grpc::InsecureChannelCredentials());
    channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10));
    const auto stub = v1::Inference::NewStub(channel);
    const int64_t start = MonotonicNanos();
    for (int32_t i = 0; i < options_.streams; ++i) (new Stream(this, options_, i))->Start(*stub);
    std::unique_lock<std::mutex> lock(mu_);
    done_.wait(lock, [this] { return ended_ == options_.streams; });
    const double seconds = static_cast<double>(MonotonicNanos() - start) * 1e-9;
    if (failed_ > 0) {
      std::fprintf(stderr, "token_latency: %d streams failed\n", failed_);
      return 1;
    }
    std::sort(latencies_.begin(), latencies_.end());
    const auto at = [this](double share) {
      return 1e-3 *
             static_cast<double>(
                 latencies_[std::min(latencies_.size() - 1,
                                     static_cast<size_t>(share * static_cast<double>(latencies_.size())))]);
    };
    std::printf(
        "{\"server\": \"%s\", \"streams\": %d, \"step_us\": %lld, \"tokens\": %zu, \"tokens_per_message\": "
        "%.3f, "
        "\"seconds\": %.2f, \"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"p999\": %.1f, \"max\": %.1f}\n",
        options_.bare ? "bare" : "tessera", options_.streams, static_cast<long long>(options_.step_us),
        latencies_.size(),
        messages_ > 0 ? static_cast<double>(tokens_) / static_cast<double>(messages_) : 0.0, seconds, at(0.5),
        at(0.9), at(0.99), at(0.999), at(1));
    return 0;
  }

  // Since the end of the step that made this token.
  int64_t Latency(int32_t token, int64_t now) const {
    const int64_t steps = recording_->steps.load(std::memory_order_acquire);
    // The latest step of this token that can have made it; it may not be counted as ended yet.
    const int64_t behind =
        ((steps - (token - step_tokens_.first)) % step_tokens_.count + step_tokens_.count) %
        step_tokens_.count;
    return now - recording_->step_end[steps - behind];
  }

  void OnEnd(const std::vector<int64_t>& latencies, int32_t tokens, bool ok) {
    std::lock_guard<std::mutex> lock(mu_);
    latencies_.insert(latencies_.end(), latencies.begin(), latencies.end());
    tokens_ += tokens;
    failed_ += !ok;
    if (++ended_ == options_.streams) done_.notify_all();
  }
  void OnMessage() { messages_.fetch_add(1, std::memory_order_relaxed); }

 private:
  const Options options_;
  const Recording* const recording_;
  const StepTokens step_tokens_;
  std::atomic<int64_t> messages_{0};
  std::mutex mu_;  // guards what follows
  std::condition_variable done_;
  std::vector<int64_t> latencies_;
  int64_t tokens_ = 0;
  int32_t ended_ = 0, failed_ = 0;
};

Stream::Stream(Client* client, const Options& options, int32_t index) : client_(client) {
  for (int32_t i = 0; i < 16; ++i)
    request_.mutable_prompt()->mutable_token_ids()->add_ids(1000 + index * 16 + i);
  request_.mutable_stopping()->set_max_tokens(options.tokens);
  request_.mutable_stopping()->set_ignore_eos(true);
  request_.mutable_sampling()->set_temperature(0);
  request_.set_return_token_ids(true);
  latencies_.reserve(options.tokens);
}

void Stream::OnReadDone(bool ok) {
  const int64_t now = MonotonicNanos();
  if (!ok) return;
  if (event_.has_delta() && event_.delta().token_ids_size() > 0) {
    client_->OnMessage();
    for (const int32_t token : event_.delta().token_ids()) {
      if (++tokens_ > request_.stopping().max_tokens() / 4)
        latencies_.push_back(client_->Latency(token, now));
    }
  }
  StartRead(&event_);
}

void Stream::OnDone(const grpc::Status& status) {
  Client* client = client_;
  const std::vector<int64_t> latencies = std::move(latencies_);
  const int32_t tokens = tokens_;
  const bool ok = status.ok() && tokens == request_.stopping().max_tokens();
  delete this;  // first: the channel that it holds may be gone once the client knows
  client->OnEnd(latencies, tokens, ok);
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    if ((absl::ConsumePrefix(&arg, "--streams=") && absl::SimpleAtoi(arg, &options.streams) &&
         options.streams > 0) ||
        (absl::ConsumePrefix(&arg, "--tokens=") && absl::SimpleAtoi(arg, &options.tokens) &&
         options.tokens > 3) ||
        (absl::ConsumePrefix(&arg, "--step-us=") && absl::SimpleAtoi(arg, &options.step_us) &&
         options.step_us > 0)) {
      continue;
    }
    if (absl::ConsumePrefix(&arg, "--tokenizer=")) {
      options.tokenizer = std::string(arg);
    } else if (arg == "--bare") {
      options.bare = true;
    } else {
      std::fprintf(
          stderr,
          "usage: token_latency [--streams=N] [--tokens=N] [--step-us=N] [--bare] [--tokenizer=DIR]\n");
      return 2;
    }
  }
  RecordedServerOptions server_options;
  server_options.tokenizer = options.tokenizer;
  server_options.step_time = absl::Microseconds(options.step_us);
  server_options.max_running = options.streams;
  server_options.num_blocks = options.streams * (options.tokens / 16 + 4);
  Recording* recording = Recording::Create();
  const ChildProcess server([&] {
    return options.bare ? RunBarePacedServer(server_options, recording)
                        : RunRecordedServer(server_options, recording);
  });
  const StepTokens step_tokens = StepTokensOf(options.tokenizer);
  return Client(options, recording, step_tokens).Run();
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) { return tessera::bench::Main(argc, argv); }
