#include "server/sampling/sampler.h"

#include <algorithm>
#include <utility>

#include "server/sampling/logits.h"
#include "server/sampling/philox.h"

namespace tessera {

// Logits to draw from, dense or sparse, and the changes made to them. Edits touch few entries, so the raw distribution
// is restored for log-probabilities instead of copied.
class Sampler::Row {
 public:
  // `ids` empty: dense, the index is the token.
  Row(absl::Span<const int32_t> ids, absl::Span<float> logits, bool restorable)
      : ids_(ids), logits_(logits), restorable_(restorable) {}

  absl::Span<float> logits() const { return logits_; }
  int32_t TokenAt(int32_t index) const { return ids_.empty() ? index : ids_[index]; }

  // A token that the model does not have is left alone.
  void Update(const LogitEdit& edit) {
    int32_t index = edit.token;
    if (!ids_.empty()) {
      const auto it = std::lower_bound(ids_.begin(), ids_.end(), edit.token);
      if (it == ids_.end() || *it != edit.token) return;
      index = static_cast<int32_t>(it - ids_.begin());
    } else if (index < 0 || static_cast<size_t>(index) >= logits_.size()) {
      return;
    }
    if (restorable_) edits_.emplace_back(index, logits_[index]);
    logits_[index] = edit.Apply(logits_[index]);
    edited_ = true;
  }

  bool edited() const { return edited_; }
  void Restore() {
    for (auto it = edits_.rbegin(); it != edits_.rend(); ++it) logits_[it->first] = it->second;
    edits_.clear();
  }

