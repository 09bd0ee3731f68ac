#ifndef TESSERA_SERVER_RPC_WORKER_POOL_H_
#define TESSERA_SERVER_RPC_WORKER_POOL_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tessera {

// A few threads with one queue, for work that gRPC's callback threads must not do.
class WorkerPool {
 public:
  // `name` shows in thread listings (at most 15 bytes). `max_queued` bounds the tasks waiting.
  WorkerPool(const std::string& name, int num_threads, size_t max_queued);
  // Runs what is queued, then joins.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False, and `task` is dropped, if the queue is full.
  [[nodiscard]] bool TrySubmit(std::function<void()> task);

 private:
  void Run();

  const size_t max_queued_;
  std::mutex mu_;  // guards what follows
  std::condition_variable work_;
  std::deque<std::function<void()>> queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_WORKER_POOL_H_
