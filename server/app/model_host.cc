#include "server/app/model_host.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "server/app/memory_budget.h"
#include "server/backend/cpu/cpu_backend.h"
#ifdef TESSERA_CUDA
#include "server/backend/cuda/cuda_backend.h"
#endif
#include "server/backend/null/null_backend.h"
#include "server/logging/logging.h"
#include "server/model/checkpoint.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kBundledName[] = "tessera-bundled";

// The longest run of ordinary tokens, for the null backend to draw from.
void AvoidSpecialTokens(const Tokenizer& tokenizer, NullBackendConfig* config) {
  int32_t begin = 0;
  const int32_t end = std::min(tokenizer.vocab_size(), config->vocab_size);
  for (int32_t id = 0; id <= end; ++id) {
    if (id < end && !tokenizer.IsSpecial(id)) continue;
    if (id - begin > config->num_tokens) {
      config->first_token = begin;
      config->num_tokens = id - begin;
    }
    begin = id + 1;
  }
}

// What --device auto means on this machine.
std::string ChooseDevice(const std::string& device) {
  if (device != "auto") return device;
#ifdef TESSERA_CUDA
  if (CheckCudaDevice(0).ok()) return "cuda";
#endif
  return "cpu";
}

absl::StatusOr<int64_t> MemoryForCache(const std::string& device) {
#ifdef TESSERA_CUDA
  if (device == "cuda") return FreeDeviceMemory(0);
#endif
  return AvailableMemory();
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const ServerOptions& options,
                                                     const Checkpoint& checkpoint,
                                                     const Tokenizer* tokenizer) {
  if (options.device == "null") {
    NullBackendConfig config;
    config.vocab_size = checkpoint.spec().vocab_size;
    config.max_context = checkpoint.spec().max_context;
    if (tokenizer != nullptr) AvoidSpecialTokens(*tokenizer, &config);
    return std::make_unique<NullBackend>(std::move(config));
  }
  absl::Time last = absl::Now();
  const auto log_progress = [&last](const LoadProgress& progress) {
    if (absl::Now() - last < absl::Seconds(2) || progress.bytes_total == 0) return;
    last = absl::Now();
    LogInfo("loading weights",
            {{"percent", 100 * progress.bytes_done / progress.bytes_total}, {"bytes", progress.bytes_total}});
  };
  if (ChooseDevice(options.device) == "cuda") {
#ifdef TESSERA_CUDA
    CudaBackendOptions cuda;
    cuda.sampling_threads = options.threads;
    cuda.max_step_tokens = options.max_batched_tokens;
    cuda.max_step_sequences = std::min(options.max_running, options.max_batched_tokens);
    cuda.nvfp4_activations = !options.bf16_activations;
    cuda.progress = log_progress;
    return CreateCudaBackend(checkpoint, std::move(cuda));
#else
    return absl::FailedPreconditionError(
        "--device: found cuda, but this build has no CUDA kernels (nvcc was not found); expected cpu, null "
        "or auto");
#endif
  }
  CpuBackendOptions cpu;
  cpu.num_threads = options.threads;
  cpu.progress = log_progress;
  return CreateCpuBackend(checkpoint, std::move(cpu));
}

// Null if the model has no tokenizer.
absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizer(const std::string& directory) {
  absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer = Tokenizer::Load(directory);
  if (absl::IsNotFound(tokenizer.status())) {
    LogWarning("the model has no tokenizer: prompts must be token ids", {{"directory", directory}});
    return nullptr;
  }
  return tokenizer;
}

// What sentence-transformers models say in 1_Pooling/config.json; the last token's state for all others.
v1::Pooling DefaultPooling(const std::string& directory) {
  std::ifstream file(directory + "/1_Pooling/config.json");
  if (!file) return v1::POOLING_LAST;
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  auto is_set = [&json](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_boolean() && found->get<bool>();
  };
  if (json.is_object() && is_set("pooling_mode_mean_tokens")) return v1::POOLING_MEAN;
  if (json.is_object() && is_set("pooling_mode_cls_token")) return v1::POOLING_CLS;
  return v1::POOLING_LAST;
}

void FillDefaults(const GenerationDefaults& from, v1::SamplingParams* to) {
  if (from.temperature) to->set_temperature(*from.temperature);
  if (from.top_k) to->set_top_k(*from.top_k);
  if (from.top_p) to->set_top_p(*from.top_p);
  if (from.repetition_penalty) to->set_repetition_penalty(*from.repetition_penalty);
}

