#include "kernels/cpu/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <limits>

namespace tessera::cpu {
namespace {

// How long a worker looks for the next job before it sleeps: longer than the gap between two kernels of a
// step, shorter than anyone would notice on an idle machine.
constexpr auto kSpinTime = std::chrono::microseconds(60);
constexpr int kSpinsPerClockRead = 32;
// How often the caller looks for the last indices to finish before it lets others run.
constexpr int kSpinsBeforeYield = 2000;

thread_local bool inside_parallel_for = false;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr uint32_t Generation(uint64_t ticket) { return static_cast<uint32_t>(ticket >> 32); }
constexpr uint32_t NextIndex(uint64_t ticket) { return static_cast<uint32_t>(ticket); }
constexpr uint64_t MakeTicket(uint32_t generation, uint32_t next) {
  return static_cast<uint64_t>(generation) << 32 | next;
}
// Next index of a job that takes no more claims.
constexpr uint32_t kClosed = std::numeric_limits<uint32_t>::max();

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(std::max(1, num_threads)) {
  ticket_.store(MakeTicket(0, kClosed));
  threads_.reserve(num_threads_ - 1);
  for (int i = 1; i < num_threads_; ++i) threads_.emplace_back([this] { WorkerLoop(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(sleep_mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(int64_t count, void* context, Invoke invoke) {
  if (count <= 0) return;
  if (threads_.empty() || count == 1 || inside_parallel_for) {
    for (int64_t i = 0; i < count; ++i) invoke(context, i);
    return;
  }
  std::lock_guard run_lock(run_mutex_);
  inside_parallel_for = true;
  // The previous job is closed before the fields change. That its indices are all taken is not enough: a worker
  // that still looks at its ticket could read the new count, find it larger, and claim an index past its end.
  // Whoever reads a new field sees the closed ticket too (release and acquire), so that its claim fails.
  const uint32_t previous = Generation(ticket_.load(std::memory_order_relaxed));
  const uint32_t generation = previous + 1;
  ticket_.store(MakeTicket(previous, kClosed), std::memory_order_seq_cst);
  finished_.store(0, std::memory_order_relaxed);
  count_.store(static_cast<uint32_t>(count), std::memory_order_release);
  context_.store(context, std::memory_order_release);
  invoke_.store(invoke, std::memory_order_release);
  ticket_.store(MakeTicket(generation, 0), std::memory_order_seq_cst);
  // Either this sees the sleeper, or the sleeper, which counts itself first, sees the ticket.
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    { std::lock_guard lock(sleep_mutex_); }
    wake_.notify_all();
  }
  Drain(generation);
  for (int spins = 0; finished_.load(std::memory_order_acquire) != static_cast<uint32_t>(count); ++spins) {
    if (spins < kSpinsBeforeYield) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
  inside_parallel_for = false;
}

void ThreadPool::Drain(uint32_t generation) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (Generation(ticket) == generation && NextIndex(ticket) != kClosed) {
    const uint32_t index = NextIndex(ticket);
    const uint32_t count = count_.load(std::memory_order_acquire);
    void* context = context_.load(std::memory_order_acquire);
    const Invoke invoke = invoke_.load(std::memory_order_acquire);
    if (index >= count) return;
    const uint64_t claimed = MakeTicket(generation, index + 1);
    if (!ticket_.compare_exchange_weak(ticket, claimed, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    invoke(context, index);
    finished_.fetch_add(1, std::memory_order_acq_rel);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::WorkerLoop() {
  inside_parallel_for = true;
  uint32_t seen = 0;
  while (true) {
    auto deadline = std::chrono::steady_clock::now() + kSpinTime;
    for (int spins = 1; Generation(ticket_.load(std::memory_order_acquire)) == seen; ++spins) {
      if (stop_.load(std::memory_order_relaxed)) return;
      Pause();
      if (spins % kSpinsPerClockRead != 0 || std::chrono::steady_clock::now() < deadline) continue;
      std::unique_lock lock(sleep_mutex_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] {
        return stop_.load(std::memory_order_relaxed) ||
               Generation(ticket_.load(std::memory_order_seq_cst)) != seen;
      });
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
      break;
    }
    if (stop_.load(std::memory_order_relaxed)) return;
    seen = Generation(ticket_.load(std::memory_order_acquire));
    Drain(seen);
  }
}

}  // namespace tessera::cpu
