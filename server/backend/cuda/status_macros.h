#ifndef TESSERA_SERVER_BACKEND_CUDA_STATUS_MACROS_H_
#define TESSERA_SERVER_BACKEND_CUDA_STATUS_MACROS_H_

#include "absl/status/status.h"

// Returns from the function with the expression's status unless it is OK.
#define TESSERA_RETURN_IF_ERROR(expression)                                 \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

#endif  // TESSERA_SERVER_BACKEND_CUDA_STATUS_MACROS_H_
