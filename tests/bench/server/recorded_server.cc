#include "tests/bench/server/recorded_server.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <unordered_set>

#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"
#include "server/backend/null/null_backend.h"
#include "server/engine/engine.h"
#include "server/metrics/metrics_endpoint.h"
#include "server/rpc/rpc_server.h"
#include "server/tokenizer/tokenizer.h"
#include "tessera/v1/inference.grpc.pb.h"

namespace tessera::bench {
namespace {

constexpr int32_t kMaxContext = 32768;

int64_t Nanos(const timespec& time) { return int64_t{1000000000} * time.tv_sec + time.tv_nsec; }

// Where a thread stands, to tell what it did between two points.
struct ThreadState {
  static ThreadState Now() {
    ThreadState now;
    now.wall = MonotonicNanos();
    timespec cpu;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    now.cpu = Nanos(cpu);
    getrusage(RUSAGE_THREAD, &now.usage);
    return now;
  }
  int64_t wall = 0, cpu = 0;
  rusage usage = {};
};

// The null backend with a record of when its steps begin and end.
class RecordingBackend final : public Backend {
 public:
  RecordingBackend(NullBackendConfig config, Recording* recording, StepTokens tokens)
      : recording_(recording), inner_(WithRule(std::move(config), &step_, tokens)) {}

  const BackendInfo& info() const override { return inner_.info(); }
  absl::Status AllocateKvCache(const KvCacheConfig& config) override {
    return inner_.AllocateKvCache(config);
  }
  absl::Status Run(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) override {
    if (step_ >= Recording::kMaxSteps) return absl::ResourceExhaustedError("more steps than can be recorded");
    RecordGap(rows);
    const absl::Status status = inner_.Run(rows, results);
    last_ = ThreadState::Now();
    recording_->step_end[step_] = last_.wall;
    recording_->steps.store(++step_, std::memory_order_release);
    return status;
  }

 private:
  static NullBackendConfig WithRule(NullBackendConfig config, const int64_t* step, StepTokens tokens) {
    config.first_token = tokens.first;
    config.num_tokens = tokens.count;
    config.rule = [step, tokens](int32_t, int32_t) {
      return tokens.first + static_cast<int32_t>(*step % tokens.count);
    };
    return config;
  }

  void RecordGap(absl::Span<const BatchRow> rows) {
    const ThreadState now = ThreadState::Now();
    StepGap& gap = recording_->gaps[step_];
    if (step_ > 0) {
      gap.wall_nanos = now.wall - last_.wall;
      gap.cpu_nanos = now.cpu - last_.cpu;
      gap.page_faults = static_cast<int32_t>(now.usage.ru_minflt - last_.usage.ru_minflt);
      gap.waits = static_cast<int32_t>(now.usage.ru_nvcsw - last_.usage.ru_nvcsw);
      gap.preemptions = static_cast<int32_t>(now.usage.ru_nivcsw - last_.usage.ru_nivcsw);
    }
    gap.rows = static_cast<int32_t>(rows.size());
    for (const BatchRow& row : rows) {
      gap.prefill_rows += row.tokens.size() > 1;
      gap.started += row.start == 0;
    }
  }

  Recording* const recording_;
  int64_t step_ = 0;
  NullBackend inner_;
  ThreadState last_;
};

[[noreturn]] void RunUntilKilled() {
  for (;;) pause();
}

// Writes one message to each of its streams when told to.
class PacedReactor final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  class Set {
   public:
    void Add(PacedReactor* reactor) {
      std::lock_guard<std::mutex> lock(mu_);
      reactors_.insert(reactor);
    }
    void Remove(PacedReactor* reactor) {
      std::lock_guard<std::mutex> lock(mu_);
      reactors_.erase(reactor);
    }
    // True if there were any.
    bool WriteAll(int32_t token) {
      std::lock_guard<std::mutex> lock(mu_);
      for (PacedReactor* reactor : reactors_) reactor->Write(token);
      return !reactors_.empty();
    }

   private:
    std::mutex mu_;
    std::unordered_set<PacedReactor*> reactors_;
  };

  PacedReactor(Set* set, int32_t tokens) : set_(set), left_(tokens) {
    StartSendInitialMetadata();
    set_->Add(this);
  }
  void Write(int32_t token) {
    if (writing_.exchange(true)) return;
    v1::Delta* delta = message_.mutable_delta();
    delta->Clear();
    delta->set_text(" word");
    delta->set_num_tokens(1);
    delta->add_token_ids(token);
    StartWrite(&message_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok || --left_ == 0) {
      set_->Remove(this);
      Finish(ok ? grpc::Status::OK : grpc::Status::CANCELLED);
      return;
    }
    writing_ = false;
  }
  void OnDone() override { delete this; }

