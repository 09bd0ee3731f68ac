#include "server/tokenizer/jinja/text.h"

#include <algorithm>

namespace tessera::jinja {

void Text::Append(absl::string_view bytes, bool untrusted) {
  if (bytes.empty()) return;
  const size_t begin = bytes_.size();
  bytes_.append(bytes.data(), bytes.size());
  if (!untrusted) return;
  if (!untrusted_.empty() && untrusted_.back().end == begin) {
    untrusted_.back().end = bytes_.size();
  } else {
    untrusted_.push_back({begin, bytes_.size()});
  }
}

void Text::AppendPart(const Text& other, size_t begin, size_t end) {
  const auto first = std::lower_bound(other.untrusted_.begin(), other.untrusted_.end(), begin,
                                      [](const ByteRange& r, size_t at) { return r.end <= at; });
  size_t done = begin;
  for (auto r = first; r != other.untrusted_.end() && r->begin < end; ++r) {
    const size_t from = std::max(r->begin, begin), to = std::min(r->end, end);
    Append(other.view().substr(done, from - done), false);
    Append(other.view().substr(from, to - from), true);
    done = to;
  }
  Append(other.view().substr(done, end - done), false);
}

}  // namespace tessera::jinja
