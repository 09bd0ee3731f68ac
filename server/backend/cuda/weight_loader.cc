#include "server/backend/cuda/weight_loader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/linear/nvfp4_tiles.h"
#include "server/model/mxfp4_cast.h"
#include "server/status_macros.h"

namespace tessera::cuda {
namespace {

using ModelFormat = ::tessera::WeightFormat;

constexpr int64_t kNvfp4Block = 16;

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

bool IsFourBit(ModelFormat format) { return format == ModelFormat::kNvfp4 || format == ModelFormat::kMxfp4; }

int64_t Rows(const MatrixPart& part) { return part.transposed ? part.weights->in : part.weights->out; }
int64_t Columns(const MatrixPart& part) { return part.transposed ? part.weights->out : part.weights->in; }

int64_t Segment(const MatrixPart& part, const MatrixLayout& layout) {
  return layout.segment > 0 ? layout.segment : Columns(part);
}
int64_t PaddedSegment(const MatrixPart& part, const MatrixLayout& layout) {
  return layout.segment > 0 ? layout.padded_segment : RoundUp(Columns(part), kGroupK);
}
int64_t Pieces(const MatrixPart& part, const MatrixLayout& layout) {
  return Columns(part) / Segment(part, layout);
}
int64_t PaddedColumns(const MatrixPart& part, const MatrixLayout& layout) {
  return Pieces(part, layout) * PaddedSegment(part, layout);
}

WeightFormat ChooseFormat(const std::vector<std::vector<MatrixPart>>& matrices, const MatrixLayout& layout,
                          bool dummy) {
  if (Segment(matrices[0][0], layout) % kNvfp4Block != 0) return WeightFormat::kBf16;
  if (dummy) return layout.dummy_format;
  for (const std::vector<MatrixPart>& parts : matrices) {
    for (const MatrixPart& part : parts) {
      if (!IsFourBit(part.weights->format) || part.transposed) return WeightFormat::kBf16;
    }
  }
  return WeightFormat::kNvfp4;
}

}  // namespace

WeightLoader::WeightLoader(const Checkpoint& checkpoint,
                           const std::function<void(const LoadProgress&)>& progress,
                           std::vector<DeviceMemory>* memory)
    : checkpoint_(checkpoint),
      progress_(progress),
      dummy_(checkpoint.format() == LoadFormat::kDummy),
      memory_(memory),
      bytes_total_(checkpoint.facts().weight_bytes) {}

absl::Status WeightLoader::Pack(const std::vector<std::vector<MatrixPart>>& matrices,
                                const MatrixLayout& layout, PackedWeights* packed) {
  const WeightFormat format = ChooseFormat(matrices, layout, dummy_);
  const size_t held = memory_->size();
  absl::Status status = PackAs(format, matrices, layout, packed);
  if (!absl::IsOutOfRange(status)) return status;
  TESSERA_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "repacking weights"));
  memory_->resize(held);
  return PackAs(WeightFormat::kBf16, matrices, layout, packed);
}

// OUT_OF_RANGE: NVFP4 cannot hold one of them.
absl::Status WeightLoader::PackAs(WeightFormat format, const std::vector<std::vector<MatrixPart>>& matrices,
                                  const MatrixLayout& layout, PackedWeights* packed) {
  const bool gate_up = layout.order == RowOrder::kGateUp;
  int64_t n = 0;
  for (const MatrixPart& part : matrices[0]) n += RoundUp(Rows(part), gate_up ? kGroupK : kRowTile);
  packed->format = format;
  packed->n = n;
  packed->k = PaddedColumns(matrices[0][0], layout);
  packed->num_matrices = matrices.size();
  const size_t bytes = PackedMatrixBytes(format, packed->n, packed->k);
  uint8_t* target;
  TESSERA_RETURN_IF_ERROR(NewMemory(bytes * matrices.size(), &target));
  packed->data = target;
  if (gate_up && Rows(matrices[0][0]) % kGroupK != 0) {  // zero bytes are zero weights in both formats
    TESSERA_RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(target, 0, bytes * matrices.size(), nullptr), "clearing weights"));
  }
  PackState state;
  for (size_t i = 0; i < matrices.size(); ++i) {
    state.target = target + i * bytes;
    state.bias.resize((i + 1) * n);
    TESSERA_RETURN_IF_ERROR(gate_up ? PackGateUp(matrices[i], layout, format, n, &state)
                                    : PackPlain(matrices[i], layout, format, &state));
  }
  const bool scaled =
      format == WeightFormat::kNvfp4 || std::any_of(state.sum_scales.begin(), state.sum_scales.end(),
                                                    [](float scale) { return scale != 1.0f; });
  if (scaled) TESSERA_RETURN_IF_ERROR(Upload(state.sum_scales, &packed->sum_scales));
  if (state.has_bias) TESSERA_RETURN_IF_ERROR(Upload(state.bias, &packed->bias));
  return absl::OkStatus();
}

