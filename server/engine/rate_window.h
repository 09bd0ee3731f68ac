#ifndef TESSERA_SERVER_ENGINE_RATE_WINDOW_H_
#define TESSERA_SERVER_ENGINE_RATE_WINDOW_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace tessera {

// Events a second over the last kWindowSeconds whole seconds, and the present one's share. One thread adds, any may
// read; neither waits.
class RateWindow {
 public:
  static constexpr int kWindowSeconds = 10;

  void Add(absl::Time now, int64_t count) {
    const int64_t second = absl::ToUnixSeconds(now);
    Slot& slot = slots_[Index(second)];
    if (slot.second.load(std::memory_order_relaxed) != second) {
      // A reader between the two stores sees an old count under an old second: out of its window either way.
      slot.count.store(0, std::memory_order_relaxed);
      slot.second.store(second, std::memory_order_release);
    }
    slot.count.fetch_add(count, std::memory_order_relaxed);
  }

  double PerSecond(absl::Time now) const {
    const int64_t second = absl::ToUnixSeconds(now);
    int64_t sum = 0;
    for (const Slot& slot : slots_) {
      const int64_t age = second - slot.second.load(std::memory_order_acquire);
      if (age >= 0 && age < kWindowSeconds) sum += slot.count.load(std::memory_order_relaxed);
    }
    const double covered = kWindowSeconds - 1 + absl::ToDoubleSeconds(now - absl::FromUnixSeconds(second));
    return static_cast<double>(sum) / covered;
  }

 private:
  struct Slot {
    std::atomic<int64_t> second{-1};
    std::atomic<int64_t> count{0};
  };
  static constexpr int kSlots = 16;
  static_assert(kSlots > kWindowSeconds);
  static size_t Index(int64_t second) { return static_cast<uint64_t>(second) % kSlots; }

  std::array<Slot, kSlots> slots_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_ENGINE_RATE_WINDOW_H_
