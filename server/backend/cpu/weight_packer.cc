#include "server/backend/cpu/weight_packer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cpu/linear/pack_columns.h"
#include "server/model/linear_rows.h"

namespace tessera::cpu {
namespace {

using ModelFormat = ::tessera::WeightFormat;

// Rows are packed in pieces of this many, a multiple of the tile, so that one large matrix is shared by all
// threads.
constexpr int64_t kRowsPerPiece = 1024;
// So many are gathered at a time where they do not lie side by side: the caches hold them until they are packed.
constexpr int64_t kRowsAtOnce = 32;
static_assert(kRowsPerPiece % kRowsAtOnce == 0 && kRowsAtOnce % kTileRows == 0);
constexpr int64_t kColumnsPerPiece = 512;
static_assert(kColumnsPerPiece % kColumnRangeStep == 0);

DenseType DenseTypeOf(ModelFormat format) {
  switch (format) {
    case ModelFormat::kF16:
      return DenseType::kF16;
    case ModelFormat::kF32:
      return DenseType::kF32;
    default:
      return DenseType::kBf16;
  }
}

WeightFormat PackedFormat(ModelFormat format) {
  switch (format) {
    case ModelFormat::kNvfp4:
      return WeightFormat::kNvfp4;
    case ModelFormat::kMxfp4:
      return WeightFormat::kMxfp4;
    case ModelFormat::kFp8:
      return WeightFormat::kFp8;
    default:
      return WeightFormat::kBf16;
  }
}

// xorshift64*; for weights that only have to look random.
class FastRandom {
 public:
  explicit FastRandom(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 0x1234567u) {}
  uint64_t Next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1dull;
  }

 private:
  uint64_t state_;
};

// NVFP4 rows whose dequantised values have a variance of about 1 / k: codes at random (their mean square
// is 8.6), block scales between 1 and 2, tensor scale to match.
float DummyTensorScale(int64_t k) { return 0.23f / std::sqrt(static_cast<float>(k)); }

void FillDummyNvfp4(uint64_t seed, std::vector<uint8_t>* codes, std::vector<uint8_t>* scales) {
  FastRandom random(seed);
  for (size_t i = 0; i < codes->size(); i += 8) {
    const uint64_t bits = random.Next();
    std::memcpy(codes->data() + i, &bits, std::min<size_t>(8, codes->size() - i));
  }
  for (uint8_t& scale : *scales) scale = 0x38 | (random.Next() >> 61);
}

void FillDummyBf16(uint64_t seed, int64_t k, std::vector<uint16_t>* values) {
  FastRandom random(seed);
  const float range = std::sqrt(3.0f / static_cast<float>(k));
  for (uint16_t& value : *values) {
    value = ToBf16(range * (static_cast<float>(random.Next() >> 40) * 0x1p-23f - 1.0f)).bits;
  }
}

absl::Status Named(const LinearWeights& source, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("\"", source.name, "\": ", status.message()));
}

}  // namespace

int64_t WeightPacker::Job::bytes() const {
  return packed != nullptr ? static_cast<int64_t>(PackedBytes(format, n, k)) : n * k * int64_t{sizeof(Bf16)};
}

bool WeightPacker::Job::by_columns() const {
  return source != nullptr && packed != nullptr && !transposed && format != WeightFormat::kMxfp4 &&
         source->by_columns();
}

void WeightPacker::Add(const LinearWeights& source, WeightFormat dummy_format, int64_t n, int64_t k,
                       PackedLinear* packed) {
  Job job;
  job.packed = packed;
  job.n = n;
  job.k = k;
  if (reader_ == nullptr) {
    job.format = k % 16 == 0 ? dummy_format : WeightFormat::kBf16;
  } else {
    job.source = &source;
    job.format = PackedFormat(source.format);
  }
  Add(job);
}

void WeightPacker::AddTransposed(const LinearWeights& source, PackedLinear* packed) {
  Job job;
  job.packed = packed;
  job.source = reader_ != nullptr ? &source : nullptr;
  job.n = source.in;
  job.k = source.out;
  job.transposed = true;
  Add(job);
}

void WeightPacker::AddTable(const LinearWeights& source, int64_t n, int64_t k, const Bf16** rows) {
  Job job;
  job.source = reader_ != nullptr ? &source : nullptr;
  job.rows = rows;
  job.n = n;
  job.k = k;
  Add(job);
}

