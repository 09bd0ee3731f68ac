#ifndef TESSERA_SERVER_MODEL_FILE_IO_H_
#define TESSERA_SERVER_MODEL_FILE_IO_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tessera {

// Owns an open file.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { Close(); }

  static absl::StatusOr<FileDescriptor> OpenForReading(const std::string& path);

  int get() const { return fd_; }
  void Close();

 private:
  int fd_ = -1;
};

// "PATH: cannot VERB: reason", with the code that fits `error` (an errno).
absl::Status ErrnoStatus(int error, absl::string_view path, absl::string_view verb);

// Exactly `bytes` bytes from or to `offset`, or an error that names the path.
absl::Status ReadExactly(int fd, int64_t offset, char* data, int64_t bytes, absl::string_view path);
absl::Status WriteExactly(int fd, int64_t offset, const void* data, int64_t bytes, absl::string_view path);

// A whole file of at most `limit` bytes.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t limit);

// Writes and syncs a new file; fails if there is one.
absl::Status WriteNewFile(const std::string& path, absl::string_view content);

// Syncs a directory, so that names made in it last.
absl::Status SyncDirectory(const std::string& dir);

// A JSON object of modest depth; errors name the path and the place.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view path);

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_FILE_IO_H_
