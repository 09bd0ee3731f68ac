#include "server/tokenizer/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

constexpr off_t kMaxFileSize = off_t{512} << 20;

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

absl::Status SystemError(const std::string& path, int error) {
  return absl::UnavailableError(absl::StrCat(path, ": cannot be read: ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<std::optional<std::string>> ReadTextFile(const std::string& path) {
  // Without O_NONBLOCK, opening a named pipe would wait for a writer.
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::optional<std::string>();
    return SystemError(path, errno);
  }
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return SystemError(path, errno);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  if (info.st_size > kMaxFileSize) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", info.st_size, " bytes, expected at most ", kMaxFileSize));
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = read(fd.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(path, errno);
    if (n == 0) break;  // the file shrank while it was read
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return std::optional<std::string>(std::move(text));
}

}  // namespace tessera
