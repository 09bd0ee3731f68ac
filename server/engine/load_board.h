#ifndef TESSERA_SERVER_ENGINE_LOAD_BOARD_H_
#define TESSERA_SERVER_ENGINE_LOAD_BOARD_H_

#include <atomic>
#include <cstdint>
#include <mutex>

#include "server/engine/rate_window.h"
#include "server/scheduler/scheduler.h"

namespace tessera {

// How busy the engine is: written by the engine thread, read by anyone without waiting for a step.
class LoadBoard {
 public:
  void SetStats(const SchedulerStats& stats) {
    std::lock_guard<std::mutex> lock(mu_);
    stats_ = stats;
  }
  SchedulerStats stats() const {
    std::lock_guard<std::mutex> lock(mu_);
    return stats_;
  }

  void OnPrefixLookup(int64_t looked_up, int64_t hits) {
    looked_up_.fetch_add(looked_up, std::memory_order_relaxed);
    hits_.fetch_add(hits, std::memory_order_relaxed);
  }
  double PrefixHitRate() const {
    const int64_t looked_up = looked_up_.load(std::memory_order_relaxed);
    return looked_up == 0 ? 0.0 : static_cast<double>(hits_.load(std::memory_order_relaxed)) / looked_up;
  }

  RateWindow generated_tokens;
  RateWindow prompt_tokens;

 private:
  mutable std::mutex mu_;
  SchedulerStats stats_;
  std::atomic<int64_t> looked_up_{0}, hits_{0};
};

}  // namespace tessera

#endif  // TESSERA_SERVER_ENGINE_LOAD_BOARD_H_
