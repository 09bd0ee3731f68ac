// What a kernel may touch in global memory: device addresses are host addresses, and every allocation is registered.
// Add and Remove must not run while a grid runs; checks may come from many threads.
#ifndef TESSERA_TESTS_PTX_MACHINE_GLOBAL_MEMORY_H_
#define TESSERA_TESTS_PTX_MACHINE_GLOBAL_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace tessera::ptx {

class GlobalMemory {
 public:
  struct Allocation {
    uint64_t base = 0;
    uint64_t size = 0;
    std::string name;  // for messages: "cudaMalloc #3", ".global counter"
    bool writable = true;
    // One bit a byte, set once written; null if not tracked.
    std::unique_ptr<std::atomic<uint8_t>[]> defined;
  };
  struct Options {
    bool writable = true;
    bool track_defined = false;  // reads of bytes never written fault; see MarkDefined
  };

  void Add(const void* base, uint64_t size, std::string name, Options options);
  void Add(const void* base, uint64_t size, std::string name) { Add(base, size, std::move(name), Options()); }
  void Remove(const void* base);

  // The host wrote these bytes (copy, memset).
  void MarkDefined(const void* base, uint64_t size);
  // For copies to the host: first byte never written, or -1.
  int64_t FirstUndefined(const void* base, uint64_t size) const;

  // The allocation that holds [address, address + bytes); raises with the nearest one's name otherwise. `hint` is a
  // cache of the caller's last hit and may be null.
  const Allocation& Check(uint64_t address, uint64_t bytes, const Allocation** hint, const char* what) const;
  // Read and Write: checked copies with the tracking of defined bytes.
  void Read(uint64_t address, uint64_t bytes, void* out, const Allocation** hint = nullptr) const;
  void Write(uint64_t address, uint64_t bytes, const void* in, const Allocation** hint = nullptr) const;
  // Raises unless all of it was written; marks it written. For atomics, and for whole boxes.
  static void CheckDefined(const Allocation& a, uint64_t address, uint64_t bytes);
  static void SetDefined(const Allocation& a, uint64_t address, uint64_t bytes);

  // The allocation that holds the address, or null.
  const Allocation* Find(uint64_t address) const;
  std::string Nearest(
      uint64_t address) const;  // "16 bytes past the end of cudaMalloc #3 (0x..., 4096 bytes)"

 private:
  std::map<uint64_t, Allocation> allocations_;  // by base
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_MACHINE_GLOBAL_MEMORY_H_
