#include "server/backend/cpu/cpu_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cpu/fmha/kv_cache.h"
#include "kernels/cpu/moe/router.h"

namespace tessera::cpu {
namespace {

using ModelFormat = ::tessera::WeightFormat;

// Rows are packed in pieces of this many, a multiple of the tile, so that one large matrix is shared by all
// threads.
constexpr int64_t kRowsPerPiece = 1024;
static_assert(kRowsPerPiece % kTileRows == 0);

// A matrix to be packed: where from and where to.
struct PackJob {
  const LinearWeights* source = nullptr;  // null: random values
  PackedLinear* packed = nullptr;         // null: row-major BF16 into `rows`
  const Bf16** rows = nullptr;
  WeightFormat format = WeightFormat::kBf16;
  int64_t n = 0;
  int64_t k = 0;
  int64_t offset = 0;  // in the model's memory

  int64_t bytes() const {
    return packed != nullptr ? static_cast<int64_t>(PackedBytes(format, n, k))
                             : n * k * int64_t{sizeof(Bf16)};
  }
};

// A range of rows of a job: what one thread does at a time.
struct Piece {
  const PackJob* job = nullptr;
  int64_t row = 0;
  int64_t count = 0;
};

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

int64_t ElementBytes(ModelFormat format) { return format == ModelFormat::kF32 ? 4 : 2; }

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

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, ThreadPool& pool,
         const std::function<void(const LoadProgress&)>& progress)
      : checkpoint_(checkpoint),
        pool_(pool),
        progress_(progress),
        dummy_(checkpoint.format() == LoadFormat::kDummy) {}

  absl::StatusOr<std::unique_ptr<CpuModel>> Load() {
    model_->spec = checkpoint_.spec();
    PlanLayers();
    const ModelSpec& spec = model_->spec;
    Plan(&LayerlessWeights().lm_head, WeightFormat::kBf16, spec.vocab_size, spec.hidden_size,
         &model_->lm_head);
    if (!spec.tied_embeddings) {
      PackJob job =
          MakeJob(&LayerlessWeights().embeddings, WeightFormat::kBf16, spec.vocab_size, spec.hidden_size);
      job.rows = &model_->embeddings;
      Add(job);
    }
    model_->final_norm = Vector(LayerlessWeights().final_norm, spec.hidden_size, true);
    if (!status_.ok()) return status_;

    absl::StatusOr<MappedMemory> memory = MappedMemory::Allocate(total_, "weights");
    if (!memory.ok()) return memory.status();
    model_->memory = std::move(*memory);
    PackAll();
    if (!status_.ok()) return status_;
    return std::move(model_);
  }

 private:
  const ModelWeights& LayerlessWeights() const { return checkpoint_.weights(); }

  void PlanLayers() {
    static const LayerWeights kNone;
    const ModelSpec& spec = model_->spec;
    model_->layers.resize(spec.layers.size());
    for (size_t i = 0; i < spec.layers.size(); ++i) {
      PlanLayer(spec.layers[i], dummy_ ? kNone : checkpoint_.weights().layers[i], &model_->layers[i]);
    }
  }

  void PlanLayer(const LayerSpec& spec, const LayerWeights& weights, CpuLayer* layer) {
    const AttentionSpec& attention = spec.attention;
    const int64_t hidden = model_->spec.hidden_size;
    const int64_t query_size = int64_t{attention.num_query_heads} * attention.head_dim;
    const int64_t kv_size = int64_t{attention.num_kv_heads} * attention.head_dim;
    const int64_t intermediate = spec.mlp.intermediate_size;
    layer->input_norm = Vector(weights.input_norm, hidden, true);
    layer->post_attention_norm = Vector(weights.post_attention_norm, hidden, true);
    layer->q_norm = Vector(weights.q_norm, attention.head_dim, attention.qk_norm);
    layer->k_norm = Vector(weights.k_norm, attention.head_dim, attention.qk_norm);
    layer->q_bias = Vector(weights.q_bias, query_size, attention.qkv_bias);
    layer->k_bias = Vector(weights.k_bias, kv_size, attention.qkv_bias);
    layer->v_bias = Vector(weights.v_bias, kv_size, attention.qkv_bias);
    layer->o_bias = Vector(weights.o_bias, hidden, attention.output_bias);
    Plan(&weights.q, WeightFormat::kNvfp4, query_size, hidden, &layer->q);
    Plan(&weights.k, WeightFormat::kNvfp4, kv_size, hidden, &layer->k);
    Plan(&weights.v, WeightFormat::kNvfp4, kv_size, hidden, &layer->v);
    Plan(&weights.o, WeightFormat::kNvfp4, hidden, query_size, &layer->o);
    if (spec.mlp.kind == MlpKind::kMoe) {
      Plan(&weights.router, WeightFormat::kBf16, spec.mlp.num_experts, hidden, &layer->router);
      layer->experts.resize(spec.mlp.num_experts);
    } else {
      layer->experts.resize(1);
    }
    static const ExpertWeights kNone;
    for (size_t e = 0; e < layer->experts.size(); ++e) {
      const ExpertWeights& expert = dummy_ ? kNone : weights.experts[e];
      Plan(&expert.gate, WeightFormat::kNvfp4, intermediate, hidden, &layer->experts[e].gate);
      Plan(&expert.up, WeightFormat::kNvfp4, intermediate, hidden, &layer->experts[e].up);
      Plan(&expert.down, WeightFormat::kNvfp4, hidden, intermediate, &layer->experts[e].down);
    }
    layer->rope = FindRope(attention.rope);
  }

