#ifndef TESSERA_SERVER_BACKEND_CPU_WEIGHT_PACKER_H_
#define TESSERA_SERVER_BACKEND_CPU_WEIGHT_PACKER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cpu/linear/packed_linear.h"
#include "kernels/cpu/thread_pool.h"
#include "server/backend/cpu/memory.h"
#include "server/backend/load_progress.h"
#include "server/model/linear_weights.h"
#include "server/model/safetensors.h"

namespace tessera::cpu {

// Repacks a model's matrices into the kernels' order, in one block of memory and in parallel. First every matrix is
// added, then Run packs all. Without a reader the weights are made up, to time shapes: random values of a variance of
// about 1 / k.
class WeightPacker {
 public:
  // `reader` holds the matrices' files, and may be null; it must outlive this.
  explicit WeightPacker(const SafetensorsReader* reader) : reader_(reader) {}

  // `*packed` is filled in by Run; it and `source` must stay where they are until then. NVFP4, MXFP4 and FP8 keep
  // every value; BF16 too; F16 and F32 are rounded to it. Made-up weights take `dummy_format`.
  void Add(const LinearWeights& source, WeightFormat dummy_format, int64_t n, int64_t k,
           PackedLinear* packed);

  // The transpose of `source` in BF16. Block scales are multiplied in, which BF16 holds exactly for NVFP4 and MXFP4; an
  // NVFP4 tensor scale stays apart. `*packed` as above.
  void AddTransposed(const LinearWeights& source, PackedLinear* packed);

  // Row-major BF16 [n, k], rounded if need be, for a table that rows are taken from.
  void AddTable(const LinearWeights& source, int64_t n, int64_t k, const Bf16** rows);

  // INVALID_ARGUMENT names a bad value's tensor, place and byte in the file; RESOURCE_EXHAUSTED the bytes needed and
  // free; DATA_LOSS a file that changed. `progress` is called from one thread at a time.
  absl::StatusOr<MappedMemory> Run(ThreadPool& pool,
                                   const std::function<void(const LoadProgress&)>& progress);

 private:
  // A matrix to be packed: where from and where to.
  struct Job {
    const LinearWeights* source = nullptr;  // null: made up
    PackedLinear* packed = nullptr;         // null: a table
    const Bf16** rows = nullptr;
    WeightFormat format = WeightFormat::kBf16;
    int64_t n = 0;
    int64_t k = 0;
    bool transposed = false;
    int64_t offset = 0;  // in the model's memory

    int64_t bytes() const;
    // Whether it is cut into ranges of columns, as its source is stored; else of rows.
    bool by_columns() const;
  };
  // A range of rows or columns of a job: what one thread does at a time.
  struct Piece {
    const Job* job = nullptr;
    int64_t first = 0;
    int64_t count = 0;
  };

  void Add(Job job);
  absl::Status Pack(const Piece& piece, uint64_t seed, std::byte* base) const;
  absl::Status PackRows(const Piece& piece, std::byte* target) const;
  absl::Status PackColumns(const Piece& piece, std::byte* base) const;
  absl::Status PackTransposed(const Piece& piece, std::byte* target) const;
  absl::Status PackDummy(const Piece& piece, uint64_t seed, std::byte* target) const;
  absl::Status CopyRows(const Piece& piece, uint64_t seed, Bf16* target) const;

  const SafetensorsReader* reader_;
  std::vector<Job> jobs_;
  int64_t total_ = 0;
};

}  // namespace tessera::cpu

#endif  // TESSERA_SERVER_BACKEND_CPU_WEIGHT_PACKER_H_
