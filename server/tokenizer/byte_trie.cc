#include "server/tokenizer/byte_trie.h"

namespace tessera {
namespace {
constexpr size_t kFirstSize = 64;
constexpr uint64_t kNoKey = ~uint64_t{0};
}  // namespace

ByteTrie::ByteTrie() : values_(1, -1), edges_(kFirstSize, Edge{kNoKey, 0}), mask_(kFirstSize - 1) {}

bool ByteTrie::Insert(absl::string_view key, int32_t value) {
  uint32_t node = 0;
  for (const char c : key) {
    const auto byte = static_cast<uint8_t>(c);
    uint32_t child = node == 0 ? first_[byte] : Child(node, byte);
    if (child == 0) {
      child = static_cast<uint32_t>(values_.size());
      values_.push_back(-1);
      if (node == 0) {
        first_[byte] = child;
      } else {
        if (num_edges_ * 2 >= edges_.size()) Grow();
        AddEdge(static_cast<uint64_t>(node) << 8 | byte, child);
        ++num_edges_;
      }
    }
    node = child;
  }
  if (node == 0 || values_[node] >= 0) return false;
  values_[node] = value;
  return true;
}

void ByteTrie::AddEdge(uint64_t key, uint32_t child) {
  uint64_t i = Mix(key) & mask_;
  while (edges_[i].child != 0) i = (i + 1) & mask_;
  edges_[i] = {key, child};
}

void ByteTrie::Grow() {
  std::vector<Edge> old(edges_.size() * 2, Edge{kNoKey, 0});
  old.swap(edges_);
  mask_ = edges_.size() - 1;
  for (const Edge& edge : old) {
    if (edge.child != 0) AddEdge(edge.key, edge.child);
  }
}

}  // namespace tessera
