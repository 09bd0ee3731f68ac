#include "server/rpc/convert.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

void ToProto(absl::Duration duration, google::protobuf::Duration* out) {
  if (duration < absl::ZeroDuration()) duration = absl::ZeroDuration();  // a clock that was set back
  const int64_t seconds = absl::ToInt64Seconds(duration);
  out->set_seconds(seconds);
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration - absl::Seconds(seconds))));
}

void ToProto(const TokenLogprob& logprob, const Tokenizer* tokenizer, v1::TokenLogprob* out) {
  out->set_token_id(logprob.token);
  if (logprob.rank > 0) {  // rank 0: a token without values, as the first of a prompt
    out->set_logprob(logprob.logprob);
    out->set_rank(logprob.rank);
  }
  if (tokenizer != nullptr) {
    const absl::string_view piece = tokenizer->TokenBytes(logprob.token);
    out->set_piece(piece.data(), piece.size());
  }
}

}  // namespace

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kAbort:
      return v1::FINISH_REASON_ABORT;
    case FinishReason::kDeadline:
      return v1::FINISH_REASON_DEADLINE;
    case FinishReason::kError:
      return v1::FINISH_REASON_ERROR;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
  }
  return "";
}

void ToProto(const RequestUsage& usage, v1::Usage* out) {
  out->set_prompt_tokens(usage.prompt_tokens);
  out->set_completion_tokens(usage.completion_tokens);
  out->set_cached_tokens(usage.cached_tokens);
}

void ToProto(const RequestTimings& timings, v1::Timings* out) {
  ToProto(timings.queue, out->mutable_queue());
  ToProto(timings.prefill, out->mutable_prefill());
  ToProto(timings.decode, out->mutable_decode());
  ToProto(timings.total, out->mutable_total());
  if (timings.time_to_first_token) ToProto(*timings.time_to_first_token, out->mutable_time_to_first_token());
}

void ToProto(const OutputFinished& finished, v1::Finished* out) {
  out->set_index(finished.index);
  out->set_reason(ToProto(finished.reason));
  switch (finished.stopped_by.kind) {
    case StoppedBy::kNone:
      break;
    case StoppedBy::kEos:
      out->set_eos_token_id(finished.stopped_by.token_id);
      break;
    case StoppedBy::kStopToken:
      out->set_stop_token_id(finished.stopped_by.token_id);
      break;
    case StoppedBy::kStopString:
      out->set_stop_string(finished.stopped_by.stop_string);
      break;
  }
  if (!finished.error.ok()) {
    out->set_error(
        absl::StrCat(absl::StatusCodeToString(finished.error.code()), ": ", finished.error.message()));
  }
}

void ToProto(const std::vector<PositionLogprobs>& logprobs, const Tokenizer* tokenizer,
             google::protobuf::RepeatedPtrField<v1::PositionLogprobs>* out) {
  out->Reserve(out->size() + static_cast<int>(logprobs.size()));
  for (const PositionLogprobs& position : logprobs) {
    v1::PositionLogprobs* entry = out->Add();
    ToProto(position.token, tokenizer, entry->mutable_token());
    for (const TokenLogprob& top : position.top) ToProto(top, tokenizer, entry->add_top());
  }
}

}  // namespace tessera
