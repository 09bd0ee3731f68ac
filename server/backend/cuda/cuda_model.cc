#include "server/backend/cuda/cuda_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/nvfp4/bf16.h"
#include "server/backend/cuda/status_macros.h"
#include "server/model/linear_rows.h"

namespace tessera::cuda {
namespace {

using ModelFormat = ::tessera::WeightFormat;

// Sources that become one packed matrix: parts one after the other, or gate and up interleaved.
struct MatrixSources {
  std::vector<const LinearWeights*> parts;  // null: made up
  std::vector<int64_t> part_rows;
  RowOrder order = RowOrder::kPlain;
};

// What the CUDA kernels and the forward pass do not take.
absl::Status CheckLayer(const LayerSpec& spec) {
  const AttentionSpec& attention = spec.attention;
  const MlpSpec& mlp = spec.mlp;
  const ActivationSpec plain;
  const std::pair<bool, const char*> missing[] = {
      {attention.kind != AttentionKind::kGrouped, "latent attention"},
      {attention.qkv_bias || attention.output_bias, "attention biases"},
      {attention.sinks, "attention sinks"},
      {attention.qk_norm_all_heads, "a norm over all query heads"},
      {attention.rope.style == RopeStyle::kNone, "attention without rotary positions"},
      {mlp.bias, "biases of an MLP"},
      {mlp.activation.limit != plain.limit || mlp.activation.sigmoid_scale != plain.sigmoid_scale ||
           mlp.activation.up_offset != plain.up_offset,
       "a clamped activation"},
      {mlp.shared_intermediate_size > 0, "a shared expert"},
      {mlp.kind == MlpKind::kMoe && mlp.router.score != RouterScore::kSoftmax,
       "a router other than softmax over all"},
      {mlp.router.bias || mlp.router.selection_bias, "a router's bias"},
      {mlp.router.num_groups > 1, "groups of experts"},
  };
  for (const auto& [present, what] : missing) {
    if (present)
      return absl::UnimplementedError(absl::StrCat(what, ": not in the CUDA backend; use the CPU"));
  }
  if (attention.head_dim != 64 && attention.head_dim != 128 && attention.head_dim != 256) {
    return absl::UnimplementedError(
        absl::StrCat("\"head_dim\" ", attention.head_dim, "; the CUDA kernels take 64, 128 and 256"));
  }
  return absl::OkStatus();
}

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const std::function<void(const LoadProgress&)>& progress)
      : checkpoint_(checkpoint), progress_(progress), dummy_(checkpoint.format() == LoadFormat::kDummy) {}

