// Early return for absl::Status and absl::StatusOr, for the .cc files of this folder.
#ifndef TESSERA_SERVER_TOKENIZER_STATUS_MACROS_H_
#define TESSERA_SERVER_TOKENIZER_STATUS_MACROS_H_

#include "absl/status/status.h"

#define TOKENIZER_RETURN_IF_ERROR(expr)                               \
  do {                                                                \
    if (absl::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)

#define TOKENIZER_CONCAT_INNER(a, b) a##b
#define TOKENIZER_CONCAT(a, b) TOKENIZER_CONCAT_INNER(a, b)
#define TOKENIZER_ASSIGN_OR_RETURN(lhs, expr) \
  TOKENIZER_ASSIGN_OR_RETURN_IMPL(TOKENIZER_CONCAT(status_or_, __LINE__), lhs, expr)
#define TOKENIZER_ASSIGN_OR_RETURN_IMPL(name, lhs, expr) \
  auto name = (expr);                                    \
  if (!name.ok()) return name.status();                  \
  lhs = *std::move(name)

#endif  // TESSERA_SERVER_TOKENIZER_STATUS_MACROS_H_
