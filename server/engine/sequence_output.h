#ifndef TESSERA_SERVER_ENGINE_SEQUENCE_OUTPUT_H_
#define TESSERA_SERVER_ENGINE_SEQUENCE_OUTPUT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "server/engine/request.h"
#include "server/sampling/stop_checker.h"
#include "server/tokenizer/incremental_detokenizer.h"
#include "server/tokenizer/tokenizer.h"

namespace tessera {

// From the tokens of one output to its text and its end: detokeniser, stop tokens, stop strings, length. What comes
// out in all depends on the tokens alone.
class SequenceOutput {
 public:
  // `tokenizer` may be null: no text, and no stop strings in `rules`.
  SequenceOutput(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens,
                 std::shared_ptr<const StopRules> rules, int32_t max_tokens);

  // Takes the next token and appends to `text` what became certain: whole characters that cannot belong to a stop
  // string any more. Returns why the output ends with this token, if it does; then `text` is complete.
  std::optional<FinishReason> Append(int32_t token, std::string* text);

  // Ends the output for an outside reason: appends what is held back, an incomplete character as U+FFFD.
  void Flush(std::string* text);

  int32_t num_tokens() const { return num_tokens_; }
  const StoppedBy& stopped_by() const { return stopped_by_; }

 private:
  // Passes `piece` through the stop-string filter; true if a stop string ended the text.
  bool Filter(const std::string& piece, std::string* text);
  // The end of the tokens: what detokeniser and filter hold back. True if a stop string showed up in it.
  bool Finish(std::string* text);

  std::shared_ptr<const StopRules> rules_;
  std::optional<IncrementalDetokenizer> detokenizer_;
  StopStringFilter filter_;
  int32_t max_tokens_;
  int32_t num_tokens_ = 0;
  StoppedBy stopped_by_;
  std::string piece_;  // scratch
};

}  // namespace tessera

#endif  // TESSERA_SERVER_ENGINE_SEQUENCE_OUTPUT_H_
