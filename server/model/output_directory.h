#ifndef TESSERA_SERVER_MODEL_OUTPUT_DIRECTORY_H_
#define TESSERA_SERVER_MODEL_OUTPUT_DIRECTORY_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// A directory that appears under its name whole or not at all: it is filled under a hidden name beside it, and takes
// its place in Commit(). Without Commit() the destructor removes it.
class OutputDirectory {
 public:
  // `path`'s parent must exist. ALREADY_EXISTS if `path` does and `overwrite` is off. With `overwrite` an existing
  // model directory (one with a config.json) is replaced; anything else under the name is refused.
  static absl::StatusOr<std::unique_ptr<OutputDirectory>> Create(const std::string& path, bool overwrite);
  ~OutputDirectory();

  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;

  // Where to write meanwhile.
  const std::string& working_path() const { return working_path_; }

  // Syncs and renames; swaps with an old directory in one step and removes that afterwards.
  absl::Status Commit();

 private:
  OutputDirectory() = default;

  std::string path_;
  std::string working_path_;
  bool overwrite_ = false;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_OUTPUT_DIRECTORY_H_
