// Weight formats and sizes that tests/golden has no model of, on the CUDA backend beside the CPU's; skipped where there is no GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "kernels/nvfp4/bf16.h"
#include "kernels/nvfp4/nvfp4.h"
#include "nlohmann/json.hpp"
#include "server/backend/cpu/cpu_backend.h"
#include "server/model/safetensors.h"
#include "tests/unit/kernels/cuda/gpu.h"
#include "tests/unit/server/backend/cuda_tiny.h"
#include "tests/unit/server/backend/logits_difference.h"

namespace tessera {
namespace {

struct Tensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<uint8_t> data;
};
using Tensors = std::map<std::string, Tensor>;

class CudaFormatsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (absl::Status status = CheckCudaDevice(0); !status.ok()) GTEST_SKIP() << status.message();
    std::string pattern = testing::TempDir() + "/cuda_formats_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // A tiny checkpoint with other tensors.
  void MakeCheckpoint(const std::string& name, const std::function<void(Tensors*)>& change,
                      std::unique_ptr<Checkpoint>* out) {
    const std::string source = TinyDirectory(name);
    for (const auto& file : std::filesystem::directory_iterator(source)) {
      if (file.path().extension() == ".json") {
        std::filesystem::copy(file.path(), directory_ + "/" + file.path().filename().string(),
                              std::filesystem::copy_options::overwrite_existing);
      }
    }
    nlohmann::json config = nlohmann::json::parse(std::ifstream(source + "/config.json"));
    config.update(config_);
    std::ofstream(directory_ + "/config.json") << config;
    auto reader = SafetensorsReader::OpenFile(source + "/model.safetensors");
    ASSERT_TRUE(reader.ok()) << reader.status();
    Tensors tensors;
    for (const auto& [tensor_name, view] : (*reader)->tensors()) {
      tensors[tensor_name] = {view.dtype, view.shape, {view.data.begin(), view.data.end()}};
    }
    change(&tensors);
    if (HasFatalFailure()) return;
    std::vector<SafetensorsWriter::Entry> entries;
    for (const auto& [tensor_name, tensor] : tensors)
      entries.push_back({tensor_name, tensor.dtype, tensor.shape});
    auto writer = SafetensorsWriter::Create(directory_ + "/model.safetensors", entries, {});
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const auto& [tensor_name, tensor] : tensors) {
      ASSERT_TRUE((*writer)->Write(tensor_name, tensor.data).ok());
    }
    ASSERT_TRUE((*writer)->Finish().ok());

    auto checkpoint = Checkpoint::Open(directory_);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    *out = std::move(*checkpoint);
  }

  static std::vector<int32_t> Tokens(const Backend& backend) {
    std::vector<int32_t> tokens(40);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = (i * i + 3 * i) % backend.info().vocab_size;
    return tokens;
  }

  static std::vector<float> CpuLogprobs(const Checkpoint& checkpoint) {
    auto cpu = CreateCpuBackend(checkpoint, {});
    EXPECT_TRUE(cpu.ok()) << cpu.status();
    if (!cpu.ok()) return {};
    EXPECT_TRUE((*cpu)->AllocateKvCache({32, kTinyBlockSize}).ok());
    return Logprobs(**cpu, Tokens(**cpu), {1000}, 1);
  }

  // It computes on the GPU what it does on the CPU.
  void ExpectAgreement(const std::string& name, const std::function<void(Tensors*)>& change,
                       int roundings = 1) {
    std::unique_ptr<Checkpoint> checkpoint;
    ASSERT_NO_FATAL_FAILURE(MakeCheckpoint(name, change, &checkpoint));
    auto cuda = MakeTinyCudaBackend(*checkpoint);
    ASSERT_TRUE(cuda.ok()) << cuda.status();
    const std::vector<float> want = CpuLogprobs(*checkpoint);
    const std::vector<float> got = Logprobs(**cuda, Tokens(**cuda), {1000}, 1);
    if (name == "deepseek_v3_bf16") {  // a router that is undecided here and there turns the largest values
      EXPECT_LT(Compare(got, want, want.size()).median, kCudaMedian * LargestMagnitude(want));
    } else {
      EXPECT_EQ(CudaGoldenMismatch(got, want, roundings * LargestMagnitude(want)), "");
    }
  }

  std::string directory_;
  nlohmann::json config_ = nlohmann::json::object();  // keys of config.json with other values
};

