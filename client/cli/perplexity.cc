#include "client/cli/perplexity.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "server/backend/cpu/cpu_backend.h"
#include "server/model/checkpoint.h"
#include "server/tokenizer/tokenizer.h"

namespace tessera::cli {
namespace {

constexpr int32_t kBlockSize = 16;

// Mean of the values and its standard error.
std::pair<double, double> MeanAndError(const std::vector<double>& values) {
  const double count = static_cast<double>(values.size());
  if (values.empty()) return {0, 0};
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, values.size() > 1 ? std::sqrt(squares / (count - 1) / count) : 0.0};
}

std::vector<double> Nlls(const Perplexity& perplexity) {
  return {perplexity.logprobs.begin(), perplexity.logprobs.end()};
}

// The BOS token that the tokeniser puts before a text; -1 if none.
absl::StatusOr<int32_t> LeadingToken(const Tokenizer& tokenizer) {
  EncodeOptions with;
  with.add_special_tokens = true;
  const absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode("", with);
  if (!ids.ok()) return ids.status();
  const std::optional<int32_t> bos = tokenizer.bos_id();
  return !ids->empty() && bos && ids->front() == *bos ? *bos : -1;
}

class Scorer {
 public:
  Scorer(Backend& backend, const Tokenizer& tokenizer, const PerplexityOptions& options, Perplexity* result)
      : backend_(backend), tokenizer_(tokenizer), options_(options), result_(*result) {
    for (int32_t i = 0; i < NumBlocks(options); ++i) block_table_.push_back(i);
  }

  static int32_t NumBlocks(const PerplexityOptions& options) {
    return (options.context + kBlockSize - 1) / kBlockSize;
  }

  // A window that begins with `lead` (-1 for none).
  absl::Status Window(int32_t lead, absl::Span<const int32_t> text) {
    std::vector<int32_t> tokens;
    if (lead >= 0) tokens.push_back(lead);
    tokens.insert(tokens.end(), text.begin(), text.end());
    if (tokens.size() < 2) return absl::OkStatus();
    PromptScorer scorer(tokens, 1);
    BatchRow row;
    row.tokens = tokens;
    row.block_table = block_table_;
    row.prompt_scorer = &scorer;
    std::vector<RowResult> results;
    absl::Status status = backend_.Run(absl::MakeConstSpan(&row, 1), &results);
    if (status.ok()) status = results[0].status;
    if (!status.ok()) return status;
    for (size_t i = 1; i < tokens.size(); ++i) {
      const PositionLogprobs& position = scorer.result()[i];
      result_.tokens.push_back(tokens[i]);
      result_.logprobs.push_back(position.token.logprob);
      result_.choices.push_back(position.top.empty() ? position.token.token : position.top[0].token);
      result_.bytes += static_cast<int64_t>(tokenizer_.TokenBytes(tokens[i]).size());
    }
    return absl::OkStatus();
  }

 private:
  Backend& backend_;
  const Tokenizer& tokenizer_;
  const PerplexityOptions& options_;
  Perplexity& result_;
  std::vector<int32_t> block_table_;
};

}  // namespace

double Perplexity::MeanNll() const { return -MeanAndError(Nlls(*this)).first; }
double Perplexity::Value() const { return std::exp(MeanNll()); }
double Perplexity::BitsPerByte() const {
  return bytes > 0
             ? MeanNll() * static_cast<double>(tokens.size()) / std::log(2.0) / static_cast<double>(bytes)
             : 0;
}
double Perplexity::FirstChoiceShare() const {
  int64_t same = 0;
  for (size_t i = 0; i < tokens.size(); ++i) same += tokens[i] == choices[i];
  return tokens.empty() ? 0 : static_cast<double>(same) / static_cast<double>(tokens.size());
}
double NllError(const Perplexity& perplexity) { return MeanAndError(Nlls(perplexity)).second; }

PerplexityDifference Compare(const Perplexity& first, const Perplexity& second) {
  std::vector<double> differences;
  int64_t same = 0;
  for (size_t i = 0; i < first.tokens.size(); ++i) {
    differences.push_back(static_cast<double>(first.logprobs[i]) - static_cast<double>(second.logprobs[i]));
    same += first.choices[i] == second.choices[i];
  }
  const auto [mean, error] = MeanAndError(differences);
  return {mean, error,
          first.tokens.empty() ? 0 : static_cast<double>(same) / static_cast<double>(first.tokens.size())};
}

absl::StatusOr<Perplexity> MeasurePerplexity(const std::string& dir, absl::string_view text,
                                             const PerplexityOptions& options) {
  absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer = Tokenizer::Load(dir);
  if (!tokenizer.ok()) return tokenizer.status();
  const absl::StatusOr<std::vector<int32_t>> ids = (*tokenizer)->Encode(text);
  if (!ids.ok()) return ids.status();
  const absl::StatusOr<int32_t> lead = LeadingToken(**tokenizer);
  if (!lead.ok()) return lead.status();
  absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(dir);
  if (!checkpoint.ok()) return checkpoint.status();
  if (options.context > (*checkpoint)->spec().max_context) {
    return absl::InvalidArgumentError(absl::StrCat(dir, ": a window of ", options.context,
                                                   " tokens, the model takes ",
                                                   (*checkpoint)->spec().max_context, " at most"));
  }
  if (ids->size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", ids->size(), " tokens; expected at least 2"));
  }

  CpuBackendOptions backend_options;
  backend_options.num_threads = options.num_threads;
  if (options.loading) {
    backend_options.progress = [&](const LoadProgress& progress) {
      options.loading(progress.bytes_done, progress.bytes_total);
    };
  }
  absl::StatusOr<std::unique_ptr<Backend>> backend = CreateCpuBackend(**checkpoint, backend_options);
  if (!backend.ok()) return backend.status();
  Perplexity result;
  std::vector<std::string> formats;
  for (const FormatUse& use : (*checkpoint)->facts().formats) {
    formats.push_back(std::string(WeightFormatName(use.format)));
  }
  result.formats = absl::StrJoin(formats, " + ");
  result.weight_bytes = (*backend)->info().weight_bytes;
  (*checkpoint)->Close();
  const KvCacheConfig cache{Scorer::NumBlocks(options), kBlockSize};
  if (absl::Status status = (*backend)->AllocateKvCache(cache); !status.ok()) return status;

  int64_t total = static_cast<int64_t>(ids->size());
  if (options.max_tokens > 0) total = std::min(total, options.max_tokens);
  const int64_t per_window = options.context - (*lead >= 0 ? 1 : 0);
  Scorer scorer(**backend, **tokenizer, options, &result);
  const absl::Time start = absl::Now();
  for (int64_t first = 0; first < total; first += per_window) {
    if (options.cancelled && options.cancelled()) return absl::CancelledError("cancelled");
    const int64_t count = std::min(per_window, total - first);
    const absl::Status status = scorer.Window(*lead, absl::MakeConstSpan(*ids).subspan(first, count));
    if (!status.ok()) return status;
    if (options.scoring) options.scoring(first + count, total);
  }
  result.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  return result;
}

}  // namespace tessera::cli
