#include "server/tokenizer/tokenizer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/status_macros.h"
#include "server/tokenizer/incremental_detokenizer.h"
#include "server/tokenizer/tokenizer_impl.h"
#include "server/tokenizer/unicode.h"

namespace tessera {
namespace {

// Idle encoders kept (each holds a word cache of 1 MiB); more threads than this make their own and drop them.
constexpr size_t kMaxIdleScratch = 16;

bool Covers(absl::Span<const ByteRange> ranges, ByteRange r) {
  const auto it = std::upper_bound(ranges.begin(), ranges.end(), r.begin,
                                   [](size_t begin, const ByteRange& x) { return begin < x.begin; });
  // Ranges that touch count as one.
  if (it == ranges.begin()) return false;
  size_t end = (it - 1)->end;
  for (auto next = it; end < r.end && next != ranges.end() && next->begin == end; ++next) end = next->end;
  return r.end <= end;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view text,
                                                       const EncodeOptions& options) const {
  const ByteRange all{0, text.size()};
  return impl_->Encode(text, absl::MakeSpan(&all, options.parse_special ? 1 : 0), options.add_special_tokens,
                       options.max_tokens, options.truncate);
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodeTrusted(absl::string_view text,
                                                              absl::Span<const ByteRange> trusted,
                                                              bool add_special_tokens, size_t max_tokens,
                                                              bool truncate) const {
  size_t end = 0;
  for (const ByteRange& r : trusted) {
    if (r.begin < end || r.end < r.begin || r.end > text.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the trusted range [", r.begin, ", ", r.end,
                                                     ") is out of order or beyond the text's ", text.size(),
                                                     " bytes"));
    }
    end = r.end;
  }
  return impl_->Encode(text, trusted, add_special_tokens, max_tokens, truncate);
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Impl::Encode(absl::string_view text,
                                                             absl::Span<const ByteRange> trusted,
                                                             bool add_special_tokens, size_t max_tokens,
                                                             bool truncate) const {
  if (const size_t bad = unicode::FindInvalid(text); bad != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("the text is not valid UTF-8 at byte ", bad));
  }
  std::vector<int32_t> ids;
  ids.reserve(std::min(text.size() / 3, max_tokens) + 8);
  if (add_special_tokens) ids = post_processor.before;
  const size_t prefix = ids.size();
  bool begins_with_special = false;
  std::unique_ptr<TokenModel::Scratch> scratch = BorrowScratch();
  // A second BOS may yet be taken away.
  Encoding encoding{trusted, max_tokens + 1, truncate, scratch.get(), &ids};
  absl::Status status;
  raw_matcher.Split(
      text, [&](ByteRange r) { return Covers(trusted, r); },
      [&](const Segment& segment) {
        const size_t begin = segment.range.begin;
        if (segment.id) {
          if (ids.size() == prefix) begins_with_special = true;
          ids.push_back(*segment.id);
          encoding.stopped = ids.size() > encoding.stop_at;
        } else {
          status = EncodeSegment(text.substr(begin, segment.range.end - begin), begin, &encoding);
        }
        return status.ok() && !encoding.stopped;
      });
  ReturnScratch(std::move(scratch));
  TESSERA_RETURN_IF_ERROR(status);
  // A prompt that spells out its BOS token is not given another one.
  if (begins_with_special && prefix > 0 && ids[prefix] == ids[prefix - 1]) ids.erase(ids.begin() + prefix);
  if (add_special_tokens) ids.insert(ids.end(), post_processor.after.begin(), post_processor.after.end());
  if (truncate) {
    ids.resize(std::min(ids.size(), max_tokens));
  } else if (encoding.stopped || ids.size() > max_tokens) {
    return absl::OutOfRangeError(absl::StrCat("the text has more than ", max_tokens, " tokens"));
  }
  return ids;
}

absl::Status Tokenizer::Impl::EncodeSegment(absl::string_view text, size_t offset, Encoding* encoding) const {
  std::string normal;
  bool changed = false;
  absl::string_view view = text;
  if (normalizer != nullptr) {
    normal.assign(text.data(), text.size());
    TESSERA_RETURN_IF_ERROR(normalizer->Normalize(/*at_start=*/offset == 0, &normal));
    changed = text != normal;
    view = normal;
  }
  // Where normalisation moved bytes, which of them are trusted is known only if all are.
  const bool all_trusted = Covers(encoding->trusted, {offset, offset + text.size()});
  const auto is_trusted = [&](ByteRange r) {
    return all_trusted || (!changed && Covers(encoding->trusted, {offset + r.begin, offset + r.end}));
  };
  std::vector<int32_t>* const ids = encoding->ids;
  const size_t max_token_bytes = model->max_token_bytes();
  absl::Status status;
  const auto encode = [&](const Piece& piece) {
    if (!encoding->truncate) {
      // What a piece has at least, before any time is spent on it.
      const size_t at_least = max_token_bytes == 0 ? 0 : piece.text.size() / max_token_bytes;
      encoding->stopped = ids->size() + at_least > encoding->stop_at;
      if (encoding->stopped) return false;
    }
    status = model->Encode(piece.text, encoding->stop_at, encoding->scratch, ids);
    encoding->stopped = ids->size() > encoding->stop_at;
    return status.ok() && !encoding->stopped;
  };
  normalized_matcher.Split(view, is_trusted, [&](const Segment& segment) {
    if (segment.id) {
      ids->push_back(*segment.id);
      return true;
    }
    const size_t begin = segment.range.begin;
    const Piece piece{view.substr(begin, segment.range.end - begin), offset == 0 && begin == 0};
    if (pre_tokenizer == nullptr) return encode(piece);
    if (absl::Status cut = pre_tokenizer->Cut(piece, encode); !cut.ok()) status = std::move(cut);
    return status.ok() && !encoding->stopped;
  });
  return status;
}

std::unique_ptr<TokenModel::Scratch> Tokenizer::Impl::BorrowScratch() const {
  {
    absl::MutexLock lock(&mutex);
    if (!idle_scratch.empty()) {
      std::unique_ptr<TokenModel::Scratch> scratch = std::move(idle_scratch.back());
      idle_scratch.pop_back();
      return scratch;
    }
  }
  return model->NewScratch();
}

void Tokenizer::Impl::ReturnScratch(std::unique_ptr<TokenModel::Scratch> scratch) const {
  scratch->Trim();
  absl::MutexLock lock(&mutex);
  if (idle_scratch.size() < kMaxIdleScratch) idle_scratch.push_back(std::move(scratch));
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!IsValidId(ids[i])) {
      return absl::InvalidArgumentError(absl::StrCat("the token id ", ids[i], " at position ", i,
                                                     " is outside the vocabulary of ", vocab_size(),
                                                     " tokens"));
    }
  }
  // The same code as for streams, on a pointer that does not own: this object outlives the call.
  IncrementalDetokenizer detokenizer(std::shared_ptr<const Tokenizer>(std::shared_ptr<void>(), this),
                                     skip_special_tokens);
  std::string out;
  detokenizer.Append(ids, &out);
  detokenizer.Flush(&out);
  return out;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->tokens.size()); }