  int FindRope(const RopeSpec& rope) {
    for (size_t i = 0; i < model_->ropes.size(); ++i) {
      const RopeSpec& known = model_->ropes[i];
      if (known.style == rope.style && known.rotary_dim == rope.rotary_dim &&
          known.inv_freq == rope.inv_freq && known.magnitude == rope.magnitude) {
        return i;
      }
    }
    model_->ropes.push_back(rope);
    return model_->ropes.size() - 1;
  }

  std::vector<float> Vector(const VectorWeights& weights, int64_t size, bool wanted) {
    if (!wanted) return {};
    if (dummy_) return std::vector<float>(size, 1.0f);
    status_.Update(checkpoint_.reader()->CheckUnchanged(*weights.tensor));
    return status_.ok() ? weights.ToFloat() : std::vector<float>();
  }

  PackJob MakeJob(const LinearWeights* source, WeightFormat dummy_format, int64_t n, int64_t k) {
    PackJob job;
    job.source = dummy_ ? nullptr : source;
    job.format = dummy_
                     ? dummy_format
                     : (source->format == ModelFormat::kNvfp4 ? WeightFormat::kNvfp4 : WeightFormat::kBf16);
    if (dummy_ && k % 16 != 0) job.format = WeightFormat::kBf16;
    job.n = n;
    job.k = k;
    return job;
  }

  void Plan(const LinearWeights* source, WeightFormat dummy_format, int64_t n, int64_t k,
            PackedLinear* packed) {
    PackJob job = MakeJob(source, dummy_format, n, k);
    job.packed = packed;
    Add(job);
  }

  void Add(PackJob job) {
    job.offset = total_;
    constexpr int64_t kAlign = kPackedAlignment;
    total_ += (job.bytes() + kAlign - 1) / kAlign * kAlign;
    jobs_.push_back(job);
  }

  void PackAll() {
    std::vector<Piece> pieces;
    for (const PackJob& job : jobs_) {
      const std::byte* base = model_->memory.data() + job.offset;
      if (job.packed != nullptr) {
        const float scale = job.format != WeightFormat::kNvfp4 ? 1.0f
                            : job.source != nullptr            ? job.source->tensor_scale
                                                               : DummyTensorScale(job.k);
        *job.packed = PackedLinear{job.format, job.n, job.k, base, scale};
      } else {
        *job.rows = reinterpret_cast<const Bf16*>(base);
      }
      for (int64_t row = 0; row < job.n; row += kRowsPerPiece) {
        pieces.push_back({&job, row, std::min(kRowsPerPiece, job.n - row)});
      }
    }
    pool_.ParallelFor(pieces.size(), [&](int64_t i) {
      {
        absl::MutexLock lock(&mutex_);
        if (!status_.ok()) return;
      }
      const absl::Status status = Pack(pieces[i], i);
      absl::MutexLock lock(&mutex_);
      status_.Update(status);
      if (!progress_) return;
      done_ += pieces[i].job->bytes() * pieces[i].count / pieces[i].job->n;
      progress_(LoadProgress{done_, total_});
    });
    if (status_.ok() && progress_) progress_(LoadProgress{total_, total_});
  }

