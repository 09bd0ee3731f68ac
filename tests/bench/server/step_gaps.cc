// What the host does between the steps of the device, under load that changes all the time: streams of all lengths come
// and go, some are cancelled, the key-value cache is so small that prefixes are evicted at each step, and the metrics
// are scraped. The step-to-step gaps, and what the largest were spent on.
//
//   step_gaps [--streams=N] [--seconds=N] [--step-us=N] [--blocks=N] [--scrapes=N] [--tokenizer=DIR]
//
// --scrapes: of /metrics a second. The server runs in a process of its own, the load in this one. A gap's wall time
// includes what the machine does else; its processor time is the engine's own. Prints text, and one JSON object in the
// last line; microseconds.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <numeric>
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

struct Options {
  int32_t streams = 64;
  int32_t seconds = 20;
  int64_t step_us = 2000;
  int32_t blocks = 4096;
  int32_t scrapes = 10;
  std::string tokenizer = "deploy/model";
};

class Load;

// One call after the other.
class Stream final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Stream(Load* load, uint64_t seed);
  void Start(v1::Inference::Stub& stub) {
    stub.async()->Generate(&context_, &request_, this);
    StartRead(&event_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    tokens_ += event_.delta().num_tokens();
    if (event_.has_delta() && tokens_ >= cancel_after_) context_.TryCancel();
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override;

 private:
  Load* const load_;
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateResponse event_;
  int32_t tokens_ = 0;
  int32_t cancel_after_ = INT32_MAX;
};

class Load {
 public:
  Load(int port, int32_t streams)
      : channel_(grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials())),
        stub_(v1::Inference::NewStub(channel_)) {
    running_ = streams;
    for (int32_t i = 0; i < streams; ++i) StartOne();
  }
  void Stop() {
    std::unique_lock<std::mutex> lock(mu_);
    stop_ = true;
    done_.wait(lock, [this] { return running_ == 0; });
  }
  void OnEnd(const grpc::Status& status) {
    {
      std::lock_guard<std::mutex> lock(mu_);
      ++ended_;
      if (!status.ok() && status.error_code() != grpc::StatusCode::CANCELLED && failed_++ == 0) {
        std::fprintf(stderr, "step_gaps: %s\n", status.error_message().c_str());
      }
      if (stop_) {
        if (--running_ == 0) done_.notify_all();
        return;
      }
    }
    StartOne();
  }
  int64_t ended() const { return ended_; }
  int64_t failed() const { return failed_; }

 private:
  void StartOne() { (new Stream(this, next_.fetch_add(1)))->Start(*stub_); }

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Inference::Stub> stub_;
  std::atomic<uint64_t> next_{1};
  std::mutex mu_;  // guards what follows
  std::condition_variable done_;
  int32_t running_ = 0;
  int64_t ended_ = 0, failed_ = 0;
  bool stop_ = false;
};

Stream::Stream(Load* load, uint64_t seed) : load_(load) {
  std::mt19937_64 random(seed);
  const auto draw = [&random](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  // A third shares one of four long prefixes.
  const int64_t prompt = draw(1, 6) == 1 ? draw(1000, 4000) : draw(1, 300);
  std::mt19937_64 shared(random() % 4);
  std::mt19937_64& first_half = draw(1, 3) == 1 ? shared : random;
  auto* ids = request_.mutable_prompt()->mutable_token_ids()->mutable_ids();
  for (int64_t i = 0; i < prompt; ++i) {
    ids->Add(static_cast<int32_t>((i < prompt / 2 ? first_half : random)() % 6000) + 1000);
  }
  const int64_t output = draw(1, 600);
  request_.mutable_stopping()->set_max_tokens(static_cast<int32_t>(output));
  request_.mutable_stopping()->set_ignore_eos(true);
  request_.mutable_sampling()->set_temperature(0);
  if (draw(1, 5) == 1) cancel_after_ = static_cast<int32_t>(draw(0, output));
}

void Stream::OnDone(const grpc::Status& status) {
  Load* load = load_;
  const grpc::Status copy = status;
  delete this;  // first: the channel that it holds may be gone once the load knows
  load->OnEnd(copy);
}

// GET /metrics; the bytes of the answer.
size_t Scrape(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  size_t total = 0;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    if (write(fd, request.data(), request.size()) > 0) {
      char buffer[16384];
      for (ssize_t got; (got = read(fd, buffer, sizeof(buffer))) > 0;) total += static_cast<size_t>(got);
    }
  }
  close(fd);
  return total;
}

double Micro(int64_t nanos) { return 1e-3 * static_cast<double>(nanos); }

double Quantile(std::vector<int64_t> values, double share) {
  std::sort(values.begin(), values.end());
  return Micro(
      values[std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())))]);
}

