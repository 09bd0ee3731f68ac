// CpuBackend through its interface: sampling, scoring, pooling, errors of rows, memory, dummy weights.
#include "server/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/backend/golden_model.h"

namespace tessera {
namespace {

using testing::HasSubstr;

std::unique_ptr<Backend> Open(const std::string& name, int threads = 2, int32_t num_blocks = 32) {
  auto checkpoint = Checkpoint::Open(GoldenDirectory(name));
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  auto backend = CreateCpuBackend(**checkpoint, {.num_threads = threads});
  EXPECT_TRUE(backend.ok()) << backend.status();
  (*checkpoint)->Close();  // nothing of the files may be needed from here on
  EXPECT_TRUE((*backend)->AllocateKvCache({.num_blocks = num_blocks}).ok());
  return std::move(*backend);
}

Sampler GreedySampler(int num_logprobs = -1) {
  SamplingParams params;
  params.temperature = 0;
  return Sampler(params, {}, {}, 0, num_logprobs);
}

std::vector<int32_t> Blocks(int32_t first, int32_t count) {
  std::vector<int32_t> blocks(count);
  std::iota(blocks.begin(), blocks.end(), first);
  return blocks;
}

// The golden file's tokens, and from its logits what a sampler and a scorer should say.
class Golden {
 public:
  explicit Golden(const std::string& name) {
    auto reader = SafetensorsReader::OpenFile(GoldenDirectory(name) + "/golden.safetensors");
    EXPECT_TRUE(reader.ok()) << reader.status();
    tokens = TensorValues<int32_t>(**reader, "tokens");
    logits = TensorValues<float>(**reader, "logits");
    hidden = TensorValues<float>(**reader, "hidden");
    vocab = logits.size() / tokens.size();
    hidden_size = hidden.size() / tokens.size();
  }

  int32_t Best(size_t position) const {
    const float* row = logits.data() + position * vocab;
    return std::max_element(row, row + vocab) - row;
  }

  double Logprob(size_t position, int32_t token) const {
    const float* row = logits.data() + position * vocab;
    double sum = 0;
    for (size_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(row[i]));
    return row[token] - std::log(sum);
  }

