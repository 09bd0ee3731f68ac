#ifndef TESSERA_SERVER_MODEL_SAFETENSORS_H_
#define TESSERA_SERVER_MODEL_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace tessera {

// The safetensors format (https://huggingface.co/docs/safetensors): 8 bytes little-endian header length N, N
// bytes of JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ..., "__metadata__": {string:
// string}}, then the data, which the offsets count from its first byte. Tensors are row-major, little-endian.

enum class DType {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64
};

// Size of one element in bytes.
int64_t DTypeSize(DType dtype);
// The format's own name, for example "BF16", "F8_E4M3".
absl::string_view DTypeName(DType dtype);

// A tensor in a mapped file. `data` need not be aligned: the format does not promise it.
struct TensorView {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;      // outermost first; empty for a scalar
  absl::Span<const uint8_t> data;  // num_elements() * DTypeSize(dtype) bytes
  int64_t file_offset = 0;         // of the first byte, in its file
  int32_t file_index = 0;          // which file of the SafetensorsReader

  int64_t num_elements() const;
  std::string ShapeString() const;  // "[128, 64]"
};

// One checkpoint's tensors: a single .safetensors file, or the shards that a model.safetensors.index.json
// names.
//
// Everything is checked when it is opened: header bounds and JSON, each tensor's dtype, shape and offsets
// against the file's size, overlaps, duplicates (in a file or between shards), and the index against the
// shards. A bad file gives INVALID_ARGUMENT (or NOT_FOUND, PERMISSION_DENIED ...) that names the file, the
// tensor, what was expected and what was found. Gaps between tensors are allowed and counted.
//
// Files are mapped read-only. Reading a page that was cut off the file after mapping would raise SIGBUS:
// readers call CheckUnchanged() just before they copy a tensor out, and keep no view once the weights are in
// memory.
//
// Immutable once open; any thread may read.
class SafetensorsReader {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenFile(const std::string& path);
  // `dir` holds model.safetensors, or model.safetensors.index.json and its shards.
  static absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenDirectory(const std::string& dir);
  ~SafetensorsReader();

  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  // nullptr if there is no such tensor.
  const TensorView* Find(absl::string_view name) const;
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  const std::vector<std::string>& files() const { return paths_; }
  const std::string& path(const TensorView& tensor) const { return paths_[tensor.file_index]; }
  // "__metadata__" of all files, later files win.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  int64_t total_file_bytes() const;
  // Bytes of data that no tensor covers.
  int64_t hole_bytes() const { return hole_bytes_; }

  // DATA_LOSS if the tensor's file has another size or modification time than when it was mapped.
  absl::Status CheckUnchanged(const TensorView& tensor) const;

  // Asks the system to read all files ahead.
  void Prefetch() const;

  // Lets go of the whole pages in a part of a tensor's data: see linear_rows.h.
  static void Release(absl::Span<const uint8_t> data);

 private:
  class MappedFile;
  SafetensorsReader();
  absl::Status AddFile(const std::string& path);

  std::vector<std::string> paths_;
  std::vector<std::unique_ptr<MappedFile>> files_;
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
  int64_t hole_bytes_ = 0;
};

// Writes one .safetensors file, tensor by tensor in any order, so that no more than the tensor at hand need
// be in memory. All names, types and shapes are given first. The file appears under its name, whole and
// synced, only when Finish() succeeds; before that, and after any error, there is a hidden temporary file at
// most, which the destructor removes. Tensors are laid out as other writers do: wider types first, then by
// name, data aligned to 8 bytes.
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
  };

  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, const std::vector<Entry>& entries,
      const std::map<std::string, std::string>& metadata);
  ~SafetensorsWriter();

  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // One tensor: an entry's name, once, with the bytes that its type and shape promise. Thread-safe.
  absl::Status Write(absl::string_view name, absl::Span<const uint8_t> data);
  // Checks that every tensor came, syncs, renames. Nothing may follow.
  absl::Status Finish();

  int64_t file_bytes() const { return file_bytes_; }

 private:
  struct Slot {
    int64_t offset = 0;  // in the file
    int64_t bytes = 0;
    bool written = false;
  };

  SafetensorsWriter() = default;

  std::string path_;
  std::string temporary_path_;
  int fd_ = -1;
  int64_t file_bytes_ = 0;
  absl::Mutex mutex_;
  std::map<std::string, Slot, std::less<>> slots_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_SAFETENSORS_H_
