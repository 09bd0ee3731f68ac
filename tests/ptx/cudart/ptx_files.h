// PTX in files, for programs whose fat binaries hold machine code alone: `nvcc --keep` leaves in a file the text that it
// made the code from.
#ifndef TESSERA_TESTS_PTX_CUDART_PTX_FILES_H_
#define TESSERA_TESTS_PTX_CUDART_PTX_FILES_H_

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/ptx/cudart/fat_binary.h"

namespace tessera::ptx {

class PtxFiles {
 public:
  // `list` is a file with the path of a PTX file in each line; it and they are read when something is first looked up.
  explicit PtxFiles(std::string list) : list_(std::move(list)) {}

  // The file for the architecture that has all of these entries (mangled names): those that one source file defines.
  // Errors: NotFound, which names the list and those of its files that are not there, and Unavailable where the list
  // can't be read or one of its files is no PTX.
  absl::StatusOr<PtxImage> Find(int arch, const std::vector<std::string>& entries);

 private:
  struct File {
    std::string path;
    int arch;
    std::set<std::string, std::less<>> entries;
  };

  absl::Status ReadList();

  const std::string list_;
  std::optional<absl::Status> read_;
  std::vector<File> files_;
  std::vector<std::string> missing_;  // listed, and not there
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_CUDART_PTX_FILES_H_
