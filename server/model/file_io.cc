#include "server/model/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/model/safetensors_header.h"

namespace tessera {

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void FileDescriptor::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::StatusOr<FileDescriptor> FileDescriptor::OpenForReading(const std::string& path) {
  // Non-blocking, so that a FIFO under the name does not hang the start.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return ErrnoStatus(errno, path, "open");
  return FileDescriptor(fd);
}

absl::Status ErrnoStatus(int error, absl::string_view path, absl::string_view verb) {
  return absl::ErrnoToStatus(error, absl::StrCat(path, ": cannot ", verb));
}

absl::Status ReadExactly(int fd, int64_t offset, char* data, int64_t bytes, absl::string_view path) {
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(fd, data + done, bytes - done, offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, path, "read");
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(path, ": ends at byte ", offset + done, "; expected ", bytes,
                                              " bytes from byte ", offset));
    }
    done += got;
  }
  return absl::OkStatus();
}

absl::Status WriteExactly(int fd, int64_t offset, const void* data, int64_t bytes, absl::string_view path) {
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t put = pwrite(fd, static_cast<const char*>(data) + done, bytes - done, offset + done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return ErrnoStatus(errno, path, "write");
    done += put;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t limit) {
  absl::StatusOr<FileDescriptor> fd = FileDescriptor::OpenForReading(path);
  if (!fd.ok()) return fd.status();
  struct stat info;
  if (fstat(fd->get(), &info) != 0) return ErrnoStatus(errno, path, "stat");
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  if (info.st_size > limit) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", info.st_size, " bytes, more than ", limit));
  }
  std::string text(info.st_size, '\0');
  if (absl::Status status = ReadExactly(fd->get(), 0, text.data(), text.size(), path); !status.ok())
    return status;
  return text;
}

absl::Status WriteNewFile(const std::string& path, absl::string_view content) {
  const int raw = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (raw < 0) return ErrnoStatus(errno, path, "create");
  FileDescriptor fd(raw);
  if (absl::Status status = WriteExactly(raw, 0, content.data(), content.size(), path); !status.ok())
    return status;
  if (fsync(raw) != 0) return ErrnoStatus(errno, path, "sync");
  return absl::OkStatus();
}

absl::Status SyncDirectory(const std::string& dir) {
  const int raw = open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (raw < 0) return ErrnoStatus(errno, dir, "open");
  FileDescriptor fd(raw);
  if (fsync(raw) != 0) return ErrnoStatus(errno, dir, "sync");
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view path) {
  // Destroying a deeply nested document recurses; no configuration nests more than a handful of levels.
  constexpr int kMaxDepth = 64;
  bool too_deep = false;
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text.begin(), text.end(),
                                 [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
                                   too_deep |= depth > kMaxDepth;
                                   return depth <= kMaxDepth;
                                 });
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not valid JSON: ", Printable(error.what())));
  }
  if (too_deep) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": nests deeper than ", kMaxDepth, " levels"));
  }
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected a JSON object, found ", json.type_name()));
  }
  return json;
}

}  // namespace tessera
