#include "tests/ptx/machine/frame.h"

#include <cstring>
#include <new>
#include <utility>

namespace tessera::ptx {

Frame::Frame(const Function& function, uint32_t local_base, std::shared_ptr<Frame> caller, int return_index)
    : function(function),
      local_base(local_base),
      caller(std::move(caller)),
      return_index(return_index),
      defined(function.registers.size()) {
  const size_t bytes = function.storage_bytes + 64;
  storage_.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64})));
  std::memset(storage_.get(), 0, bytes);
}

void Frame::Free::operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }

}  // namespace tessera::ptx
