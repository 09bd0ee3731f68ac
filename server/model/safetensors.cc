#include "server/model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "server/model/file_io.h"
#include "server/model/safetensors_header.h"

namespace tessera {

int64_t TensorView::num_elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;  // cannot overflow: checked against the file
  return count;
}

std::string TensorView::ShapeString() const { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

// A file mapped read-only, with what it looked like then.
class SafetensorsReader::MappedFile {
 public:
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path) {
    absl::StatusOr<FileDescriptor> fd = FileDescriptor::OpenForReading(path);
    if (!fd.ok()) return fd.status();
    struct stat info;
    if (fstat(fd->get(), &info) != 0) return ErrnoStatus(errno, path, "stat");
    if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
    std::unique_ptr<MappedFile> file(new MappedFile(std::move(*fd), info));
    if (info.st_size > 0) {
      void* base = mmap(nullptr, info.st_size, PROT_READ, MAP_PRIVATE, file->fd_.get(), 0);
      if (base == MAP_FAILED) return ErrnoStatus(errno, path, "map");
      file->base_ = static_cast<const uint8_t*>(base);
    }
    return file;
  }

  ~MappedFile() {
    if (base_ != nullptr) munmap(const_cast<uint8_t*>(base_), info_.st_size);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  int fd() const { return fd_.get(); }
  const uint8_t* base() const { return base_; }
  int64_t size() const { return info_.st_size; }

  bool Unchanged(int64_t* size_now) const {
    struct stat now;
    if (fstat(fd_.get(), &now) != 0) return false;
    *size_now = now.st_size;
    return now.st_size == info_.st_size && now.st_mtim.tv_sec == info_.st_mtim.tv_sec &&
           now.st_mtim.tv_nsec == info_.st_mtim.tv_nsec;
  }

 private:
  MappedFile(FileDescriptor fd, const struct stat& info) : fd_(std::move(fd)), info_(info) {}

  FileDescriptor fd_;
  struct stat info_;
  const uint8_t* base_ = nullptr;
};

SafetensorsReader::SafetensorsReader() = default;
SafetensorsReader::~SafetensorsReader() = default;

absl::Status SafetensorsReader::AddFile(const std::string& path) {
  absl::StatusOr<std::unique_ptr<MappedFile>> file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  const int64_t size = (*file)->size();
  if (size < 8) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", size,
                     " bytes are too few for a safetensors file, whose first 8 hold the header's length"));
  }
  // The header is read, not looked at through the mapping, so that a file cut short meanwhile is an error
  // here.
  char length_bytes[8];
  if (absl::Status status = ReadExactly((*file)->fd(), 0, length_bytes, sizeof(length_bytes), path);
      !status.ok()) {
    return status;
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint8_t>(length_bytes[i]);
  if (length > static_cast<uint64_t>(size - 8) ||
      length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": header length ", length, " (bytes 0 to 7) exceeds ",
        std::min<int64_t>(size - 8, kMaxSafetensorsHeaderBytes), "; not a safetensors file, or cut short"));
  }
  std::string json(length, '\0');
  if (absl::Status status = ReadExactly((*file)->fd(), 8, json.data(), json.size(), path); !status.ok()) {
    return status;
  }
  const int64_t data_start = 8 + static_cast<int64_t>(length);
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(json, size - data_start, path);
  if (!header.ok()) return header.status();

  const int32_t file_index = static_cast<int32_t>(files_.size());
  for (HeaderEntry& entry : header->entries) {
    TensorView view;
    view.name = std::move(entry.name);
    view.dtype = entry.dtype;
    view.shape = std::move(entry.shape);
    view.file_offset = data_start + entry.begin;
    view.data = absl::MakeConstSpan((*file)->base() + view.file_offset, entry.end - entry.begin);
    view.file_index = file_index;
    std::string name = view.name;
    const auto [it, inserted] = tensors_.emplace(std::move(name), std::move(view));
    if (!inserted) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor \"", Printable(it->first),
                                                     "\" is also in ", paths_[it->second.file_index]));
    }
  }
  for (auto& [key, value] : header->metadata) metadata_[key] = std::move(value);
  hole_bytes_ += header->hole_bytes;
  paths_.push_back(path);
  files_.push_back(std::move(*file));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> SafetensorsReader::OpenFile(const std::string& path) {
  std::unique_ptr<SafetensorsReader> reader(new SafetensorsReader());
  if (absl::Status status = reader->AddFile(path); !status.ok()) return status;
  return reader;
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> SafetensorsReader::OpenDirectory(const std::string& dir) {
  const std::string single = absl::StrCat(dir, "/model.safetensors");
  const std::string index_path = absl::StrCat(dir, "/model.safetensors.index.json");
  std::error_code error;
  if (std::filesystem::exists(single, error)) return OpenFile(single);
  if (!std::filesystem::exists(index_path, error)) {
    return absl::NotFoundError(
        absl::StrCat(dir, ": neither model.safetensors nor model.safetensors.index.json",
                     std::filesystem::is_directory(dir, error) ? " is in this directory"
                                                               : ": there is no such directory"));
  }
  absl::StatusOr<std::string> index = ReadTextFile(index_path, kMaxSafetensorsHeaderBytes);
  if (!index.ok()) return index.status();
  absl::StatusOr<std::map<std::string, std::string>> weight_map = ParseWeightMap(*index, index_path);
  if (!weight_map.ok()) return weight_map.status();
  std::set<std::string> shards;
  for (const auto& [name, file] : *weight_map) shards.insert(file);
  std::unique_ptr<SafetensorsReader> reader(new SafetensorsReader());
  for (const std::string& shard : shards) {
    if (absl::Status status = reader->AddFile(absl::StrCat(dir, "/", shard)); !status.ok()) return status;
  }
  for (const auto& [name, file] : *weight_map) {
    const TensorView* tensor = reader->Find(name);
    const std::string expected = absl::StrCat(dir, "/", file);
    if (tensor == nullptr || reader->path(*tensor) != expected) {
      return absl::InvalidArgumentError(absl::StrCat(
          index_path, ": tensor \"", Printable(name), "\" should be in ", file, ", ",
          tensor == nullptr ? "which has no such tensor" : "but is in " + reader->path(*tensor)));
    }
  }
  return reader;
}

const TensorView* SafetensorsReader::Find(absl::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

int64_t SafetensorsReader::total_file_bytes() const {
  int64_t total = 0;
  for (const auto& file : files_) total += file->size();
  return total;
}

absl::Status SafetensorsReader::CheckUnchanged(const TensorView& tensor) const {
  const MappedFile& file = *files_[tensor.file_index];
  int64_t size_now = -1;
  if (file.Unchanged(&size_now)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path(tensor), ": the file changed while tensor \"",
                                          Printable(tensor.name), "\" was read: ", file.size(),
                                          " bytes when opened, ", size_now, " bytes now"));
}

void SafetensorsReader::Prefetch() const {
  for (const auto& file : files_) {
    if (file->base() != nullptr) madvise(const_cast<uint8_t*>(file->base()), file->size(), MADV_WILLNEED);
  }
}

void SafetensorsReader::Release(absl::Span<const uint8_t> data) {
  static const uintptr_t page = sysconf(_SC_PAGESIZE);
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data.data()) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(data.data() + data.size()) / page * page;
  // A read-only private mapping of a file: the next access reads the file again.
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace tessera
