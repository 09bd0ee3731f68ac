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

// Of every position but the last, [positions - 1, vocab]; the prompt cut into chunks of these sizes (the last repeats), in
// as many rows of each step as there are copies, which must all get the same bits. Takes 5 blocks a copy for 80 tokens.
inline std::vector<float> Logprobs(Backend& backend, const std::vector<int32_t>& tokens,
                                   const std::vector<int32_t>& sizes, int32_t first_block, int copies = 1) {
  const int32_t vocab = backend.info().vocab_size;
  const int32_t blocks_each = (tokens.size() + kTinyBlockSize - 1) / kTinyBlockSize;
  std::vector<std::vector<int32_t>> blocks(copies, std::vector<int32_t>(blocks_each));
  for (int c = 0; c < copies; ++c) {
    std::iota(blocks[c].rbegin(), blocks[c].rend(), first_block + c * blocks_each);
  }
  std::vector<PromptScorer> scorers(copies, PromptScorer(tokens, vocab));
  size_t start = 0;
  for (size_t i = 0; start < tokens.size(); ++i) {
    std::vector<BatchRow> rows(copies);
    for (int c = 0; c < copies; ++c) {
      rows[c].tokens = absl::MakeConstSpan(tokens).subspan(start, sizes[std::min(i, sizes.size() - 1)]);
      rows[c].start = start;
      rows[c].block_table = blocks[c];
      rows[c].prompt_scorer = &scorers[c];
    }
    std::vector<RowResult> results;
    const absl::Status status = backend.Run(rows, &results);
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) return {};
    for (const RowResult& result : results) EXPECT_TRUE(result.status.ok()) << result.status;
    start += rows[0].tokens.size();
  }
  std::vector<float> first;
  for (const PromptScorer& scorer : scorers) {
    std::vector<float> logprobs((tokens.size() - 1) * vocab, NAN);
    for (size_t i = 1; i < tokens.size(); ++i) {
      for (const TokenLogprob& top : scorer.result()[i].top) {
        logprobs[(i - 1) * vocab + top.token] = top.logprob;
      }
    }
    if (first.empty()) first = logprobs;
    EXPECT_EQ(logprobs, first);
  }
  return first;
}

// With a cache of 32 blocks.
inline absl::StatusOr<std::unique_ptr<Backend>> MakeTinyCudaBackend(const Checkpoint& checkpoint,
                                                                    bool nvfp4_activations = true) {
  CudaBackendOptions options;
  options.sampling_threads = 1;
  options.max_step_tokens = 160;
  options.max_step_sequences = 8;
  options.nvfp4_activations = nvfp4_activations;
  auto backend = CreateCudaBackend(checkpoint, options);
  if (!backend.ok()) return backend.status();
  if (absl::Status status = (*backend)->AllocateKvCache({32, kTinyBlockSize}); !status.ok()) return status;
  return backend;
}

}  // namespace tessera

#endif  // TESSERA_TESTS_UNIT_SERVER_BACKEND_CUDA_TINY_H_
