#ifndef TESSERA_SERVER_MODEL_MODEL_SPEC_H_
#define TESSERA_SERVER_MODEL_MODEL_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// A model family is data: what each layer is made of. Backends read this and nothing else of a checkpoint's
// configuration; a new family is a new reader of config.json, not a new class.

enum class AttentionKind {
  kGrouped,  // query heads share key/value heads (GQA, MQA, MHA)
};

enum class RopeStyle {
  kNone,
  kHalf,         // "neox": rotates (x[i], x[i + d/2])
  kInterleaved,  // "gpt-j": rotates (x[2i], x[2i+1])
};

struct RopeSpec {
  RopeStyle style = RopeStyle::kHalf;
  int32_t rotary_dim = 0;        // leading dimensions of a head that rotate
  std::vector<double> inv_freq;  // rotary_dim / 2 angles per position, scaling (if any) applied
  float magnitude = 1.0f;        // multiplies cos and sin
};

struct AttentionSpec {
  AttentionKind kind = AttentionKind::kGrouped;
  int32_t num_query_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  float softmax_scale = 0.0f;
  bool qk_norm = false;  // RMSNorm over head_dim of q and k, before rope
  bool qkv_bias = false;
  bool output_bias = false;
  int32_t sliding_window = 0;  // 0: all earlier tokens; else the last this many, the token itself included
  bool sinks = false;          // a learned logit per query head in the softmax's denominator
  RopeSpec rope;
};

enum class MlpKind { kDense, kMoe };

enum class RouterScore { kSoftmax, kSigmoid };

struct RouterSpec {
  RouterScore score = RouterScore::kSoftmax;  // over all experts, in float32
  bool renormalize = false;                   // divide the chosen scores by their sum
  float scale = 1.0f;                         // multiplies the chosen scores
};

struct MlpSpec {
  MlpKind kind = MlpKind::kDense;
  int32_t intermediate_size = 0;  // of the dense MLP, or of one expert
  int32_t num_experts = 0;
  int32_t num_experts_per_token = 0;
  RouterSpec router;
};

struct LayerSpec {
  AttentionSpec attention;
  MlpSpec mlp;
};

struct ModelSpec {
  std::string architecture;  // as config.json names it
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t max_context = 0;
  float rms_norm_eps = 1e-6f;
  bool tied_embeddings = false;  // the output matrix is the embedding table
  std::vector<int32_t> eos_token_ids;
  int32_t bos_token_id = -1;
  std::vector<LayerSpec> layers;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_MODEL_SPEC_H_
