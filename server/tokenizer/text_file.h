// Reading the small files of a checkpoint.
#ifndef TESSERA_SERVER_TOKENIZER_TEXT_FILE_H_
#define TESSERA_SERVER_TOKENIZER_TEXT_FILE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// The whole of a regular file; nothing if there is no such file. UNAVAILABLE with the system's message if it
// cannot be read, INVALID_ARGUMENT if it is no regular file or larger than 512 MiB.
absl::StatusOr<std::optional<std::string>> ReadTextFile(const std::string& path);

}  // namespace tessera

#endif  // TESSERA_SERVER_TOKENIZER_TEXT_FILE_H_
