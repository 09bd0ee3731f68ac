// What tests of the CUDA backend on tiny checkpoints share.
#ifndef TESSERA_TESTS_UNIT_SERVER_BACKEND_CUDA_TINY_H_
#define TESSERA_TESTS_UNIT_SERVER_BACKEND_CUDA_TINY_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "server/backend/cuda/cuda_backend.h"
#include "server/model/checkpoint.h"
#include "tests/unit/server/backend/golden_model.h"

namespace tessera {

inline constexpr int32_t kTinyBlockSize = 16;

// A bundle of tests runs where the source tree is not (tests/gpu/bundle).
inline std::string TinyDirectory(const std::string& name) {
  const char* root = std::getenv("TESSERA_SOURCE_DIR");
  return root ? absl::StrCat(root, "/tests/golden/model/", name) : GoldenDirectory(name);
}

// Of every position but the last, [positions - 1, vocab]; the prompt cut into chunks of these sizes (the last repeats).
inline std::vector<float> Logprobs(Backend& backend, const std::vector<int32_t>& tokens,
                                   const std::vector<int32_t>& sizes, int32_t first_block) {
  const int32_t vocab = backend.info().vocab_size;
  std::vector<int32_t> blocks((tokens.size() + kTinyBlockSize - 1) / kTinyBlockSize);
  std::iota(blocks.rbegin(), blocks.rend(), first_block);
  PromptScorer scorer(tokens, vocab);
  size_t start = 0;
  for (size_t i = 0; start < tokens.size(); ++i) {
    BatchRow row;
    row.tokens = absl::MakeConstSpan(tokens).subspan(start, sizes[std::min(i, sizes.size() - 1)]);
    row.start = start;
    row.block_table = blocks;
    row.prompt_scorer = &scorer;
    std::vector<RowResult> results;
    const absl::Status status = backend.Run({row}, &results);
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) return {};
    EXPECT_TRUE(results[0].status.ok()) << results[0].status;
    start += row.tokens.size();
  }
  std::vector<float> logprobs((tokens.size() - 1) * vocab, NAN);
  for (size_t i = 1; i < tokens.size(); ++i) {
    for (const TokenLogprob& top : scorer.result()[i].top) {
      logprobs[(i - 1) * vocab + top.token] = top.logprob;
    }
  }
  return logprobs;
}

// With a cache of 32 blocks; null after a failure.
inline std::unique_ptr<Backend> MakeTinyCudaBackend(const Checkpoint& checkpoint) {
  CudaBackendOptions options;
  options.sampling_threads = 1;
  options.max_step_tokens = 128;
  options.max_step_sequences = 8;
  auto backend = CreateCudaBackend(checkpoint, options);
  EXPECT_TRUE(backend.ok()) << backend.status();
  if (!backend.ok()) return nullptr;
  EXPECT_TRUE((*backend)->AllocateKvCache({32, kTinyBlockSize}).ok());
  return std::move(*backend);
}

}  // namespace tessera

#endif  // TESSERA_TESTS_UNIT_SERVER_BACKEND_CUDA_TINY_H_
