#ifndef TESSERA_TESTS_INTEGRATION_GENERATION_H_
#define TESSERA_TESTS_INTEGRATION_GENERATION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tessera_client.h"

namespace tessera::testing {

// What one Generate or GenerateOnce call gave, in one form, so that the two can be compared.
struct Generation {
  struct Output {
    std::string text;
    std::vector<int32_t> token_ids;
    v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
    bool operator==(const Output&) const = default;
  };
  std::vector<Output> outputs;
  v1::Usage usage;
};
std::ostream& operator<<(std::ostream& os, const Generation::Output& output);

// Streams; fails the test where the stream breaks the order that inference.proto promises. Texts are the deltas' sum.
absl::StatusOr<Generation> Stream(Client& client, const v1::GenerateRequest& request);
absl::StatusOr<Generation> Once(Client& client, const v1::GenerateRequest& request);

// A greedy request with token ids in the answer.
v1::GenerateRequest Greedy(const std::string& prompt, int max_tokens = 64);
// A sampled one, with a seed.
v1::GenerateRequest Sampled(const std::string& prompt, uint64_t seed, int max_tokens = 64);

// Sixteen requests that differ in every way that may matter to a batch: greedy and sampled, text, chat and token ids,
// short and long, prompts that share a beginning, penalties, and outputs that outgrow a small cache together.
std::vector<v1::GenerateRequest> MixedRequests();

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_INTEGRATION_GENERATION_H_
