#ifndef TESSERA_SERVER_RPC_WORKER_POOL_H_
#define TESSERA_SERVER_RPC_WORKER_POOL_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tessera {

// A few threads with one queue, for work that gRPC's callback threads must not do.
//
// Small tasks do not wait for large ones: a task is due some time after it comes, in proportion to its size, and what is
// due first goes first. So a small one overtakes, and a large one is overtaken for a bounded time only. One thread, if
// there are several, is kept from large tasks altogether.
class WorkerPool {
 public:
  struct Options {
    std::string name;  // shows in thread listings (at most 15 bytes)
    int num_threads = 1;
    size_t max_queued = SIZE_MAX;          // tasks waiting
    double bytes_per_second = 256 * 1024;  // a task of this size is due a second after it came
    size_t large_bytes = 64 * 1024;        // tasks from this size on are large
  };
  explicit WorkerPool(const Options& options);
  // Runs what is queued, then joins.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // `bytes`: the size of what the task works on. False, and `task` is dropped, if the queue is full.
  [[nodiscard]] bool TrySubmit(std::function<void()> task, size_t bytes = 0);

 private:
  using Clock = std::chrono::steady_clock;
  // By the time at which a task is due; equals are first come, first served.
  using Queue = std::map<std::pair<Clock::time_point, uint64_t>, std::function<void()>>;

  void Run();
  // The queue whose first task is to be run next; null if there is none that may run now.
  Queue* Next();

  const Options options_;
  const int max_running_large_;
  std::mutex mu_;  // guards what follows
  std::condition_variable work_;
  Queue small_, large_;
  uint64_t submitted_ = 0;
  int running_large_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_WORKER_POOL_H_
