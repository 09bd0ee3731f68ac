#include "server/rpc/worker_pool.h"

#include <pthread.h>

#include <algorithm>

namespace tessera {

WorkerPool::WorkerPool(const Options& options)
    : options_(options), max_running_large_(std::max(options.num_threads - 1, 1)) {
  for (int i = 0; i < options_.num_threads; ++i) {
    threads_.emplace_back([this] { Run(); });
    pthread_setname_np(threads_.back().native_handle(), options_.name.substr(0, 15).c_str());
  }
}

WorkerPool::~WorkerPool() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkerPool::TrySubmit(std::function<void()> task, size_t bytes) {
  const std::chrono::duration<double> delay(static_cast<double>(bytes) / options_.bytes_per_second);
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (small_.size() + large_.size() >= options_.max_queued) return false;
    const Clock::time_point due = Clock::now() + std::chrono::duration_cast<Clock::duration>(delay);
    Queue& queue = bytes >= options_.large_bytes ? large_ : small_;
    queue.emplace(std::pair(due, submitted_++), std::move(task));
  }
  work_.notify_one();
  return true;
}

WorkerPool::Queue* WorkerPool::Next() {
  const bool large_may_run = !large_.empty() && running_large_ < max_running_large_;
  if (small_.empty()) return large_may_run ? &large_ : nullptr;
  return large_may_run && large_.begin()->first < small_.begin()->first ? &large_ : &small_;
}

void WorkerPool::Run() {
  std::unique_lock<std::mutex> lock(mu_);
  for (;;) {
    Queue* queue = nullptr;
    work_.wait(lock, [&] {
      queue = Next();
      return queue != nullptr || (stop_ && small_.empty() && large_.empty());
    });
    if (queue == nullptr) return;
    std::function<void()> task = std::move(queue->begin()->second);
    queue->erase(queue->begin());
    const bool large = queue == &large_;
    if (large) ++running_large_;
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
    if (!large) continue;
    --running_large_;
    // A thread that was not allowed to take a large task may be now; at the end all look again.
    if (stop_) {
      work_.notify_all();
    } else {
      work_.notify_one();
    }
  }
}

}  // namespace tessera
