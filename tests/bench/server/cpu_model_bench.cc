// Whole steps of a model on the CPU backend, without a server, against this machine's ceilings measured in this run.
//
//   cpu_model_bench --model DIR [--layers N] [--load-format dummy|safetensors] [--threads N] [--isa NAME]
//                   [--decode B,B,...] [--context N] [--prefill N,N,...] [--chunk N] [--seconds S] [--json FILE]
//
// Decode: B sequences, each with its own random prompt of `context` tokens, go on token by token: drawn greedily, but
// fed with random ones, lest all sequences fall into one loop and share their experts. The median step.
// Memory is counted as the weights that a step must read once (of B tokens, whose experts are taken as drawn evenly,
// E (1 - (1 - k/E)^B) of a layer's E) and the keys and values before it. Prefill: one random prompt, in chunks as the
// scheduler would cut it. Operations are those of the products and of causal attention.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/linear/packed_linear.h"
#include "kernels/cpu/thread_pool.h"
#include "server/backend/cpu/cpu_backend.h"
#include "server/backend/cpu/memory.h"
#include "tests/bench/kernels/ceilings.h"
#include "tests/bench/kernels/result_row.h"

namespace tessera {
namespace {

struct Options {
  std::string model;
  int layers = 0;  // 0: as many as the model has
  LoadFormat format = LoadFormat::kDummy;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  std::vector<int> decode = {1, 4, 16};
  int context = 128;
  std::vector<int> prefill = {512, 2048};
  int chunk = 512;
  double seconds = 3;  // for each measurement
  std::string json;
};

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

template <typename T>
T Value(absl::StatusOr<T> result) {
  if (!result.ok()) Fail(result.status().ToString());
  return std::move(*result);
}

// A copy of the model's directory with fewer layers: of config.json alone.
std::string WithLayers(const std::string& model, int layers) {
  nlohmann::json config;
  std::ifstream(model + "/config.json") >> config;
  config["num_hidden_layers"] = layers;
  std::string directory = (std::filesystem::temp_directory_path() / "tessera_bench_XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) Fail("no temporary directory");
  std::ofstream(directory + "/config.json") << config;
  return directory;
}

// What a step of a model costs, from its shape.
struct Cost {
  double shared_bytes = 0;  // weights that every step reads
  double expert_bytes = 0;  // of one expert, summed over the layers
  double token_flops = 0;   // of a token's products in the layers
  double head_flops = 0;    // of a token's logits
  double pair_flops = 0;    // of a query token's attention to one key
  double kv_bytes = 0;      // of a token in the cache
  int experts = 1;
  int top_k = 1;

  explicit Cost(const ModelSpec& spec, int64_t kv_bytes_per_token) : kv_bytes(kv_bytes_per_token) {
    const auto matrix = [&](int64_t n, int64_t k, cpu::WeightFormat format, double* bytes) {
      *bytes += static_cast<double>(cpu::PackedBytes(format, n, k));
      return 2.0 * static_cast<double>(n * k);
    };
    const int64_t hidden = spec.hidden_size;
    constexpr auto kFp4 = cpu::WeightFormat::kNvfp4;
    for (const LayerSpec& layer : spec.layers) {
      const AttentionSpec& attention = layer.attention;
      if (attention.kind != AttentionKind::kGrouped) Fail("latent attention is not counted here");
      const int64_t q = int64_t{attention.num_query_heads} * attention.head_dim;
      const int64_t kv = int64_t{attention.num_kv_heads} * attention.head_dim;
      token_flops += matrix(q, hidden, kFp4, &shared_bytes) + matrix(hidden, q, kFp4, &shared_bytes) +
                     2 * matrix(kv, hidden, kFp4, &shared_bytes);
      shared_bytes += static_cast<double>(cpu::PackedBytes(kFp4, kv, hidden));  // the other of keys' and values'
      pair_flops += 4.0 * static_cast<double>(q);
      const MlpSpec& mlp = layer.mlp;
      double* bytes = mlp.kind == MlpKind::kMoe ? &expert_bytes : &shared_bytes;
      double flops = 0;
      for (int i = 0; i < 3; ++i) flops += matrix(mlp.intermediate_size, hidden, kFp4, bytes);
      if (mlp.kind == MlpKind::kMoe) {
        experts = mlp.num_experts;
        top_k = mlp.num_experts_per_token;
        flops = flops * top_k + matrix(experts, hidden, cpu::WeightFormat::kBf16, &shared_bytes);
      }
      token_flops += flops;
    }
    head_flops = matrix(spec.vocab_size, hidden, cpu::WeightFormat::kBf16, &shared_bytes);
  }

  double StepBytes(int batch, double context) const {
    const double missed = std::pow(1.0 - static_cast<double>(top_k) / experts, batch);
    return shared_bytes + expert_bytes * experts * (1 - missed) + kv_bytes * batch * context;
  }
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), pool_(options.threads) {
    const std::string directory =
        options.layers > 0 ? WithLayers(options.model, options.layers) : options.model;
    checkpoint_ = Value(Checkpoint::Open(directory, options.format));
    if (options.layers > 0) std::filesystem::remove_all(directory);
    CpuBackendOptions backend_options;
    backend_options.num_threads = options.threads;
    backend_ = Value(CreateCpuBackend(*checkpoint_, backend_options));
    int64_t tokens = kBlock;
    for (int batch : options.decode) {
      tokens = std::max(tokens, int64_t{batch} * (options.context + kMaxSteps + kBlock));
    }
    for (int length : options.prefill) tokens = std::max<int64_t>(tokens, length + kBlock);
    const int32_t blocks = static_cast<int32_t>((tokens + kBlock - 1) / kBlock);
    if (absl::Status status = backend_->AllocateKvCache({blocks, kBlock}); !status.ok()) {
      Fail(status.ToString());
    }
    for (int32_t b = 0; b < blocks; ++b) blocks_.push_back(b);
    std::shuffle(blocks_.begin(), blocks_.end(), engine_);
    SamplingParams greedy;
    greedy.temperature = 0;
    sampler_ = std::make_unique<Sampler>(greedy, absl::Span<const int32_t>(), std::vector<int32_t>(), 0, -1);
  }

  void Run() {
    MeasureCeilings();
    const Cost cost(checkpoint_->spec(), backend_->info().kv_bytes_per_token);
    std::printf("%s, %zu layers, %.0f MB of weights; read %.1f GB/s, BF16 dot %.0f GFLOP/s, FMA %.0f GFLOP/s\n",
                backend_->info().device_description.c_str(), checkpoint_->spec().layers.size(),
                static_cast<double>(backend_->info().weight_bytes) / 1e6, bandwidth_ / 1e9,
                flops_.bf16_dot / 1e9, flops_.fma / 1e9);
    double single = 0;
    for (const int batch : options_.decode) {
      const double seconds = Decode(batch);
      const double bytes = cost.StepBytes(batch, options_.context + last_steps_ / 2.0);
      if (batch == 1) single = 1 / seconds;
      std::printf("decode   %3d x %-5d %9.2f ms %9.1f tokens/s %7.1f GB/s = %4.1f%% of read", batch,
                  options_.context, seconds * 1e3, batch / seconds, bytes / seconds / 1e9,
                  100 * bytes / seconds / bandwidth_);
      if (batch > 1 && single > 0) std::printf(", %.2fx one stream", batch / seconds / single);
      std::printf("\n");
      const std::string shape = Shape("batch " + std::to_string(batch) + " context " +
                                      std::to_string(options_.context));
      Append({"cpu model decode", shape, batch / seconds, "tokens/s", 0});
      Append({"cpu model decode read", shape, bytes / seconds / 1e9, "GB/s", bandwidth_ / 1e9});
    }
    const double peak = std::max(flops_.bf16_dot, flops_.fma);
    for (const int length : options_.prefill) {
      const double seconds = Prefill(length);
      const double attention = cost.pair_flops * length * (length + 1.0) / 2;
      const double flops = cost.token_flops * length + attention + cost.head_flops;
      std::printf("prefill  %9d %9.1f ms %9.1f tokens/s %7.0f GFLOP/s = %4.1f%% of peak\n", length,
                  seconds * 1e3, length / seconds, flops / seconds / 1e9, 100 * flops / seconds / peak);
      const std::string shape = Shape("prompt " + std::to_string(length));
      Append({"cpu model prefill", shape, length / seconds, "tokens/s", 0});
      Append({"cpu model prefill operations", shape, flops / seconds / 1e9, "GFLOP/s", peak / 1e9});
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int32_t kBlock = 16;
  static constexpr int kMinSteps = 5;
  static constexpr int kMaxSteps = 512;

  // One sequence and its place in the cache.
  struct Sequence {
    std::vector<int32_t> tokens;
    std::vector<int32_t> blocks;
    int32_t cached = 0;
  };

  std::string Shape(const std::string& what) const {
    const std::string model = std::filesystem::path(options_.model).filename().string();
    return model + " " + std::to_string(checkpoint_->spec().layers.size()) + " layers, " + what + ", " +
           std::to_string(options_.threads) + " threads, " + std::string(cpu::IsaName(cpu::ActiveIsa()));
  }
  void Append(const ResultRow& row) const {
    if (!options_.json.empty()) AppendResult(options_.json, row);
  }

  void MeasureCeilings() {
    auto memory = Value(cpu::MappedMemory::Allocate(int64_t{512} << 20, "the bandwidth measurement"));
    std::memset(memory.data(), 1, memory.size());
    bandwidth_ = cpu::MeasureReadBandwidth(memory.data(), memory.size(), pool_);
    flops_ = cpu::MeasurePeakFlops(pool_);
  }

  int32_t RandomToken() {
    return std::uniform_int_distribution<int32_t>(0, backend_->info().vocab_size - 1)(engine_);
  }

  Sequence NewSequence(int place, int prompt, int room) {
    Sequence sequence;
    for (int i = 0; i < prompt; ++i) sequence.tokens.push_back(RandomToken());
    const int each = (prompt + room + kBlock - 1) / kBlock;
    sequence.blocks.assign(blocks_.begin() + int64_t{place} * each, blocks_.begin() + int64_t{place + 1} * each);
    return sequence;
  }

  // Runs the next `count` tokens of each sequence; after its last one a random one follows, whatever was drawn.
  void Step(std::vector<Sequence>& sequences, int32_t count) {
    rows_.clear();
    for (Sequence& sequence : sequences) {
      BatchRow row;
      const int32_t left = static_cast<int32_t>(sequence.tokens.size()) - sequence.cached;
      row.tokens = absl::MakeConstSpan(sequence.tokens).subspan(sequence.cached, count);
      row.start = sequence.cached;
      row.block_table = sequence.blocks;
      row.sampler = left <= count ? sampler_.get() : nullptr;
      rows_.push_back(row);
    }
    if (absl::Status status = backend_->Run(rows_, &results_); !status.ok()) Fail(status.ToString());
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (!results_[i].status.ok()) Fail(results_[i].status.ToString());
      sequences[i].cached += static_cast<int32_t>(rows_[i].tokens.size());
      if (rows_[i].sampler != nullptr) sequences[i].tokens.push_back(RandomToken());
    }
  }

  // Runs all of each sequence's prompt.
  void Fill(std::vector<Sequence>& sequences) {
    const int32_t length = static_cast<int32_t>(sequences[0].tokens.size());
    while (sequences[0].cached < length) Step(sequences, std::min(options_.chunk, length - sequences[0].cached));
  }

  double Decode(int batch) {
    std::vector<Sequence> sequences;
    for (int i = 0; i < batch; ++i) sequences.push_back(NewSequence(i, options_.context, kMaxSteps));
    for (Sequence& sequence : sequences) {  // one by one, as long batches of prompts would take other memory
      std::vector<Sequence> one = {std::move(sequence)};
      Fill(one);
      sequence = std::move(one[0]);
    }
    std::vector<double> times;
    const auto start = Clock::now();
    while (times.size() < kMaxSteps - 1 && (times.size() < kMinSteps || Since(start) < options_.seconds)) {
      const auto before = Clock::now();
      Step(sequences, 1);
      times.push_back(Since(before));
    }
    last_steps_ = static_cast<int>(times.size());
    return Median(&times);
  }

  double Prefill(int length) {
    std::vector<double> times;
    const auto start = Clock::now();
    while (times.size() < 2 || Since(start) < options_.seconds) {
      std::vector<Sequence> one = {NewSequence(0, length, 1)};
      const auto before = Clock::now();
      Fill(one);
      times.push_back(Since(before));
    }
    return Median(&times);
  }

  static double Since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  static double Median(std::vector<double>* times) {
    std::nth_element(times->begin(), times->begin() + times->size() / 2, times->end());
    return (*times)[times->size() / 2];
  }

  const Options options_;
  cpu::ThreadPool pool_;  // for the ceilings
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Sampler> sampler_;
  std::vector<int32_t> blocks_;
  std::vector<BatchRow> rows_;
  std::vector<RowResult> results_;
  std::mt19937 engine_{1};
  int last_steps_ = 0;
  double bandwidth_ = 0;
  cpu::PeakFlops flops_;
};

std::vector<int> Numbers(const char* list) {
  std::vector<int> numbers;
  for (const char* at = list; *at != '\0'; at += *at == ',') {
    char* end;
    numbers.push_back(static_cast<int>(std::strtol(at, &end, 10)));
    if (end == at) Fail(std::string("no list of numbers: ") + list);
    at = end;
  }
  return numbers;
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (i + 1 == argc) Fail(flag + " needs a value");
    const char* value = argv[++i];
    if (flag == "--model") {
      options.model = value;
    } else if (flag == "--layers") {
      options.layers = std::atoi(value);
    } else if (flag == "--load-format") {
      options.format = std::strcmp(value, "dummy") == 0 ? LoadFormat::kDummy : LoadFormat::kSafetensors;
    } else if (flag == "--threads") {
      options.threads = std::atoi(value);
    } else if (flag == "--decode") {
      options.decode = Numbers(value);
    } else if (flag == "--context") {
      options.context = std::atoi(value);
    } else if (flag == "--prefill") {
      options.prefill = Numbers(value);
    } else if (flag == "--chunk") {
      options.chunk = std::atoi(value);
    } else if (flag == "--seconds") {
      options.seconds = std::atof(value);
    } else if (flag == "--json") {
      options.json = value;
    } else if (flag == "--isa") {
      bool found = false;
      for (cpu::Isa isa : cpu::SupportedIsas()) found |= cpu::IsaName(isa) == value && cpu::ForceIsa(isa).ok();
      if (!found) Fail(std::string("no instruction set ") + value + " on this machine");
    } else {
      Fail("unknown flag " + flag);
    }
  }
  if (options.model.empty()) Fail("--model is missing");
  Bench(options).Run();
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
