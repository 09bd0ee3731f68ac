#include "tests/ptx/emulator.h"

#ifdef TESSERA_PTX_HAS_TENSOR
#include "tests/ptx/tensor/register.h"
#endif
#ifdef TESSERA_PTX_HAS_TMA
#include "tests/ptx/tma/register.h"
#endif

namespace tessera::ptx {

const Registry& FullRegistry() {
  static const Registry* const registry = [] {
    auto* r = new Registry();
    RegisterScalarIsa(*r);
#ifdef TESSERA_PTX_HAS_TENSOR
    RegisterTensor(*r);
#endif
#ifdef TESSERA_PTX_HAS_TMA
    RegisterTma(*r);
#endif
    return r;
  }();
  return *registry;
}

}  // namespace tessera::ptx
