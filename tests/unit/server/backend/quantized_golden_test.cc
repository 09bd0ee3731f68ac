// Logits of what the quantiser writes, of every family, on the CPU.
#include <filesystem>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/model/quantize.h"
#include "tests/unit/server/backend/golden_model.h"
#include "tests/unit/server/backend/logits_difference.h"

namespace tessera {
namespace {

class QuantizedGoldenTest : public testing::TestWithParam<std::string> {
 protected:
  QuantizedGoldenTest() {
    std::string pattern = testing::TempDir() + "/tessera_quantized_XXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  ~QuantizedGoldenTest() override { std::filesystem::remove_all(directory_); }

  // Logits [positions, vocab] of `tokens` after quantising a golden checkpoint; empty if that failed.
  std::vector<float> Logits(const std::string& golden, const std::vector<int32_t>& tokens,
                            QuantizeOptions options) {
    options.overwrite = true;
    options.num_threads = 1;
    const auto report = Quantize(GoldenDirectory(golden), directory_ + "/out", options);
    EXPECT_TRUE(report.ok()) << report.status();
    if (!report.ok()) return {};
    TestModel model(directory_ + "/out", 1);
    if (!model.ok()) return {};
    vocab_ = model.spec().vocab_size;
    return model.RunChunked(tokens, Blocks(8), {1000});
  }

  std::string directory_;
  int32_t vocab_ = 0;
};

struct Golden {
  std::vector<int32_t> tokens;
  std::vector<float> logits;
};

Golden ReadGolden(const std::string& name) {
  const auto reader = SafetensorsReader::OpenFile(GoldenDirectory(name) + "/golden.safetensors");
  EXPECT_TRUE(reader.ok()) << reader.status();
  return {TensorValues<int32_t>(**reader, "tokens"), TensorValues<float>(**reader, "logits")};
}

// transformers computed these of weights that quantize_reference.py had quantised.
TEST_P(QuantizedGoldenTest, LogitsAreThoseOfTheReferenceQuantizer) {
  const Golden golden = ReadGolden(GetParam() + "_nvfp4");
  const std::vector<float> logits = Logits(GetParam() + "_bf16", golden.tokens, {});
  EXPECT_EQ(GoldenMismatch(logits, golden.logits, vocab_), "");
}

INSTANTIATE_TEST_SUITE_P(Families, QuantizedGoldenTest,
                         testing::Values("moe", "mixed", "bias", "mixtral", "glm4_moe", "minimax_m2"),
                         [](const auto& info) { return info.param; });

using QuantizedDialectTest = QuantizedGoldenTest;

// The dialects' tensor scales are each other's reciprocals, so that now and then a value on the edge between two codes
// falls otherwise: a change of one weight.
TEST_P(QuantizedDialectTest, DialectsAgreeAndStayNearTheOriginal) {
  const Golden golden = ReadGolden(GetParam());
  const double largest = LargestMagnitude(golden.logits);
  for (const bool four_over_six : {false, true}) {
    for (const bool attention : {false, true}) {
      QuantizeOptions options{.four_over_six = four_over_six, .attention = attention};
      const std::vector<float> model_opt = Logits(GetParam(), golden.tokens, options);
      options.dialect = QuantizeDialect::kCompressedTensors;
      const std::vector<float> compressed = Logits(GetParam(), golden.tokens, options);
      ASSERT_EQ(model_opt.size(), golden.logits.size());
      ASSERT_EQ(compressed.size(), golden.logits.size());
      const Difference difference = Compare(model_opt, golden.logits, golden.logits.size());
      EXPECT_LT(Compare(compressed, model_opt, model_opt.size()).median, 0.5 * difference.median);
      EXPECT_LT(difference.median, 0.2 * largest);
      EXPECT_GT(difference.median, 1e-4 * largest) << "nothing was quantised";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, QuantizedDialectTest,
                         testing::Values("moe_bf16", "mixed_bf16", "bias_bf16", "llama_bf16", "mistral_bf16",
                                         "qwen2_bf16", "qwen3_bf16", "smollm3_bf16", "mixtral_bf16",
                                         "olmoe_bf16", "minimax_m2_bf16", "gpt_oss_bf16", "glm4_moe_bf16",
                                         "glm4_moe_lite_bf16", "deepseek_v2_bf16", "deepseek_v3_bf16",
                                         "moonlight_bf16"),
                         [](const auto& info) { return info.param; });

// MXFP4 experts are cast without error.
TEST_F(QuantizedGoldenTest, CastMxfp4GivesTheSameLogits) {
  const Golden golden = ReadGolden("gpt_oss_mxfp4");
  for (const QuantizeDialect dialect : {QuantizeDialect::kModelOpt, QuantizeDialect::kCompressedTensors}) {
    const std::vector<float> logits =
        Logits("gpt_oss_mxfp4", golden.tokens, {.dialect = dialect, .attention = false});
    EXPECT_EQ(GoldenMismatch(logits, golden.logits, vocab_), "");
  }
}

}  // namespace
}  // namespace tessera