  absl::Status Pack(const Piece& piece, uint64_t seed) {
    const PackJob& job = *piece.job;
    std::byte* base = model_->memory.data() + job.offset;
    if (job.packed == nullptr) {
      return CopyRows(piece, seed, reinterpret_cast<Bf16*>(base) + piece.row * job.k);
    }
    std::byte* target = base + piece.row / kTileRows * job.packed->tile_bytes();
    if (job.source == nullptr) return PackDummy(piece, seed, target);

    const LinearWeights& source = *job.source;
    if (absl::Status status = CheckFiles(source); !status.ok()) return status;
    if (source.format == ModelFormat::kNvfp4) {
      const Nvfp4Source rows{source.data.data() + piece.row * job.k / 2,
                             source.block_scales.data() + piece.row * job.k / 16, source.tensor_scale,
                             piece.count, job.k};
      const absl::Status status = PackNvfp4(rows, target, nullptr).status();
      if (status.ok()) return status;
      // Looks for the bad scale again, to say which file and byte it is in.
      absl::Status scales = CheckBlockScales(source, *checkpoint_.reader());
      return scales.ok() ? Named(source, status) : scales;
    }
    const DenseSource rows{source.data.data() + piece.row * job.k * ElementBytes(source.format),
                           DenseTypeOf(source.format), piece.count, job.k};
    return Named(source, PackDense(rows, target, nullptr).status());
  }

  absl::Status PackDummy(const Piece& piece, uint64_t seed, std::byte* target) {
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

  // Row-major BF16, for the embedding table.
  absl::Status CopyRows(const Piece& piece, uint64_t seed, Bf16* target) {
    const int64_t count = piece.count * piece.job->k;
    if (piece.job->source == nullptr) {
      std::vector<uint16_t> values(count);
      FillDummyBf16(seed, piece.job->k, &values);
      std::memcpy(static_cast<void*>(target), values.data(), count * sizeof(Bf16));
      return absl::OkStatus();
    }
    const LinearWeights& source = *piece.job->source;
    if (absl::Status status = CheckFiles(source); !status.ok()) return status;
    const uint8_t* from = source.data.data() + piece.row * piece.job->k * ElementBytes(source.format);
    if (source.format == ModelFormat::kBf16) {
      std::memcpy(target, from, count * sizeof(Bf16));
      return absl::OkStatus();
    }
    for (int64_t i = 0; i < count; ++i) {
      float value;
      if (source.format == ModelFormat::kF32) {
        std::memcpy(&value, from + i * sizeof(value), sizeof(value));
      } else {
        uint16_t bits;
        std::memcpy(&bits, from + i * sizeof(bits), sizeof(bits));
        value = HalfBitsToFloat(bits);
      }
      target[i] = ToBf16(value);
    }
    return absl::OkStatus();
  }

  absl::Status CheckFiles(const LinearWeights& source) const {
    absl::Status status = checkpoint_.reader()->CheckUnchanged(*source.tensor);
    if (source.scale_tensor != nullptr)
      status.Update(checkpoint_.reader()->CheckUnchanged(*source.scale_tensor));
    return status;
  }

  static absl::Status Named(const LinearWeights& source, const absl::Status& status) {
    if (status.ok()) return status;
    return absl::Status(status.code(), absl::StrCat("\"", source.name, "\": ", status.message()));
  }

  const Checkpoint& checkpoint_;
  ThreadPool& pool_;
  const std::function<void(const LoadProgress&)>& progress_;
  const bool dummy_;
  std::unique_ptr<CpuModel> model_ = std::make_unique<CpuModel>();
  std::vector<PackJob> jobs_;
  int64_t total_ = 0;
  absl::Mutex mutex_;  // while packing: status_, done_ and calls of progress_
  absl::Status status_;
  int64_t done_ = 0;
};

// What the kernels do not take, told before any memory is spent.
absl::Status CheckSpec(const ModelSpec& spec) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const AttentionSpec& attention = spec.layers[i].attention;
    const MlpSpec& mlp = spec.layers[i].mlp;
    if (attention.head_dim > kMaxHeadDim || attention.head_dim % 2 != 0) {
      return absl::UnimplementedError(absl::StrCat("layer ", i, ": head_dim ", attention.head_dim,
                                                   "; the CPU kernels take even sizes up to ", kMaxHeadDim));
    }
    if (attention.sinks) return absl::UnimplementedError(absl::StrCat("layer ", i, ": attention sinks"));
    if (mlp.num_experts > kMaxRouterExperts) {
      return absl::UnimplementedError(absl::StrCat(
          "layer ", i, ": ", mlp.num_experts, " experts; the CPU kernels take up to ", kMaxRouterExperts));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuModel>> LoadCpuModel(
    const Checkpoint& checkpoint, ThreadPool& pool,
    const std::function<void(const LoadProgress&)>& progress) {
  if (absl::Status status = CheckSpec(checkpoint.spec()); !status.ok()) return status;
  if (checkpoint.format() == LoadFormat::kSafetensors && checkpoint.reader() == nullptr) {
    return absl::FailedPreconditionError("the checkpoint is closed");
  }
  return Loader(checkpoint, pool, progress).Load();
}

}  // namespace tessera::cpu
