#include "tests/ptx/machine/global_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "tests/ptx/machine/fault.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

// Calls f(word index, mask of its bits) for the bytes [begin, begin + size) of a bitmap of 8-bit words.
template <class F>
void ForBits(uint64_t begin, uint64_t size, F f) {
  while (size > 0) {
    const uint64_t bit = begin % 8;
    const uint64_t n = std::min<uint64_t>(8 - bit, size);
    if (!f(begin / 8, static_cast<uint8_t>(((1u << n) - 1) << bit))) return;
    begin += n;
    size -= n;
  }
}

}  // namespace

void GlobalMemory::Add(const void* base, uint64_t size, std::string name, Options options) {
  Allocation a;
  a.base = reinterpret_cast<uint64_t>(base);
  a.size = size;
  a.name = std::move(name);
  a.writable = options.writable;
  if (options.track_defined) a.defined = std::make_unique<std::atomic<uint8_t>[]>(size / 8 + 1);
  allocations_[a.base] = std::move(a);
}

void GlobalMemory::Remove(const void* base) { allocations_.erase(reinterpret_cast<uint64_t>(base)); }

const GlobalMemory::Allocation* GlobalMemory::Find(uint64_t address) const {
  auto it = allocations_.upper_bound(address);
  if (it == allocations_.begin()) return nullptr;
  --it;
  return address - it->second.base < it->second.size ? &it->second : nullptr;
}

std::string GlobalMemory::Nearest(uint64_t address) const {
  const Allocation* best = nullptr;
  uint64_t distance = ~uint64_t{0};
  auto it = allocations_.upper_bound(address);
  if (it != allocations_.end()) {
    best = &it->second;
    distance = best->base - address;
  }
  if (it != allocations_.begin()) {
    --it;
    const uint64_t past = address - (it->second.base + it->second.size);
    // Inside an allocation only if an access begins in it and ends past it.
    if (address < it->second.base + it->second.size) {
      return Cat(address - it->second.base, " bytes into ", it->second.name, " (", Hex(it->second.base), ", ",
                 it->second.size, " bytes)");
    }
    if (past < distance) {
      return Cat(past, " bytes past the end of ", it->second.name, " (", Hex(it->second.base), ", ",
                 it->second.size, " bytes)");
    }
  }
  if (best == nullptr) return "there is no allocation";
  return Cat(distance, " bytes before ", best->name, " (", Hex(best->base), ", ", best->size, " bytes)");
}

const GlobalMemory::Allocation& GlobalMemory::Check(uint64_t address, uint64_t bytes, const Allocation** hint,
                                                    const char* what) const {
  if (hint != nullptr && *hint != nullptr) {
    const Allocation& a = **hint;
    if (address - a.base < a.size && bytes <= a.size - (address - a.base)) return a;
  }
  const Allocation* a = Find(address);
  if (a == nullptr || bytes > a->size - (address - a->base)) {
    Raise(Rule::kOutOfBounds,
          Cat(what, " of ", bytes, " bytes at global address ", Hex(address), ": ", Nearest(address)));
  }
  if (hint != nullptr) *hint = a;
  return *a;
}

void GlobalMemory::CheckDefined(const Allocation& a, uint64_t address, uint64_t bytes) {
  if (a.defined == nullptr) return;
  ForBits(address - a.base, bytes, [&](uint64_t word, uint8_t mask) {
    const uint8_t missing = mask & ~a.defined[word].load(std::memory_order_relaxed);
    if (missing != 0) {
      const uint64_t at = word * 8 + std::countr_zero(missing);
      Raise(Rule::kUninitialisedMemory,
            Cat("read of byte ", at, " of ", a.name, ", which nothing has written"));
    }
    return true;
  });
}

void GlobalMemory::SetDefined(const Allocation& a, uint64_t address, uint64_t bytes) {
  if (a.defined == nullptr) return;
  ForBits(address - a.base, bytes, [&](uint64_t word, uint8_t mask) {
    std::atomic<uint8_t>& bits = a.defined[word];
    if ((bits.load(std::memory_order_relaxed) & mask) != mask) bits.fetch_or(mask, std::memory_order_relaxed);
    return true;
  });
}

void GlobalMemory::MarkDefined(const void* base, uint64_t size) {
  const uint64_t address = reinterpret_cast<uint64_t>(base);
  const Allocation* a = Find(address);
  if (a == nullptr || a->defined == nullptr) return;
  size = std::min(size, a->base + a->size - address);
  // Whole words between the ends; no grid runs now.
  const uint64_t begin = address - a->base, end = begin + size;
  const uint64_t first = (begin + 7) / 8, last = end / 8;
  if (first >= last) return SetDefined(*a, address, size);
  SetDefined(*a, address, first * 8 - begin);
  for (uint64_t word = first; word < last; ++word) a->defined[word].store(0xFF, std::memory_order_relaxed);
  SetDefined(*a, a->base + last * 8, end - last * 8);
}

int64_t GlobalMemory::FirstUndefined(const void* base, uint64_t size) const {
  const uint64_t address = reinterpret_cast<uint64_t>(base);
  const Allocation* a = Find(address);
  if (a == nullptr || a->defined == nullptr) return -1;
  int64_t first = -1;
  ForBits(address - a->base, std::min(size, a->base + a->size - address), [&](uint64_t word, uint8_t mask) {
    const uint8_t missing = mask & ~a->defined[word].load(std::memory_order_relaxed);
    if (missing == 0) return true;
    first = static_cast<int64_t>(word * 8 + std::countr_zero(missing) - (address - a->base));
    return false;
  });
  return first;
}

void GlobalMemory::Read(uint64_t address, uint64_t bytes, void* out, const Allocation** hint) const {
  const Allocation& a = Check(address, bytes, hint, "load");
  CheckDefined(a, address, bytes);
  std::memcpy(out, reinterpret_cast<const void*>(address), bytes);
}

void GlobalMemory::Write(uint64_t address, uint64_t bytes, const void* in, const Allocation** hint) const {
  const Allocation& a = Check(address, bytes, hint, "store");
  if (!a.writable)
    Raise(Rule::kReadOnly, Cat("store of ", bytes, " bytes at ", Hex(address), ", in ", a.name));
  std::memcpy(reinterpret_cast<void*>(address), in, bytes);
  SetDefined(a, address, bytes);
}

}  // namespace tessera::ptx
