#include "server/backend/null/null_backend.h"

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace tessera {
namespace {

constexpr uint64_t kEmptyPrefix = 0x243F6A8885A308D3;  // digits of pi
constexpr uint64_t kPoison = 0xDEADBEEFDEADBEEF;       // a slot that was never computed

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that mixes every bit into every other.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// A candidate's logit falls by this much with each place.
constexpr float kLogitStep = 0.25f;
// Every other token's logit where a whole row is written: too little to show in a float log-probability.
constexpr float kRemoteLogit = -36.0f;

}  // namespace

NullBackend::NullBackend(NullBackendConfig config) : config_(std::move(config)) {
  config_.vocab_size = std::max(config_.vocab_size, 1);
  config_.first_token = std::clamp(config_.first_token, 0, config_.vocab_size - 1);
  const int32_t room = config_.vocab_size - config_.first_token;
  if (config_.num_tokens <= 0 || config_.num_tokens > room) config_.num_tokens = room;
  info_.device = "null";
  info_.device_description = "tokens by a fixed rule, no model";
  info_.vocab_size = config_.vocab_size;
  info_.hidden_size = config_.hidden_size;
  info_.max_context = config_.max_context;
  info_.kv_bytes_per_token = sizeof(uint64_t);
  hidden_.resize(config_.hidden_size);
}

absl::Status NullBackend::AllocateKvCache(const KvCacheConfig& config) {
  if (config.num_blocks <= 0 || config.block_size <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("key-value cache of ", config.num_blocks, " blocks of ",
                                                   config.block_size, " tokens; both must be above 0"));
  }
  const uint64_t slots = static_cast<uint64_t>(config.num_blocks) * config.block_size;
  try {
    cache_.assign(slots, kPoison);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for the key-value cache: ", slots * sizeof(uint64_t), " bytes needed"));
  }
  block_size_ = config.block_size;
  return absl::OkStatus();
}

uint64_t& NullBackend::Slot(const BatchRow& row, int32_t position) {
  return cache_[static_cast<size_t>(row.block_table[position / block_size_]) * block_size_ +
                position % block_size_];
}

absl::Status NullBackend::CheckRow(const BatchRow& row) const {
  const int64_t end = static_cast<int64_t>(row.start) + static_cast<int64_t>(row.tokens.size());
  if (row.tokens.empty() || row.start < 0) return absl::InternalError("batch row without tokens");
  if (static_cast<int64_t>(row.block_table.size()) * block_size_ < end) {
    return absl::InternalError(
        absl::StrCat("block table of ", row.block_table.size(), " blocks does not cover ", end, " tokens"));
  }
  const int64_t num_blocks = static_cast<int64_t>(cache_.size()) / std::max(block_size_, 1);
  for (int32_t block : row.block_table) {
    if (block < 0 || block >= num_blocks) return absl::InternalError(absl::StrCat("no cache block ", block));
  }
  return absl::OkStatus();
}

absl::Duration NullBackend::TimeOf(absl::Span<const BatchRow> rows) const {
  absl::Duration time = config_.step_time;
  for (const BatchRow& row : rows) time += config_.token_time * static_cast<int64_t>(row.tokens.size());
  return time;
}

absl::Status NullBackend::Run(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) {
  if (absl::Status status = RunRows(rows, results); !status.ok()) return status;
  if (const absl::Duration time = TimeOf(rows); time > absl::ZeroDuration()) absl::SleepFor(time);
  return absl::OkStatus();
}

absl::Status NullBackend::RunRows(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) {
  if (config_.before_run) {
    if (absl::Status status = config_.before_run(rows); !status.ok()) return status;
  }
  results->clear();
  results->resize(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (absl::Status status = CheckRow(rows[i]); !status.ok()) return status;
    RunRow(rows[i], &(*results)[i]);
  }
  return absl::OkStatus();
}

absl::Status NullBackend::Start(absl::Span<const BatchRow> rows, std::vector<RowResult>* results) {
  if (started_.size() > 1) return absl::InternalError("a step was started two ahead");
  Started& step = started_.emplace_back();
  step.given = rows;
  step.results = results;
  step.rows.assign(rows.begin(), rows.end());
  for (const BatchRow& row : rows) {
    step.tokens.insert(step.tokens.end(), row.tokens.begin(), row.tokens.end());
    step.blocks.insert(step.blocks.end(), row.block_table.begin(), row.block_table.end());
  }
  size_t token = 0, block = 0;
  for (BatchRow& row : step.rows) {
    row.tokens = absl::MakeConstSpan(step.tokens).subspan(token, row.tokens.size());
    row.block_table = absl::MakeConstSpan(step.blocks).subspan(block, row.block_table.size());
    token += row.tokens.size();
    block += row.block_table.size();
  }
  const absl::Time now = absl::Now();
  step.idle = std::max(now - device_free_, absl::ZeroDuration());
  device_free_ = step.end = std::max(now, device_free_) + TimeOf(rows);
  return absl::OkStatus();
}

