#ifndef TESSERA_SERVER_METRICS_HISTOGRAM_H_
#define TESSERA_SERVER_METRICS_HISTOGRAM_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "prometheus/client_metric.h"

namespace tessera {

// A histogram that takes no lock: prometheus-cpp's own takes a mutex an observation, and the engine observes once a
// token. A snapshot derives its count from the buckets it read, so cumulative counts never contradict each other; the
// sum may be one observation ahead or behind.
class AtomicHistogram {
 public:
  // `bounds`: strictly increasing upper bounds, inclusive; one more bucket takes the rest.
  explicit AtomicHistogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(new std::atomic<uint64_t>[bounds_.size() + 1]()) {}

  void Observe(double value) {
    const size_t bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
    counts_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
  }

  prometheus::ClientMetric::Histogram Snapshot() const {
    prometheus::ClientMetric::Histogram out;
    out.bucket.reserve(bounds_.size());
    uint64_t cumulative = 0;
    for (size_t i = 0; i < bounds_.size(); ++i) {
      cumulative += counts_[i].load(std::memory_order_relaxed);
      out.bucket.push_back({cumulative, bounds_[i]});
    }
    out.sample_count = cumulative + counts_[bounds_.size()].load(std::memory_order_relaxed);
    out.sample_sum = sum_.load(std::memory_order_relaxed);
    return out;
  }

 private:
  const std::vector<double> bounds_;
  const std::unique_ptr<std::atomic<uint64_t>[]> counts_;
  std::atomic<double> sum_{0.0};
};

}  // namespace tessera

#endif  // TESSERA_SERVER_METRICS_HISTOGRAM_H_
