#ifndef TESSERA_CLIENT_CLI_CHECKPOINT_INFO_H_
#define TESSERA_CLIENT_CLI_CHECKPOINT_INFO_H_

#include <cstdint>
#include <string>

namespace tessera::cli {

// `tessera info DIR`: what a model directory holds. The exit code.
int ExplainCheckpoint(const std::string& dir, bool json);

// "17.3 MiB", "512 B".
std::string HumanBytes(int64_t bytes);
// "30.5 B", "17.2 M", "640".
std::string HumanCount(int64_t count);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_CHECKPOINT_INFO_H_
