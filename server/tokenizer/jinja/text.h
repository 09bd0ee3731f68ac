// A string of a template that remembers which of its bytes came from outside.
#ifndef TESSERA_SERVER_TOKENIZER_JINJA_TEXT_H_
#define TESSERA_SERVER_TOKENIZER_JINJA_TEXT_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/tokenizer/tokenizer.h"

namespace tessera::jinja {

// Bytes are valid UTF-8. Every operation of the engine on strings is made of Substr, Append and Map, so that no
// byte loses its mark on the way from a message to the prompt.
class Text {
 public:
  Text() = default;
  Text(absl::string_view bytes, bool untrusted) { Append(bytes, untrusted); }

  const std::string& bytes() const { return bytes_; }
  absl::string_view view() const { return bytes_; }
  bool empty() const { return bytes_.empty(); }
  size_t size() const { return bytes_.size(); }
  // Sorted, disjoint, never touching.
  const std::vector<ByteRange>& untrusted() const { return untrusted_; }

  void Append(absl::string_view bytes, bool untrusted = false);
  void Append(const Text& other) { AppendPart(other, 0, other.size()); }
  void AppendPart(const Text& other, size_t begin, size_t end);
  Text Substr(size_t begin, size_t end) const {
    Text part;
    part.AppendPart(*this, begin, end);
    return part;
  }

  // f(run, untrusted) for each stretch of equal trust.
  template <typename F>
  void ForEachRun(F f) const {
    size_t done = 0;
    for (const ByteRange& r : untrusted_) {
      if (done < r.begin) f(view().substr(done, r.begin - done), false);
      f(view().substr(r.begin, r.end - r.begin), true);
      done = r.end;
    }
    if (done < size()) f(view().substr(done), false);
  }

 private:
  std::string bytes_;
  std::vector<ByteRange> untrusted_;
};

}  // namespace tessera::jinja

#endif  // TESSERA_SERVER_TOKENIZER_JINJA_TEXT_H_
