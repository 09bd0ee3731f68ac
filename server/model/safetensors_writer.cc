#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/model/file_io.h"
#include "server/model/safetensors.h"
#include "server/model/safetensors_header.h"

namespace tessera {
namespace {

std::string TemporaryName(const std::string& path) {
  const std::filesystem::path target(path);
  return (target.parent_path() / absl::StrCat(".", target.filename().string(), ".", getpid(), ".tmp"))
      .string();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, const std::vector<Entry>& entries,
    const std::map<std::string, std::string>& metadata) {
  std::vector<const Entry*> order;
  for (const Entry& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    const int64_t a_size = DTypeSize(a->dtype);
    const int64_t b_size = DTypeSize(b->dtype);
    return a_size != b_size ? a_size > b_size : a->name < b->name;
  });

  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter());
  absl::MutexLock lock(&writer->mutex_);
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const Entry* entry : order) {
    int64_t bytes = DTypeSize(entry->dtype);
    for (const int64_t size : entry->shape) {
      if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": tensor \"", Printable(entry->name), "\": bad shape"));
      }
    }
    if (entry->name == "__metadata__" ||
        !writer->slots_.emplace(entry->name, Slot{offset, bytes, false}).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor name \"", Printable(entry->name), "\" is taken"));
    }
    header[entry->name] = {{"dtype", std::string(DTypeName(entry->dtype))},
                           {"shape", entry->shape},
                           {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string json;
  try {
    json = header.dump();
  } catch (const nlohmann::json::exception& error) {  // a name that is not UTF-8
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", Printable(error.what())));
  }
  json.append((8 - json.size() % 8) % 8, ' ');
  const int64_t data_start = 8 + static_cast<int64_t>(json.size());
  for (auto& [name, slot] : writer->slots_) slot.offset += data_start;
  writer->file_bytes_ = data_start + offset;

  const std::string temporary = TemporaryName(path);
  unlink(temporary.c_str());  // left by a process of the same id that died
  writer->fd_ = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (writer->fd_ < 0) return ErrnoStatus(errno, temporary, "create");
  writer->path_ = path;
  writer->temporary_path_ = temporary;
  // Reserves the room now: a full disk is an error before the work, not after.
  if (const int error = posix_fallocate(writer->fd_, 0, writer->file_bytes_); error != 0) {
    return ErrnoStatus(error, temporary, absl::StrCat("reserve ", writer->file_bytes_, " bytes"));
  }
  char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(json.size() >> (8 * i));
  absl::Status status = WriteExactly(writer->fd_, 0, length, sizeof(length), temporary);
  status.Update(WriteExactly(writer->fd_, 8, json.data(), json.size(), temporary));
  if (!status.ok()) return status;
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_path_.empty()) unlink(temporary_path_.c_str());
}

absl::Status SafetensorsWriter::Write(absl::string_view name, absl::Span<const uint8_t> data) {
  int64_t offset = 0;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = slots_.find(name);
    if (it == slots_.end() || it->second.written) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor \"", Printable(name), "\" was ",
                                                     it == slots_.end() ? "not announced" : "written twice"));
    }
    if (it->second.bytes != static_cast<int64_t>(data.size())) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor \"", Printable(name), "\": expected ",
                                                     it->second.bytes, " bytes, got ", data.size()));
    }
    it->second.written = true;
    offset = it->second.offset;
  }
  return WriteExactly(fd_, offset, data.data(), data.size(), temporary_path_);
}

absl::Status SafetensorsWriter::Finish() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, slot] : slots_) {
    if (!slot.written) {
      return absl::FailedPreconditionError(
          absl::StrCat(path_, ": tensor \"", Printable(name), "\" was not written"));
    }
  }
  if (fsync(fd_) != 0) return ErrnoStatus(errno, temporary_path_, "sync");
  if (rename(temporary_path_.c_str(), path_.c_str()) != 0) return ErrnoStatus(errno, path_, "rename into");
  temporary_path_.clear();
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  return SyncDirectory(parent.empty() ? "." : parent);
}

}  // namespace tessera