void WeightPacker::Add(Job job) {
  job.offset = total_;
  constexpr int64_t kAlign = kPackedAlignment;
  total_ += (job.bytes() + kAlign - 1) / kAlign * kAlign;
  jobs_.push_back(job);
}

absl::StatusOr<MappedMemory> WeightPacker::Run(ThreadPool& pool,
                                               const std::function<void(const LoadProgress&)>& progress) {
  absl::StatusOr<MappedMemory> memory = MappedMemory::Allocate(total_, "weights");
  if (!memory.ok()) return memory;
  // Read ahead unless the files would then push each other, or the weights, out of memory.
  const std::optional<int64_t> available = AvailableMemory();
  if (reader_ != nullptr && (!available || reader_->total_file_bytes() + total_ < *available))
    reader_->Prefetch();
  std::vector<Piece> pieces;
  for (const Job& job : jobs_) {
    const std::byte* base = memory->data() + job.offset;
    if (job.packed != nullptr) {
      const bool scaled = job.format == WeightFormat::kNvfp4 || (job.transposed && job.source != nullptr);
      const float scale = !scaled                 ? 1.0f
                          : job.source != nullptr ? job.source->tensor_scale
                                                  : DummyTensorScale(job.k);
      *job.packed = PackedLinear{job.format, job.n, job.k, base, scale};
    } else {
      *job.rows = reinterpret_cast<const Bf16*>(base);
    }
    const int64_t size = job.by_columns() ? job.k : job.n;
    const int64_t at_once = job.by_columns() ? kColumnsPerPiece : kRowsPerPiece;
    for (int64_t first = 0; first < size; first += at_once) {
      pieces.push_back({&job, first, std::min(at_once, size - first)});
    }
  }
  absl::Mutex mutex;
  absl::Status result;
  int64_t done = 0;
  pool.ParallelFor(pieces.size(), [&](int64_t i) {
    {
      absl::MutexLock lock(&mutex);
      if (!result.ok()) return;
    }
    const Piece& piece = pieces[i];
    const absl::Status status = Pack(piece, i, memory->data() + piece.job->offset);
    // What is copied need not stay mapped: the peak is the packed weights alone, not both.
    if (piece.job->by_columns()) {
      ReleaseColumns(*piece.job->source, piece.first, piece.count);
    } else if (piece.job->source != nullptr && !piece.job->transposed) {
      ReleaseRows(*piece.job->source, piece.first, piece.count);
    }
    absl::MutexLock lock(&mutex);
    result.Update(status);
    if (!progress) return;
    done += piece.job->bytes() * piece.count / (piece.job->by_columns() ? piece.job->k : piece.job->n);
    progress(LoadProgress{done, total_});
  });
  if (!result.ok()) return result;
  if (progress) progress(LoadProgress{total_, total_});
  return memory;
}

absl::Status WeightPacker::Pack(const Piece& piece, uint64_t seed, std::byte* base) const {
  const Job& job = *piece.job;
  if (job.packed == nullptr) {
    return CopyRows(piece, seed, reinterpret_cast<Bf16*>(base) + piece.first * job.k);
  }
  std::byte* target = base + piece.first / kTileRows * job.packed->tile_bytes();
  if (job.source == nullptr) return PackDummy(piece, seed, target);

  const LinearWeights& source = *job.source;
  if (absl::Status status = CheckUnchanged(source, *reader_); !status.ok()) return status;
  if (job.transposed) return PackTransposed(piece, target);
  const absl::Status status = job.by_columns() ? PackColumns(piece, base) : PackRows(piece, target);
  if (status.ok()) return status;
  // Looks for the bad scale again, to say which file and byte it is in.
  absl::Status scales = CheckBlockScales(source, *reader_);
  return scales.ok() ? Named(source, status) : scales;
}