v1::ModelInfo MakeInfo(const Checkpoint& checkpoint, const BackendInfo& backend, std::string name) {
  const ModelSpec& spec = checkpoint.spec();
  v1::ModelInfo info;
  info.set_name(std::move(name));
  info.set_architecture(spec.architecture);
  info.set_vocab_size(backend.vocab_size);
  info.set_hidden_size(backend.hidden_size);
  info.set_num_layers(static_cast<int32_t>(spec.layers.size()));
  for (const LayerSpec& layer : spec.layers) {
    if (layer.mlp.kind != MlpKind::kMoe) continue;
    info.set_num_experts(std::max(info.num_experts(), layer.mlp.num_experts));
    info.set_num_experts_per_token(std::max(info.num_experts_per_token(), layer.mlp.num_experts_per_token));
  }
  info.set_num_parameters(checkpoint.facts().num_parameters);
  info.set_num_active_parameters(checkpoint.facts().num_active_parameters);
  info.set_weight_bytes(backend.weight_bytes);
  info.set_kv_bytes_per_token(backend.kv_bytes_per_token);
  for (const FormatUse& use : checkpoint.facts().formats) {
    const absl::string_view format = WeightFormatName(use.format);
    info.add_weight_formats(format.data(), format.size());
  }
  FillDefaults(checkpoint.generation_defaults(), info.mutable_default_sampling());
  info.set_default_pooling(DefaultPooling(checkpoint.directory()));
  return info;
}

// The model's, or what the flag and the cache leave of it.
absl::StatusOr<int32_t> MaxContext(const ServerOptions& options, int32_t model_context) {
  if (options.max_context > model_context) {
    return absl::InvalidArgumentError(absl::StrCat("--max-context: found ", options.max_context,
                                                   ", expected at most the model's ", model_context));
  }
  return options.max_context > 0 ? options.max_context : model_context;
}

std::string ModelName(const ServerOptions& options, const std::string& directory, bool bundled) {
  if (!options.model_name.empty()) return options.model_name;
  if (bundled) return kBundledName;
  std::error_code error;
  const fs::path canonical = fs::canonical(directory, error);
  return error || canonical.filename().empty() ? directory : canonical.filename().string();
}

}  // namespace

absl::StatusOr<std::string> FindBundledModel() {
  std::error_code error;
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  std::vector<std::string> tried;
  for (const char* relative : {"../deploy/model", "../share/tessera/model"}) {
    const fs::path candidate = (executable.parent_path() / relative).lexically_normal();
    if (fs::exists(candidate / "config.json", error)) return candidate.string();
    tried.push_back(candidate.string());
  }
  return absl::NotFoundError(
      absl::StrCat("--model: not set, and there is no bundled model at ", absl::StrJoin(tried, " or ")));
}

