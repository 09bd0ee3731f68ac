#ifndef TESSERA_TESTS_INTEGRATION_SERVABLE_CHECKPOINT_H_
#define TESSERA_TESTS_INTEGRATION_SERVABLE_CHECKPOINT_H_

#include <string>
#include <vector>

namespace tessera::testing {

// Parts of a checkpoint that a server can be started with, from tests/golden.
struct ServableParts {
  std::string model;          // folder of tests/golden/model: weights and configuration, without a tokenizer
  std::string tokenizer;      // folder of tests/golden/tokenizer with a tokenizer.json
  std::string chat_template;  // file of tests/golden/chat_template/templates
  // Special tokens that the template spells; those that the tokenizer lacks are added to it.
  std::vector<std::string> special_tokens;
  // Where above 0: a scale like this for the inputs of every NVFP4 matrix (`input_scale`), as W4A4 checkpoints have.
  float input_scale = 0;
};

inline constexpr char kBosToken[] = "<s>";
inline constexpr char kEosToken[] = "</s>";

// Writes the parts into `directory` as one checkpoint, with the tokens above, the first of which begins a text as the
// template says. The vocabulary of the weights is made as large as the tokenizer's by repeating rows. Returns its size;
// 0, with the test failed, if something is wrong.
int WriteServableCheckpoint(const ServableParts& parts, const std::string& directory);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_INTEGRATION_SERVABLE_CHECKPOINT_H_