absl::Status WeightPacker::PackRows(const Piece& piece, std::byte* target) const {
  const Job& job = *piece.job;
  const LinearWeights& source = *job.source;
  RowReader reader;
  for (int64_t first = 0; first < piece.count; first += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, piece.count - first);
    const LinearRows rows = reader.Read(source, piece.first + first, count);
    absl::Status status;
    switch (source.format) {
      case ModelFormat::kBf16:
      case ModelFormat::kF16:
      case ModelFormat::kF32:
        status = PackDense({rows.data, DenseTypeOf(source.format), count, job.k}, target, nullptr).status();
        break;
      case ModelFormat::kNvfp4:
        status =
            PackNvfp4({rows.data, rows.scales, source.tensor_scale, count, job.k}, target, nullptr).status();
        break;
      case ModelFormat::kMxfp4:
        status = PackMxfp4({rows.data, rows.scales, count, job.k}, target, nullptr).status();
        break;
      case ModelFormat::kFp8:
        status =
            PackFp8({rows.data, rows.float_scales, source.scale_block_columns, count, job.k}, target, nullptr)
                .status();
        break;
    }
    if (!status.ok()) return status;
    target += kRowsAtOnce / kTileRows * job.packed->tile_bytes();
  }
  return absl::OkStatus();
}

absl::Status WeightPacker::PackColumns(const Piece& piece, std::byte* base) const {
  const Job& job = *piece.job;
  const LinearWeights& source = *job.source;
  const auto units = [](const UnitMatrix& view) {
    return ColumnUnits{view.data, view.row_stride, view.column_stride};
  };
  switch (source.format) {
    case ModelFormat::kNvfp4:
      return PackNvfp4({units(source.data), units(source.scales), job.n, job.k}, piece.first, piece.count,
                       base);
    case ModelFormat::kFp8: {
      const std::vector<float> scales = ReadFp8Scales(source, 0, job.n);
      return PackFp8({units(source.data), scales.data(), source.scale_block_columns, job.n, job.k},
                     piece.first, piece.count, base);
    }
    default:
      return PackDense({units(source.data), DenseTypeOf(source.format), job.n, job.k}, piece.first,
                       piece.count, base);
  }
}

absl::Status WeightPacker::PackTransposed(const Piece& piece, std::byte* target) const {
  if (absl::Status status = CheckBlockScales(*piece.job->source, *reader_); !status.ok()) return status;
  LinearWeights source = *piece.job->source;
  source.tensor_scale = 1.0f;
  std::vector<float> values(source.out * source.in);
  Dequantize(source, 0, source.out, values.data());
  std::vector<float> columns(piece.count * source.out);
  for (int64_t r = 0; r < piece.count; ++r) {
    for (int64_t c = 0; c < source.out; ++c) {
      columns[r * source.out + c] = values[c * source.in + piece.first + r];
    }
  }
  return Named(
      source,
      PackDense({columns.data(), DenseType::kF32, piece.count, source.out}, target, nullptr).status());
}

absl::Status WeightPacker::PackDummy(const Piece& piece, uint64_t seed, std::byte* target) const {
  const int64_t k = piece.job->k;
  if (piece.job->format == WeightFormat::kNvfp4) {
    std::vector<uint8_t> codes(piece.count * k / 2);
    std::vector<uint8_t> scales(piece.count * k / 16);
    FillDummyNvfp4(seed, &codes, &scales);
    return PackNvfp4({codes.data(), scales.data(), DummyTensorScale(k), piece.count, k}, target, nullptr)
        .status();
  }
  std::vector<uint16_t> values(piece.count * k);
  FillDummyBf16(seed, k, &values);
  return PackDense({values.data(), DenseType::kBf16, piece.count, k}, target, nullptr).status();
}

absl::Status WeightPacker::CopyRows(const Piece& piece, uint64_t seed, Bf16* target) const {
  const int64_t count = piece.count * piece.job->k;
  if (piece.job->source == nullptr) {
    std::vector<uint16_t> values(count);
    FillDummyBf16(seed, piece.job->k, &values);
    std::memcpy(static_cast<void*>(target), values.data(), count * sizeof(Bf16));
    return absl::OkStatus();
  }
  const LinearWeights& source = *piece.job->source;
  if (absl::Status status = CheckUnchanged(source, *reader_); !status.ok()) return status;
  if (source.format == ModelFormat::kBf16) {
    RowReader reader;
    std::memcpy(static_cast<void*>(target), reader.Read(source, piece.first, piece.count).data,
                count * sizeof(Bf16));
    return absl::OkStatus();
  }
  std::vector<float> values(count);
  Dequantize(source, piece.first, piece.count, values.data());
  for (int64_t i = 0; i < count; ++i) target[i] = ToBf16(values[i]);
  return absl::OkStatus();
}

}  // namespace tessera::cpu
