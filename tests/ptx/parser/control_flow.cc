#include "tests/ptx/parser/control_flow.h"

#include <algorithm>
#include <limits>

namespace tessera::ptx {
namespace {

class BlockOrder {
 public:
  explicit BlockOrder(std::vector<std::vector<int>> successors)
      : successors_(std::move(successors)), number_(successors_.size()) {}

  std::vector<int> Run() {
    for (size_t block = 0; block < successors_.size(); ++block) {
      // Block 0 reaches all that can run; what it does not reach goes last.
      if (number_[block] == 0) {
        Visit(static_cast<int>(block));
        std::reverse(reversed_.begin(), reversed_.end());
        order_.insert(order_.end(), reversed_.begin(), reversed_.end());
        reversed_.clear();
      }
    }
    return order_;
  }

 private:
  static constexpr int kDone = std::numeric_limits<int>::max();

  int Visit(int block) {
    stack_.push_back(block);
    int head = number_[block] = ++last_;
    bool loop = false;
    for (const int next : successors_[block]) {
      const int least = number_[next] == 0 ? Visit(next) : number_[next];
      if (least <= head) {
        head = least;
        loop = true;
      }
    }
    if (head == number_[block]) {
      number_[block] = kDone;
      int popped = Pop();
      if (loop) {
        for (; popped != block; popped = Pop()) number_[popped] = 0;
        for (const int next : successors_[block]) {
          if (number_[next] == 0) Visit(next);
        }
      }
      reversed_.push_back(block);
    }
    return head;
  }
  int Pop() {
    const int block = stack_.back();
    stack_.pop_back();
    return block;
  }

  std::vector<std::vector<int>> successors_;
  std::vector<int> number_;  // 0: not visited
  std::vector<int> stack_, reversed_, order_;
  int last_ = 0;
};

}  // namespace

std::vector<int> Successors(const Function& function, int index) {
  const Instruction& i = function.body[index];
  const bool guarded = i.guard.kind != Operand::Kind::kNone;
  std::vector<int> next;
  bool falls_through = true;
  if (i.opcode == "bra") {
    for (const Operand& operand : i.operands) {
      if (operand.kind == Operand::Kind::kLabel) next.push_back(operand.target);
    }
    falls_through = guarded;
  } else if (i.opcode == "brx") {
    for (const Operand& operand : i.operands) {
      for (const Operand& target : operand.elements) next.push_back(target.target);
    }
    falls_through = guarded;
  } else if (i.opcode == "ret" || i.opcode == "exit" || i.opcode == "trap") {
    falls_through = guarded;
  }
  if (falls_through && index + 1 < static_cast<int>(function.body.size())) next.push_back(index + 1);
  return next;
}

void OrderBlocks(Function& function) {
  const int size = static_cast<int>(function.body.size());
  std::vector<bool> leader(size + 1);
  std::vector<std::vector<int>> next(size);
  leader[0] = true;
  for (int index = 0; index < size; ++index) {
    next[index] = Successors(function, index);
    if (next[index].size() == 1 && next[index][0] == index + 1) continue;
    leader[index + 1] = true;
    for (const int target : next[index]) leader[target] = true;
  }
  std::vector<int> block_of(size), first;
  for (int index = 0; index < size; ++index) {
    if (leader[index]) first.push_back(index);
    block_of[index] = static_cast<int>(first.size()) - 1;
  }
  first.push_back(size);
  std::vector<std::vector<int>> successors(first.size() - 1);
  for (size_t block = 0; block + 1 < first.size(); ++block) {
    for (const int target : next[first[block + 1] - 1]) successors[block].push_back(block_of[target]);
  }
  uint32_t priority = 0;
  for (const int block : BlockOrder(std::move(successors)).Run()) {
    for (int index = first[block]; index < first[block + 1]; ++index)
      function.body[index].priority = priority++;
  }
}

}  // namespace tessera::ptx
