#include "tests/ptx/machine/registry.h"

#include <utility>

#include "tests/ptx/text.h"

namespace tessera::ptx {

void Registry::Add(std::string name, PrepareFn prepare) { entries_[std::move(name)] = prepare; }

absl::Status Registry::Prepare(Instruction& i) const {
  std::string name = i.opcode;
  const PrepareFn* best = nullptr;
  const auto consider = [&] {
    if (const auto it = entries_.find(name); it != entries_.end()) best = &it->second;
  };
  consider();
  for (const std::string& modifier : i.modifiers) {
    name += '.';
    name += modifier;
    consider();
  }
  if (best == nullptr) return absl::UnimplementedError(Cat("no handler for ", name));
  return (*best)(i);
}

}  // namespace tessera::ptx
