#ifndef TESSERA_SERVER_SAMPLING_STOP_CHECKER_H_
#define TESSERA_SERVER_SAMPLING_STOP_CHECKER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/sampling/sampling_params.h"

namespace tessera {

// What ended an output.
struct StoppedBy {
  enum Kind { kNone, kEos, kStopToken, kStopString } kind = kNone;
  int32_t token_id = -1;
  std::string stop_string;
};

// The stopping parameters of a request, prepared once and shared by its outputs. Immutable.
class StopRules {
 public:
  StopRules(const StoppingParams& params, absl::Span<const int32_t> eos_token_ids);

  // kNone if this token does not end an output.
  StoppedBy CheckToken(int32_t token) const;
  // Tokens that end an output: barred until min_tokens are out.
  std::vector<int32_t> EndingTokens() const;

  bool has_stop_strings() const { return !patterns_.empty(); }
  bool include_stop() const { return include_stop_; }
  int32_t min_tokens() const { return min_tokens_; }

 private:
  friend class StopStringFilter;
  // A stop string and its failure function (Knuth, Morris, Pratt): fallback[i] is the length of the longest proper
  // prefix that is a suffix of the first i bytes.
  struct Pattern {
    std::string text;
    std::vector<int32_t> fallback;
  };

  std::vector<int32_t> eos_;   // sorted; empty with ignore_eos
  std::vector<int32_t> stop_;  // sorted
  std::vector<Pattern> patterns_;
  bool include_stop_;
  int32_t min_tokens_;
};

// Cuts one output's text at the first stop string. Text goes in piece by piece and comes out as soon as it can no
// longer be the start of a stop string; what comes out in all is the same however the text was cut into pieces.
//
// "First" is the string that is complete first, byte by byte; of several complete at the same byte, the longest. If
// pieces are valid UTF-8 and the stop strings are, so is every piece that comes out.
class StopStringFilter {
 public:
  explicit StopStringFilter(std::shared_ptr<const StopRules> rules);

  // Appends to `out` what is certain. With `armed` false nothing stops (fewer than min_tokens tokens are out), but
  // a string that begins here may still be completed later. Returns the stop string that ended the text, or null;
  // after that nothing more may be added.
  const std::string* Append(absl::string_view piece, bool armed, std::string* out);

  // Releases what is held back: the output ended for another reason.
  void Flush(std::string* out);

 private:
  std::shared_ptr<const StopRules> rules_;
  std::vector<int32_t> matched_;  // of each pattern, the bytes that the text's end agrees with
  std::string held_;              // the longest of these
};

}  // namespace tessera

#endif  // TESSERA_SERVER_SAMPLING_STOP_CHECKER_H_
