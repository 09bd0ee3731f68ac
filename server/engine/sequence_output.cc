#include "server/engine/sequence_output.h"

#include <utility>

namespace tessera {

SequenceOutput::SequenceOutput(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens,
                               std::shared_ptr<const StopRules> rules, int32_t max_tokens)
    : rules_(std::move(rules)), filter_(rules_), max_tokens_(max_tokens) {
  if (tokenizer != nullptr) detokenizer_.emplace(std::move(tokenizer), skip_special_tokens);
}

std::optional<FinishReason> SequenceOutput::Append(int32_t token, std::string* text) {
  ++num_tokens_;
  StoppedBy by_token = rules_->CheckToken(token);
  const bool stops = by_token.kind != StoppedBy::kNone;
  if (detokenizer_.has_value() && (!stops || rules_->include_stop())) {
    piece_.clear();
    detokenizer_->Append(token, &piece_);
    if (Filter(piece_, text)) return FinishReason::kStop;
  }
  if (!stops && num_tokens_ < max_tokens_) return std::nullopt;
  if (Finish(text)) return FinishReason::kStop;
  if (!stops) return FinishReason::kLength;
  stopped_by_ = std::move(by_token);
  return FinishReason::kStop;
}

void SequenceOutput::Flush(std::string* text) { Finish(text); }

bool SequenceOutput::Filter(const std::string& piece, std::string* text) {
  // Stop strings are looked for once min_tokens tokens are out and another one comes.
  const bool armed = num_tokens_ > rules_->min_tokens();
  const std::string* stop = filter_.Append(piece, armed, text);
  if (stop == nullptr) return false;
  stopped_by_ = {StoppedBy::kStopString, -1, *stop};
  return true;
}

bool SequenceOutput::Finish(std::string* text) {
  if (detokenizer_.has_value()) {
    piece_.clear();
    detokenizer_->Flush(&piece_);
    if (Filter(piece_, text)) return true;
  }
  filter_.Flush(text);
  return false;
}

}  // namespace tessera
