#ifndef TESSERA_SERVER_BACKEND_CPU_STEP_BUFFERS_H_
#define TESSERA_SERVER_BACKEND_CPU_STEP_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <type_traits>

#include "kernels/cpu/workspace.h"

namespace tessera::cpu {

// An array that grows and never shrinks: a step allocates only if it is larger than every one before.
// Contents do not survive growth and are not initialised. Aligned for the kernels.
template <typename T>
class GrowingArray {
 public:
  static_assert(std::is_trivially_copyable_v<T>);

  // At least `size` elements.
  T* Reserve(int64_t size) {
    if (size > capacity_) {
      const size_t bytes =
          (size * sizeof(T) + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
      data_.reset();
      data_.reset(static_cast<T*>(std::aligned_alloc(kWorkspaceAlignment, bytes)));
      if (data_ == nullptr) std::abort();  // as operator new would, where exceptions do not cross
      capacity_ = size;
    }
    return data_.get();
  }

  T* data() const { return data_.get(); }
  T& operator[](int64_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(T* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<T, Free> data_;
  int64_t capacity_ = 0;
};

}  // namespace tessera::cpu

#endif  // TESSERA_SERVER_BACKEND_CPU_STEP_BUFFERS_H_
