// Early return for absl::Status and absl::StatusOr, for .cc files.
#ifndef TESSERA_SERVER_STATUS_MACROS_H_
#define TESSERA_SERVER_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"

// Returns from the function with the expression's status unless it is OK.
#define TESSERA_RETURN_IF_ERROR(...)                                         \
  do {                                                                       \
    if (absl::Status status_ = (__VA_ARGS__); !status_.ok()) return status_; \
  } while (false)

// Declares or sets `lhs` from a StatusOr, or returns from the function with its status.
#define TESSERA_ASSIGN_OR_RETURN(lhs, ...) \
  TESSERA_ASSIGN_OR_RETURN_IMPL_(TESSERA_STATUS_CONCAT_(status_or_, __LINE__), lhs, __VA_ARGS__)
#define TESSERA_ASSIGN_OR_RETURN_IMPL_(name, lhs, ...) \
  auto name = (__VA_ARGS__);                           \
  if (!name.ok()) return name.status();                \
  lhs = *std::move(name)
#define TESSERA_STATUS_CONCAT_(a, b) TESSERA_STATUS_CONCAT_INNER_(a, b)
#define TESSERA_STATUS_CONCAT_INNER_(a, b) a##b

#endif  // TESSERA_SERVER_STATUS_MACROS_H_
