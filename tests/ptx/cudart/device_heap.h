// Device memory: allocations far apart in one reserved range of host addresses, whose bytes outside allocations belong
// to nobody. An access past either end hits a guard zone; a freed address is never used again, so that a use after free
// is found too.
#ifndef TESSERA_TESTS_PTX_CUDART_DEVICE_HEAP_H_
#define TESSERA_TESTS_PTX_CUDART_DEVICE_HEAP_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "tests/ptx/machine/global_memory.h"

namespace tessera::ptx {

class DeviceHeap {
 public:
  static constexpr size_t kAlignment = 256;       // as cudaMalloc promises
  static constexpr size_t kGuardBytes = 1 << 16;  // at least, on either side

  // `capacity` is what the device claims to have. Allocations are registered with `memory`, which must outlive the heap.
  DeviceHeap(GlobalMemory& memory, uint64_t capacity) : memory_(memory), capacity_(capacity) {}
  ~DeviceHeap();
  DeviceHeap(const DeviceHeap&) = delete;
  DeviceHeap& operator=(const DeviceHeap&) = delete;

  // Null if the claimed capacity, or the host's memory, does not hold it. No byte is defined.
  void* Allocate(uint64_t bytes);
  // False if nothing is allocated there.
  bool Free(void* pointer);

  uint64_t capacity() const { return capacity_; }
  uint64_t used() const { return used_; }
  // Whether the address lies in the heap's range, allocated or not.
  bool Owns(const void* pointer) const {
    const uint64_t address = reinterpret_cast<uint64_t>(pointer);
    return address >= base_ && address < base_ + kReserved;
  }

 private:
  static constexpr uint64_t kReserved = uint64_t{1} << 42;

  bool Reserve();

  GlobalMemory& memory_;
  const uint64_t capacity_;
  uint64_t base_ = 0;  // of the range; 0 until reserved
  uint64_t next_ = 0;
  uint64_t used_ = 0;
  int count_ = 0;
  std::map<uint64_t, uint64_t> sizes_;  // by address
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_CUDART_DEVICE_HEAP_H_