  absl::StatusOr<std::unique_ptr<CudaModel>> Load() {
    const ModelSpec& spec = checkpoint_.spec();
    model_->spec = spec;
    model_->layers.resize(spec.layers.size());
    bytes_total_ = checkpoint_.facts().weight_bytes;
    static const LayerWeights kNone;
    for (size_t i = 0; i < spec.layers.size(); ++i) {
      const LayerWeights& weights = dummy_ ? kNone : checkpoint_.weights().layers[i];
      if (absl::Status status = LoadLayer(spec.layers[i], weights, &model_->layers[i]); !status.ok()) {
        return absl::Status(status.code(), absl::StrCat("layer ", i, ": ", status.message()));
      }
    }
    TESSERA_RETURN_IF_ERROR(
        LoadVector(checkpoint_.weights().final_norm, spec.hidden_size, true, &model_->final_norm));
    TESSERA_RETURN_IF_ERROR(LoadEmbeddings());
    TESSERA_RETURN_IF_ERROR(Pack({{{&checkpoint_.weights().lm_head}, {spec.vocab_size}}}, spec.hidden_size,
                                 true, &model_->lm_head));
    TESSERA_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "repacking weights"));
    for (const DeviceMemory& memory : model_->memory) model_->weight_bytes += memory.bytes();
    return std::move(model_);
  }

 private:
  absl::Status LoadLayer(const LayerSpec& spec, const LayerWeights& weights, CudaLayer* layer) {
    const AttentionSpec& attention = spec.attention;
    const int64_t hidden = model_->spec.hidden_size;
    const int64_t q_rows = int64_t{attention.num_query_heads} * attention.head_dim;
    const int64_t kv_rows = int64_t{attention.num_kv_heads} * attention.head_dim;
    TESSERA_RETURN_IF_ERROR(LoadVector(weights.input_norm, hidden, true, &layer->input_norm));
    TESSERA_RETURN_IF_ERROR(
        LoadVector(weights.post_attention_norm, hidden, true, &layer->post_attention_norm));
    TESSERA_RETURN_IF_ERROR(
        LoadVector(weights.q_norm, attention.head_dim, attention.qk_norm, &layer->q_norm));
    TESSERA_RETURN_IF_ERROR(
        LoadVector(weights.k_norm, attention.head_dim, attention.qk_norm, &layer->k_norm));
    TESSERA_RETURN_IF_ERROR(Pack({{{&weights.q, &weights.k, &weights.v}, {q_rows, kv_rows, kv_rows}}}, hidden,
                                 false, &layer->qkv));
    TESSERA_RETURN_IF_ERROR(Pack({{{&weights.o}, {hidden}}}, q_rows, false, &layer->o));
    TESSERA_RETURN_IF_ERROR(MakeRope(attention.rope, &layer->rope));

    const MlpSpec& mlp = spec.mlp;
    const int32_t experts = mlp.kind == MlpKind::kMoe ? mlp.num_experts : 1;
    if (mlp.kind == MlpKind::kMoe) {
      TESSERA_RETURN_IF_ERROR(Pack({{{&weights.router}, {mlp.num_experts}}}, hidden, true, &layer->router));
    }
    std::vector<MatrixSources> gate_up, down;
    static const ExpertWeights kNone;
    for (int32_t e = 0; e < experts; ++e) {
      const ExpertWeights& expert = dummy_ ? kNone : weights.experts[e];
      gate_up.push_back(
          {{&expert.gate, &expert.up}, {mlp.intermediate_size, mlp.intermediate_size}, RowOrder::kGateUp});
      down.push_back({{&expert.down}, {hidden}});
    }
    TESSERA_RETURN_IF_ERROR(Pack(gate_up, hidden, false, &layer->gate_up));
    return Pack(down, mlp.intermediate_size, false, &layer->down);
  }

  // Packs matrices of one shape and format after each other.
  absl::Status Pack(const std::vector<MatrixSources>& matrices, int64_t k, bool bf16_if_dummy,
                    PackedWeights* packed) {
    const LinearWeights& first = *matrices[0].parts[0];
    packed->format = dummy_
                         ? (bf16_if_dummy ? WeightFormat::kBf16 : WeightFormat::kNvfp4)
                         : (first.format == ModelFormat::kNvfp4 ? WeightFormat::kNvfp4 : WeightFormat::kBf16);
    if (k % kGroupK != 0) {
      return absl::UnimplementedError(
          absl::StrCat("a matrix of ", k, " inputs; the CUDA kernels take multiples of ", kGroupK));
    }
    int64_t rows = 0;
    for (int64_t part : matrices[0].part_rows) rows += part;
    packed->n = (rows + kRowTile - 1) / kRowTile * kRowTile;
    packed->k = k;
    packed->num_matrices = matrices.size();
    const size_t bytes = PackedMatrixBytes(packed->format, packed->n, k);
    uint8_t* target;
    TESSERA_RETURN_IF_ERROR(NewMemory(bytes * matrices.size(), &target));
    packed->data = target;
    std::vector<float> scales;
    for (const MatrixSources& matrix : matrices) {
      TESSERA_RETURN_IF_ERROR(PackOne(matrix, k, packed->format, target, &scales));
      scales.resize((target - packed->data) / bytes * (packed->n / 8) + packed->n / 8);
      target += bytes;
    }
    if (packed->format == WeightFormat::kBf16) return absl::OkStatus();
    const float* sums;
    TESSERA_RETURN_IF_ERROR(Upload(scales, &sums));
    packed->sum_scales = sums;
    return absl::OkStatus();
  }

  absl::Status PackOne(const MatrixSources& matrix, int64_t k, WeightFormat format, uint8_t* target,
                       std::vector<float>* scales) {
    const bool gate_up = matrix.order == RowOrder::kGateUp;
    for (size_t i = 0; i < matrix.parts.size(); ++i) {
      TESSERA_RETURN_IF_ERROR(Stage(*matrix.parts[i], matrix.part_rows[i], k, format, gate_up ? i : 0));
      if (gate_up && i == 0) continue;
      const int64_t n = matrix.part_rows[i];
      if (matrix.parts.size() > 1 && !gate_up && n % kRowTile != 0) {
        return absl::UnimplementedError(absl::StrCat(n, " features of q, k or v; expected a multiple of 16"));
      }
      const Staged& a = staged_[0];
      const Staged& b = staged_[1];
      const char* error =
          format == WeightFormat::kNvfp4
              ? PackNvfp4(a.data.get<uint8_t>(), a.scales.get<uint8_t>(),
                          gate_up ? b.data.get<uint8_t>() : nullptr,
                          gate_up ? b.scales.get<uint8_t>() : nullptr, n, k, matrix.order, target, nullptr)
              : PackBf16(a.data.get(), gate_up ? b.data.get() : nullptr, n, k, matrix.order, target, nullptr);
      TESSERA_RETURN_IF_ERROR(KernelStatus(error));
      target += PackedMatrixBytes(format, gate_up ? 2 * n : n, k);
      const int64_t halves = ((gate_up ? 2 * n : n) + kRowTile - 1) / kRowTile * 2;
      for (int64_t half = 0; half < halves; ++half) {
        scales->push_back((gate_up && half % 2 ? b : a).tensor_scale * kNvfp4SumScale);
      }
    }
    return absl::OkStatus();
  }

  // One source on the device, as the checkpoint has it.
  struct Staged {
    DeviceMemory data, scales;
    float tensor_scale = 1.0f;
    int64_t dummy_elements = 0;  // random contents that are there already
    WeightFormat dummy_format = WeightFormat::kBf16;
  };

  absl::Status Stage(const LinearWeights& source, int64_t rows, int64_t k, WeightFormat format, int index) {
    Staged& staged = staged_[index];
    const bool nvfp4 = format == WeightFormat::kNvfp4;
    TESSERA_RETURN_IF_ERROR(staged.data.Reserve(nvfp4 ? rows * k / 2 : rows * k * 2, "staging of weights"));
    if (nvfp4) TESSERA_RETURN_IF_ERROR(staged.scales.Reserve(rows * k / 16, "staging of block scales"));
    if (dummy_) return StageDummy(rows * k, k, format, &staged);
    if (source.format == ModelFormat::kMxfp4 || source.format == ModelFormat::kFp8) {
      return absl::UnimplementedError(absl::StrCat("\"", source.name, "\" is ",
                                                   std::string(WeightFormatName(source.format)),
                                                   ", which is not in the CUDA backend"));
    }
    if ((source.format == ModelFormat::kNvfp4) != nvfp4) {
      return absl::UnimplementedError(
          absl::StrCat("\"", source.name, "\" is ", std::string(WeightFormatName(source.format)),
                       " where the matrices beside it are ", nvfp4 ? "NVFP4" : "BF16"));
    }
    TESSERA_RETURN_IF_ERROR(CheckUnchanged(source, *checkpoint_.reader()));
    if (!nvfp4) {
      TESSERA_RETURN_IF_ERROR(CopyBf16(source, rows * k, staged.data.get()));
    } else {
      TESSERA_RETURN_IF_ERROR(CheckBlockScales(source, *checkpoint_.reader()));
      const LinearRows contents = row_reader_.Read(source, 0, rows);
      TESSERA_RETURN_IF_ERROR(Copy(staged.data.get(), contents.data, rows * k / 2));
      TESSERA_RETURN_IF_ERROR(Copy(staged.scales.get(), contents.scales, rows * k / 16));
      staged.tensor_scale = source.tensor_scale;
    }
    Report(source.file_bytes());
    return absl::OkStatus();
  }

  // Random weights of variance about 1 / k, the same for every matrix of a shape: speed does not depend on them.
  absl::Status StageDummy(int64_t elements, int64_t k, WeightFormat format, Staged* staged) {
    const bool nvfp4 = format == WeightFormat::kNvfp4;
    staged->tensor_scale = 0.23f / std::sqrt(static_cast<float>(k));
    if (staged->dummy_format == format && elements <= staged->dummy_elements) return absl::OkStatus();
    staged->dummy_format = format;
    staged->dummy_elements = elements;
    std::mt19937_64 random(7);
    std::vector<uint64_t> bits((nvfp4 ? elements / 2 : elements * 2) / 8 + 1);
    for (uint64_t& word : bits) word = random();
    if (!nvfp4) {  // signs and fractions at random, magnitudes near 1 / sqrt(k)
      const uint64_t exponent = (127 - static_cast<uint64_t>(std::log2(k) / 2 + 0.5)) << 7;
      for (uint64_t& word : bits) word = (word & 0x807F807F807F807Full) | exponent * 0x0001000100010001ull;
    }
    TESSERA_RETURN_IF_ERROR(Copy(staged->data.get(), bits.data(), nvfp4 ? elements / 2 : elements * 2));
    if (!nvfp4) return absl::OkStatus();
    std::vector<uint8_t> scales(elements / 16);
    for (uint8_t& scale : scales) scale = 0x38 | (random() >> 61);
    return Copy(staged->scales.get(), scales.data(), scales.size());
  }

  absl::Status CopyBf16(const LinearWeights& source, int64_t elements, void* target) {
    if (source.format == ModelFormat::kBf16) {
      return Copy(target, row_reader_.Read(source, 0, source.out).data, elements * 2);
    }
    std::vector<float> values(elements);
    Dequantize(source, 0, source.out, values.data());
    std::vector<Bf16> rounded(elements);
    for (int64_t i = 0; i < elements; ++i) rounded[i] = ToBf16(values[i]);
    return Copy(target, rounded.data(), elements * 2);
  }

  absl::Status LoadEmbeddings() {
    const ModelSpec& spec = model_->spec;
    const int64_t elements = int64_t{spec.vocab_size} * spec.hidden_size;
    uint16_t* target;
    TESSERA_RETURN_IF_ERROR(NewMemory(elements * 2, &target));
    model_->embeddings = target;
    if (!dummy_) {
      TESSERA_RETURN_IF_ERROR(checkpoint_.reader()->CheckUnchanged(*checkpoint_.weights().embeddings.tensor));
      return CopyBf16(checkpoint_.weights().embeddings, elements, target);
    }
    TESSERA_RETURN_IF_ERROR(staged_[0].data.Reserve(elements * 2, "staging of weights"));
    TESSERA_RETURN_IF_ERROR(StageDummy(elements, spec.hidden_size, WeightFormat::kBf16, &staged_[0]));
    return CudaStatus(cudaMemcpy(target, staged_[0].data.get(), elements * 2, cudaMemcpyDeviceToDevice),
                      "copying");
  }

  absl::Status LoadVector(const VectorWeights& weights, int64_t size, bool wanted, const float** out) {
    if (!wanted) return absl::OkStatus();
    if (dummy_) return Upload(std::vector<float>(size, 1.0f), out);
    TESSERA_RETURN_IF_ERROR(checkpoint_.reader()->CheckUnchanged(*weights.tensor));
    return Upload(weights.ToFloat(), out);
  }

  // Cosine and sine of every position, in double and rounded once; layers with the same rope share a table.
  absl::Status MakeRope(const RopeSpec& rope, const float2** table) {
    if (rope.style == RopeStyle::kNone) return absl::OkStatus();
    for (const auto& [known, known_table] : ropes_) {
      if (known.inv_freq == rope.inv_freq && known.magnitude == rope.magnitude) {
        *table = known_table;
        return absl::OkStatus();
      }
    }
    const int64_t half = rope.inv_freq.size(), positions = model_->spec.max_context;
    std::vector<float> angles(positions * half * 2);
    for (int64_t position = 0; position < positions; ++position) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = position * rope.inv_freq[i];
        angles[(position * half + i) * 2] = static_cast<float>(rope.magnitude * std::cos(angle));
        angles[(position * half + i) * 2 + 1] = static_cast<float>(rope.magnitude * std::sin(angle));
      }
    }
    const float* uploaded;
    TESSERA_RETURN_IF_ERROR(Upload(angles, &uploaded));
    *table = reinterpret_cast<const float2*>(uploaded);
    ropes_.emplace_back(rope, *table);
    return absl::OkStatus();
  }

  template <class T>
  absl::Status NewMemory(size_t bytes, T** out) {
    DeviceMemory memory;
    TESSERA_RETURN_IF_ERROR(memory.Allocate(bytes, "weights"));
    *out = memory.get<T>();
    model_->memory.push_back(std::move(memory));
    return absl::OkStatus();
  }

  absl::Status Upload(const std::vector<float>& values, const float** out) {
    float* target;
    TESSERA_RETURN_IF_ERROR(NewMemory(values.size() * sizeof(float), &target));
    *out = target;
    return Copy(target, values.data(), values.size() * sizeof(float));
  }

  // On the default stream, like the packing kernels: a staging buffer is not overwritten before it was packed.
  static absl::Status Copy(void* target, const void* source, size_t bytes) {
    return CudaStatus(cudaMemcpyAsync(target, source, bytes, cudaMemcpyHostToDevice, nullptr),
                      "copying weights");
  }

  void Report(int64_t bytes) {
    bytes_done_ += bytes;
    if (progress_) progress_(LoadProgress{bytes_done_, std::max(bytes_total_, bytes_done_)});
  }

  const Checkpoint& checkpoint_;
  const std::function<void(const LoadProgress&)>& progress_;
  const bool dummy_;
  std::unique_ptr<CudaModel> model_ = std::make_unique<CudaModel>();
  Staged staged_[2];
  RowReader row_reader_;
  std::vector<std::pair<RopeSpec, const float2*>> ropes_;
  int64_t bytes_done_ = 0, bytes_total_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaModel>> LoadCudaModel(
    const Checkpoint& checkpoint, const std::function<void(const LoadProgress&)>& progress) {
  if (checkpoint.format() == LoadFormat::kSafetensors && checkpoint.reader() == nullptr) {
    return absl::FailedPreconditionError("the checkpoint is closed");
  }
  // Before any memory is spent.
  const std::vector<LayerSpec>& layers = checkpoint.spec().layers;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (absl::Status status = CheckLayer(layers[i]); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("layer ", i, ": ", status.message()));
    }
  }
  if (checkpoint.reader() != nullptr) checkpoint.reader()->Prefetch();
  return Loader(checkpoint, progress).Load();
}

}  // namespace tessera::cuda
