#include "server/model/quantize.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/nvfp4/bf16.h"
#include "kernels/nvfp4/quantize.h"
#include "server/model/config.h"
#include "server/model/file_io.h"
#include "server/model/output_directory.h"
#include "server/model/quantize_config.h"
#include "server/model/safetensors.h"
#include "server/model/safetensors_header.h"
#include "server/model/weights.h"

namespace tessera {
namespace {

// Matrices that share a tensor scale: one unit of work.
struct Group {
  std::vector<LinearWeights> members;
};

// What becomes of each tensor.
struct QuantizePlan {
  std::vector<Group> groups;
  std::vector<const TensorView*> kept;  // written as BF16
  std::vector<std::string> ignore;      // modules among them, for the configuration
  std::vector<std::string> warnings;
};

class Planner {
 public:
  Planner(const ModelSpec& spec, const ModelWeights& weights, const QuantizeOptions& options)
      : spec_(spec), weights_(weights), options_(options) {}

  QuantizePlan Plan() {
    Keep(weights_.embeddings.tensor);
    plan_.ignore.push_back("lm_head");
    if (!spec_.tied_embeddings) Keep(weights_.lm_head.tensor);
    Keep(weights_.final_norm.tensor);
    for (const LayerWeights& layer : weights_.layers) {
      for (const VectorWeights* vector :
           {&layer.input_norm, &layer.post_attention_norm, &layer.q_bias, &layer.k_bias, &layer.v_bias,
            &layer.o_bias, &layer.q_norm, &layer.k_norm}) {
        if (vector->present()) Keep(vector->tensor);
      }
      if (layer.router.present()) KeepModule(layer.router);
      if (options_.attention) {
        Quantize({layer.q, layer.k, layer.v});
        Quantize({layer.o});
      } else {
        for (const LinearWeights* linear : {&layer.q, &layer.k, &layer.v, &layer.o}) KeepModule(*linear);
      }
      for (const ExpertWeights& expert : layer.experts) {
        Quantize({expert.gate, expert.up});
        Quantize({expert.down});
      }
    }
    std::sort(plan_.ignore.begin(), plan_.ignore.end());
    return std::move(plan_);
  }

 private:
  void Keep(const TensorView* tensor) {
    plan_.kept.push_back(tensor);
    if (tensor->dtype != DType::kBf16 && rounded_++ == 0) {
      plan_.warnings.push_back(absl::StrCat("tensors that stay BF16 are rounded to it, the first is \"",
                                            tensor->name, "\" (", DTypeName(tensor->dtype), ")"));
    }
  }

  void KeepModule(const LinearWeights& linear) {
    Keep(linear.tensor);
    plan_.ignore.push_back(linear.name);
  }

  void Quantize(std::vector<LinearWeights> members) {
    if (members[0].in % nvfp4::kBlockSize == 0) {
      plan_.groups.push_back({std::move(members)});
      return;
    }
    for (const LinearWeights& linear : members) {
      KeepModule(linear);
      plan_.warnings.push_back(absl::StrCat("\"", linear.name, "\" stays BF16: its input size ", linear.in,
                                            " is not a multiple of ", nvfp4::kBlockSize));
    }
  }

  const ModelSpec& spec_;
  const ModelWeights& weights_;
  const QuantizeOptions& options_;
  QuantizePlan plan_;
  int rounded_ = 0;
};

// Values [first, first + count) of a BF16, F16 or F32 tensor, exactly.
void ReadFloats(const TensorView& tensor, int64_t first, int64_t count, float* out) {
  const uint8_t* data = tensor.data.data() + first * DTypeSize(tensor.dtype);
  if (tensor.dtype == DType::kF32) {
    std::memcpy(out, data, count * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, data + 2 * i, sizeof(bits));
    out[i] = tensor.dtype == DType::kF16 ? HalfBitsToFloat(bits) : ToFloat(Bf16{bits});
  }
}

absl::Status NotFinite(const SafetensorsReader& reader, const TensorView& tensor, int64_t index,
                       float value) {
  return absl::InvalidArgumentError(absl::StrCat(reader.path(tensor), ": tensor \"", Printable(tensor.name),
                                                 "\": element ", index, " (byte ",
                                                 tensor.file_offset + index * DTypeSize(tensor.dtype),
                                                 " of the file) is ", value, "; expected a finite value"));
}

class Quantizer {
 public:
  Quantizer(const SafetensorsReader& reader, const QuantizeOptions& options, QuantizePlan plan,
            SafetensorsWriter* writer)
      : reader_(reader), options_(options), plan_(std::move(plan)), writer_(*writer) {}