float Value(const Tensor& bf16, size_t i) {
  Bf16 value;
  std::memcpy(&value, &bf16.data[2 * i], 2);
  return ToFloat(value);
}

// Matrices of the layers but routers as FP8, with scales for blocks of 128 x 128.
void MakeFp8(Tensors* tensors, bool power_of_two) {
  const Tensors before = *tensors;
  for (const auto& [name, tensor] : before) {
    if (!absl::StrContains(name, "_proj") || !absl::EndsWith(name, ".weight")) continue;
    ASSERT_EQ(tensor.dtype, DType::kBf16);
    const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
    const int64_t across = (columns + 127) / 128;
    std::vector<float> scales((rows + 127) / 128 * across, 0.0f);
    const auto scale_of = [&](int64_t i) -> float& {
      return scales[i / columns / 128 * across + i % columns / 128];
    };
    for (int64_t i = 0; i < rows * columns; ++i) {
      scale_of(i) = std::max(scale_of(i), std::abs(Value(tensor, i)) / 448.0f);
    }
    if (power_of_two) {
      for (float& scale : scales) scale = std::exp2(std::ceil(std::log2(scale)));
    }
    Tensor fp8 = {DType::kF8E4M3, tensor.shape, {}};
    for (int64_t i = 0; i < rows * columns; ++i) {
      fp8.data.push_back(nvfp4::FloatToE4M3(Value(tensor, i) / scale_of(i)));
    }
    Tensor scale = {DType::kF32, {(rows + 127) / 128, across}, std::vector<uint8_t>(scales.size() * 4)};
    std::memcpy(scale.data.data(), scales.data(), scale.data.size());
    (*tensors)[name] = fp8;
    (*tensors)[name + "_scale_inv"] = scale;
  }
}

// BF16 holds these products exactly.
TEST_F(CudaFormatsTest, Fp8WithPowersOfTwo) {
  ExpectAgreement("deepseek_v3_bf16", [](Tensors* tensors) { MakeFp8(tensors, true); });
}

// These are rounded: one rounding more, of every weight. No router, whose choice that could turn.
TEST_F(CudaFormatsTest, Fp8WithAnyScales) {
  ExpectAgreement(
      "llama_bf16", [](Tensors* tensors) { MakeFp8(tensors, false); }, /*roundings=*/2);
}

// Experts with scales for their inputs: as NVFP4 without them where activations stay BF16, and always on Hopper; W4A4 on
// Blackwell, whose results are nearer than without experts, and the same however a prompt is cut.
TEST_F(CudaFormatsTest, Nvfp4WithInputScales) {
  std::unique_ptr<Checkpoint> checkpoint;
  const auto weaken_experts = [](Tensors* tensors) {
    const float scale = 1e-9f;
    for (auto& [name, tensor] : *tensors) {
      if (absl::EndsWith(name, "down_proj.weight_scale_2")) std::memcpy(tensor.data.data(), &scale, 4);
    }
  };
  ASSERT_NO_FATAL_FAILURE(MakeCheckpoint("moe_nvfp4", weaken_experts, &checkpoint));
  const std::vector<float> without_experts = CpuLogprobs(*checkpoint);
  checkpoint.reset();
  const auto add_scales = [](Tensors* tensors) {
    const Tensors before = *tensors;
    const float scale = 20.0f / 2688.0f;
    Tensor tensor = {DType::kF32, {}, std::vector<uint8_t>(4)};
    std::memcpy(tensor.data.data(), &scale, 4);
    const std::string suffix = ".weight_scale_2";
    for (const auto& [name, unused] : before) {
      if (!absl::EndsWith(name, suffix)) continue;
      (*tensors)[name.substr(0, name.size() - suffix.size()) + ".input_scale"] = tensor;
    }
    ASSERT_GT(tensors->size(), before.size());
  };
  ASSERT_NO_FATAL_FAILURE(MakeCheckpoint("moe_nvfp4", add_scales, &checkpoint));
  auto made_w4a16 = MakeTinyCudaBackend(*checkpoint, /*nvfp4_activations=*/false);
  auto made_w4a4 = MakeTinyCudaBackend(*checkpoint);
  ASSERT_TRUE(made_w4a16.ok()) << made_w4a16.status();
  ASSERT_TRUE(made_w4a4.ok()) << made_w4a4.status();
  const std::unique_ptr<Backend>&w4a16 = *made_w4a16, &w4a4 = *made_w4a4;
  const std::vector<int32_t> tokens = Tokens(*w4a4);
  const std::vector<float> want = CpuLogprobs(*checkpoint);
  const std::vector<float> kept = Logprobs(*w4a16, tokens, {1000}, 1);
  EXPECT_EQ(CudaGoldenMismatch(kept, want, LargestMagnitude(want)), "");
  const std::vector<float> quantised = Logprobs(*w4a4, tokens, {1000}, 1);
  if (cuda::GpuMajor() == 9) {
    EXPECT_EQ(quantised, kept);
    return;
  }
  EXPECT_NE(quantised, kept);
  EXPECT_LT(Compare(quantised, want, want.size()).rms, 0.5 * Compare(without_experts, want, want.size()).rms);
  EXPECT_EQ(Logprobs(*w4a4, tokens, {7, 1, 30, 2}, 9), quantised);
}

