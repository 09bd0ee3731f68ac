// A small fork-join pool for kernels.
//
// ParallelFor hands indices 0..count-1 to the workers and to the caller, one at a time and in ascending
// order, and returns when all are done. A worker that has not woken yet is not waited for, so that on a busy
// machine the caller simply does more of the work itself. Workers spin for a short while after a job, for the
// next kernel is usually microseconds away, then sleep; an idle pool uses no processor time.
//
// Kernels write each output from exactly one index, with an order of operations that does not depend on who
// runs it; results are therefore the same for any number of threads.
#ifndef TESSERA_KERNELS_CPU_THREAD_POOL_H_
#define TESSERA_KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace tessera::cpu {

class ThreadPool {
 public:
  // num_threads counts the caller: a pool of 1 starts no thread. Values below 1 mean 1.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(index) for each index in [0, count), at most 2^31 - 1 of them. fn must not throw. Calls from
  // several threads take turns; a call from inside fn runs on the calling thread alone.
  template <typename Fn>
  void ParallelFor(int64_t count, Fn&& fn) {
    using Body = std::remove_reference_t<Fn>;
    Run(count, const_cast<void*>(static_cast<const void*>(&fn)),
        [](void* context, int64_t index) { (*static_cast<Body*>(context))(index); });
  }

 private:
  using Invoke = void (*)(void* context, int64_t index);

  void Run(int64_t count, void* context, Invoke invoke);
  void WorkerLoop();
  // Takes indices of the job whose generation is given until none is left.
  void Drain(uint32_t generation);

  const int num_threads_;
  std::vector<std::thread> threads_;
  std::mutex run_mutex_;  // one job at a time

  // The job. ticket_ is generation << 32 | next index. A worker reads the fields below it first and then
  // claims an index by compare-and-swap on the ticket, which fails if the job has changed meanwhile; a job
  // cannot change while a claimed index is unfinished, and its ticket is closed before the fields change. So a
  // claim proves that the fields read were its own.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<uint32_t> count_{0};
  std::atomic<void*> context_{nullptr};
  std::atomic<Invoke> invoke_{nullptr};
  alignas(64) std::atomic<uint32_t> finished_{0};

  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
};

}  // namespace tessera::cpu

#endif  // TESSERA_KERNELS_CPU_THREAD_POOL_H_