absl::Status NullBackend::Draw() {
  if (started_.size() != 1) return absl::InternalError("a step draws before the one before it is finished");
  Started& step = started_.front();
  for (size_t i = 0; i < step.rows.size(); ++i) {
    step.rows[i].sampler = step.given[i].sampler;
    step.rows[i].prompt_scorer = step.given[i].prompt_scorer;
    step.rows[i].pooler = step.given[i].pooler;
  }
  return absl::OkStatus();
}

absl::Status NullBackend::Finish() {
  if (started_.empty()) return absl::InternalError("no step was started");
  Started step = std::move(started_.front());
  started_.pop_front();
  for (const BatchRow& row : step.rows) {
    if (row.token_of < 0) continue;
    if (static_cast<size_t>(row.token_of) >= drawn_.size()) return absl::InternalError("no row draws the token");
    step.tokens[row.tokens.data() - step.tokens.data()] = drawn_[row.token_of];
  }
  if (absl::Status status = RunRows(step.rows, step.results); !status.ok()) return status;
  drawn_.clear();
  for (RowResult& result : *step.results) {
    int32_t token = result.sampled.token;
    result.late = token >= 0 && config_.late_one_in > 0 && ++num_drawn_ % config_.late_one_in == 0;
    if (result.late) token = (token + 1) % config_.vocab_size;
    drawn_.push_back(std::max(token, 0));
  }
  idle_ = step.idle;
  if (const absl::Duration left = step.end - absl::Now(); left > absl::ZeroDuration()) absl::SleepFor(left);
  return absl::OkStatus();
}

void NullBackend::RunRow(const BatchRow& row, RowResult* result) {
  uint64_t hash = row.start == 0 ? kEmptyPrefix : Slot(row, row.start - 1);
  std::array<int32_t, kNumCandidates> ids;
  std::array<float, kNumCandidates> logits;
  for (size_t i = 0; i < row.tokens.size(); ++i) {
    const int32_t position = row.start + static_cast<int32_t>(i);
    hash = Mix(hash + 0x9E3779B97F4A7C15 * (static_cast<uint64_t>(static_cast<uint32_t>(row.tokens[i])) + 1));
    // One earlier slot, anywhere in the prefix: a stale block shows wherever it lies.
    if (position > 0) hash = Mix(hash ^ Slot(row, static_cast<int32_t>(hash % position)));
    Slot(row, position) = hash;

    if (row.prompt_scorer != nullptr) {
      const int count = Candidates(hash, row.tokens[i], position, ids.data(), logits.data());
      dense_.assign(config_.vocab_size, kRemoteLogit);
      for (int c = 0; c < count; ++c) dense_[ids[c]] = logits[c];
      if (absl::Status status = row.prompt_scorer->Add(position, dense_);
          !status.ok() && result->status.ok()) {
        result->status = std::move(status);
      }
    }
    if (row.pooler != nullptr) {
      uint64_t state = hash;
      for (float& x : hidden_) {
        state = Mix(state + 0x9E3779B97F4A7C15);
        x = static_cast<float>(static_cast<int32_t>(state >> 40)) * 0x1.0p-23f - 1.0f;  // 24 bits to [-1, 1)
      }
      if (row.tokens[i] == config_.nan_token) hidden_[0] = std::numeric_limits<float>::quiet_NaN();
      row.pooler->Add(position, hidden_);
    }
  }
  if (row.sampler == nullptr || !result->status.ok()) return;
  const int32_t last = row.start + static_cast<int32_t>(row.tokens.size()) - 1;
  const int count = Candidates(hash, row.tokens.back(), last, ids.data(), logits.data());
  absl::StatusOr<SampledToken> sampled =
      row.sampler->SampleSparse(absl::MakeConstSpan(ids.data(), count), absl::MakeSpan(logits.data(), count));
  if (sampled.ok()) {
    result->sampled = *std::move(sampled);
  } else {
    result->status = sampled.status();
  }
}

int NullBackend::Candidates(uint64_t hash, int32_t token, int32_t position, int32_t* ids,
                            float* logits) const {
  const int32_t range = config_.num_tokens;
  const int count = std::min<int32_t>(kNumCandidates, range);
  const int32_t best = config_.rule
                           ? std::clamp(config_.rule(token, position) - config_.first_token, 0, range - 1)
                           : static_cast<int32_t>(hash % range);
  // The tokens best, best + 1, ... with the end of the range joined to its start; those that wrapped come first.
  const int wrapped = std::max(0, best + count - range);
  for (int place = 0; place < count; ++place) {
    const int slot = place < count - wrapped ? wrapped + place : place - (count - wrapped);
    ids[slot] = config_.first_token + (best + place) % range;
    logits[slot] = token == config_.nan_token ? std::numeric_limits<float>::quiet_NaN()
                                              : -kLogitStep * static_cast<float>(place);
  }
  return count;
}

}  // namespace tessera
