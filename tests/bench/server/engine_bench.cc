// What the engine's thread costs a step, and how long a device waits for it: an engine over a device without a model that
// takes a given time a step, with and without steps started ahead.
//
//   engine_bench [--streams=N] [--step-us=N] [--tokens=N]
//
// Prints, per step: the time, the part of it that the device waited, and the processor time of the engine's thread, of
// which the null backend's own arithmetic is told apart. Goal: under 100 us a step at 64 streams without that.

#include <time.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "server/backend/null/null_backend.h"
#include "server/engine/engine.h"
#include "server/metrics/metrics.h"

namespace tessera {
namespace {

struct Options {
  int32_t streams = 64;
  int32_t step_us = 400;
  int32_t tokens = 500;
};

double CpuMicroseconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

// The null backend, with the time that it computes on the engine's thread counted.
class TimedBackend : public NullBackend {
 public:
  using NullBackend::NullBackend;
  absl::Status Finish() override {
    const double begin = CpuMicroseconds();
    const absl::Status status = NullBackend::Finish();
    own += CpuMicroseconds() - begin;
    return status;
  }
  double own = 0;
};

double Metric(const Metrics& metrics, const std::string& name) {
  double value = 0;
  for (absl::string_view line : absl::StrSplit(metrics.Expose(), '\n')) {
    if (absl::ConsumePrefix(&line, absl::StrCat(name, " ")) && absl::SimpleAtod(line, &value)) break;
  }
  return value;
}

void Run(const Options& options, bool ahead) {
  double first_cpu = 0, last_cpu = 0, first_own = 0, last_own = 0;
  absl::Time first, last;
  int64_t steps = 0;
  TimedBackend* timed = nullptr;
  NullBackendConfig backend_config;
  backend_config.overlaps = true;
  backend_config.step_time = absl::Microseconds(options.step_us);
  backend_config.max_context = 4096;
  backend_config.before_run = [&](absl::Span<const BatchRow> rows) {
    if (rows.size() != static_cast<size_t>(options.streams) || rows.back().tokens.size() != 1) return absl::OkStatus();
    last_cpu = CpuMicroseconds();
    last_own = timed->own;
    last = absl::Now();
    if (steps++ == 0) first_cpu = last_cpu, first_own = last_own, first = last;
    return absl::OkStatus();
  };
  auto backend = std::make_unique<TimedBackend>(backend_config);
  timed = backend.get();
  const KvCacheConfig cache = {options.streams * 256, 16};
  if (!backend->AllocateKvCache(cache).ok()) return;
  EngineConfig config;
  config.scheduler.num_blocks = cache.num_blocks;
  config.scheduler.max_running = options.streams;
  config.scheduler.max_batched_tokens = 4096;
  config.run_ahead = ahead;
  auto metrics = *Metrics::Create({});
  auto engine = std::make_unique<Engine>(config, std::move(backend), nullptr, metrics.get());
  std::vector<std::shared_ptr<RequestStream>> streams;
  for (int32_t i = 0; i < options.streams; ++i) {
    GenerateSpec spec;
    spec.request_id = absl::StrCat(i);
    for (int32_t t = 0; t < 32; ++t) spec.prompt.push_back((i * 37 + t * 11) % 30000);
    spec.sampling.temperature = 0;
    spec.stopping.max_tokens = options.tokens;
    streams.push_back(*engine->Generate(std::move(spec), [] {}));
  }
  engine->Start();
  std::vector<RequestEvent> events;
  const auto live = [&] {
    const SchedulerStats stats = engine->Load().scheduler;
    return stats.running + stats.waiting;
  };
  while (live() > 0) {
    for (const auto& stream : streams) stream->Take(&events);
    absl::SleepFor(absl::Milliseconds(5));
  }
  const double n = static_cast<double>(steps - 1);
  const double own = (last_own - first_own) / n;
  std::printf("%-7s %4d streams  %6.1f us a step, device busy %d  waits %5.1f  plan %5.1f  engine thread %5.1f + null %5.1f\n",
              ahead ? "ahead" : "behind", options.streams, absl::ToDoubleMicroseconds(last - first) / n,
              options.step_us, 1e6 * Metric(*metrics, "tessera_step_device_idle_seconds_sum") / n,
              1e6 * Metric(*metrics, "tessera_step_seconds_sum{phase=\"plan\"}") / n,
              (last_cpu - first_cpu) / n - own, own);
  engine.reset();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::Options options;
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    const bool known =
        (absl::ConsumePrefix(&arg, "--streams=") && absl::SimpleAtoi(arg, &options.streams)) ||
        (absl::ConsumePrefix(&arg, "--step-us=") && absl::SimpleAtoi(arg, &options.step_us)) ||
        (absl::ConsumePrefix(&arg, "--tokens=") && absl::SimpleAtoi(arg, &options.tokens));
    if (!known) return std::fprintf(stderr, "usage: engine_bench [--streams=N] [--step-us=N] [--tokens=N]\n"), 2;
  }
  for (const bool ahead : {false, true}) tessera::Run(options, ahead);
}
