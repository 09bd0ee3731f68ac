#include "server/model/output_directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "server/model/file_io.h"

namespace tessera {
namespace fs = std::filesystem;
namespace {

absl::Status CheckReplaceable(const std::string& path, bool overwrite) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (!fs::exists(status)) return absl::OkStatus();
  if (!overwrite) return absl::AlreadyExistsError(absl::StrCat(path, ": exists already"));
  if (!fs::is_directory(status) || !fs::exists(fs::path(path) / "config.json", error)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": is not a model directory (no config.json in it), and will not be replaced"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<OutputDirectory>> OutputDirectory::Create(const std::string& path,
                                                                         bool overwrite) {
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  const fs::path target(trimmed);
  const std::string name = target.filename().string();
  if (name.empty() || name == "." || name == ".." || name == "/") {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", path, "\": expected the name of a directory to make"));
  }
  if (absl::Status status = CheckReplaceable(trimmed, overwrite); !status.ok()) return status;
  std::unique_ptr<OutputDirectory> directory(new OutputDirectory());
  directory->path_ = trimmed;
  directory->overwrite_ = overwrite;
  std::string working = (target.parent_path() / absl::StrCat(".", name, ".XXXXXX")).string();
  if (mkdtemp(working.data()) == nullptr) return ErrnoStatus(errno, working, "create a directory");
  directory->working_path_ = working;
  const mode_t mask =
      umask(0);  // mkdtemp gives the owner alone access; a model is to be read like any directory
  umask(mask);
  if (chmod(working.c_str(), 0777 & ~mask) != 0) return ErrnoStatus(errno, working, "set the mode of");
  return directory;
}

OutputDirectory::~OutputDirectory() {
  if (working_path_.empty()) return;
  std::error_code error;
  fs::remove_all(working_path_, error);
}

absl::Status OutputDirectory::Commit() {
  const std::string parent = fs::path(path_).parent_path().string();
  if (absl::Status status = SyncDirectory(working_path_); !status.ok()) return status;
  if (absl::Status status = CheckReplaceable(path_, overwrite_); !status.ok()) return status;
  bool swapped = false;
  if (renameat2(AT_FDCWD, working_path_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) != 0) {
    if (errno == EINVAL) {  // the file system has no such flag; an empty directory at most would be replaced
      if (rename(working_path_.c_str(), path_.c_str()) != 0) return ErrnoStatus(errno, path_, "rename into");
    } else if (errno == EEXIST && overwrite_) {
      if (renameat2(AT_FDCWD, working_path_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) != 0) {
        return ErrnoStatus(errno, path_, "swap");
      }
      swapped = true;  // the old directory now has the hidden name: the destructor removes it
    } else {
      return ErrnoStatus(errno, path_, "rename into");
    }
  }
  if (!swapped) working_path_.clear();
  return SyncDirectory(parent.empty() ? "." : parent);
}

}  // namespace tessera