  std::vector<int32_t> tokens;
  std::vector<float> logits;
  std::vector<float> hidden;
  size_t vocab;
  size_t hidden_size;
};

TEST(CpuBackend, SamplesTheLastPosition) {
  const Golden golden("moe_nvfp4");
  std::unique_ptr<Backend> backend = Open("moe_nvfp4");
  const std::vector<int32_t> table = Blocks(2, 5);
  const Sampler sampler = GreedySampler(3);
  BatchRow row;
  row.tokens = golden.tokens;
  row.block_table = table;
  row.sampler = &sampler;
  std::vector<RowResult> results;
  ASSERT_TRUE(backend->Run({&row, 1}, &results).ok());
  ASSERT_EQ(results.size(), 1);
  ASSERT_TRUE(results[0].status.ok()) << results[0].status;
  const size_t last = golden.tokens.size() - 1;
  EXPECT_EQ(results[0].sampled.token, golden.Best(last));
  EXPECT_NEAR(results[0].sampled.logprobs.token.logprob, golden.Logprob(last, golden.Best(last)), 0.02);
  EXPECT_EQ(results[0].sampled.logprobs.top.size(), 3);
}

TEST(CpuBackend, ScoresEveryPositionAcrossChunks) {
  const Golden golden("mixed_bf16");
  std::unique_ptr<Backend> backend = Open("mixed_bf16");
  const std::vector<int32_t> table = Blocks(0, 5);
  PromptScorer scorer(golden.tokens, 0);
  for (size_t start = 0; start < golden.tokens.size(); start += 30) {
    BatchRow row;
    row.tokens = absl::MakeConstSpan(golden.tokens).subspan(start, 30);
    row.start = start;
    row.block_table = table;
    row.prompt_scorer = &scorer;
    std::vector<RowResult> results;
    ASSERT_TRUE(backend->Run({&row, 1}, &results).ok());
    ASSERT_TRUE(results[0].status.ok()) << results[0].status;
  }
  ASSERT_EQ(scorer.result().size(), golden.tokens.size());
  for (size_t i = 1; i < golden.tokens.size(); ++i) {
    EXPECT_NEAR(scorer.result()[i].token.logprob, golden.Logprob(i - 1, golden.tokens[i]), 0.3) << i;
  }
}

TEST(CpuBackend, PoolsFinalHiddenStates) {
  const Golden golden("bias_nvfp4");
  std::unique_ptr<Backend> backend = Open("bias_nvfp4");
  const std::vector<int32_t> table = Blocks(1, 5);
  const std::vector<int32_t> other_table = Blocks(10, 5);
  for (const PoolingKind kind : {PoolingKind::kLast, PoolingKind::kMean, PoolingKind::kCls}) {
    Pooler pooler(kind, golden.hidden_size, golden.tokens.size());
    const Sampler sampler = GreedySampler();
    // Shares the step with a row that samples.
    BatchRow rows[2];
    rows[0].tokens = absl::MakeConstSpan(golden.tokens).subspan(0, 9);
    rows[0].block_table = other_table;
    rows[0].sampler = &sampler;
    rows[1].tokens = golden.tokens;
    rows[1].block_table = table;
    rows[1].pooler = &pooler;
    std::vector<RowResult> results;
    ASSERT_TRUE(backend->Run(rows, &results).ok());
    EXPECT_TRUE(results[0].status.ok() && results[1].status.ok());
    EXPECT_EQ(results[0].sampled.token, golden.Best(8));
    ASSERT_TRUE(pooler.complete());
    const std::vector<float> vector = pooler.Result(false);
    ASSERT_EQ(vector.size(), golden.hidden_size);
    const size_t last = golden.tokens.size() - 1;
    for (size_t d = 0; d < golden.hidden_size; ++d) {
      double mean = 0;
      for (size_t t = 0; t <= last; ++t) mean += golden.hidden[t * golden.hidden_size + d] / (last + 1.0);
      const double expected = kind == PoolingKind::kMean   ? mean
                              : kind == PoolingKind::kLast ? golden.hidden[last * golden.hidden_size + d]
                                                           : golden.hidden[d];
      EXPECT_NEAR(vector[d], expected, 0.03) << d;
    }
  }
}

TEST(CpuBackend, ARowsErrorIsItsOwn) {
  const Golden golden("moe_bf16");
  std::unique_ptr<Backend> backend = Open("moe_bf16");
  const std::vector<int32_t> table = Blocks(0, 5);
  const std::vector<int32_t> outside = {3, 32};
  const std::vector<int32_t> bad_tokens = {1, 2, -1};
  const std::vector<int32_t> big_tokens = {static_cast<int32_t>(golden.vocab)};
  const Sampler sampler = GreedySampler();
  std::vector<BatchRow> rows(6);
  for (BatchRow& row : rows) {
    row.tokens = golden.tokens;
    row.block_table = table;
    row.sampler = &sampler;
  }
  rows[0].tokens = bad_tokens;
  rows[1].tokens = big_tokens;
  rows[2].block_table = outside;
  rows[2].tokens = absl::MakeConstSpan(golden.tokens).subspan(0, 20);
  rows[3].block_table = absl::MakeConstSpan(table).subspan(0, 4);
  rows[4].start = 255;
  std::vector<RowResult> results;
  ASSERT_TRUE(backend->Run(rows, &results).ok());
  EXPECT_THAT(results[0].status.message(), HasSubstr("token id -1"));
  EXPECT_THAT(results[1].status.message(), HasSubstr("token id 97 is outside the vocabulary of 97"));
  EXPECT_THAT(results[2].status.message(), HasSubstr("block 32"));
  EXPECT_THAT(results[3].status.message(), HasSubstr("needs 5 blocks, has 4"));
  EXPECT_THAT(results[4].status.message(), HasSubstr("context of 256"));
  ASSERT_TRUE(results[5].status.ok()) << results[5].status;
  EXPECT_EQ(results[5].sampled.token, golden.Best(golden.tokens.size() - 1));

  ASSERT_TRUE(backend->Run(absl::MakeConstSpan(rows).subspan(0, 2), &results).ok());
  EXPECT_EQ(results.size(), 2);
  ASSERT_TRUE(backend->Run({}, &results).ok());
  EXPECT_TRUE(results.empty());
}

TEST(CpuBackend, TellsWhatItServes) {
  std::unique_ptr<Backend> backend = Open("mixed_nvfp4", 3);
  const BackendInfo& info = backend->info();
  EXPECT_EQ(info.device, "cpu");
  EXPECT_THAT(info.device_description, HasSubstr("3 threads"));
  EXPECT_EQ(info.vocab_size, 112);
  EXPECT_EQ(info.hidden_size, 64);
  EXPECT_EQ(info.max_context, 256);
  EXPECT_EQ(info.kv_bytes_per_token, 4 * 2 * 1 * 16 * 2);
  EXPECT_GT(info.weight_bytes, 0);
  // Three layers, a latent of 32 and a rotated part of 8, once.
  EXPECT_EQ(Open("deepseek_v3_bf16", 1)->info().kv_bytes_per_token, 3 * (32 + 8) * 2);
}

TEST(CpuBackend, RefusesCachesThatDoNotFit) {
  auto checkpoint = Checkpoint::Open(GoldenDirectory("moe_bf16"));
  ASSERT_TRUE(checkpoint.ok());
  auto backend = CreateCpuBackend(**checkpoint, {.num_threads = 1});
  ASSERT_TRUE(backend.ok());
  std::vector<RowResult> results;
  EXPECT_EQ((*backend)->Run({}, &results).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*backend)->AllocateKvCache({.num_blocks = 0}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*backend)->AllocateKvCache({.num_blocks = 4, .block_size = 24}).code(),
            absl::StatusCode::kInvalidArgument);
  const absl::Status huge =
      (*backend)->AllocateKvCache({.num_blocks = std::numeric_limits<int32_t>::max(), .block_size = 1 << 16});
  EXPECT_EQ(huge.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(huge.message(), HasSubstr("bytes needed"));
  EXPECT_THAT(huge.message(), HasSubstr("free"));
  EXPECT_TRUE((*backend)->AllocateKvCache({.num_blocks = 4}).ok());
  EXPECT_EQ((*backend)->AllocateKvCache({.num_blocks = 4}).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CpuBackend, ReportsProgressWhileLoading) {
  auto checkpoint = Checkpoint::Open(GoldenDirectory("moe_nvfp4"));
  ASSERT_TRUE(checkpoint.ok());
  std::vector<LoadProgress> seen;
  auto backend = CreateCpuBackend(
      **checkpoint,
      {.num_threads = 3, .progress = [&](const LoadProgress& progress) { seen.push_back(progress); }});
  ASSERT_TRUE(backend.ok());
  ASSERT_GT(seen.size(), 10);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end(), [](const LoadProgress& a, const LoadProgress& b) {
    return a.bytes_done < b.bytes_done;
  }));
  EXPECT_EQ(seen.back().bytes_done, seen.back().bytes_total);
}

TEST(CpuBackend, RunsDummyWeights) {
  for (const std::string& name : TinyModels()) {
    auto checkpoint = Checkpoint::Open(GoldenDirectory(name), LoadFormat::kDummy);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_GT((*checkpoint)->facts().num_parameters, (*checkpoint)->facts().num_active_parameters / 2);
    auto backend = CreateCpuBackend(**checkpoint, {.num_threads = 2});
    ASSERT_TRUE(backend.ok()) << backend.status();
    ASSERT_TRUE((*backend)->AllocateKvCache({.num_blocks = 8}).ok());
    const std::vector<int32_t> tokens = {5, 9, 2, 33, 3};
    const std::vector<int32_t> table = {4};
    const Sampler sampler = GreedySampler(5);
    BatchRow row;
    row.tokens = tokens;
    row.block_table = table;
    row.sampler = &sampler;
    std::vector<RowResult> results;
    ASSERT_TRUE((*backend)->Run({&row, 1}, &results).ok());
    ASSERT_TRUE(results[0].status.ok()) << results[0].status;  // a NaN would be an error here
    EXPECT_GT(results[0].sampled.logprobs.top[0].logprob, -20);
  }
}

// A copy of a golden checkpoint that a test may spoil.
class SpoiledCheckpoint : public testing::Test {
 protected:
  void SetUp() override {
    directory_ =
        testing::TempDir() + "/spoiled_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(directory_);
    std::filesystem::copy(GoldenDirectory("moe_nvfp4"), directory_);
    file_ = directory_ + "/model.safetensors";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Poke(int64_t offset, char byte) {
    std::fstream file(file_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offset);
    file.put(byte);
  }

  std::string directory_;
  std::string file_;
};

TEST_F(SpoiledCheckpoint, BadBlockScalesAreRefused) {
  const std::string name = "model.layers.1.mlp.experts.3.down_proj.weight_scale";
  int64_t offset;
  {
    auto reader = SafetensorsReader::OpenFile(file_);
    ASSERT_TRUE(reader.ok());
    offset = (*reader)->Find(name)->file_offset + 5;
  }
  for (const uint8_t bad : {0x7f, 0xff, 0x80, 0xc0}) {
    Poke(offset, bad);
    auto checkpoint = Checkpoint::Open(directory_);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const absl::Status status = CreateCpuBackend(**checkpoint, {.num_threads = 2}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(name));
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("byte ", offset)));
  }
}

