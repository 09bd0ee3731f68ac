#ifndef TESSERA_TESTS_UNIT_SERVER_BACKEND_GOLDEN_MODEL_H_
#define TESSERA_TESTS_UNIT_SERVER_BACKEND_GOLDEN_MODEL_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cpu/fmha/kv_cache.h"
#include "kernels/cpu/thread_pool.h"
#include "server/backend/cpu/cpu_model.h"
#include "server/backend/cpu/forward.h"
#include "server/backend/cpu/step_input.h"
#include "server/model/checkpoint.h"
#include "server/model/safetensors.h"

namespace tessera {

inline std::string GoldenDirectory(const std::string& name) {
  return absl::StrCat(TESSERA_SOURCE_DIR, "/tests/golden/model/", name);
}

inline std::vector<std::string> TinyModels() {
  return {"moe_bf16",        "moe_nvfp4",        "mixed_bf16",         "mixed_nvfp4",       "bias_bf16",
          "bias_nvfp4",      "llama_bf16",       "mistral_bf16",       "qwen2_bf16",        "qwen3_bf16",
          "mixtral_bf16",    "mixtral_nvfp4",    "gpt_oss_bf16",       "gpt_oss_nvfp4",     "gpt_oss_mxfp4",
          "glm4_moe_bf16",   "glm4_moe_nvfp4",   "deepseek_v3_bf16",   "deepseek_v3_nvfp4", "moonlight_bf16",
          "smollm3_bf16",    "deepseek_v2_bf16", "glm4_moe_lite_bf16", "olmoe_bf16",        "minimax_m2_bf16",
          "minimax_m2_nvfp4"};
}

// Block tables of the tests' sequences.
inline std::vector<int32_t> Blocks(int32_t count) {
  std::vector<int32_t> blocks(count);
  std::iota(blocks.begin(), blocks.end(), 3);
  return blocks;
}

template <typename T>
std::vector<T> TensorValues(const SafetensorsReader& reader, const std::string& name) {
  const TensorView* tensor = reader.Find(name);
  if (tensor == nullptr) {
    ADD_FAILURE() << "no tensor " << name;
    return {};
  }
  EXPECT_EQ(tensor->data.size(), tensor->num_elements() * sizeof(T)) << name;
  std::vector<T> values(tensor->num_elements());
  std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
  return values;
}

// The layers of a model over a cache of the test's own, every byte of which is NaN at first: whatever reads a slot that
// was not written shows.
class TestModel {
 public:
  TestModel(const std::string& directory, int num_threads, int32_t num_blocks = 64, int32_t block_size = 16)
      : block_size_(block_size), pool_(num_threads) {
    auto checkpoint = Checkpoint::Open(directory);
    if (!checkpoint.ok()) {
      ADD_FAILURE() << checkpoint.status();
      return;
    }
    auto model = cpu::LoadCpuModel(**checkpoint, pool_, nullptr);
    if (!model.ok()) {
      ADD_FAILURE() << model.status();
      return;
    }
    model_ = std::move(*model);
    forward_ = std::make_unique<cpu::Forward>(*model_, pool_);
    for (const LayerSpec& layer : model_->spec.layers) {
      cpu::KvCache cache = cpu::KvCacheShape(layer.attention, {num_blocks, block_size});
      memory_.emplace_back();
      const int64_t elements = cache.k_elements() + cache.v_elements();
      cache.k = memory_.back().Reserve(elements);
      cache.v = cache.k + cache.k_elements();
      std::memset(static_cast<void*>(cache.k), 0xff, elements * sizeof(Bf16));
      caches_.push_back(cache);
    }
  }

  bool ok() const { return forward_ != nullptr; }
  const ModelSpec& spec() const { return model_->spec; }

  // Logits of every token of the rows, [tokens, vocab].
  std::vector<float> Run(const std::vector<BatchRow>& rows) {
    std::vector<int32_t> chosen(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) chosen[i] = i;
    step_.LayOut(rows, chosen, block_size_);
    EXPECT_TRUE(forward_->Run(step_, caches_).ok());
    std::vector<int32_t> tokens(step_.num_tokens);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = i;
    std::vector<float> logits(tokens.size() * spec().vocab_size);
    EXPECT_TRUE(forward_->Logits(tokens, logits.data()).ok());
    return logits;
  }

  // The same for one sequence, cut into chunks of these sizes (the last repeats).
  std::vector<float> RunChunked(const std::vector<int32_t>& tokens, const std::vector<int32_t>& table,
                                const std::vector<int32_t>& sizes) {
    std::vector<float> logits;
    size_t start = 0;
    for (size_t i = 0; start < tokens.size(); ++i) {
      const size_t size = std::min<size_t>(sizes[std::min(i, sizes.size() - 1)], tokens.size() - start);
      BatchRow row;
      row.tokens = absl::MakeConstSpan(tokens).subspan(start, size);
      row.start = start;
      row.block_table = table;
      const std::vector<float> part = Run({row});
      logits.insert(logits.end(), part.begin(), part.end());
      start += size;
    }
    return logits;
  }

  const cpu::Forward& forward() const { return *forward_; }

 private:
  int32_t block_size_;
  cpu::ThreadPool pool_;
  std::unique_ptr<cpu::CpuModel> model_;
  std::unique_ptr<cpu::Forward> forward_;
  std::vector<cpu::GrowingArray<Bf16>> memory_;
  std::vector<cpu::KvCache> caches_;
  cpu::StepInput step_;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_UNIT_SERVER_BACKEND_GOLDEN_MODEL_H_
