#include "server/sampling/pooler.h"

#include <algorithm>
#include <cmath>

namespace tessera {

Pooler::Pooler(PoolingKind kind, int32_t hidden_size, int32_t num_tokens)
    : kind_(kind), num_tokens_(num_tokens), state_(hidden_size, 0.0) {}

void Pooler::Add(int32_t position, absl::Span<const float> hidden) {
  if (position == 0) {  // the start, or a start over after a preemption
    next_position_ = 0;
    std::fill(state_.begin(), state_.end(), 0.0);
  }
  if (position != next_position_ || hidden.size() != state_.size()) return;  // stays incomplete
  ++next_position_;
  switch (kind_) {
    case PoolingKind::kMean:
      for (size_t i = 0; i < hidden.size(); ++i) state_[i] += hidden[i];
      break;
    case PoolingKind::kCls:
      if (position == 0) std::copy(hidden.begin(), hidden.end(), state_.begin());
      break;
    case PoolingKind::kLast:
      if (complete()) std::copy(hidden.begin(), hidden.end(), state_.begin());
      break;
  }
}

std::vector<float> Pooler::Result(bool normalize) const {
  double scale = kind_ == PoolingKind::kMean ? 1.0 / num_tokens_ : 1.0;
  if (normalize) {
    double squares = 0.0;
    for (double value : state_) squares += value * value;
    scale = squares > 0.0 ? 1.0 / std::sqrt(squares) : 0.0;
  }
  std::vector<float> result(state_.size());
  for (size_t i = 0; i < state_.size(); ++i) result[i] = static_cast<float>(state_[i] * scale);
  return result;
}

}  // namespace tessera
