// Logits against transformers (tests/golden/model/make_golden.py), on every instruction set of the machine.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "gtest/gtest.h"
#include "kernels/cpu/isa.h"
#include "tests/unit/server/backend/golden_model.h"
#include "tests/unit/server/backend/logits_difference.h"

namespace tessera {
namespace {

std::vector<int32_t> Blocks(int32_t count) {
  std::vector<int32_t> blocks(count);
  std::iota(blocks.begin(), blocks.end(), 3);
  return blocks;
}

class GoldenTest : public testing::TestWithParam<std::tuple<cpu::Isa, std::string>> {
 protected:
  void SetUp() override { ASSERT_TRUE(cpu::ForceIsa(std::get<0>(GetParam())).ok()); }
  void TearDown() override { ASSERT_TRUE(cpu::ForceIsa(cpu::BestIsa()).ok()); }
};

// What is left between the two computations is float32 accumulation. Where it pushes a value across a BF16 rounding
// boundary (about one value in ten thousand), one input of a matrix product moves by a BF16 step, 2^-8 of it, and what
// sees it by a little less. So at the first positions, before such a key or value can stand in the cache of all, most
// logits agree to a few float32 roundings (the median, at most 16 * 2^-24 of the largest logit), and all of them, at all
// positions, to a few BF16 steps. A rounding point more or less on either side, or another rounding mode, moves the
// median to 2^-10 of the largest logit: a thousand times the bound.
constexpr int kEarly = 24;
constexpr double kEarlyMedian = 0x1p-20;
constexpr double kRms = 0x1p-10;
constexpr double kMax = 0x1p-6;

TEST_P(GoldenTest, LogitsMatchTransformers) {
  const std::string directory = GoldenDirectory(std::get<1>(GetParam()));
  auto golden = SafetensorsReader::OpenFile(directory + "/golden.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.status();
  const auto tokens = TensorValues<int32_t>(**golden, "tokens");
  const auto expected = TensorValues<float>(**golden, "logits");
  const auto plain = TensorValues<float>(**golden, "logits_fp32");

  TestModel model(directory, 2);
  ASSERT_TRUE(model.ok());
  const double largest = LargestMagnitude(expected);
  // The test's own resolution: what the roundings move the plain float32 result by is far over the bound.
  EXPECT_GT(Compare(plain, expected, kEarly * model.spec().vocab_size).median, 50 * kEarlyMedian * largest);
  for (const std::vector<int32_t>& chunks : {std::vector<int32_t>{1000}, {1}, {7, 1, 30, 2}}) {
    SCOPED_TRACE(testing::Message() << "first chunk " << chunks[0]);
    const std::vector<float> logits = model.RunChunked(tokens, Blocks(8), chunks);
    ASSERT_EQ(logits.size(), expected.size());
    EXPECT_LT(Compare(logits, expected, kEarly * model.spec().vocab_size).median, kEarlyMedian * largest);
    const Difference all = Compare(logits, expected, logits.size());
    EXPECT_LT(all.rms, kRms * largest);
    EXPECT_LT(all.max, kMax * largest);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, GoldenTest,
                         testing::Combine(testing::ValuesIn(cpu::SupportedIsas()),
                                          testing::ValuesIn(TinyModels())),
                         [](const auto& info) {
                           std::string name(cpu::IsaName(std::get<0>(info.param)));
                           name += "_" + std::get<1>(info.param);
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
                           return name;
                         });

}  // namespace
}  // namespace tessera
