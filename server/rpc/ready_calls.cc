#include "server/rpc/ready_calls.h"

#include <pthread.h>

#include <utility>

namespace tessera {

ReadyCalls::ReadyCalls(int num_threads) {
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this] { Run(); });
    pthread_setname_np(threads_.back().native_handle(), "rpc-write");
  }
}

ReadyCalls::~ReadyCalls() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ReadyCalls::Push(std::shared_ptr<ReadyCall> call) {
  bool wake = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    queue_.push_back(std::move(call));
    wake = sleeping_ > 0;
    if (wake) {
      --sleeping_;
      ++woken_;
    }
  }
  if (wake) work_.notify_one();
}

void ReadyCalls::Run() {
  std::unique_lock<std::mutex> lock(mu_);
  for (;;) {
    if (queue_.empty()) {
      if (stop_) return;
      ++sleeping_;
      work_.wait(lock, [this] { return woken_ > 0 || stop_; });
      if (woken_ > 0) --woken_;
      continue;
    }
    std::shared_ptr<ReadyCall> call = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    call->Answer();
    call = nullptr;
    lock.lock();
  }
}

}  // namespace tessera