// Whatever the data holds, a row ends with a token or an error.
TEST_F(SpoiledCheckpoint, AnyBytesInTheDataAreSafe) {
  std::mt19937 random(4);
  const int64_t size = std::filesystem::file_size(file_);
  std::vector<int64_t> scale_bytes;
  {
    auto reader = SafetensorsReader::OpenFile(file_);
    ASSERT_TRUE(reader.ok());
    for (const auto& [name, tensor] : (*reader)->tensors()) {
      if (tensor.dtype == DType::kF8E4M3) scale_bytes.push_back(tensor.file_offset);
    }
  }
  int loaded = 0;
  for (int i = 0; i < 40; ++i) {
    for (int change = 0; change < 20; ++change) {
      // Past the header and the tensor scales; now and then a block scale.
      const int64_t offset = size / 2 + random() % (size / 2);
      Poke(offset, static_cast<char>(random() & (i < 20 ? 0x7e : 0xff)));
    }
    if (i % 4 == 3) Poke(scale_bytes[random() % scale_bytes.size()], static_cast<char>(random()));
    auto checkpoint = Checkpoint::Open(directory_);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    auto backend = CreateCpuBackend(**checkpoint, {.num_threads = 2});
    if (!backend.ok()) {
      EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
      SetUp();
      continue;
    }
    ++loaded;
    ASSERT_TRUE((*backend)->AllocateKvCache({.num_blocks = 8}).ok());
    const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7};
    const std::vector<int32_t> table = {2};
    const Sampler sampler = GreedySampler();
    BatchRow row;
    row.tokens = tokens;
    row.block_table = table;
    row.sampler = &sampler;
    std::vector<RowResult> results;
    ASSERT_TRUE((*backend)->Run({&row, 1}, &results).ok());
    if (results[0].status.ok()) {
      EXPECT_GE(results[0].sampled.token, 0);
      EXPECT_LT(results[0].sampled.token, 97);
    } else {
      EXPECT_EQ(results[0].status.code(), absl::StatusCode::kInternal);
    }
  }
  EXPECT_GT(loaded, 5);
}

