// Loads a server with Generate streams and reports what a client sees. See --help.
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <condition_variable>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"
#include "tessera/v1/control.grpc.pb.h"
#include "tessera/v1/inference.grpc.pb.h"
#include "tests/bench/client/load_options.h"
#include "tests/bench/client/load_report.h"

namespace tessera::bench {
namespace {

// std::mt19937_64's raw output is the same everywhere; the standard distributions are not.
int64_t Draw(std::mt19937_64& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}
double DrawReal(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1.0p-53; }

struct PlannedRequest {
  v1::GenerateRequest request;
  int64_t cancel_after_tokens = -1;  // never
};

// Request `index` of the run: a function of the seed and the index alone.
PlannedRequest Plan(const LoadOptions& options, int64_t index, int32_t vocab_size) {
  std::mt19937_64 random(options.seed * 0x9e3779b97f4a7c15ULL + static_cast<uint64_t>(index));
  std::mt19937_64 shared_random(options.seed);
  PlannedRequest planned;
  const int64_t prompt = Draw(random, options.prompt_tokens.low, options.prompt_tokens.high);
  const int64_t output = Draw(random, options.output_tokens.low, options.output_tokens.high);
  const int64_t shared = static_cast<int64_t>(options.shared_prefix * static_cast<double>(prompt));
  auto* ids = planned.request.mutable_prompt()->mutable_token_ids()->mutable_ids();
  for (int64_t i = 0; i < prompt; ++i) {
    ids->Add(static_cast<int32_t>(Draw(i < shared ? shared_random : random, 0, vocab_size - 1)));
  }
  planned.request.mutable_stopping()->set_max_tokens(static_cast<int32_t>(output));
  planned.request.mutable_stopping()->set_ignore_eos(true);
  planned.request.mutable_sampling()->set_temperature(static_cast<float>(options.temperature));
  planned.request.mutable_sampling()->set_seed(static_cast<uint64_t>(index));
  if (DrawReal(random) < options.cancel) planned.cancel_after_tokens = Draw(random, 0, output - 1);
  return planned;
}

class Run;

// One Generate call. Deletes itself when it is done.
class Stream final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Stream(Run* run, PlannedRequest planned) : run_(run), planned_(std::move(planned)) {}
  void Start(v1::Inference::Stub& stub) {
    start_ = last_ = absl::Now();
    stub.async()->Generate(&context_, &planned_.request, this);
    if (planned_.cancel_after_tokens == 0) context_.TryCancel();
    StartRead(&event_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (event_.has_delta()) OnDelta(event_.delta());
    if (event_.has_finished()) {
      finished_ = event_.finished().reason();
      cached_tokens_ = event_.finished().usage().cached_tokens();
    }
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override;

 private:
  friend class Run;
  void OnDelta(const v1::Delta& delta) {
    const absl::Time now = absl::Now();
    ++messages_;
    if (delta.num_tokens() > 0) {
      int after_first = delta.num_tokens();
      if (tokens_ == 0) {
        time_to_first_token_ = absl::ToDoubleSeconds(now - start_);
        --after_first;
      }
      // The first message's other tokens came with the first one.
      const double share = tokens_ == 0 ? 0 : absl::ToDoubleSeconds(now - last_) / delta.num_tokens();
      gaps_.insert(gaps_.end(), after_first, share);
      tokens_ += delta.num_tokens();
      last_ = now;
    }
    if (planned_.cancel_after_tokens >= 0 && tokens_ >= planned_.cancel_after_tokens) context_.TryCancel();
  }

  Run* const run_;
  const PlannedRequest planned_;
  grpc::ClientContext context_;
  v1::GenerateResponse event_;
  absl::Time start_, last_;
  int64_t tokens_ = 0, messages_ = 0, cached_tokens_ = 0;
  double time_to_first_token_ = -1;
  std::vector<double> gaps_;
  v1::FinishReason finished_ = v1::FINISH_REASON_UNSPECIFIED;
};

class Run {
 public:
  Run(const LoadOptions& options, std::vector<std::unique_ptr<v1::Inference::Stub>> stubs, int32_t vocab_size)
      : options_(options), stubs_(std::move(stubs)), vocab_size_(vocab_size) {}

  LoadResults Execute() {
    const absl::Time start = absl::Now();
    end_ = start + options_.duration;
    if (options_.rate > 0) {
      OpenLoop(start);
    } else {
      for (int i = 0; i < options_.concurrency; ++i) StartNext();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    idle_.wait(lock, [this] { return in_flight_ == 0; });
    results_.elapsed = absl::Now() - start;
    return std::move(results_);
  }

  void OnStreamDone(const Stream& stream, const grpc::Status& status) {
    std::unique_lock<std::mutex> lock(mutex_);
    ++results_.outcomes[Outcome(stream, status)];
    if (stream.time_to_first_token_ >= 0) results_.time_to_first_token.push_back(stream.time_to_first_token_);
    results_.inter_token_latency.insert(results_.inter_token_latency.end(), stream.gaps_.begin(),
                                        stream.gaps_.end());
    if (status.ok()) {
      results_.end_to_end.push_back(absl::ToDoubleSeconds(absl::Now() - stream.start_));
      results_.prompt_tokens += stream.planned_.request.prompt().token_ids().ids_size();
      results_.cached_tokens += stream.cached_tokens_;
    }
    results_.output_tokens += stream.tokens_;
    results_.messages += stream.messages_;
    const bool more = options_.rate == 0;
    lock.unlock();
    if (more) StartNext();
    lock.lock();
    if (--in_flight_ == 0) idle_.notify_all();
  }

 private:
  static std::string Outcome(const Stream& stream, const grpc::Status& status) {
    if (status.error_code() == grpc::StatusCode::CANCELLED && stream.planned_.cancel_after_tokens >= 0) {
      return "cancelled";
    }
    if (!status.ok()) return absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()));
    if (stream.finished_ == v1::FINISH_REASON_LENGTH || stream.finished_ == v1::FINISH_REASON_STOP)
      return "ok";
    return absl::AsciiStrToLower(v1::FinishReason_Name(stream.finished_));
  }

  // Starts the next request if there is one and room for it.
  bool StartNext() {
    int64_t index;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (next_ >= options_.requests || absl::Now() >= end_) return false;
      index = next_++;
      if (in_flight_ >= options_.concurrency && options_.rate > 0) {
        ++results_.not_sent;
        return true;
      }
      ++in_flight_;
    }
    auto* stream = new Stream(this, Plan(options_, index, vocab_size_));
    stream->Start(*stubs_[static_cast<size_t>(index) % stubs_.size()]);
    return true;
  }