  absl::StatusOr<QuantizeReport> Run() {
    for (const Group& group : plan_.groups) {
      progress_.tensors_total += group.members.size();
      for (const LinearWeights& linear : group.members) progress_.bytes_total += linear.file_bytes();
    }
    progress_.tensors_total += plan_.kept.size();
    for (const TensorView* tensor : plan_.kept) progress_.bytes_total += tensor->data.size();
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
                                      : KeepTensor(*plan_.kept[unit - plan_.groups.size()]);
      if (status.ok()) continue;
      failed_.store(true);
      absl::MutexLock lock(&mutex_);
      status_.Update(status);
    }
  }

  absl::Status QuantizeGroup(const Group& group) {
    float amax = 0;
    for (const LinearWeights& linear : group.members) {
      absl::StatusOr<float> member = AbsMax(linear);
      if (!member.ok()) return member.status();
      amax = std::max(amax, *member);
    }
    const nvfp4::BlockScaleRule rule =
        options_.four_over_six ? nvfp4::BlockScaleRule::kFourOverSix : nvfp4::BlockScaleRule::kModelOpt;
    const float tensor_scale = nvfp4::TensorScaleFromAmax(amax, rule);
    for (const LinearWeights& linear : group.members) {
      if (absl::Status status = QuantizeLinear(linear, tensor_scale, rule); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<float> AbsMax(const LinearWeights& linear) {
    if (absl::Status status = reader_.CheckUnchanged(*linear.tensor); !status.ok()) return status;
    std::vector<float> row(linear.in);
    float amax = 0;
    for (int64_t r = 0; r < linear.out; ++r) {
      ReadFloats(*linear.tensor, r * linear.in, linear.in, row.data());
      const float row_max = nvfp4::AbsMax(row.data(), linear.in);
      if (!std::isfinite(row_max)) {
        const auto bad =
            std::find_if(row.begin(), row.end(), [](float value) { return !std::isfinite(value); });
        return NotFinite(reader_, *linear.tensor, r * linear.in + (bad - row.begin()), *bad);
      }
      amax = std::max(amax, row_max);
    }
    return amax;
  }

  absl::Status QuantizeLinear(const LinearWeights& linear, float tensor_scale, nvfp4::BlockScaleRule rule) {
    if (absl::Status status = reader_.CheckUnchanged(*linear.tensor); !status.ok()) return status;
    std::vector<float> row(linear.in);
    std::vector<uint8_t> codes(linear.out * linear.in / 2);
    std::vector<uint8_t> scales(linear.out * linear.in / nvfp4::kBlockSize);
    nvfp4::ErrorStats stats;
    for (int64_t r = 0; r < linear.out; ++r) {
      ReadFloats(*linear.tensor, r * linear.in, linear.in, row.data());
      stats.Merge(nvfp4::QuantizeRow(row.data(), linear.in, tensor_scale, rule,
                                     codes.data() + r * linear.in / 2,
                                     scales.data() + r * linear.in / nvfp4::kBlockSize));
    }
    uint8_t scale_bytes[sizeof(float)];
    std::memcpy(scale_bytes, &tensor_scale, sizeof(tensor_scale));
    absl::Status status = writer_.Write(absl::StrCat(linear.name, ".weight"), codes);
    status.Update(writer_.Write(absl::StrCat(linear.name, ".weight_scale"), scales));
    status.Update(writer_.Write(absl::StrCat(linear.name, ".weight_scale_2"), scale_bytes));
    if (!status.ok()) return status;

    TensorError error;
    error.name = linear.name;
    error.rows = linear.out;
    error.cols = linear.in;
    error.relative_rms = RelativeRms(stats);
    error.max_abs = stats.max_abs_error;
    error.sqnr_db = stats.SignalToNoiseDb();
    absl::MutexLock lock(&mutex_);
    total_.Merge(stats);
    report_.tensors.push_back(std::move(error));
    Advance(linear.name, linear.file_bytes());
    return absl::OkStatus();
  }

  absl::Status KeepTensor(const TensorView& tensor) {
    if (absl::Status status = reader_.CheckUnchanged(tensor); !status.ok()) return status;
    const int64_t count = tensor.num_elements();
    std::vector<uint8_t> data(count * sizeof(Bf16));
    constexpr int64_t kAtOnce = 4096;
    float values[kAtOnce];
    for (int64_t first = 0; first < count; first += kAtOnce) {
      const int64_t some = std::min(kAtOnce, count - first);
      ReadFloats(tensor, first, some, values);
      for (int64_t i = 0; i < some; ++i) {
        const Bf16 rounded = ToBf16(values[i]);
        if (!std::isfinite(ToFloat(rounded))) return NotFinite(reader_, tensor, first + i, values[i]);
        std::memcpy(data.data() + (first + i) * sizeof(Bf16), &rounded, sizeof(rounded));
      }
    }
    if (absl::Status status = writer_.Write(tensor.name, data); !status.ok()) return status;
    absl::MutexLock lock(&mutex_);
    Advance(tensor.name, tensor.data.size());
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

std::vector<SafetensorsWriter::Entry> OutputEntries(const QuantizePlan& plan) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const Group& group : plan.groups) {
    for (const LinearWeights& linear : group.members) {
      entries.push_back({absl::StrCat(linear.name, ".weight"), DType::kU8, {linear.out, linear.in / 2}});
      entries.push_back({absl::StrCat(linear.name, ".weight_scale"),
                         DType::kF8E4M3,
                         {linear.out, linear.in / nvfp4::kBlockSize}});
      entries.push_back({absl::StrCat(linear.name, ".weight_scale_2"), DType::kF32, {}});
    }
  }
  for (const TensorView* tensor : plan.kept) entries.push_back({tensor->name, DType::kBf16, tensor->shape});
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
    if (use.format == WeightFormat::kNvfp4 || use.format == WeightFormat::kMxfp4 ||
        use.format == WeightFormat::kFp8) {
      return absl::InvalidArgumentError(absl::StrCat(in_dir, ": ", use.parameters, " parameters are ",
                                                     WeightFormatName(use.format),
                                                     " already; expected BF16, F16 or F32"));
    }
  }
  absl::StatusOr<std::string> config_json = ReadTextFile(absl::StrCat(in_dir, "/config.json"), 16 << 20);
  if (!config_json.ok()) return config_json.status();

  QuantizePlan plan = Planner(config->spec, *weights, options).Plan();
  const std::vector<std::string> ignore = plan.ignore;
  absl::StatusOr<std::string> new_config = QuantizedConfigJson(*config_json, ignore);
  if (!new_config.ok()) return new_config.status();

  absl::StatusOr<std::unique_ptr<OutputDirectory>> out = OutputDirectory::Create(out_dir, options.overwrite);
  if (!out.ok()) return out.status();
  const std::string working = (*out)->working_path();
  absl::StatusOr<std::unique_ptr<SafetensorsWriter>> writer = SafetensorsWriter::Create(
      absl::StrCat(working, "/model.safetensors"), OutputEntries(plan), {{"format", "pt"}});
  if (!writer.ok()) return writer.status();
  absl::StatusOr<QuantizeReport> report = Quantizer(**reader, options, std::move(plan), writer->get()).Run();
  if (!report.ok()) return report.status();
  report->output_bytes = (*writer)->file_bytes();

  absl::Status status = (*writer)->Finish();
  status.Update(WriteNewFile(absl::StrCat(working, "/config.json"), *new_config));
  status.Update(WriteNewFile(absl::StrCat(working, "/hf_quant_config.json"), HfQuantConfigJson(ignore)));
  status.Update(CopySideFiles(in_dir, working));
  if (status.ok()) status = (*out)->Commit();
  if (!status.ok()) return status;
  return report;
}

}  // namespace tessera
