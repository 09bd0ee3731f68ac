#include "server/model/quantize.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/nvfp4/bf16.h"
#include "kernels/nvfp4/quantize.h"
#include "server/model/config.h"
#include "server/model/file_io.h"
#include "server/model/linear_rows.h"
#include "server/model/mxfp4_cast.h"
#include "server/model/output_directory.h"
#include "server/model/quantize_config.h"
#include "server/model/quantize_plan.h"
#include "server/model/safetensors.h"
#include "server/model/safetensors_header.h"
#include "server/model/weights.h"

namespace tessera {
namespace {

// What the parts of a quantised matrix are called.
struct QuantizedNames {
  std::string codes, scales, tensor_scale;
};

QuantizedNames NamesIn(QuantizeDialect dialect, const std::string& matrix) {
  const bool model_opt = dialect == QuantizeDialect::kModelOpt;
  return {matrix + (model_opt ? ".weight" : ".weight_packed"), matrix + ".weight_scale",
          matrix + (model_opt ? ".weight_scale_2" : ".weight_global_scale")};
}

// Values at once: enough to read along the columns of a matrix stored by columns, few enough for the caches.
constexpr int64_t kValuesAtOnce = 1 << 17;

absl::Status NotFinite(const SafetensorsReader& reader, const TensorView& tensor, absl::string_view place,
                       float value) {
  return absl::InvalidArgumentError(absl::StrCat(reader.path(tensor), ": tensor \"", Printable(tensor.name),
                                                 "\": ", place, " is ", value, "; expected a finite value"));
}

class Quantizer {
 public:
  Quantizer(const SafetensorsReader& reader, const QuantizeOptions& options, QuantizePlan plan,
            SafetensorsWriter* writer)
      : reader_(reader),
        options_(options),
        rule_(options.four_over_six ? nvfp4::BlockScaleRule::kFourOverSix : nvfp4::BlockScaleRule::kModelOpt),
        plan_(std::move(plan)),
        writer_(*writer) {}

  absl::StatusOr<QuantizeReport> Run() {
    for (const std::vector<OutputMatrix>& group : plan_.groups) {
      progress_.tensors_total += group.size();
      for (const OutputMatrix& matrix : group) progress_.bytes_total += matrix.source.file_bytes();
    }
    progress_.tensors_total += plan_.kept.size();
    for (const KeptTensor& tensor : plan_.kept) progress_.bytes_total += tensor.input_bytes();
    report_.input_bytes = progress_.bytes_total;
    report_.tensors_kept = plan_.kept.size();
    report_.warnings = plan_.warnings;

    const int threads =
        options_.num_threads > 0 ? options_.num_threads : std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::thread> workers;
    for (int i = 1; i < threads; ++i) workers.emplace_back([this] { Work(); });
    Work();
    for (std::thread& worker : workers) worker.join();

    absl::MutexLock lock(&mutex_);
    if (!status_.ok()) return status_;
    std::sort(report_.tensors.begin(), report_.tensors.end(),
              [](const TensorError& a, const TensorError& b) { return a.name < b.name; });
    report_.relative_rms = RelativeRms(total_);
    return std::move(report_);
  }

 private:
  static double RelativeRms(const nvfp4::ErrorStats& stats) {
    return stats.sum_squared_value > 0 ? std::sqrt(stats.sum_squared_error / stats.sum_squared_value) : 0.0;
  }

  // Takes units of work until none is left or one has failed.
  void Work() {
    const size_t units = plan_.groups.size() + plan_.kept.size();
    while (true) {
      const size_t unit = next_.fetch_add(1);
      if (unit >= units || failed_.load()) return;
      const absl::Status status = unit < plan_.groups.size()
                                      ? QuantizeGroup(plan_.groups[unit])
                                      : KeepTensor(plan_.kept[unit - plan_.groups.size()]);
      if (status.ok()) continue;
      {
        absl::MutexLock lock(&mutex_);
        status_.Update(status);  // before the others hear of it: their own ends must not come first
      }
      failed_.store(true);
    }
  }

  absl::Status CheckGoOn() const {
    if (failed_.load()) return absl::CancelledError("another thread failed");
    if (options_.cancelled && options_.cancelled()) return absl::CancelledError("cancelled");
    return absl::OkStatus();
  }