absl::Status WeightLoader::PackTiles(const std::vector<std::vector<MatrixPart>>& matrices, RowOrder order,
                                     Nvfp4Weights* packed) {
  const MatrixLayout layout = {order};
  const MatrixPart& first = matrices[0][0];
  const int64_t rows = Rows(first), k = PaddedColumns(first, layout);
  packed->n = Nvfp4PackedFeatures(rows, order);
  packed->k = Nvfp4PaddedK(k);
  packed->num_matrices = matrices.size();
  const size_t bytes = Nvfp4WeightBytes(packed->n, packed->k);
  uint8_t* target;
  TESSERA_RETURN_IF_ERROR(NewMemory(bytes * matrices.size(), &target));
  packed->data = target;
  std::vector<float> scales;
  for (const std::vector<MatrixPart>& parts : matrices) {
    for (size_t i = 0; i < parts.size(); ++i) {
      TESSERA_RETURN_IF_ERROR(Stage(parts[i], layout, WeightFormat::kNvfp4, &staged_[i]));
    }
    const Staged &a = staged_[0], *up = parts.size() > 1 ? &staged_[1] : nullptr;
    TESSERA_RETURN_IF_ERROR(KernelStatus(
        PackNvfp4Tiles(a.data.get<uint8_t>(), a.scales.get<uint8_t>(), up ? up->data.get<uint8_t>() : nullptr,
                       up ? up->scales.get<uint8_t>() : nullptr, rows, k, order, target, nullptr)));
    target += bytes;
    // Of 128 features 64 are gate's.
    for (int32_t group = 0; group < packed->n / 8; ++group) {
      scales.push_back((up && group % 16 >= 8 ? *up : a).tensor_scale / kNvfp4SumScale);
    }
  }
  return Upload(scales, &packed->sum_scales);
}

absl::Status WeightLoader::PackPlain(const std::vector<MatrixPart>& parts, const MatrixLayout& layout,
                                     WeightFormat format, PackState* state) {
  int64_t features = 0;
  for (const MatrixPart& part : parts) features += RoundUp(Rows(part), kRowTile);
  int64_t first = state->bias.size() - features;
  for (const MatrixPart& part : parts) {
    Staged& staged = staged_[0];
    TESSERA_RETURN_IF_ERROR(Stage(part, layout, format, &staged));
    const int64_t rows = Rows(part), k = PaddedColumns(part, layout);
    TESSERA_RETURN_IF_ERROR(KernelStatus(
        format == WeightFormat::kNvfp4
            ? PackNvfp4(staged.data.get<uint8_t>(), staged.scales.get<uint8_t>(), nullptr, nullptr, rows, k,
                        layout.order, state->target, nullptr)
            : PackBf16(staged.data.get(), nullptr, rows, k, layout.order, state->target, nullptr)));
    const int64_t padded = RoundUp(rows, kRowTile);
    state->target += PackedMatrixBytes(format, padded, k);
    state->sum_scales.insert(state->sum_scales.end(), padded / 8, staged.tensor_scale);
    TESSERA_RETURN_IF_ERROR(AddBias(part, state, first, 1, 1));
    first += padded;
  }
  return absl::OkStatus();
}

absl::Status WeightLoader::PackGateUp(const std::vector<MatrixPart>& parts, const MatrixLayout& layout,
                                      WeightFormat format, int64_t features, PackState* state) {
  for (int i : {0, 1}) {
    TESSERA_RETURN_IF_ERROR(Stage(parts[i], layout, format, &staged_[i]));
    TESSERA_RETURN_IF_ERROR(AddBias(parts[i], state, state->bias.size() - features + 8 * i, 8, kRowTile));
  }
  const Staged &gate = staged_[0], &up = staged_[1];
  const int64_t rows = Rows(parts[0]), k = PaddedColumns(parts[0], layout);
  for (int64_t half = 0; half < features / 8; ++half) {
    state->sum_scales.push_back((half % 2 ? up : gate).tensor_scale);
  }
  return KernelStatus(
      format == WeightFormat::kNvfp4
          ? PackNvfp4(gate.data.get<uint8_t>(), gate.scales.get<uint8_t>(), up.data.get<uint8_t>(),
                      up.scales.get<uint8_t>(), rows, k, layout.order, state->target, nullptr)
          : PackBf16(gate.data.get(), up.data.get(), rows, k, layout.order, state->target, nullptr));
}

