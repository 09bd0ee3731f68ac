// The CUDA backend's log-probabilities against transformers' (tests/golden/model/make_golden.py), for every family; skipped
// where there is no GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/server/backend/cuda_tiny.h"
#include "tests/unit/server/backend/logits_difference.h"

namespace tessera {
namespace {

std::vector<float> LogSoftmax(std::vector<float> logits, int32_t vocab) {
  for (size_t row = 0; row < logits.size(); row += vocab) {
    double sum = 0;
    for (int32_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(logits[row + i]));
    for (int32_t i = 0; i < vocab; ++i) logits[row + i] -= std::log(sum);
  }
  return logits;
}

class CudaGoldenTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (absl::Status status = CheckCudaDevice(0); !status.ok()) GTEST_SKIP() << status.message();
    const std::string directory = TinyDirectory(GetParam());
    auto golden = SafetensorsReader::OpenFile(directory + "/golden.safetensors");
    ASSERT_TRUE(golden.ok()) << golden.status();
    tokens_ = TensorValues<int32_t>(**golden, "tokens");
    logits_ = TensorValues<float>(**golden, "logits");
    auto checkpoint = Checkpoint::Open(directory);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    auto backend = MakeTinyCudaBackend(**checkpoint);
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = std::move(*backend);
  }

  std::vector<int32_t> tokens_;
  std::vector<float> logits_;
  std::unique_ptr<Backend> backend_;
};

using CudaGoldenPrompt = CudaGoldenTest;
using CudaGoldenDecode = CudaGoldenTest;

TEST_P(CudaGoldenPrompt, MatchesTransformersHoweverItIsCut) {
  const int32_t vocab = backend_->info().vocab_size;
  std::vector<float> expected = LogSoftmax(logits_, vocab);
  expected.resize(expected.size() - vocab);
  // Twice in a step: tokens enough for the matrix kernels of prompts.
  const std::vector<float> whole = Logprobs(*backend_, tokens_, {1000}, 1, /*copies=*/2);
  EXPECT_EQ(CudaGoldenMismatch(whole, expected, LargestMagnitude(logits_)), "");
  EXPECT_EQ(Logprobs(*backend_, tokens_, {7, 1, 30, 2}, 11), whole);
}

TEST_P(CudaGoldenDecode, GivesThePromptsBits) {
  const std::vector<float> whole = Logprobs(*backend_, tokens_, {1000}, 1);
  EXPECT_EQ(Logprobs(*backend_, tokens_, {1}, 9), whole);
}

std::string Name(const testing::TestParamInfo<std::string>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(Families, CudaGoldenPrompt, testing::ValuesIn(TinyModels()), Name);
INSTANTIATE_TEST_SUITE_P(Families, CudaGoldenDecode, testing::ValuesIn(TinyModels()), Name);

}  // namespace
}  // namespace tessera