  // Calls fn(first row, rows, values) over a matrix, after checking that the values are numbers.
  template <typename Fn>
  absl::Status ForEachRows(const LinearWeights& source, Fn fn) {
    if (absl::Status status = CheckUnchanged(source, reader_); !status.ok()) return status;
    const int64_t at_once = std::clamp<int64_t>(kValuesAtOnce / source.in, 1, source.out);
    std::vector<float> values(at_once * source.in);
    for (int64_t first = 0; first < source.out; first += at_once) {
      if (absl::Status status = CheckGoOn(); !status.ok()) return status;
      const int64_t rows = std::min(at_once, source.out - first);
      Dequantize(source, first, rows, values.data());
      if (!std::isfinite(nvfp4::AbsMax(values.data(), rows * source.in))) {
        const auto bad =
            std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
        const int64_t index = first * source.in + (bad - values.begin());
        return NotFinite(reader_, *source.tensor,
                         source.contiguous() && source.out * source.in == source.tensor->num_elements()
                             ? absl::StrCat("element ", index)
                             : absl::StrCat("row ", index / source.in, ", column ", index % source.in,
                                            " of \"", source.name, "\""),
                         *bad);
      }
      fn(first, rows, values.data());
    }
    return absl::OkStatus();
  }

  absl::Status QuantizeGroup(const std::vector<OutputMatrix>& group) {
    if (std::all_of(group.begin(), group.end(), [](const OutputMatrix& matrix) {
          return matrix.source.format == WeightFormat::kMxfp4;
        })) {
      std::optional<Mxfp4Exponents> range;
      for (const OutputMatrix& matrix : group) {
        if (absl::Status status = CheckBlockScales(matrix.source, reader_); !status.ok()) return status;
        const std::optional<Mxfp4Exponents> own = FindMxfp4Exponents(matrix.source);
        if (range && own) range->Merge(*own);
        if (!range) range = own;
      }
      if (const std::optional<float> scale = range.value_or(Mxfp4Exponents{}).TensorScale()) {
        for (const OutputMatrix& matrix : group) {
          if (absl::Status status = CastMatrix(matrix, *scale); !status.ok()) return status;
        }
        return absl::OkStatus();
      }
    }
    float amax = 0;
    for (const OutputMatrix& matrix : group) {
      const LinearWeights& source = matrix.source;
      absl::Status status = CheckBlockScales(source, reader_);
      status.Update(ForEachRows(source, [&](int64_t, int64_t rows, const float* values) {
        amax = std::max(amax, nvfp4::AbsMax(values, rows * source.in));
      }));
      if (!status.ok()) return status;
    }
    float tensor_scale = nvfp4::TensorScaleFromAmax(amax, rule_);
    // The value that a reader of the divisor has.
    if (options_.dialect == QuantizeDialect::kCompressedTensors) tensor_scale = 1.0f / (1.0f / tensor_scale);
    for (const OutputMatrix& matrix : group) {
      if (absl::Status status = QuantizeMatrix(matrix, tensor_scale); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status QuantizeMatrix(const OutputMatrix& matrix, float tensor_scale) {
    const LinearWeights& source = matrix.source;
    std::vector<uint8_t> codes(source.out * source.in / 2);
    std::vector<uint8_t> scales(source.out * source.in / nvfp4::kBlockSize);
    nvfp4::ErrorStats stats;
    const absl::Status status = ForEachRows(source, [&](int64_t first, int64_t rows, const float* values) {
      for (int64_t r = 0; r < rows; ++r) {
        stats.Merge(nvfp4::QuantizeRow(values + r * source.in, source.in, tensor_scale, rule_,
                                       codes.data() + (first + r) * source.in / 2,
                                       scales.data() + (first + r) * source.in / nvfp4::kBlockSize));
      }
    });
    if (!status.ok()) return status;
    return WriteMatrix(matrix, codes, scales, tensor_scale, stats);
  }

  // MXFP4, whose codes stay.
  absl::Status CastMatrix(const OutputMatrix& matrix, float tensor_scale) {
    const LinearWeights& source = matrix.source;
    std::vector<uint8_t> codes(source.out * source.in / 2);
    std::vector<uint8_t> scales(source.out * source.in / nvfp4::kBlockSize);
    nvfp4::ErrorStats stats;
    RowReader row_reader;
    for (int64_t r = 0; r < source.out; ++r) {
      const LinearRows row = row_reader.Read(source, r, 1);
      std::memcpy(codes.data() + r * source.in / 2, row.data, source.in / 2);
      CastMxfp4Scales(row.data, row.scales, source.in, tensor_scale,
                      scales.data() + r * source.in / nvfp4::kBlockSize);
    }
    const absl::Status status = ForEachRows(source, [&](int64_t, int64_t rows, const float* values) {
      for (int64_t i = 0; i < rows * source.in; ++i) {
        stats.sum_squared_value += static_cast<double>(values[i]) * static_cast<double>(values[i]);
      }
      stats.count += rows * source.in;
    });
    if (!status.ok()) return status;
    return WriteMatrix(matrix, codes, scales, tensor_scale, stats);
  }

  absl::Status WriteMatrix(const OutputMatrix& matrix, const std::vector<uint8_t>& codes,
                           const std::vector<uint8_t>& scales, float tensor_scale,
                           const nvfp4::ErrorStats& stats) {
    const QuantizedNames names = NamesIn(options_.dialect, matrix.name);
    const float stored = options_.dialect == QuantizeDialect::kModelOpt ? tensor_scale : 1.0f / tensor_scale;
    uint8_t scale_bytes[sizeof(float)];
    std::memcpy(scale_bytes, &stored, sizeof(stored));
    absl::Status status = writer_.Write(names.codes, codes);
    status.Update(writer_.Write(names.scales, scales));
    status.Update(writer_.Write(names.tensor_scale, scale_bytes));
    if (!status.ok()) return status;

    TensorError error;
    error.name = matrix.name;
    error.rows = matrix.source.out;
    error.cols = matrix.source.in;
    error.relative_rms = RelativeRms(stats);
    error.max_abs = stats.max_abs_error;
    error.sqnr_db = stats.SignalToNoiseDb();
    absl::MutexLock lock(&mutex_);
    total_.Merge(stats);
    report_.tensors.push_back(std::move(error));
    Advance(matrix.name, matrix.source.file_bytes());
    return absl::OkStatus();
  }

  absl::Status KeepTensor(const KeptTensor& kept) {
    const int64_t unit = DTypeSize(kept.dtype);
    std::vector<uint8_t> data;
    absl::Status status;
    const auto append = [&](const float* values, int64_t count) {
      const size_t begin = data.size();
      data.resize(begin + count * unit);
      for (int64_t i = 0; i < count; ++i) {
        const Bf16 rounded = ToBf16(values[i]);
        std::memcpy(data.data() + begin + i * unit, &rounded, sizeof(rounded));
        if (!std::isfinite(ToFloat(rounded)) && status.ok()) {
          status = NotFinite(reader_, kept.tensor(), absl::StrCat("element ", begin / unit + i), values[i]);
        }
      }
    };
    if (kept.matrix.present()) {
      data.reserve(kept.matrix.out * kept.matrix.in * unit);
      status.Update(CheckBlockScales(kept.matrix, reader_));
      status.Update(ForEachRows(kept.matrix, [&](int64_t, int64_t rows, const float* values) {
        append(values, rows * kept.matrix.in);
      }));
    } else {
      status.Update(reader_.CheckUnchanged(kept.tensor()));
      if (!status.ok()) return status;
      if (kept.dtype == DType::kBf16) {
        const std::vector<float> values = kept.vector.ToFloat();
        append(values.data(), values.size());
      } else {
        data.assign(kept.tensor().data.begin(), kept.tensor().data.end());
      }
    }
    status.Update(CheckGoOn());
    if (status.ok()) status = writer_.Write(kept.name, data);
    if (!status.ok()) return status;
    absl::MutexLock lock(&mutex_);
    Advance(kept.name, kept.input_bytes());
    return absl::OkStatus();
  }

  void Advance(const std::string& name, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    progress_.tensors_done += 1;
    progress_.bytes_done += bytes;
    progress_.tensor = name;
    if (options_.progress) options_.progress(progress_);
  }

  const SafetensorsReader& reader_;
  const QuantizeOptions& options_;
  const nvfp4::BlockScaleRule rule_;
  const QuantizePlan plan_;
  SafetensorsWriter& writer_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  absl::Mutex mutex_;  // also while progress is called
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  QuantizeProgress progress_;
  QuantizeReport report_;
  nvfp4::ErrorStats total_;
};

std::vector<SafetensorsWriter::Entry> OutputEntries(const QuantizePlan& plan, QuantizeDialect dialect) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const std::vector<OutputMatrix>& group : plan.groups) {
    for (const OutputMatrix& matrix : group) {
      const int64_t out = matrix.source.out, in = matrix.source.in;
      const QuantizedNames names = NamesIn(dialect, matrix.name);
      entries.push_back({names.codes, DType::kU8, {out, in / 2}});
      entries.push_back({names.scales, DType::kF8E4M3, {out, in / nvfp4::kBlockSize}});
      entries.push_back(
          {names.tensor_scale, DType::kF32,
           dialect == QuantizeDialect::kModelOpt ? std::vector<int64_t>{} : std::vector<int64_t>{1}});
    }
  }
  for (const KeptTensor& tensor : plan.kept) entries.push_back({tensor.name, tensor.dtype, tensor.shape()});
  return entries;
}

// Replacing the input while it is read would destroy it.
absl::Status CheckApart(const std::string& in_dir, const std::string& out_dir) {
  std::error_code error;
  const std::filesystem::path in = std::filesystem::weakly_canonical(in_dir, error);
  const std::filesystem::path out = std::filesystem::weakly_canonical(out_dir, error);
  const auto [end, unused] = std::mismatch(out.begin(), out.end(), in.begin(), in.end());
  if (end == out.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(out_dir, ": is, or contains, the input directory ", in_dir));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<QuantizeReport> Quantize(const std::string& in_dir, const std::string& out_dir,
                                        const QuantizeOptions& options) {
  if (absl::Status status = CheckApart(in_dir, out_dir); !status.ok()) return status;
  absl::StatusOr<ModelConfig> config = ReadModelConfig(in_dir);
  if (!config.ok()) return config.status();
  absl::StatusOr<std::unique_ptr<SafetensorsReader>> reader = SafetensorsReader::OpenDirectory(in_dir);
  if (!reader.ok()) return reader.status();
  CheckpointFacts facts;
  absl::StatusOr<ModelWeights> weights = ResolveWeights(config->spec, **reader, &facts);
  if (!weights.ok()) {
    return absl::Status(weights.status().code(), absl::StrCat(in_dir, ": ", weights.status().message()));
  }
  for (const FormatUse& use : facts.formats) {
    if (use.format == WeightFormat::kNvfp4) {
      return absl::InvalidArgumentError(
          absl::StrCat(in_dir, ": ", use.parameters,
                       " parameters are NVFP4 already; expected BF16, F16, F32, FP8 or "
                       "MXFP4"));
    }
  }
  absl::StatusOr<std::string> config_json = ReadTextFile(absl::StrCat(in_dir, "/config.json"), 16 << 20);
  if (!config_json.ok()) return config_json.status();

  QuantizePlan plan = PlanQuantization(config->spec, *weights, options.attention);
  const auto predicts = [&](const auto& entry) {
    for (int32_t i = 0; i < config->spec.num_prediction_layers; ++i) {
      const std::string layer = absl::StrCat("model.layers.", config->spec.layers.size() + i, ".");
      if (absl::StartsWith(entry.first, layer)) return true;
    }
    return false;
  };
  if (std::any_of((*reader)->tensors().begin(), (*reader)->tensors().end(), predicts)) {
    plan.warnings.push_back("the layers that predict several tokens at once are left out");
  }
  const std::vector<std::string> ignore = plan.ignore;
  const std::string& kv_cache = config->quantization.kv_cache;
  absl::StatusOr<std::string> new_config =
      QuantizedConfigJson(*config_json, options.dialect, ignore, kv_cache);
  if (!new_config.ok()) return new_config.status();

  absl::StatusOr<std::unique_ptr<OutputDirectory>> out = OutputDirectory::Create(out_dir, options.overwrite);
  if (!out.ok()) return out.status();
  const std::string working = (*out)->working_path();
  absl::StatusOr<std::unique_ptr<SafetensorsWriter>> writer = SafetensorsWriter::Create(
      absl::StrCat(working, "/model.safetensors"), OutputEntries(plan, options.dialect), {{"format", "pt"}});
  if (!writer.ok()) return writer.status();
  absl::StatusOr<QuantizeReport> report = Quantizer(**reader, options, std::move(plan), writer->get()).Run();
  if (!report.ok()) return report.status();
  report->output_bytes = (*writer)->file_bytes();

  absl::Status status = (*writer)->Finish();
  status.Update(WriteNewFile(absl::StrCat(working, "/config.json"), *new_config));
  if (options.dialect == QuantizeDialect::kModelOpt) {
    status.Update(
        WriteNewFile(absl::StrCat(working, "/hf_quant_config.json"), HfQuantConfigJson(ignore, kv_cache)));
  }
  status.Update(CopySideFiles(in_dir, working));
  if (status.ok() && options.cancelled && options.cancelled()) status = absl::CancelledError("cancelled");
  if (status.ok()) status = (*out)->Commit();
  if (!status.ok()) return status;
  return report;
}

}  // namespace tessera
