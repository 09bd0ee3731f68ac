// A set of byte strings with a number each, to find all those that start at a place in a text.
#ifndef TESSERA_SERVER_TOKENIZER_BYTE_TRIE_H_
#define TESSERA_SERVER_TOKENIZER_BYTE_TRIE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"

namespace tessera {

// Thread-safe once filled.
class ByteTrie {
 public:
  ByteTrie();

  // `key` is not empty, `value` not negative. False, and nothing changes, if the key is there already.
  bool Insert(absl::string_view key, int32_t value);
  bool empty() const { return values_.size() == 1; }

  // Calls `found(length, value)` for each key that text[pos...] starts with, shorter ones first.
  template <typename F>
  void ForEachPrefix(absl::string_view text, size_t pos, F found) const {
    uint32_t node = first_[static_cast<uint8_t>(text[pos])];
    for (size_t end = pos + 1; node != 0; ++end) {
      if (values_[node] >= 0) found(end - pos, values_[node]);
      if (end == text.size()) return;
      node = Child(node, static_cast<uint8_t>(text[end]));
    }
  }

  struct Match {
    size_t length = 0;
    int32_t value = -1;  // -1: none
  };
  // The longest of them. text[pos] must exist.
  Match Longest(absl::string_view text, size_t pos) const {
    Match match;
    ForEachPrefix(text, pos, [&](size_t length, int32_t value) { match = {length, value}; });
    return match;
  }

 private:
  // An open-addressed table from (node, byte) to the child; the root's children are in first_, and no edge leads to
  // the root, so that a child of 0 marks a free slot.
  struct Edge {
    uint64_t key;
    uint32_t child;
  };
  static uint64_t Mix(uint64_t key) {
    key *= 0x9E3779B97F4A7C15u;
    return key ^ key >> 32;
  }
  uint32_t Child(uint32_t node, uint8_t byte) const {
    const uint64_t key = static_cast<uint64_t>(node) << 8 | byte;
    for (uint64_t i = Mix(key) & mask_;; i = (i + 1) & mask_) {
      if (edges_[i].key == key || edges_[i].child == 0) return edges_[i].child;
    }
  }
  void AddEdge(uint64_t key, uint32_t child);
  void Grow();

  std::vector<int32_t> values_;  // by node; -1: no key ends there
  std::vector<Edge> edges_;
  uint64_t mask_;
  size_t num_edges_ = 0;
  uint32_t first_[256] = {};
};

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_BYTE_TRIE_H_
