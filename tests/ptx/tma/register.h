// The handlers of bulk and tensor copies: cp.async.bulk*, cp.reduce.async.bulk*, their groups, prefetch.tensormap.
#ifndef TESSERA_TESTS_PTX_TMA_REGISTER_H_
#define TESSERA_TESTS_PTX_TMA_REGISTER_H_

#include "tests/ptx/machine/registry.h"

namespace tessera::ptx {

void RegisterTma(Registry& registry);

// Its parts.
void RegisterBulkGroups(Registry& registry);    // bulk_groups.cc
void RegisterBulkCopies(Registry& registry);    // bulk_copy.cc
void RegisterTensorCopies(Registry& registry);  // tensor_copy.cc

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TMA_REGISTER_H_
