#ifndef TESSERA_SERVER_BACKEND_CPU_MEMORY_H_
#define TESSERA_SERVER_BACKEND_CPU_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::cpu {

// Anonymous memory straight from the system: page-aligned, zero until written, given back when destroyed.
// Pages cost nothing before they are touched.
class MappedMemory {
 public:
  MappedMemory() = default;
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory();

  // RESOURCE_EXHAUSTED, with the bytes needed and free, if the system or the container has less. `what` names
  // the purpose in that message ("weights").
  static absl::StatusOr<MappedMemory> Allocate(int64_t bytes, absl::string_view what);

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

// Bytes that this process may still take without swapping: the system's, or less if a control group limits
// it. Empty if the system does not tell.
std::optional<int64_t> AvailableMemory();

// Cores that this process may use: its affinity mask, or fewer if a control group limits its processor time.
int UsableCores();

}  // namespace tessera::cpu

#endif  // TESSERA_SERVER_BACKEND_CPU_MEMORY_H_
