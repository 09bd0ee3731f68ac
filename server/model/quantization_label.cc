#include "server/model/quantization_label.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/model/safetensors_header.h"

namespace tessera {
namespace {

// '*' stands for any run of characters. Linear in the product of the lengths at worst, whatever the pattern.
bool MatchesWildcard(absl::string_view pattern, absl::string_view text) {
  size_t p = 0, t = 0, star = absl::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool Quantized(WeightFormat format) {
  return format == WeightFormat::kNvfp4 || format == WeightFormat::kMxfp4 || format == WeightFormat::kFp8;
}

// A list of exclusions, quick to ask: some have a thousand entries, and models have a hundred thousand matrices.
class Exclusions {
 public:
  explicit Exclusions(const std::vector<std::string>& patterns) {
    constexpr size_t kMostWildcards = 64, kLongestWildcard = 1024;  // no real list has as many, or as long
    for (const std::string& pattern : patterns) {
      if (pattern.find('*') == std::string::npos) {
        names_.insert(pattern);
      } else if (wildcards_.size() < kMostWildcards && pattern.size() <= kLongestWildcard) {
        wildcards_.push_back(pattern);
      }
    }
  }

  bool Cover(const std::string& name) const {
    for (size_t end = name.size(); end != std::string::npos && end > 0; end = name.rfind('.', end - 1)) {
      if (names_.count(name.substr(0, end)) > 0) return true;
    }
    return std::any_of(wildcards_.begin(), wildcards_.end(),
                       [&](const std::string& pattern) { return CoversModule(pattern, name); });
  }

 private:
  std::set<std::string> names_;
  std::vector<std::string> wildcards_;
};

template <typename Fn>
void ForEachMatrix(const ModelWeights& weights, Fn fn) {
  const auto each = [&](const LinearWeights& matrix) {
    if (matrix.present()) fn(matrix);
  };
  const auto expert = [&](const ExpertWeights& expert) {
    each(expert.gate);
    each(expert.up);
    each(expert.down);
  };
  each(weights.lm_head);
  for (const LayerWeights& layer : weights.layers) {
    for (const LinearWeights* matrix :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.q_a, &layer.kv_a, &layer.kv_b, &layer.router}) {
      each(*matrix);
    }
    for (const ExpertWeights& one : layer.experts) expert(one);
    expert(layer.shared_expert);
  }
}

}  // namespace

bool CoversModule(absl::string_view pattern, absl::string_view name) {
  if (pattern.empty() || absl::StartsWith(pattern, "re:")) return false;
  if (pattern.find('*') != absl::string_view::npos) return MatchesWildcard(pattern, name);
  return name == pattern || (absl::StartsWith(name, pattern) && name[pattern.size()] == '.');
}

std::vector<std::string> CompareWithLabel(const QuantizationHint& label, const ModelWeights& weights) {
  std::vector<std::string> warnings;
  int64_t quantized = 0, excluded = 0, activations = 0;
  std::string first;
  const Exclusions exclusions(label.excluded);
  ForEachMatrix(weights, [&](const LinearWeights& matrix) {
    if (!Quantized(matrix.format)) return;
    ++quantized;
    activations += matrix.input_scale > 0;
    if (exclusions.Cover(matrix.name) && excluded++ == 0) first = matrix.name;
  });
  const bool labelled = !label.method.empty() || !label.algorithm.empty();
  if (labelled != (quantized > 0)) {
    warnings.push_back(labelled ? absl::StrCat("the configuration says quantised (", Printable(label.method),
                                               " ", Printable(label.algorithm), "), but no tensor is")
                                : "tensors are quantised, though the configuration does not say so");
  }
  if (excluded > 0) {
    warnings.push_back(absl::StrCat(excluded,
                                    " matrices are quantised though the configuration excludes them, the ",
                                    "first is \"", Printable(first), "\""));
  }
  if (label.algorithm == "NVFP4" && quantized > 0 && activations == 0) {
    warnings.push_back(
        "labelled NVFP4, whose activations are quantised too, but there are no input scales: weights only");
  }
  return warnings;
}

}  // namespace tessera
