// Per-thread memory of one warp: .local variables and the .param variables of calls. Addresses are offsets, the same in
// all lanes; frames stack up.
#ifndef TESSERA_TESTS_PTX_MACHINE_LOCAL_MEMORY_H_
#define TESSERA_TESTS_PTX_MACHINE_LOCAL_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/ptx/machine/lanes.h"

namespace tessera::ptx {

class LocalMemory {
 public:
  static constexpr uint32_t kLimit = 512 * 1024;  // bytes a thread, as on hardware

  void Grow(uint32_t bytes);  // to at least this many a lane; raises past kLimit
  uint32_t size() const { return size_; }
  void Load(int lane, uint64_t address, uint32_t bytes, void* out) const;
  void Store(int lane, uint64_t address, uint32_t bytes, const void* in);
  // Copies with what is undefined staying undefined; for call arguments.
  void Copy(int lane, uint32_t to, uint32_t from, uint32_t bytes);
  void Forget(LaneMask lanes, uint32_t address, uint32_t bytes);  // undefined again: a new frame
  // A host pointer to bytes that are all defined; for printf.
  const std::byte* Peek(int lane, uint64_t address, uint32_t bytes) const;

 private:
  void Check(int lane, uint64_t address, uint32_t bytes, const char* what) const;
  uint32_t size_ = 0;
  std::vector<std::byte> data_[kWarpSize];
  std::vector<uint8_t> defined_[kWarpSize];  // a byte a byte
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_MACHINE_LOCAL_MEMORY_H_
