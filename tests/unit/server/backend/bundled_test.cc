// The bundled model (deploy/model) against transformers: logits, the most likely tokens, a greedy continuation. When the
// model changes, `make_golden.py bundled deploy/model` makes the expected values anew.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "gtest/gtest.h"
#include "kernels/cpu/isa.h"
#include "tests/unit/server/backend/golden_model.h"
#include "tests/unit/server/backend/logits_difference.h"

namespace tessera {
namespace {

// In a model of eight layers some value crosses a BF16 rounding boundary at nearly every position (see golden_test.cc),
// so there are no positions of exact agreement, and the kernels' arithmetic is proven on the tiny models. Here what is
// left must stay under what the roundings, which both sides do, move the plain float32 result by.
constexpr double kRmsOfRoundings = 0.75;
constexpr double kMaxOfRoundings = 1.0;

class BundledModelTest : public testing::TestWithParam<cpu::Isa> {
 protected:
  static constexpr int32_t kNumBlocks = 16;

  void SetUp() override {
    ASSERT_TRUE(cpu::ForceIsa(GetParam()).ok());
    auto golden = SafetensorsReader::OpenFile(GoldenDirectory("bundled.safetensors"));
    ASSERT_TRUE(golden.ok()) << golden.status();
    golden_ = std::move(*golden);
    model_ = std::make_unique<TestModel>(directory_, 2, kNumBlocks);
    ASSERT_TRUE(model_->ok());
    blocks_.resize(kNumBlocks);
    std::iota(blocks_.rbegin(), blocks_.rend(), 0);
  }
  void TearDown() override { ASSERT_TRUE(cpu::ForceIsa(cpu::BestIsa()).ok()); }

  const std::string directory_ = std::string(TESSERA_SOURCE_DIR) + "/deploy/model";
  std::unique_ptr<SafetensorsReader> golden_;
  std::unique_ptr<TestModel> model_;
  std::vector<int32_t> blocks_;
};

TEST_P(BundledModelTest, GoldenValuesAreOfThisModel) {
  auto reader = SafetensorsReader::OpenDirectory(directory_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<float> scales;
  for (const auto& [name, tensor] : (*reader)->tensors()) {
    if (name.size() > 15 && name.substr(name.size() - 15) == ".weight_scale_2") {
      scales.push_back(TensorValues<float>(**reader, name).at(0));
    }
  }
  EXPECT_EQ(scales, TensorValues<float>(*golden_, "fingerprint"))
      << "run tests/golden/model/make_golden.py bundled deploy/model";
}

TEST_P(BundledModelTest, LogitsMatchTransformers) {
  const auto tokens = TensorValues<int32_t>(*golden_, "tokens");
  const auto positions = TensorValues<int32_t>(*golden_, "positions");
  const auto expected = TensorValues<float>(*golden_, "logits");
  const auto rounding_effect = TensorValues<float>(*golden_, "rounding_effect");  // largest, root mean square
  const auto top_ids = TensorValues<int32_t>(*golden_, "top_ids");
  const auto top_logits = TensorValues<float>(*golden_, "top_logits");
  const size_t vocab = model_->spec().vocab_size;
  const std::vector<float> logits = model_->RunChunked(tokens, blocks_, {40, 1, 16});

  std::vector<float> chosen;
  for (const int32_t position : positions) {
    const auto row = logits.begin() + position * vocab;
    chosen.insert(chosen.end(), row, row + vocab);
  }
  const Difference difference = Compare(chosen, expected, expected.size());
  EXPECT_LT(difference.rms, kRmsOfRoundings * rounding_effect[1]);
  EXPECT_LT(difference.max, kMaxOfRoundings * rounding_effect[0]);

  // The best tokens of every position, in order where their distance says so.
  const size_t count = top_ids.size() / tokens.size();
  const float tolerance = kMaxOfRoundings * rounding_effect[0];
  for (size_t position = 0; position < tokens.size(); ++position) {
    const float* row = logits.data() + position * vocab;
    const int32_t* ids = top_ids.data() + position * count;
    const float* values = top_logits.data() + position * count;
    for (size_t i = 0; i < count; ++i) EXPECT_NEAR(row[ids[i]], values[i], tolerance) << position << " " << i;
    if (values[0] - values[1] > 2 * tolerance) {
      EXPECT_EQ(std::max_element(row, row + vocab) - row, ids[0]) << position;
    }
  }
}

TEST_P(BundledModelTest, GreedyContinuationMatchesTransformers) {
  const auto expected = TensorValues<int32_t>(*golden_, "greedy");
  const auto leads = TensorValues<float>(*golden_, "greedy_leads");
  // Every choice here is clear: otherwise another prompt is to be put in make_golden.py.
  ASSERT_GT(*std::min_element(leads.begin(), leads.end()), 0.1f);
  const size_t vocab = model_->spec().vocab_size;
  std::vector<int32_t> input = TensorValues<int32_t>(*golden_, "prompt");
  std::vector<int32_t> greedy;
  int32_t start = 0;
  while (greedy.size() < expected.size()) {
    BatchRow row;
    row.tokens = input;
    row.start = start;
    row.block_table = blocks_;
    const std::vector<float> logits = model_->Run({row});
    start += input.size();
    greedy.push_back(std::max_element(logits.end() - vocab, logits.end()) - (logits.end() - vocab));
    input = {greedy.back()};
  }
  EXPECT_EQ(greedy, expected);
}

INSTANTIATE_TEST_SUITE_P(Isas, BundledModelTest, testing::ValuesIn(cpu::SupportedIsas()),
                         [](const auto& info) { return std::string(cpu::IsaName(info.param)); });

}  // namespace
}  // namespace tessera
