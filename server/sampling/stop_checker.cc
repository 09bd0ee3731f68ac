#include "server/sampling/stop_checker.h"

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

std::vector<int32_t> Sorted(absl::Span<const int32_t> ids) {
  std::vector<int32_t> sorted(ids.begin(), ids.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

bool Contains(const std::vector<int32_t>& sorted, int32_t id) {
  return std::binary_search(sorted.begin(), sorted.end(), id);
}

}  // namespace

StopRules::StopRules(const StoppingParams& params, absl::Span<const int32_t> eos_token_ids)
    : stop_(Sorted(params.stop_token_ids)),
      include_stop_(params.include_stop),
      min_tokens_(params.min_tokens) {
  if (!params.ignore_eos) eos_ = Sorted(eos_token_ids);
  for (const std::string& text : params.stop_strings) {
    if (text.empty()) continue;
    Pattern pattern{text, std::vector<int32_t>(text.size() + 1, 0)};
    int32_t length = 0;
    for (size_t i = 1; i < text.size(); ++i) {
      while (length > 0 && text[i] != text[length]) length = pattern.fallback[length];
      if (text[i] == text[length]) ++length;
      pattern.fallback[i + 1] = length;
    }
    patterns_.push_back(std::move(pattern));
  }
}

StoppedBy StopRules::CheckToken(int32_t token) const {
  if (Contains(eos_, token)) return {StoppedBy::kEos, token, ""};
  if (Contains(stop_, token)) return {StoppedBy::kStopToken, token, ""};
  return {};
}

std::vector<int32_t> StopRules::EndingTokens() const {
  std::vector<int32_t> tokens = eos_;
  tokens.insert(tokens.end(), stop_.begin(), stop_.end());
  return tokens;
}

StopStringFilter::StopStringFilter(std::shared_ptr<const StopRules> rules)
    : rules_(std::move(rules)), matched_(rules_->patterns_.size(), 0) {}

const std::string* StopStringFilter::Append(absl::string_view piece, bool armed, std::string* out) {
  if (matched_.empty()) {
    out->append(piece.data(), piece.size());
    return nullptr;
  }
  for (char byte : piece) {
    held_.push_back(byte);
    const StopRules::Pattern* complete = nullptr;
    int32_t keep = 0;
    for (size_t p = 0; p < matched_.size(); ++p) {
      const StopRules::Pattern& pattern = rules_->patterns_[p];
      int32_t length = matched_[p];
      while (length > 0 && pattern.text[length] != byte) length = pattern.fallback[length];
      if (pattern.text[length] == byte) ++length;
      if (length == static_cast<int32_t>(pattern.text.size())) {
        if (complete == nullptr || pattern.text.size() > complete->text.size()) complete = &pattern;
        length = pattern.fallback[length];
      }
      matched_[p] = length;
      keep = std::max(keep, length);
    }
    if (complete != nullptr && armed) {
      const size_t cut = rules_->include_stop_ ? 0 : complete->text.size();
      out->append(held_, 0, held_.size() - cut);
      held_.clear();
      return &complete->text;
    }
    // Bytes before the longest live match are certain. They leave in one piece below, unless many gathered.
    if (held_.size() - keep > 256) {
      out->append(held_, 0, held_.size() - keep);
      held_.erase(0, held_.size() - keep);
    }
  }
  const int32_t keep = *std::max_element(matched_.begin(), matched_.end());
  out->append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return nullptr;
}

void StopStringFilter::Flush(std::string* out) {
  out->append(held_);
  held_.clear();
}

}  // namespace tessera
