#ifndef TESSERA_CLIENT_CLI_PERPLEXITY_H_
#define TESSERA_CLIENT_CLI_PERPLEXITY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::cli {

struct PerplexityOptions {
  int32_t context = 512;                                     // tokens of a window
  int64_t max_tokens = 0;                                    // of the text that are scored at most; 0 for all
  int num_threads = 0;                                       // 0 for one a core
  std::function<void(int64_t done, int64_t total)> loading;  // bytes
  std::function<void(int64_t done, int64_t total)> scoring;  // tokens
  std::function<bool()> cancelled;
};

// How well a checkpoint predicts a text.
struct Perplexity {
  std::string formats;  // of its weights: "NVFP4 + BF16"
  int64_t weight_bytes = 0;
  std::vector<int32_t> tokens;   // those that were scored
  std::vector<float> logprobs;   // of each, natural
  std::vector<int32_t> choices;  // the likeliest token in each one's place
  int64_t bytes = 0;             // of text that they stand for
  double seconds = 0;            // of computing

  double MeanNll() const;           // natural logarithms a token
  double Value() const;             // e to that
  double BitsPerByte() const;       // comparable between tokenisers
  double FirstChoiceShare() const;  // tokens that were the likeliest
};

// Runs the checkpoint in `dir` on the CPU, as the server does, over `text` cut into windows that do not overlap, each
// begun with the model's BOS token if it has one. The first token of a window without one is not scored. Errors are
// those of the checkpoint, the tokeniser and the backend; INVALID_ARGUMENT for a text of fewer than two tokens.
absl::StatusOr<Perplexity> MeasurePerplexity(const std::string& dir, absl::string_view text,
                                             const PerplexityOptions& options);

// The second checkpoint against the first, token by token; both must have scored the same tokens.
struct PerplexityDifference {
  double nll = 0;          // mean of second - first
  double nll_error = 0;    // standard error of that mean
  double same_choice = 0;  // share of places where both find the same token likeliest
};
PerplexityDifference Compare(const Perplexity& first, const Perplexity& second);

// Standard error of MeanNll().
double NllError(const Perplexity& perplexity);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_PERPLEXITY_H_