// MXFP4 whose scales spread too far for NVFP4: some blocks of one expert are 2^-25 of what they were.
TEST_F(CudaFormatsTest, Mxfp4ThatNvfp4DoesNotHold) {
  ExpectAgreement("gpt_oss_mxfp4", [](Tensors* tensors) {
    int changed = 0;
    for (auto& [name, tensor] : *tensors) {
      if (!absl::EndsWith(name, "_scales")) continue;
      for (size_t i = 5; i < tensor.data.size(); i += 7, ++changed) tensor.data[i] -= 25;
    }
    ASSERT_GT(changed, 0);
  });
}

// The latents of DeepSeek-V3: 512 elements and 64 that rotate, for which there is a kernel of its own.
TEST_F(CudaFormatsTest, LatentsOfDeepSeeksSize) {
  constexpr int64_t kHeads = 4, kHidden = 32, kQueryRank = 16, kNope = 16, kRope = 64, kRank = 512,
                    kValue = 16;
  config_ = {{"kv_lora_rank", kRank},
             {"qk_rope_head_dim", kRope},
             {"qk_head_dim", kNope + kRope},
             {"head_dim", kRope}};
  ExpectAgreement("deepseek_v3_bf16", [](Tensors* tensors) {
    std::mt19937 rng(3);
    for (auto& [name, tensor] : *tensors) {
      const auto resize = [&, &tensor = tensor](std::vector<int64_t> shape) {
        const bool norm = shape.size() == 1;
        std::normal_distribution<float> normal(norm ? 1.0f : 0.0f,
                                               norm ? 0.2f : 1.3f / std::sqrt(shape.back()));
        tensor.data.clear();
        for (int64_t i = 0; i < shape[0] * (norm ? 1 : shape[1]); ++i) {
          const uint16_t bits = ToBf16(normal(rng)).bits;
          tensor.data.push_back(bits & 255);
          tensor.data.push_back(bits >> 8);
        }
        tensor.shape = std::move(shape);
      };
      if (absl::EndsWith(name, ".kv_a_layernorm.weight")) resize({kRank});
      if (absl::EndsWith(name, ".kv_a_proj_with_mqa.weight")) resize({kRank + kRope, kHidden});
      if (absl::EndsWith(name, ".kv_b_proj.weight")) resize({kHeads * (kNope + kValue), kRank});
      if (absl::EndsWith(name, ".q_b_proj.weight")) resize({kHeads * (kNope + kRope), kQueryRank});
    }
  });
}

// NVFP4 and BF16 matrices that are packed together.
TEST_F(CudaFormatsTest, MixedFormats) {
  ExpectAgreement("moe_nvfp4", [](Tensors* tensors) {
    auto plain = SafetensorsReader::OpenFile(TinyDirectory("moe_bf16") + "/model.safetensors");
    ASSERT_TRUE(plain.ok()) << plain.status();
    for (const std::string name :
         {"model.layers.0.self_attn.k_proj", "model.layers.1.mlp.experts.2.up_proj"}) {
      for (const char* suffix : {".weight", ".weight_scale", ".weight_scale_2", ".input_scale"}) {
        tensors->erase(name + suffix);
      }
      const TensorView* view = (*plain)->Find(name + ".weight");
      ASSERT_NE(view, nullptr) << name;
      (*tensors)[name + ".weight"] = {view->dtype, view->shape, {view->data.begin(), view->data.end()}};
    }
  });
}

}  // namespace
}  // namespace tessera
