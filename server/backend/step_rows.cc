#include "server/backend/step_rows.h"

#include <numeric>
#include <utility>

#include "absl/status/statusor.h"
#include "server/backend/batch_checks.h"

namespace tessera {
namespace {

void ConsumeOne(const BatchRow& row, const WantedLogits& wanted, absl::Span<float> logits,
                RowResult* result) {
  if (!result->status.ok()) return;
  if (row.prompt_scorer != nullptr) {
    result->status = row.prompt_scorer->Add(wanted.position, logits);
    if (!result->status.ok()) return;
  }
  if (row.sampler != nullptr && wanted.last) {
    absl::StatusOr<SampledToken> sampled = row.sampler->Sample(logits);
    result->status = sampled.status();
    if (sampled.ok()) result->sampled = std::move(*sampled);
  }
}

}  // namespace

void StepRows::Choose(absl::Span<const BatchRow> rows, const BackendInfo& info, const KvCacheConfig& kv,
                      std::vector<RowResult>* results) {
  results->assign(rows.size(), RowResult{});
  first_token_.assign(rows.size(), -1);
  chosen_.clear();
  wanted_.clear();
  num_tokens_ = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    const BatchRow& row = rows[r];
    absl::Status status = CheckBatchRow(row, info, kv);
    if (!status.ok()) {
      (*results)[r].status = std::move(status);
      continue;
    }
    chosen_.push_back(static_cast<int32_t>(r));
    first_token_[r] = num_tokens_;
    const int32_t count = static_cast<int32_t>(row.tokens.size());
    const int32_t from = row.prompt_scorer != nullptr ? 0 : row.sampler != nullptr ? count - 1 : count;
    for (int32_t t = from; t < count; ++t) {
      wanted_.push_back(
          {static_cast<int32_t>(r), static_cast<int32_t>(num_tokens_ + t), row.start + t, t == count - 1});
    }
    num_tokens_ += count;
  }
}

void StepRows::Consume(absl::Span<const BatchRow> rows, size_t begin, size_t end, float* logits,
                       int64_t vocab, cpu::ThreadPool& pool, std::vector<RowResult>* results) {
  range_.resize(end - begin);
  std::iota(range_.begin(), range_.end(), begin);
  Consume(rows, range_, logits, vocab, pool, results);
}

void StepRows::Consume(absl::Span<const BatchRow> rows, absl::Span<const size_t> which, float* logits,
                       int64_t vocab, cpu::ThreadPool& pool, std::vector<RowResult>* results) {
  row_begins_.clear();
  for (size_t i = 0; i < which.size(); ++i) {
    if (i == 0 || wanted_[which[i]].row != wanted_[which[i - 1]].row) row_begins_.push_back(i);
  }
  pool.ParallelFor(row_begins_.size(), [&](int64_t g) {
    const size_t last = g + 1 < static_cast<int64_t>(row_begins_.size()) ? row_begins_[g + 1] : which.size();
    for (size_t i = row_begins_[g]; i < last; ++i) {
      const WantedLogits& wanted = wanted_[which[i]];
      ConsumeOne(rows[wanted.row], wanted, absl::MakeSpan(logits + i * vocab, vocab),
                 &(*results)[wanted.row]);
    }
  });
}

}  // namespace tessera
