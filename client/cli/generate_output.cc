#include "client/cli/generate_output.h"

#include <algorithm>
#include <iostream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/terminal.h"

namespace tessera::cli {
namespace {

double Seconds(const google::protobuf::Duration& duration) {
  return duration.seconds() + duration.nanos() * 1e-9;
}

std::string StoppedBy(const v1::Finished& finished) {
  switch (finished.stopped_by_case()) {
    case v1::Finished::kEosTokenId:
      return "end of text";
    case v1::Finished::kStopTokenId:
      return absl::StrCat("stop token ", finished.stop_token_id());
    case v1::Finished::kStopString:
      return absl::StrCat("stop string \"", Escaped(finished.stop_string()), "\"");
    case v1::Finished::STOPPED_BY_NOT_SET:
      return FinishReasonName(finished.reason());
  }
  return "";
}

}  // namespace

std::string FinishReasonName(v1::FinishReason reason) {
  constexpr size_t kPrefix = sizeof("FINISH_REASON_") - 1;
  const std::string& name = v1::FinishReason_Name(reason);
  return name.size() > kPrefix ? absl::AsciiStrToLower(name.substr(kPrefix)) : absl::StrCat(reason);
}

int FinishExitCode(const v1::Finished& finished) {
  switch (finished.reason()) {
    case v1::FINISH_REASON_ABORT:
    case v1::FINISH_REASON_ERROR:
      return kFailed;
    case v1::FINISH_REASON_DEADLINE:
      return kTimedOut;
    default:
      return kOk;
  }
}

std::string LogprobTable(const std::vector<v1::PositionLogprobs>& positions) {
  std::vector<std::vector<std::string>> rows = {{"token", "logprob", "rank", "most likely"}};
  for (const v1::PositionLogprobs& position : positions) {
    std::string top;
    for (const v1::TokenLogprob& token : position.top()) {
      absl::StrAppend(&top, top.empty() ? "" : "  ", "\"", Escaped(token.piece()), "\" ",
                      absl::StrFormat("%.3f", token.logprob()));
    }
    if (!position.has_token()) {
      rows.push_back({"(first)", "", "", ""});
      continue;
    }
    const v1::TokenLogprob& token = position.token();
    rows.push_back({absl::StrCat("\"", Escaped(token.piece()), "\""),
                    absl::StrFormat("%.4f", token.logprob()), absl::StrCat(token.rank()), top});
  }
  return Table(rows, "lrrl");
}

bool TextPrinter::OnEvent(const v1::GenerateResponse& event) {
  switch (event.event_case()) {
    case v1::GenerateResponse::kAccepted:
      accepted_ = event.accepted();
      break;
    case v1::GenerateResponse::kDelta: {
      const v1::Delta& delta = event.delta();
      if (first_token_ == absl::InfinitePast()) first_token_ = absl::Now();
      ++messages_;
      Output& output = outputs_[delta.index()];
      output.text += delta.text();
      output.logprobs.insert(output.logprobs.end(), delta.logprobs().begin(), delta.logprobs().end());
      prompt_logprobs_.insert(prompt_logprobs_.end(), delta.prompt_logprobs().begin(),
                              delta.prompt_logprobs().end());
      break;
    }
    case v1::GenerateResponse::kFinished: {
      Output& output = outputs_[event.finished().index()];
      output.finished = event.finished();
      output.ended = true;
      if (event.finished().has_usage()) usage_ = event.finished().usage();
      if (event.finished().has_timings()) timings_ = event.finished().timings();
      break;
    }
    case v1::GenerateResponse::EVENT_NOT_SET:
      break;  // an event of a later version
  }
  return Advance();
}

bool TextPrinter::Advance() {
  bool ok = true;
  while (ok) {
    Output& output = outputs_[current_];
    if (options_.n > 1 && !heading_ && (!output.text.empty() || output.ended)) {
      ok = Print(absl::StrCat(current_ > 0 ? "\n" : "", "[", current_, "]\n"));
      heading_ = true;
    }
    if (output.printed < output.text.size()) {
      ok = ok && PrintModelText(absl::string_view(output.text).substr(output.printed));
      output.printed = output.text.size();
    }
    if (!output.ended || current_ + 1 >= options_.n) break;
    ok = ok && Print("\n");
    ++current_;
    heading_ = false;
  }
  return ok;
}

int TextPrinter::Finish() {
  Print("\n");
  if (options_.logprobs) {
    if (!prompt_logprobs_.empty()) Print(absl::StrCat("\nprompt\n", LogprobTable(prompt_logprobs_)));
    for (const auto& [index, output] : outputs_) {
      if (!output.logprobs.empty())
        Print(absl::StrCat("\noutput ", index, "\n", LogprobTable(output.logprobs)));
    }
  }
  int exit_code = kOk;
  for (const auto& [index, output] : outputs_) {
    const int code = FinishExitCode(output.finished);
    if (code == kOk) continue;
    exit_code = code;
    std::cerr << "tessera: output " << index << " ended early: " << FinishReasonName(output.finished.reason())
              << (output.finished.error().empty() ? "" : absl::StrCat(": ", output.finished.error())) << "\n";
  }
  if (options_.verbose) PrintSummary();
  return exit_code;
}

void TextPrinter::PrintSummary() {
  std::string ends;
  for (const auto& [index, output] : outputs_) {
    absl::StrAppend(&ends, ends.empty() ? "" : ", ", StoppedBy(output.finished));
  }
  const double decode = Seconds(timings_.decode());
  const int decoded = usage_.completion_tokens() - static_cast<int>(outputs_.size());
  std::cerr << absl::StrFormat(
      "[%s; %d prompt tokens (%d cached), %d generated in %d messages; first token after %.1f ms (here %.1f "
      "ms), "
      "%s tokens/s; seed %d; id %s]\n",
      ends, usage_.prompt_tokens(), usage_.cached_tokens(), usage_.completion_tokens(), messages_,
      Seconds(timings_.time_to_first_token()) * 1e3,
      first_token_ == absl::InfinitePast() ? 0 : absl::ToDoubleMilliseconds(first_token_ - start_),
      decode > 0 && decoded > 0 ? absl::StrFormat("%.1f", decoded / decode) : "-", accepted_.seed(),
      accepted_.request_id());
}

}  // namespace tessera::cli