 private:
  absl::Span<const int32_t> ids_;
  absl::Span<float> logits_;
  bool restorable_;
  bool edited_ = false;
  std::vector<std::pair<int32_t, float>> edits_;
};

Sampler::Sampler(SamplingParams params, absl::Span<const int32_t> prompt, std::vector<int32_t> barred,
                 int32_t min_tokens, int num_logprobs)
    : params_(std::move(params)),
      barred_(std::move(barred)),
      min_tokens_(min_tokens),
      num_logprobs_(num_logprobs) {
  std::sort(barred_.begin(), barred_.end());
  barred_.erase(std::unique(barred_.begin(), barred_.end()), barred_.end());
  if (params_.repetition_penalty != 1.0f) {
    prompt_tokens_.assign(prompt.begin(), prompt.end());
    std::sort(prompt_tokens_.begin(), prompt_tokens_.end());
    prompt_tokens_.erase(std::unique(prompt_tokens_.begin(), prompt_tokens_.end()), prompt_tokens_.end());
  }
}

absl::StatusOr<SampledToken> Sampler::Sample(absl::Span<float> logits) const {
  return SampleRow(Row({}, logits, num_logprobs_ >= 0));
}

absl::StatusOr<SampledToken> Sampler::SampleSparse(absl::Span<const int32_t> ids,
                                                   absl::Span<float> logits) const {
  return SampleRow(Row(ids, logits, num_logprobs_ >= 0));
}

absl::StatusOr<SampledToken> Sampler::SampleRow(Row row) const {
  const absl::StatusOr<LargestLogit> raw = FindLargest(row.logits());
  if (!raw.ok()) return raw.status();
  LargestLogit largest = *raw;
  thread_local std::vector<LogitEdit> edits;
  edits.clear();
  AppendEdits(&edits);
  for (const LogitEdit& edit : edits) row.Update(edit);
  if (row.edited()) {
    const absl::StatusOr<LargestLogit> edited = FindLargest(row.logits());
    if (!edited.ok()) return edited.status();
    largest = *edited;
  }
  const int32_t index = params_.temperature == 0.0f ? largest.index : Draw(row.logits(), largest.value);

  SampledToken sampled;
  sampled.token = row.TokenAt(index);
  if (num_logprobs_ >= 0) {
    row.Restore();
    sampled.logprobs = ComputeLogprobs(row.logits(), raw->value, index, num_logprobs_);
    sampled.logprobs.token.token = sampled.token;
    for (TokenLogprob& top : sampled.logprobs.top) top.token = row.TokenAt(top.token);
  }
  return sampled;
}

// In the order that types.proto fixes: bias, barred tokens, repetition, presence and frequency.
void Sampler::AppendEdits(std::vector<LogitEdit>* edits) const {
  for (const auto& [token, bias] : params_.logit_bias) edits->push_back({token, LogitEdit::kBias, bias});
  if (position_ < min_tokens_) {
    for (int32_t token : barred_) edits->push_back({token, LogitEdit::kBar, 0.0f});
  }
  if (params_.repetition_penalty != 1.0f) {
    const float penalty = params_.repetition_penalty;
    for (int32_t token : prompt_tokens_) edits->push_back({token, LogitEdit::kRepetition, penalty});
    for (const auto& [token, count] : output_counts_) {
      if (!std::binary_search(prompt_tokens_.begin(), prompt_tokens_.end(), token))
        edits->push_back({token, LogitEdit::kRepetition, penalty});
    }
  }
  if (params_.presence_penalty != 0.0f || params_.frequency_penalty != 0.0f) {
    for (const auto& [token, count] : output_counts_) {
      const float penalty = params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
      edits->push_back({token, LogitEdit::kPenalty, penalty});
    }
  }
}

double Sampler::Uniform() const { return UniformAt(params_.seed, static_cast<uint64_t>(position_)); }

// Temperature, top_k, top_p, min_p, draw. Tokens that are kept are walked by rising id, whichever way they were
// found, so a limit that removes nothing changes nothing.
int32_t Sampler::Draw(absl::Span<const float> logits, float largest) const {
  const double uniform = Uniform();
  const int32_t size = static_cast<int32_t>(logits.size());
  const bool limits_k = params_.top_k > 0 && params_.top_k < size;
  if (!limits_k && params_.top_p >= 1.0f) {
    return DrawFromAll(logits, largest, params_.temperature, params_.min_p, Cutoff{}, uniform);
  }

  thread_local std::vector<int32_t> kept;
  const auto weight = [&](int32_t index) { return LogitWeight(logits[index], largest, params_.temperature); };
  size_t count = 0;
  if (limits_k) {
    SelectTop(logits, params_.top_k, &kept);
    count = kept.size();
    if (params_.top_p < 1.0f) {
      double total = 0.0;
      for (int32_t index : kept) total += weight(index);
      const double target = params_.top_p * total;
      double sum = 0.0;
      count = 0;
      while (count < kept.size() && sum < target) sum += weight(kept[count++]);
    }
  } else {
    // The set is nearly always small: look among few tokens before binning all of them.
    constexpr int32_t kFew = 128;
    const double target = params_.top_p * SumOfExponentials(logits, largest, params_.temperature);
    double sum = 0.0;
    SelectTop(logits, kFew, &kept);
    while (count < kept.size() && sum < target) sum += weight(kept[count++]);
    if (sum < target && count < logits.size()) {
      const Cutoff cutoff = FindTopPCutoff(logits, largest, params_.temperature, params_.top_p);
      return DrawFromAll(logits, largest, params_.temperature, params_.min_p, cutoff, uniform);
    }
  }
  kept.resize(std::max<size_t>(count, 1));
  while (kept.size() > 1 && weight(kept.back()) < params_.min_p) kept.pop_back();

  std::sort(kept.begin(), kept.end());
  double total = 0.0;
  for (int32_t index : kept) total += weight(index);
  const double target = uniform * total;
  double sum = 0.0;
  int32_t last = kept.front();
  for (int32_t index : kept) {
    const float w = weight(index);
    if (w == 0.0f) continue;
    last = index;
    sum += w;
    if (sum > target) break;
  }
  return last;
}

void Sampler::Accept(int32_t token) {
  ++position_;
  if (params_.HasPenalties()) ++output_counts_[token];
}

}  // namespace tessera