// Feature i goes to first + i / group * spacing + i % group.
absl::Status WeightLoader::AddBias(const MatrixPart& part, PackState* state, int64_t first, int64_t group,
                                   int64_t spacing) {
  if (part.bias == nullptr || part.bias->size == 0) return absl::OkStatus();
  state->has_bias = true;
  std::vector<float> values(part.bias->size, 1.0f);
  if (!dummy_) {
    TESSERA_RETURN_IF_ERROR(checkpoint_.reader()->CheckUnchanged(*part.bias->tensor));
    values = part.bias->ToFloat();
  }
  for (size_t i = 0; i < values.size(); ++i) {
    state->bias[first + i / group * spacing + i % group] = values[i];
  }
  return absl::OkStatus();
}

absl::Status WeightLoader::Stage(const MatrixPart& part, const MatrixLayout& layout, WeightFormat format,
                                 Staged* staged) {
  const bool nvfp4 = format == WeightFormat::kNvfp4;
  const int64_t k = PaddedColumns(part, layout), elements = Rows(part) * k;
  TESSERA_RETURN_IF_ERROR(staged->data.Reserve(nvfp4 ? elements / 2 : elements * 2, "staging of weights"));
  if (nvfp4) {
    TESSERA_RETURN_IF_ERROR(staged->scales.Reserve(elements / kNvfp4Block, "staging of block scales"));
  }
  if (dummy_) return StageDummy(elements, k, format, staged);
  TESSERA_RETURN_IF_ERROR(CheckUnchanged(*part.weights, *checkpoint_.reader()));
  TESSERA_RETURN_IF_ERROR(CheckBlockScales(*part.weights, *checkpoint_.reader()));
  TESSERA_RETURN_IF_ERROR(nvfp4 ? StageNvfp4(*part.weights, layout, staged)
                                : StageBf16(part, layout, staged));
  Report(part.weights->file_bytes());
  return absl::OkStatus();
}

absl::Status WeightLoader::StageNvfp4(const LinearWeights& source, const MatrixLayout& layout,
                                      Staged* staged) {
  const MatrixPart part = {&source};
  const int64_t segment = Segment(part, layout), padded = PaddedSegment(part, layout);
  const int64_t pieces = Pieces(part, layout);
  float tensor_scale = source.tensor_scale;
  const bool mxfp4 = source.format == ModelFormat::kMxfp4;
  if (mxfp4) {
    const std::optional<Mxfp4Exponents> exponents = FindMxfp4Exponents(source);
    const std::optional<float> scale = exponents ? exponents->TensorScale() : 1.0f;
    if (!scale) return absl::OutOfRangeError("the block scales spread too far for NVFP4");
    tensor_scale = *scale;
  }
  const LinearRows contents = row_reader_.Read(source, 0, source.out);
  const uint8_t* scales = contents.scales;
  std::vector<uint8_t> cast;
  if (mxfp4) {
    cast.resize(source.out * (source.in / kNvfp4Block));
    for (int64_t r = 0; r < source.out; ++r) {
      CastMxfp4Scales(contents.data + r * (source.in / 2), contents.scales + r * (source.in / 32), source.in,
                      tensor_scale, &cast[r * (source.in / kNvfp4Block)]);
    }
    scales = cast.data();
  }
  staged->tensor_scale = tensor_scale * kNvfp4SumScale;
  TESSERA_RETURN_IF_ERROR(
      CopyPadded(staged->data.get(), contents.data, source.out, pieces, segment / 2, padded / 2));
  return CopyPadded(staged->scales.get(), scales, source.out, pieces, segment / kNvfp4Block,
                    padded / kNvfp4Block);
}

absl::Status WeightLoader::StageBf16(const MatrixPart& part, const MatrixLayout& layout, Staged* staged) {
  const LinearWeights& source = *part.weights;
  staged->tensor_scale = source.format == ModelFormat::kNvfp4 ? source.tensor_scale : 1.0f;
  std::vector<Bf16> values;
  const void* rows = nullptr;
  if (source.format == ModelFormat::kBf16 && !part.transposed) {
    rows = row_reader_.Read(source, 0, source.out).data;
  } else {
    values = ToBf16Rows(source);
    if (part.transposed) {
      std::vector<Bf16> columns(values.size());
      for (int64_t r = 0; r < source.out; ++r) {
        for (int64_t c = 0; c < source.in; ++c) columns[c * source.out + r] = values[r * source.in + c];
      }
      values = std::move(columns);
    }
    rows = values.data();
  }
  return CopyPadded(staged->data.get(), rows, Rows(part), Pieces(part, layout), Segment(part, layout) * 2,
                    PaddedSegment(part, layout) * 2);
}

