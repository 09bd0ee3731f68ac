#ifndef TESSERA_TESTS_BENCH_SERVER_RECORDED_SERVER_H_
#define TESSERA_TESTS_BENCH_SERVER_RECORDED_SERVER_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"

namespace tessera::bench {

// Of this machine, the same clock in all processes.
int64_t MonotonicNanos();

// What the host did between two steps of the device: from the end of one Run to the beginning of the next.
struct StepGap {
  int64_t wall_nanos = 0;
  int64_t cpu_nanos = 0;  // of the engine's thread
  int32_t page_faults = 0;
  int32_t waits = 0;        // the thread gave the processor up: a lock, a wake-up, sleep
  int32_t preemptions = 0;  // it was taken away
  int32_t rows = 0;         // of the step that follows
  int32_t prefill_rows = 0;
  int32_t started = 0;  // rows that begin at position 0 or behind a cached prefix
};

// Shared by the server's process and the client's.
struct Recording {
  static constexpr int64_t kMaxSteps = 1 << 18;
  std::atomic<int32_t> port{0}, metrics_port{0};
  std::atomic<int64_t> steps{0};  // that have ended
  int64_t step_end[kMaxSteps];    // MonotonicNanos
  StepGap gaps[kMaxSteps];        // before the step of this number

  // In memory that a fork leaves in common; never freed.
  static Recording* Create();
};

struct RecordedServerOptions {
  std::string tokenizer;     // directory
  absl::Duration step_time;  // that the device takes for a step, slept
  int32_t max_running = 256;
  int32_t num_blocks = 16384;
};

// The vocabulary from which a RecordedServer answers, in order: the token drawn in step number s is ids[s % size].
struct StepTokens {
  int32_t first = 0;
  int32_t count = 0;
};
StepTokens StepTokensOf(const std::string& tokenizer_directory);

// A process of its own, killed at this object's end or its parent's. To be started before the caller has threads.
class ChildProcess {
 public:
  // `main` gives an exit code if it returns.
  explicit ChildProcess(const std::function<int()>& main);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

// In the child: tessera's whole server over the null backend. Each token tells its step; each step's end, and what the
// engine's thread did since the one before, is recorded. Returns if it can't start.
int RunRecordedServer(const RecordedServerOptions& options, Recording* recording);

// In the child: nothing but gRPC. After each step_time, for every open Generate call whose last write is done, one message
// of one token, prepared; the "step's end" is when the loop over the calls begins.
int RunBarePacedServer(const RecordedServerOptions& options, Recording* recording);

// In the parent: the port, once the child listens; ends the program if it does not.
int WaitForPort(const Recording& recording);

}  // namespace tessera::bench

#endif  // TESSERA_TESTS_BENCH_SERVER_RECORDED_SERVER_H_
