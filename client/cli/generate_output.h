#ifndef TESSERA_CLIENT_CLI_GENERATE_OUTPUT_H_
#define TESSERA_CLIENT_CLI_GENERATE_OUTPUT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/cli/command.h"
#include "tessera/v1/inference.pb.h"

namespace tessera::cli {

// Shows the events of one Generate call as text. Output 0 appears as it arrives; of n > 1 the others are kept until
// those before them have ended, so that texts do not mix.
class TextPrinter {
 public:
  struct Options {
    int n = 1;
    bool logprobs = false;
    bool verbose = false;  // one line at the end with tokens and times, on standard error
  };
  explicit TextPrinter(Options options) : options_(options), start_(absl::Now()) {}

  // False when the output cannot be written any more.
  bool OnEvent(const v1::GenerateResponse& event);
  // After the stream ended: the line feed, log-probabilities, and what stopped the outputs if it was no ordinary end.
  // The exit code that the finish reasons ask for.
  int Finish();

  // The whole text of output 0.
  const std::string& text() { return outputs_[0].text; }

 private:
  struct Output {
    std::string text;
    size_t printed = 0;
    std::vector<v1::PositionLogprobs> logprobs;
    v1::Finished finished;
    bool ended = false;
  };

  bool Advance();
  void PrintSummary();

  const Options options_;
  const absl::Time start_;
  absl::Time first_token_ = absl::InfinitePast();
  std::map<int, Output> outputs_;
  std::vector<v1::PositionLogprobs> prompt_logprobs_;
  v1::Accepted accepted_;
  v1::Usage usage_;
  v1::Timings timings_;
  int current_ = 0;       // the output being shown
  bool heading_ = false;  // its heading was printed
  int messages_ = 0;
};

// A table of tokens with their log-probabilities and the most likely alternatives.
std::string LogprobTable(const std::vector<v1::PositionLogprobs>& positions);

// "stop", "length", ...
std::string FinishReasonName(v1::FinishReason reason);

// The exit code that finish reasons ask for: abort and error fail, deadline timed out.
int FinishExitCode(const v1::Finished& finished);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_GENERATE_OUTPUT_H_
