#include "tests/ptx/machine/local_memory.h"

#include <algorithm>
#include <cstring>

#include "tests/ptx/machine/fault.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {

void LocalMemory::Grow(uint32_t bytes) {
  if (bytes > kLimit) {
    Raise(Rule::kResource,
          Cat("a thread's local memory and call stack take ", bytes, " bytes; the limit is ", kLimit));
  }
  if (bytes <= size_) return;
  size_ = bytes;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    data_[lane].resize(bytes);
    defined_[lane].resize(bytes);
  }
}

void LocalMemory::Check(int lane, uint64_t address, uint32_t bytes, const char* what) const {
  if (address <= size_ && bytes <= size_ - address) return;
  RaiseAt(lane, Rule::kOutOfBounds,
          Cat(what, " of ", bytes, " bytes at local address ", Hex(address), "; the thread has ", size_,
              " bytes"));
}

void LocalMemory::Load(int lane, uint64_t address, uint32_t bytes, void* out) const {
  Check(lane, address, bytes, "load");
  for (uint32_t i = 0; i < bytes; ++i) {
    if (!defined_[lane][address + i]) {
      RaiseAt(lane, Rule::kUninitialisedMemory,
              Cat("read of local address ", Hex(address + i), ", which nothing has written"));
    }
  }
  std::memcpy(out, data_[lane].data() + address, bytes);
}

void LocalMemory::Store(int lane, uint64_t address, uint32_t bytes, const void* in) {
  Check(lane, address, bytes, "store");
  std::memcpy(data_[lane].data() + address, in, bytes);
  std::memset(defined_[lane].data() + address, 1, bytes);
}

void LocalMemory::Copy(int lane, uint32_t to, uint32_t from, uint32_t bytes) {
  std::memmove(data_[lane].data() + to, data_[lane].data() + from, bytes);
  std::memmove(defined_[lane].data() + to, defined_[lane].data() + from, bytes);
}

void LocalMemory::Forget(LaneMask lanes, uint32_t address, uint32_t bytes) {
  if (bytes == 0) return;
  ForLanes(lanes, [&](int lane) { std::memset(defined_[lane].data() + address, 0, bytes); });
}

const std::byte* LocalMemory::Peek(int lane, uint64_t address, uint32_t bytes) const {
  Check(lane, address, bytes, "read");
  return data_[lane].data() + address;
}

}  // namespace tessera::ptx
