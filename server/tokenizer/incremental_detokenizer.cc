#include "server/tokenizer/incremental_detokenizer.h"

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "server/tokenizer/tokenizer_impl.h"
#include "server/tokenizer/unicode.h"

namespace tessera {

IncrementalDetokenizer::IncrementalDetokenizer(std::shared_ptr<const Tokenizer> tokenizer,
                                               bool skip_special_tokens)
    : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {
  strip_left_ = tokenizer_->impl_->decoder.strip_count();
}

void IncrementalDetokenizer::Append(int32_t id, std::string* out) {
  const Tokenizer::Impl& impl = *tokenizer_->impl_;
  if (!tokenizer_->IsValidId(id)) return;
  const Tokenizer::Impl::Token& token = impl.tokens[id];
  if (!token.exists || (skip_special_tokens_ && token.special)) return;

  const Decoder& decoder = impl.decoder;
  absl::string_view bytes = token.bytes;
  bool still_first = false;
  Decoder::Piece first_piece;
  if (first_ && decoder.first_differs()) {
    first_piece = decoder.Decode(token.spelling, /*first=*/true, token.added);
    bytes = first_piece.bytes;
    still_first = first_piece.first_again;
  }
  if (!first_ && decoder.joined_with_spaces()) Emit(" ", out);
  first_ = still_first;
  if (decoder.byte_level() || token.is_byte) {
    AppendBytes(bytes, out);
  } else {
    FlushPending(out);
    Emit(bytes, out);
  }
}

void IncrementalDetokenizer::Append(absl::Span<const int32_t> ids, std::string* out) {
  for (const int32_t id : ids) Append(id, out);
}

std::string IncrementalDetokenizer::Append(int32_t id) {
  std::string out;
  Append(id, &out);
  return out;
}

std::string IncrementalDetokenizer::Append(absl::Span<const int32_t> ids) {
  std::string out;
  Append(ids, &out);
  return out;
}

void IncrementalDetokenizer::Flush(std::string* out) {
  FlushPending(out);
  first_ = true;
  strip_left_ = tokenizer_->impl_->decoder.strip_count();
}

std::string IncrementalDetokenizer::Flush() {
  std::string out;
  Flush(&out);
  return out;
}

void IncrementalDetokenizer::Emit(absl::string_view text, std::string* out) {
  if (text.empty()) return;
  const absl::string_view strip = tokenizer_->impl_->decoder.strip_text();
  while (strip_left_ > 0) {
    if (!absl::StartsWith(text, strip)) {
      strip_left_ = text.empty() ? strip_left_ : 0;
      break;
    }
    text.remove_prefix(strip.size());
    --strip_left_;
  }
  out->append(text.data(), text.size());
}

void IncrementalDetokenizer::EmitInvalid(size_t bytes, std::string* out) {
  const size_t count = tokenizer_->impl_->decoder.byte_level() ? 1 : bytes;
  for (size_t i = 0; i < count; ++i) Emit(unicode::kReplacementUtf8, out);
}

void IncrementalDetokenizer::FlushPending(std::string* out) {
  if (pending_size_ == 0) return;
  EmitInvalid(pending_size_, out);
  pending_size_ = 0;
}

void IncrementalDetokenizer::AppendBytes(absl::string_view bytes, std::string* out) {
  using unicode::SequenceCheck;
  while (!bytes.empty() && pending_size_ > 0) {
    pending_[pending_size_] = bytes[0];
    const SequenceCheck check = unicode::CheckSequence(pending_, pending_size_ + 1);
    if (check.kind == SequenceCheck::kInvalid) {
      FlushPending(out);  // the new byte does not go on with it, but may begin something
      break;
    }
    ++pending_size_;
    bytes.remove_prefix(1);
    if (check.kind == SequenceCheck::kComplete) {
      Emit(absl::string_view(pending_, pending_size_), out);
      pending_size_ = 0;
    }
  }
  size_t good = 0;  // bytes[0, good) are whole characters
  while (good < bytes.size()) {
    const SequenceCheck check = unicode::CheckSequence(bytes.data() + good, bytes.size() - good);
    if (check.kind == SequenceCheck::kComplete) {
      good += check.length;
      continue;
    }
    Emit(bytes.substr(0, good), out);
    bytes.remove_prefix(good);
    good = 0;
    if (check.kind == SequenceCheck::kIncomplete) {
      pending_size_ = bytes.copy(pending_, check.length);
      return;
    }
    EmitInvalid(check.length, out);
    bytes.remove_prefix(check.length);
  }
  Emit(bytes, out);
}

}  // namespace tessera