bool Tokenizer::IsSpecial(int32_t id) const { return IsValidId(id) && impl_->tokens[id].special; }
absl::string_view Tokenizer::TokenBytes(int32_t id) const {
  return IsValidId(id) ? absl::string_view(impl_->tokens[id].bytes) : absl::string_view();
}
absl::string_view Tokenizer::TokenString(int32_t id) const {
  return IsValidId(id) ? absl::string_view(impl_->tokens[id].spelling) : absl::string_view();
}

std::optional<int32_t> Tokenizer::TokenToId(absl::string_view token) const {
  if (const auto it = impl_->added_ids.find(token); it != impl_->added_ids.end()) return it->second;
  const auto& vocabulary = impl_->model->vocabulary();
  if (const auto it = vocabulary.find(token); it != vocabulary.end()) return it->second;
  return std::nullopt;
}

std::optional<int32_t> Tokenizer::bos_id() const { return impl_->bos_id; }
std::optional<int32_t> Tokenizer::eos_id() const { return impl_->eos_id; }
std::optional<int32_t> Tokenizer::pad_id() const { return impl_->pad_id; }
std::optional<int32_t> Tokenizer::unk_id() const { return impl_->model->unk_id(); }
absl::Span<const int32_t> Tokenizer::eos_ids() const { return impl_->eos_ids; }
absl::Span<const std::pair<std::string, std::string>> Tokenizer::named_tokens() const {
  return impl_->named_tokens;
}

}  // namespace tessera