absl::StatusOr<LoadedModel> LoadModel(const ServerOptions& options, Metrics* metrics) {
  const absl::Time start = absl::Now();
  std::string directory = options.model;
  absl::StatusOr<std::string> bundled_directory = FindBundledModel();
  if (directory.empty()) {
    if (!bundled_directory.ok()) return bundled_directory.status();
    directory = *bundled_directory;
  }
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    return absl::NotFoundError(absl::StrCat("--model: ", directory, ": no such directory"));
  }
  const bool bundled = bundled_directory.ok() && fs::equivalent(directory, *bundled_directory, ignored);

  // The tokenizer's files and the weights are read side by side, but for the null backend, which looks at the tokens.
  std::future<absl::StatusOr<std::shared_ptr<const Tokenizer>>> tokenizer_future =
      std::async(std::launch::async, LoadTokenizer, directory);
  const bool weights = !options.dummy_weights && options.device != "null";
  absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint =
      Checkpoint::Open(directory, weights ? LoadFormat::kSafetensors : LoadFormat::kDummy);
  if (!checkpoint.ok()) return checkpoint.status();
  for (const std::string& warning : (*checkpoint)->facts().warnings) LogWarning(warning);
  std::shared_ptr<const Tokenizer> tokenizer;
  if (options.device == "null") {
    absl::StatusOr<std::shared_ptr<const Tokenizer>> loaded = tokenizer_future.get();
    if (!loaded.ok()) return loaded.status();
    tokenizer = *std::move(loaded);
  }
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend(options, **checkpoint, tokenizer.get());
  if (!backend.ok()) return backend.status();
  if (tokenizer_future.valid()) {
    absl::StatusOr<std::shared_ptr<const Tokenizer>> loaded = tokenizer_future.get();
    if (!loaded.ok()) return loaded.status();
    tokenizer = *std::move(loaded);
  }
  const BackendInfo backend_info = (*backend)->info();
  if (tokenizer != nullptr && tokenizer->vocab_size() > backend_info.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(directory, ": the tokenizer has ", tokenizer->vocab_size(),
                                                   " tokens, the model only ", backend_info.vocab_size));
  }
  metrics->OnStartupPhase("load", absl::Now() - start);

  const absl::Time cache_start = absl::Now();
  absl::StatusOr<int32_t> max_context = MaxContext(options, backend_info.max_context);
  if (!max_context.ok()) return max_context.status();
  absl::StatusOr<int64_t> available = MemoryForCache(backend_info.device);
  if (!available.ok()) return available.status();
  absl::StatusOr<int32_t> blocks = KvBlocks(options, backend_info, *max_context, *available);
  if (!blocks.ok()) return blocks.status();
  if (absl::Status status = (*backend)->AllocateKvCache({*blocks, options.block_size}); !status.ok())
    return status;
  const int64_t cache_tokens = int64_t{*blocks} * options.block_size;
  if (cache_tokens < *max_context) {
    LogWarning("the key-value cache is smaller than the context, which is cut to it",
               {{"context", *max_context}, {"cache_tokens", cache_tokens}});
    *max_context = static_cast<int32_t>(cache_tokens);
  }
  metrics->OnStartupPhase("kv_cache", absl::Now() - cache_start);

  LoadedModel out;
  out.served.info = MakeInfo(**checkpoint, backend_info, ModelName(options, directory, bundled));
  out.served.info.set_max_context(*max_context);
  out.served.tokenizer = tokenizer;
  out.served.default_max_tokens = options.default_max_tokens;
  if (tokenizer != nullptr) {
    absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::Load(directory, *tokenizer);
    if (chat_template.ok()) {
      out.served.chat_template = *std::move(chat_template);
    } else if (!absl::IsNotFound(chat_template.status())) {
      LogWarning("the chat template can't be used; Chat prompts are refused",
                 {{"error", std::string(chat_template.status().message())}});
    }
  }
  out.served.info.set_has_chat_template(out.served.chat_template.has_value());

  EngineConfig config;
  config.scheduler.num_blocks = *blocks;
  config.scheduler.block_size = options.block_size;
  config.scheduler.max_running = options.max_running;
  config.scheduler.max_batched_tokens = options.max_batched_tokens;
  config.scheduler.max_prefill_chunk = PrefillChunk(options, backend_info.device == "cuda");
  config.scheduler.max_context = *max_context;
  config.scheduler.prefix_cache = !options.no_prefix_cache;
  config.max_queued_sequences = options.max_queued;
  config.run_ahead = !options.no_run_ahead;
  config.slow_reader_timeout = options.slow_reader_timeout;
  config.watchdog_timeout = options.watchdog_timeout;
  config.eos_token_ids = (*checkpoint)->spec().eos_token_ids;
  if (tokenizer != nullptr) {
    config.eos_token_ids.insert(config.eos_token_ids.end(), tokenizer->eos_ids().begin(),
                                tokenizer->eos_ids().end());
  }
  std::sort(config.eos_token_ids.begin(), config.eos_token_ids.end());
  config.eos_token_ids.erase(std::unique(config.eos_token_ids.begin(), config.eos_token_ids.end()),
                             config.eos_token_ids.end());
  out.served.info.mutable_eos_token_ids()->Add(config.eos_token_ids.begin(), config.eos_token_ids.end());

  MetricsLabels labels;
  labels.model_name = out.served.info.name();
  labels.version = TESSERA_VERSION;
  labels.device = backend_info.device;
  labels.architecture = out.served.info.architecture();
  labels.weight_formats = absl::StrJoin(out.served.info.weight_formats(), ",");
  metrics->SetLabels(std::move(labels));
  out.engine =
      std::make_unique<Engine>(std::move(config), *std::move(backend), std::move(tokenizer), metrics);
  return out;
}

}  // namespace tessera
