#ifndef TESSERA_SERVER_ENGINE_HEARTBEAT_H_
#define TESSERA_SERVER_ENGINE_HEARTBEAT_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace tessera {

// Tells from outside whether a loop still turns. The loop says when it begins a round and when it goes to sleep; who
// asks never waits for it.
class Heartbeat {
 public:
  void Start() { alive_.store(true, std::memory_order_release); }
  // The loop has ended, or turns for nothing because what it drives is broken.
  void Stop() { alive_.store(false, std::memory_order_release); }
  void BeginRound(absl::Time now) { round_.store(absl::ToUnixNanos(now), std::memory_order_release); }
  void Sleep() { round_.store(kAsleep, std::memory_order_release); }

  // Alive, and asleep or in a round that has not taken longer than `limit`.
  bool Healthy(absl::Time now, absl::Duration limit) const {
    if (!alive_.load(std::memory_order_acquire)) return false;
    const int64_t began = round_.load(std::memory_order_acquire);
    return began == kAsleep || now - absl::FromUnixNanos(began) <= limit;
  }

 private:
  static constexpr int64_t kAsleep = INT64_MIN;
  std::atomic<bool> alive_{false};
  std::atomic<int64_t> round_{kAsleep};
};

}  // namespace tessera

#endif  // TESSERA_SERVER_ENGINE_HEARTBEAT_H_