 private:
  Set* const set_;
  int32_t left_;
  std::atomic<bool> writing_{false};
  v1::GenerateResponse message_;
};

class PacedService final : public v1::Inference::CallbackService {
 public:
  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext*,
                                                           const v1::GenerateRequest* request) override {
    return new PacedReactor(&reactors, request->stopping().max_tokens());
  }
  PacedReactor::Set reactors;
};

}  // namespace

int64_t MonotonicNanos() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return Nanos(time);
}

Recording* Recording::Create() {
  void* memory = mmap(nullptr, sizeof(Recording), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  return new (memory) Recording;
}

StepTokens StepTokensOf(const std::string& tokenizer_directory) {
  const auto tokenizer = Tokenizer::Load(tokenizer_directory);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
    std::exit(1);
  }
  // The longest run of ordinary tokens.
  StepTokens best, run;
  for (int32_t id = 0; id < (*tokenizer)->vocab_size(); ++id) {
    if ((*tokenizer)->IsSpecial(id)) {
      run = {id + 1, 0};
    } else if (++run.count > best.count) {
      best = run;
    }
  }
  return best;
}

ChildProcess::ChildProcess(const std::function<int()>& main) {
  std::fflush(nullptr);
  pid_ = fork();
  if (pid_ < 0) {
    std::perror("fork");
    std::exit(1);
  }
  if (pid_ > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  _exit(main());
}

ChildProcess::~ChildProcess() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

int WaitForPort(const Recording& recording) {
  for (int i = 0; i < 2000; ++i) {
    if (recording.port != 0) return recording.port;
    absl::SleepFor(absl::Milliseconds(10));
  }
  std::fprintf(stderr, "the server did not start\n");
  std::exit(1);
}

int RunRecordedServer(const RecordedServerOptions& options, Recording* recording) {
  const auto tokenizer = Tokenizer::Load(options.tokenizer);
  if (!tokenizer.ok()) return 1;
  const StepTokens tokens = StepTokensOf(options.tokenizer);

  NullBackendConfig null;
  null.vocab_size = (*tokenizer)->vocab_size();
  null.max_context = kMaxContext;
  null.step_time = options.step_time;
  auto backend = std::make_unique<RecordingBackend>(null, recording, tokens);
  EngineConfig config;
  config.scheduler.num_blocks = options.num_blocks;
  config.scheduler.max_running = options.max_running;
  config.scheduler.max_context = kMaxContext;
  config.max_queued_sequences = 1 << 20;
  config.max_queued_tokens = int64_t{1} << 40;
  if (!backend->AllocateKvCache({options.num_blocks, config.scheduler.block_size}).ok()) return 1;

  const std::unique_ptr<Metrics> metrics = *Metrics::Create({});
  Engine engine(config, std::move(backend), *tokenizer, metrics.get());
  engine.Start();
  RpcServerOptions rpc_options;
  rpc_options.listen = "127.0.0.1:0";
  rpc_options.max_concurrent_streams = 1 << 20;
  auto rpc = RpcServer::Start(rpc_options, metrics.get());
  if (!rpc.ok()) return 1;
  ServedModel model;
  model.info.set_name("null");
  model.info.set_vocab_size((*tokenizer)->vocab_size());
  model.info.set_max_context(kMaxContext);
  model.tokenizer = *tokenizer;
  (*rpc)->Serve(std::move(model), &engine);
  const auto endpoint = MetricsEndpoint::Start(
      "127.0.0.1:0", metrics.get(), {[&] { return (*rpc)->ready(); }, [&] { return (*rpc)->alive(); }});
  if (!endpoint.ok()) return 1;
  recording->metrics_port = (*endpoint)->port();
  recording->port = (*rpc)->port();
  RunUntilKilled();
}

int RunBarePacedServer(const RecordedServerOptions& options, Recording* recording) {
  PacedService service;
  const StepTokens tokens = StepTokensOf(options.tokenizer);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  recording->port = port;
  for (int64_t step = 0; step < Recording::kMaxSteps;) {
    absl::SleepFor(options.step_time);
    recording->step_end[step] = MonotonicNanos();
    if (!service.reactors.WriteAll(tokens.first + static_cast<int32_t>(step % tokens.count))) continue;
    recording->steps.store(++step, std::memory_order_release);
  }
  RunUntilKilled();
}

}  // namespace tessera::bench