// Random weights of variance about 1 / k, the same for every matrix of a shape: speed does not depend on them.
absl::Status WeightLoader::StageDummy(int64_t elements, int64_t k, WeightFormat format, Staged* staged) {
  const bool nvfp4 = format == WeightFormat::kNvfp4;
  staged->tensor_scale = nvfp4 ? 0.23f / std::sqrt(static_cast<float>(k)) * kNvfp4SumScale : 1.0f;
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
  std::vector<uint8_t> scales(elements / kNvfp4Block);
  for (uint8_t& scale : scales) scale = 0x38 | (random() >> 61);
  return Copy(staged->scales.get(), scales.data(), scales.size());
}

absl::Status WeightLoader::Table(const LinearWeights& source, const uint16_t** table) {
  const int64_t elements = source.out * source.in;
  uint16_t* target;
  TESSERA_RETURN_IF_ERROR(NewMemory(elements * 2, &target));
  *table = target;
  if (!dummy_) {
    TESSERA_RETURN_IF_ERROR(CheckUnchanged(source, *checkpoint_.reader()));
    if (source.format == ModelFormat::kBf16) {
      return Copy(target, row_reader_.Read(source, 0, source.out).data, elements * 2);
    }
    return Copy(target, ToBf16Rows(source).data(), elements * 2);
  }
  TESSERA_RETURN_IF_ERROR(staged_[0].data.Reserve(elements * 2, "staging of weights"));
  TESSERA_RETURN_IF_ERROR(StageDummy(elements, source.in, WeightFormat::kBf16, &staged_[0]));
  return CudaStatus(cudaMemcpy(target, staged_[0].data.get(), elements * 2, cudaMemcpyDeviceToDevice),
                    "copying");
}

absl::Status WeightLoader::Vector(const VectorWeights& source, const float** vector) {
  if (source.size == 0) return absl::OkStatus();
  if (dummy_) return Upload(std::vector<float>(source.size, 1.0f), vector);
  TESSERA_RETURN_IF_ERROR(checkpoint_.reader()->CheckUnchanged(*source.tensor));
  return Upload(source.ToFloat(), vector);
}

absl::Status WeightLoader::Upload(const std::vector<float>& values, const float** vector) {
  float* target;
  TESSERA_RETURN_IF_ERROR(NewMemory(values.size() * sizeof(float), &target));
  *vector = target;
  return Copy(target, values.data(), values.size() * sizeof(float));
}

std::vector<Bf16> WeightLoader::ToBf16Rows(const LinearWeights& source) {
  constexpr int64_t kRowsAtOnce = 64;
  LinearWeights unscaled = source;
  unscaled.tensor_scale = 1.0f;
  std::vector<Bf16> rounded(source.out * source.in);
  std::vector<float> values(std::min(kRowsAtOnce, source.out) * source.in);
  for (int64_t first = 0; first < source.out; first += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, source.out - first);
    Dequantize(unscaled, first, count, values.data());
    for (int64_t i = 0; i < count * source.in; ++i) rounded[first * source.in + i] = ToBf16(values[i]);
  }
  return rounded;
}

template <class T>
absl::Status WeightLoader::NewMemory(size_t bytes, T** out) {
  DeviceMemory memory;
  TESSERA_RETURN_IF_ERROR(memory.Allocate(bytes, "weights"));
  *out = memory.get<T>();
  memory_->push_back(std::move(memory));
  return absl::OkStatus();
}

absl::Status WeightLoader::CopyPadded(void* target, const void* source, int64_t rows, int64_t pieces,
                                      int64_t piece_bytes, int64_t padded_bytes) {
  const int64_t count = rows * pieces;
  if (piece_bytes == padded_bytes) return Copy(target, source, count * piece_bytes);
  padded_.assign(count * padded_bytes, 0);
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(&padded_[i * padded_bytes], static_cast<const uint8_t*>(source) + i * piece_bytes,
                piece_bytes);
  }
  return Copy(target, padded_.data(), padded_.size());
}

// On the default stream, like the packing kernels: a staging buffer is not overwritten before it was packed. Host memory
// that is not pinned has been read when this returns.
absl::Status WeightLoader::Copy(void* target, const void* source, size_t bytes) {
  return CudaStatus(cudaMemcpyAsync(target, source, bytes, cudaMemcpyHostToDevice, nullptr),
                    "copying weights");
}

void WeightLoader::Report(int64_t bytes) {
  bytes_done_ += bytes;
  if (progress_) progress_(LoadProgress{bytes_done_, std::max(bytes_total_, bytes_done_)});
}

}  // namespace tessera::cuda