void Report(const Recording& recording, int64_t first, const Load& load, int64_t scrapes) {
  const int64_t steps = recording.steps;
  std::vector<int64_t> wall, cpu, order(static_cast<size_t>(steps - first));
  std::iota(order.begin(), order.end(), first);
  int64_t rows = 0, started = 0;
  for (int64_t step = first; step < steps; ++step) {
    const StepGap& gap = recording.gaps[step];
    wall.push_back(gap.wall_nanos);
    cpu.push_back(gap.cpu_nanos);
    rows += gap.rows;
    started += gap.started;
  }
  std::printf(
      "%lld steps of %.0f rows, %lld requests ended, %lld started from nothing, %lld scrapes\n",
      static_cast<long long>(steps - first), static_cast<double>(rows) / static_cast<double>(steps - first),
      static_cast<long long>(load.ended()), static_cast<long long>(started), static_cast<long long>(scrapes));
  const auto print = [&](const char* name, auto key) {
    std::printf("\nlargest by %s:\n%10s %10s %10s %7s %7s %10s %6s %9s %8s\n", name, "step", "wall us",
                "cpu us", "faults", "waits", "preempted", "rows", "prefilled", "started");
    std::partial_sort(order.begin(), order.begin() + std::min<ptrdiff_t>(8, std::ssize(order)), order.end(),
                      [&](int64_t a, int64_t b) { return key(recording.gaps[a]) > key(recording.gaps[b]); });
    for (size_t i = 0; i < std::min<size_t>(8, order.size()); ++i) {
      const StepGap& gap = recording.gaps[order[i]];
      std::printf("%10lld %10.1f %10.1f %7d %7d %10d %6d %9d %8d\n", static_cast<long long>(order[i]),
                  Micro(gap.wall_nanos), Micro(gap.cpu_nanos), gap.page_faults, gap.waits, gap.preemptions,
                  gap.rows, gap.prefill_rows, gap.started);
    }
  };
  print("wall time", [](const StepGap& gap) { return gap.wall_nanos; });
  print("processor time", [](const StepGap& gap) { return gap.cpu_nanos; });
  std::printf(
      "{\"steps\": %zu, \"wall_p50\": %.1f, \"wall_p99\": %.1f, \"wall_p999\": %.1f, \"wall_max\": %.1f, "
      "\"cpu_p50\": "
      "%.1f, \"cpu_p99\": %.1f, \"cpu_p999\": %.1f, \"cpu_max\": %.1f}\n",
      wall.size(), Quantile(wall, 0.5), Quantile(wall, 0.99), Quantile(wall, 0.999), Quantile(wall, 1),
      Quantile(cpu, 0.5), Quantile(cpu, 0.99), Quantile(cpu, 0.999), Quantile(cpu, 1));
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    const auto number = [&arg](absl::string_view name, auto* value) {
      return absl::ConsumePrefix(&arg, name) && absl::SimpleAtoi(arg, value) && *value > 0;
    };
    if (number("--streams=", &options.streams) || number("--seconds=", &options.seconds) ||
        number("--step-us=", &options.step_us) || number("--blocks=", &options.blocks) ||
        number("--scrapes=", &options.scrapes)) {
      continue;
    }
    if (!absl::ConsumePrefix(&arg, "--tokenizer=")) {
      std::fprintf(stderr,
                   "usage: step_gaps [--streams=N] [--seconds=N] [--step-us=N] [--blocks=N] [--scrapes=N] "
                   "[--tokenizer=DIR]\n");
      return 2;
    }
    options.tokenizer = std::string(arg);
  }
  RecordedServerOptions server_options;
  server_options.tokenizer = options.tokenizer;
  server_options.step_time = absl::Microseconds(options.step_us);
  server_options.max_running = options.streams;
  server_options.num_blocks = options.blocks;
  Recording* recording = Recording::Create();
  const ChildProcess server([&] { return RunRecordedServer(server_options, recording); });
  Load load(WaitForPort(*recording), options.streams);
  absl::SleepFor(absl::Seconds(2));  // until the cache is full
  const int64_t first = recording->steps;
  const absl::Time end = absl::Now() + absl::Seconds(options.seconds);
  int64_t scrapes = 0;
  while (absl::Now() < end) {
    if (Scrape(recording->metrics_port) > 1000) ++scrapes;
    absl::SleepFor(absl::Seconds(1) / options.scrapes);
  }
  load.Stop();
  if (load.failed() > 0) {
    std::fprintf(stderr, "step_gaps: %lld requests failed\n", static_cast<long long>(load.failed()));
    return 1;
  }
  // Not the end, where there is less and less to do.
  Report(*recording, first, load, scrapes);
  return 0;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) { return tessera::bench::Main(argc, argv); }
