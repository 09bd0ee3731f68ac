// Speed of the CPU kernels against this machine's ceilings, both measured in this run.
//
//   kernels_cpu_bench [--threads N] [--isa NAME] [--filter SUBSTRING] [--seconds S] [--json FILE]
//
// Shapes are those of Qwen3-30B-A3B (hidden 2048, 128 experts of 768, top 8, 32/4 heads of 128). Weights and
// caches are larger than any processor cache and used in rotation, so that decode measures memory. Each line:
// least time of a call, the rate it means, and that rate as a fraction of the ceiling. With --threads 1 times
// are the thread's processor time, which other programs on a shared machine disturb less. --json appends lines
// with the fields bench, shape, value, unit, ceiling, fraction, isa, threads.

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/fmha/attention.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/moe/moe.h"
#include "kernels/cpu/thread_pool.h"
#include "tests/bench/kernels/ceilings.h"

namespace tessera::cpu {
namespace {

struct Options {
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  std::string filter;
  std::string json;
  double seconds = 0.5;  // for each measurement
};

// Anonymous memory in huge pages where the kernel grants them.
class Memory {
 public:
  explicit Memory(size_t size) : size_((size + (2 << 20) - 1) >> 21 << 21) {
    data_ = static_cast<std::byte*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (data_ == MAP_FAILED) {
      std::perror("mmap");
      std::exit(1);
    }
    madvise(data_, size_, MADV_HUGEPAGE);
  }
  ~Memory() { munmap(data_, size_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() { return data_; }
  size_t size() const { return size_; }

 private:
  size_t size_;
  std::byte* data_;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        pool_(options.threads),
        memory_(size_t{1500} << 20),
        workspace_(size_t{256} << 20) {
    // Bytes that are ordinary in every format: E4M3 scales and BF16 values near one, E2M1 codes of both kinds of
    // nibble; no subnormals, which real tensors hardly have and which slow processors down.
    uint64_t state = 1;
    for (size_t i = 0; i < memory_.size(); i += 8) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const uint64_t bytes = ((state ^ (state >> 29)) & 0x0f0f0f0f0f0f0f0fu) | 0x3030303030303030u;
      std::memcpy(memory_.data() + i, &bytes, 8);
    }
    std::memset(workspace_.data(), 0, workspace_.size());
  }

  void Run() {
    bandwidth_ = MeasureReadBandwidth(memory_.data(), memory_.size(), pool_);
    flops_ = MeasurePeakFlops(pool_);
    std::printf("instruction set %s, %d threads\n", std::string(IsaName(ActiveIsa())).c_str(),
                options_.threads);
    std::printf("ceilings: read %.1f GB/s; BF16 pair dot %.0f GFLOP/s, float FMA %.0f GFLOP/s\n\n",
                bandwidth_ / 1e9, flops_.bf16_dot / 1e9, flops_.fma / 1e9);
    std::printf("%-12s %-40s %10s %9s %10s %9s\n", "bench", "shape", "us", "GB/s", "GFLOP/s", "fraction");
    for (int64_t tokens : {1, 2, 4, 8, 16}) LinearCase(WeightFormat::kNvfp4, 6144, 2048, tokens);
    for (int64_t tokens : {64, 512}) LinearCase(WeightFormat::kNvfp4, 1536, 2048, tokens);
    for (int64_t tokens : {1, 4, 16}) LinearCase(WeightFormat::kBf16, 6144, 2048, tokens);
    LinearCase(WeightFormat::kBf16, 1536, 2048, 512);
    for (int64_t tokens : {1, 4, 16, 64, 512}) MoeCase(tokens);
    const AttentionShape grouped{"32/4 heads of 128", 32, 4, 128, 128, 0};
    for (int64_t length : {1024, 8192}) AttentionCase(grouped, 1, 1, length);
    AttentionCase(grouped, 16, 1, 2048);
    AttentionCase(grouped, 1, 64, 2048);
    AttentionCase(grouped, 1, 512, 512);
    AttentionCase(grouped, 1, 512, 4096);
    for (int64_t shared : {512, 0}) {
      const AttentionShape latent{
          shared > 0 ? "128 heads on latents of 512 + 64" : "128 heads on latents of 512 + 64, stored twice",
          128,
          1,
          576,
          512,
          shared};
      AttentionCase(latent, 1, 1, 1024);
      AttentionCase(latent, 1, 1, 8192);
      AttentionCase(latent, 1, 64, 2048);
    }
  }

 private:
  // Least seconds of a call, as the ceilings are the best of their runs: on a shared machine the rest is other
  // people's time. round counts calls, so that inputs can rotate.
  double Time(const std::function<void(int64_t round)>& call) {
    using Clock = std::chrono::steady_clock;
    std::vector<double> times;
    const auto start = Clock::now();
    for (int64_t round = 0;
         round < 8 || Clock::now() - start < std::chrono::duration<double>(options_.seconds); ++round) {
      const auto before = Clock::now();
      call(round);
      times.push_back(std::chrono::duration<double>(Clock::now() - before).count());
    }
    return *std::min_element(times.begin(), times.end());
  }

  bool Wanted(const std::string& bench, const std::string& shape) const {
    return (bench + " " + shape).find(options_.filter) != std::string::npos;
  }

  // The binding ceiling is the one of which the kernel takes the larger part.
  void Report(const std::string& bench, const std::string& shape, double seconds, double bytes,
              double flops) {
    const double peak = std::max(flops_.bf16_dot, flops_.fma);
    const double of_bandwidth = bytes / seconds / bandwidth_;
    const double of_flops = flops / seconds / peak;
    const bool memory = of_bandwidth > of_flops;
    std::printf("%-12s %-40s %10.1f %9.1f %10.1f %8.1f%% of %s\n", bench.c_str(), shape.c_str(),
                seconds * 1e6, bytes / seconds / 1e9, flops / seconds / 1e9,
                100 * std::max(of_bandwidth, of_flops), memory ? "read bandwidth" : "peak");
    std::fflush(stdout);
    if (options_.json.empty()) return;
    if (FILE* file = std::fopen(options_.json.c_str(), "a"); file != nullptr) {
      std::fprintf(file,
                   "{\"bench\":\"%s\",\"shape\":\"%s\",\"value\":%.3f,\"unit\":\"%s\",\"ceiling\":%.3f,"
                   "\"fraction\":%.4f,\"isa\":\"%s\",\"threads\":%d}\n",
                   bench.c_str(), shape.c_str(), (memory ? bytes : flops) / seconds / 1e9,
                   memory ? "GB/s" : "GFLOP/s", (memory ? bandwidth_ : peak) / 1e9,
                   memory ? of_bandwidth : of_flops, std::string(IsaName(ActiveIsa())).c_str(),
                   options_.threads);
      std::fclose(file);
    }
  }

  std::vector<Bf16> RandomBf16(int64_t count) {
    std::vector<Bf16> values(count);
    for (Bf16& v : values) v = ToBf16(normal_(engine_));
    return values;
  }
  Workspace Scratch(size_t needed) {
    if (needed > workspace_.size()) {
      std::fprintf(stderr, "workspace of %zu bytes needed\n", needed);
      std::exit(1);
    }
    return {workspace_.data(), workspace_.size()};
  }
  static void Check(const absl::Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::exit(1);
  }

  void LinearCase(WeightFormat format, int64_t n, int64_t k, int64_t tokens) {
    const std::string bench = format == WeightFormat::kNvfp4 ? "linear-nvfp4" : "linear-bf16";
    const std::string shape =
        "n " + std::to_string(n) + " k " + std::to_string(k) + " tokens " + std::to_string(tokens);
    if (!Wanted(bench, shape)) return;
    const size_t bytes = PackedBytes(format, n, k);
    const int64_t copies = static_cast<int64_t>(memory_.size() / bytes);
    const std::vector<Bf16> x = RandomBf16(tokens * k);
    std::vector<float> y(tokens * n);
    const Workspace workspace = Scratch(LinearWorkspaceBytes(tokens, k));
    const double seconds = Time([&](int64_t round) {
      const PackedLinear weights{format, n, k, memory_.data() + round % copies * bytes, 1.0f};
      Check(Linear({x.data(), k, tokens}, {weights, y.data(), n}, workspace, pool_));
    });
    Report(bench, shape, seconds, static_cast<double>(bytes), 2.0 * static_cast<double>(tokens * n * k));
  }

  void MoeCase(int64_t tokens) {
    constexpr int kExperts = 128, kTopK = 8;
    constexpr int64_t kHidden = 2048, kIntermediate = 768;
    const std::string shape = "128 experts top 8, 2048 x 768, tokens " + std::to_string(tokens);
    if (!Wanted("moe-nvfp4", shape)) return;
    const size_t matrix = PackedBytes(WeightFormat::kNvfp4, kIntermediate, kHidden);
    const int64_t layers = static_cast<int64_t>(memory_.size() / (3 * kExperts * matrix));
    std::vector<MoeExpert> experts(layers * kExperts);
    for (size_t e = 0; e < experts.size(); ++e) {
      const std::byte* data = memory_.data() + 3 * e * matrix;
      experts[e].gate = {WeightFormat::kNvfp4, kIntermediate, kHidden, data, 1e-3f};
      experts[e].up = {WeightFormat::kNvfp4, kIntermediate, kHidden, data + matrix, 1e-3f};
      experts[e].down = {WeightFormat::kNvfp4, kHidden, kIntermediate, data + 2 * matrix, 1e-3f};
    }
    const std::vector<Bf16> x = RandomBf16(tokens * kHidden);
    std::vector<float> out(tokens * kHidden);
    const std::vector<float> weights(tokens * kTopK, 0.125f);
    // Several drawings of experts, used in rotation.
    constexpr int kDrawings = 16;
    std::vector<int32_t> ids;
    double active = 0;
    for (int d = 0; d < kDrawings; ++d) {
      std::vector<bool> used(kExperts, false);
      for (int64_t t = 0; t < tokens; ++t) {
        std::vector<int32_t> all(kExperts);
        for (int e = 0; e < kExperts; ++e) all[e] = e;
        std::shuffle(all.begin(), all.end(), engine_);
        for (int j = 0; j < kTopK; ++j) used[all[j]] = true;
        ids.insert(ids.end(), all.begin(), all.begin() + kTopK);
      }
      active += static_cast<double>(std::count(used.begin(), used.end(), true)) / kDrawings;
    }
    const Workspace workspace = Scratch(MoeWorkspaceBytes(tokens, kTopK, kExperts, kHidden, kIntermediate));
    const double seconds = Time([&](int64_t round) {
      MoeArgs args;
      args.experts = absl::MakeConstSpan(experts.data() + round % layers * kExperts, kExperts);
      args.top_k = kTopK;
      args.x = x.data();
      args.x_stride = kHidden;
      args.tokens = tokens;
      args.ids = ids.data() + round % kDrawings * tokens * kTopK;
      args.weights = weights.data();
      args.out = out.data();
      args.out_stride = kHidden;
      Check(MoeForward(args, workspace, pool_));
    });
    Report("moe-nvfp4", shape, seconds, active * 3 * static_cast<double>(matrix),
           6.0 * static_cast<double>(tokens * kTopK * kHidden * kIntermediate));
  }

  struct AttentionShape {
    const char* name;
    int64_t query_heads, kv_heads, key_dim, value_dim, shared_dim;
  };

  // num_sequences sequences of q_len query tokens each, the last of `length`.
  void AttentionCase(const AttentionShape& heads, int64_t num_sequences, int64_t q_len, int64_t length) {
    constexpr int64_t kBlock = 16;
    const std::string bench = q_len == 1 ? "attn-decode" : "attn-prefill";
    const std::string shape = std::string(heads.name) + ", " + std::to_string(num_sequences) + " x " +
                              std::to_string(q_len) + " at " + std::to_string(length);
    if (!Wanted(bench, shape)) return;
    KvCache cache;
    cache.kv_heads = heads.kv_heads;
    cache.block_size = kBlock;
    cache.head_dim = heads.key_dim;
    cache.value_dim = heads.value_dim;
    cache.shared_dim = heads.shared_dim;
    cache.num_blocks = static_cast<int64_t>(memory_.size() / sizeof(Bf16)) /
                       (cache.k_block_elements() + cache.v_block_elements());
    cache.k = reinterpret_cast<Bf16*>(memory_.data());
    cache.v = cache.k + cache.k_elements();
    std::vector<int32_t> blocks(cache.num_blocks);
    for (int64_t b = 0; b < cache.num_blocks; ++b) blocks[b] = static_cast<int32_t>(b);
    std::shuffle(blocks.begin(), blocks.end(), engine_);
    const int64_t per_sequence = (length + kBlock - 1) / kBlock;
    const int64_t copies = cache.num_blocks / (per_sequence * num_sequences);
    const int64_t tokens = num_sequences * q_len;
    std::vector<float> q(tokens * heads.query_heads * heads.key_dim);
    for (float& v : q) v = normal_(engine_);
    std::vector<Bf16> out(tokens * heads.query_heads * heads.value_dim);
    std::vector<int32_t> q_start, kv_len(num_sequences, static_cast<int32_t>(length));
    for (int64_t s = 0; s <= num_sequences; ++s) q_start.push_back(static_cast<int32_t>(s * q_len));
    const Workspace workspace = Scratch(AttentionWorkspaceBytes(
        tokens, num_sequences, length, heads.query_heads, heads.value_dim, pool_.num_threads()));
    const double seconds = Time([&](int64_t round) {
      AttentionArgs args;
      args.cache = cache;
      args.q_heads = heads.query_heads;
      args.q = q.data();
      args.q_stride = heads.query_heads * heads.key_dim;
      args.num_sequences = num_sequences;
      args.q_start = q_start.data();
      args.kv_len = kv_len.data();
      args.block_table = blocks.data() + round % copies * per_sequence * num_sequences;
      args.block_table_stride = per_sequence;
      args.softmax_scale = 0.088f;
      args.out = out.data();
      args.out_stride = heads.query_heads * heads.value_dim;
      Check(Attention(args, workspace, pool_));
    });
    const double bytes = static_cast<double>(num_sequences * length) * sizeof(Bf16) *
                         static_cast<double>(cache.k_block_elements() + cache.v_block_elements()) / kBlock;
    const double keys =
        static_cast<double>(num_sequences * q_len) * (static_cast<double>(2 * length - q_len + 1) / 2);
    Report(bench, shape, seconds, bytes,
           2.0 * keys * static_cast<double>(heads.query_heads * (heads.key_dim + heads.value_dim)));
  }

  const Options options_;
  ThreadPool pool_;
  Memory memory_;
  Memory workspace_;
  std::mt19937 engine_{1};
  std::normal_distribution<float> normal_;
  double bandwidth_ = 0;
  PeakFlops flops_;
};

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* value = i + 1 < argc ? argv[++i] : nullptr;
    if (value == nullptr) {
      std::fprintf(stderr, "%s needs a value\n", flag.c_str());
      return 2;
    }
    if (flag == "--threads") {
      options.threads = std::atoi(value);
    } else if (flag == "--filter") {
      options.filter = value;
    } else if (flag == "--seconds") {
      options.seconds = std::atof(value);
    } else if (flag == "--json") {
      options.json = value;
    } else if (flag == "--isa") {
      bool found = false;
      for (Isa isa : SupportedIsas()) found |= IsaName(isa) == value && ForceIsa(isa).ok();
      if (!found) {
        std::fprintf(stderr, "no instruction set %s on this machine\n", value);
        return 2;
      }
    } else {
      std::fprintf(stderr, "unknown flag %s\n", flag.c_str());
      return 2;
    }
  }
  Bench(options).Run();
  return 0;
}

}  // namespace
}  // namespace tessera::cpu

int main(int argc, char** argv) { return tessera::cpu::Main(argc, argv); }