  // Arrivals keep to their times: a late start of one does not delay the next.
  void OpenLoop(absl::Time start) {
    std::mt19937_64 random(options_.seed + 1);
    absl::Time arrival = start;
    do {
      arrival += absl::Seconds(-std::log(1 - DrawReal(random)) / options_.rate);
      absl::SleepFor(arrival - absl::Now());
    } while (StartNext());
  }

  const LoadOptions options_;
  const std::vector<std::unique_ptr<v1::Inference::Stub>> stubs_;
  const int32_t vocab_size_;
  absl::Time end_;
  std::mutex mutex_;
  std::condition_variable idle_;
  int64_t next_ = 0;
  int64_t in_flight_ = 0;
  LoadResults results_;
};

void Stream::OnDone(const grpc::Status& status) {
  run_->OnStreamDone(*this, status);
  delete this;
}

double OwnCpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
         1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// User and system time of a process (proc(5), stat fields 14 and 15); -1 if it cannot be read.
double CpuSeconds(int64_t pid) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  if (pid == 0 || !std::getline(in, line)) return -1;
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

int Main(const std::vector<std::string>& words) {
  const LoadOptions options = ParseLoadOptions(words);
  std::vector<std::unique_ptr<v1::Inference::Stub>> stubs;
  std::shared_ptr<grpc::Channel> channel;
  for (int i = 0; i < options.connections; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel = grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments);
    stubs.push_back(v1::Inference::NewStub(channel));
  }
  grpc::ClientContext context;
  v1::ModelInfo model;
  const grpc::Status status = v1::Control::NewStub(channel)->GetModelInfo(&context, {}, &model);
  if (!status.ok()) {
    std::cerr << "load_generator: " << options.address << ": " << status.error_message() << "\n";
    return 3;
  }
  const double client_before = OwnCpuSeconds(), server_before = CpuSeconds(options.server_pid);
  LoadResults results = Run(options, std::move(stubs), model.vocab_size()).Execute();
  results.client_cpu_seconds = OwnCpuSeconds() - client_before;
  const double server_after = CpuSeconds(options.server_pid);
  if (server_before >= 0 && server_after >= 0) results.server_cpu_seconds = server_after - server_before;
  std::cout << (options.json ? JsonReport(results) : TextReport(results));
  for (const auto& [outcome, count] : results.outcomes) {
    if (outcome != "ok" && outcome != "cancelled") return 1;
  }
  return 0;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  return tessera::bench::Main(std::vector<std::string>(argv + 1, argv + argc));
}
