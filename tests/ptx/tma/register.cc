#include "tests/ptx/tma/register.h"

namespace tessera::ptx {

void RegisterTma(Registry& registry) {
  RegisterBulkGroups(registry);
  RegisterBulkCopies(registry);
  RegisterTensorCopies(registry);
}

}  // namespace tessera::ptx