TEST_F(SpoiledCheckpoint, AFileCutWhileLoadingIsAnErrorNotASignal) {
  auto checkpoint = Checkpoint::Open(directory_);
  ASSERT_TRUE(checkpoint.ok());
  std::filesystem::resize_file(file_, 20000);
  const absl::Status status = CreateCpuBackend(**checkpoint, {.num_threads = 2}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("changed"));
}

TEST_F(SpoiledCheckpoint, AFileCutAfterLoadingDoesNotMatter) {
  auto checkpoint = Checkpoint::Open(directory_);
  ASSERT_TRUE(checkpoint.ok());
  auto backend = CreateCpuBackend(**checkpoint, {.num_threads = 2});
  ASSERT_TRUE(backend.ok());
  ASSERT_TRUE((*backend)->AllocateKvCache({.num_blocks = 8}).ok());
  std::filesystem::resize_file(file_, 0);  // the checkpoint is still open and mapped
  const Golden golden("moe_nvfp4");
  const std::vector<int32_t> table = Blocks(0, 5);
  const Sampler sampler = GreedySampler();
  BatchRow row;
  row.tokens = golden.tokens;
  row.block_table = table;
  row.sampler = &sampler;
  std::vector<RowResult> results;
  ASSERT_TRUE((*backend)->Run({&row, 1}, &results).ok());
  EXPECT_EQ(results[0].sampled.token, golden.Best(golden.tokens.size() - 1));
}

}  // namespace
}  // namespace tessera
