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

class GoldenTest : public testing::TestWithParam<std::tuple<cpu::Isa, std::string>> {
 protected:
  void SetUp() override { ASSERT_TRUE(cpu::ForceIsa(std::get<0>(GetParam())).ok()); }
  void TearDown() override { ASSERT_TRUE(cpu::ForceIsa(cpu::BestIsa()).ok()); }
};

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
    EXPECT_EQ(GoldenMismatch(logits, expected, model.spec().vocab_size), "");
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
