// Memory that a kernel needs for the length of one call.
//
// Kernels allocate nothing. Each one that needs scratch memory has a function <Op>WorkspaceBytes; the caller
// keeps one block of the largest size it needs and lends it to one call after the other. Contents need not be
// initialised and mean nothing afterwards. data is aligned to kWorkspaceAlignment.
#ifndef TESSERA_KERNELS_CPU_WORKSPACE_H_
#define TESSERA_KERNELS_CPU_WORKSPACE_H_

#include <cstddef>

namespace tessera::cpu {

inline constexpr size_t kWorkspaceAlignment = 64;

struct Workspace {
  std::byte* data = nullptr;
  size_t size = 0;
};

}  // namespace tessera::cpu

#endif  // TESSERA_KERNELS_CPU_WORKSPACE_H_
