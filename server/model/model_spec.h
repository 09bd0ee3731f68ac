#ifndef TESSERA_SERVER_MODEL_MODEL_SPEC_H_
#define TESSERA_SERVER_MODEL_MODEL_SPEC_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace tessera {

// A model family is data: what each layer is made of. Backends read this and nothing else of a checkpoint's
// configuration; a new family is a new reader of config.json, not a new class.

enum class AttentionKind {
  kGrouped,  // query heads share key/value heads (GQA, MQA, MHA)
  kLatent,   // keys and values of all heads come from one latent vector a token (MLA)
};

enum class RopeStyle {
  kNone,
  kHalf,         // "neox": rotates (x[i], x[i + d/2])
  kInterleaved,  // "gpt-j": rotates (x[2i], x[2i+1])
};

struct RopeSpec {
  RopeStyle style = RopeStyle::kHalf;
  int32_t rotary_dim = 0;        // dimensions that rotate: a head's leading ones, or LatentSpec's rope part
  std::vector<double> inv_freq;  // rotary_dim / 2 angles per position, scaling (if any) applied
  float magnitude = 1.0f;        // multiplies cos and sin
};

// Multi-head latent attention (arXiv 2405.04434, section 2.1). Of a token with hidden state x:
//   query of head h   q_b[h] norm(q_a x), or q[h] x without a query rank: nope_dim | rope_dim elements
//   latent            norm(the first kv_rank elements of kv_a x)
//   key of head h     (kv_b[h]'s first nope_dim rows) latent | rope(the last rope_dim elements of kv_a x)
//   value of head h   (kv_b[h]'s other value_dim rows) latent
struct LatentSpec {
  int32_t query_rank = 0;  // 0: queries are one product of the hidden state
  int32_t kv_rank = 0;
  int32_t nope_dim = 0;
  int32_t rope_dim = 0;
  int32_t value_dim = 0;
  float norm_eps = 1e-6f;  // of the two norms above
};

struct AttentionSpec {
  AttentionKind kind = AttentionKind::kGrouped;
  int32_t num_query_heads = 0;
  int32_t num_kv_heads = 0;  // kGrouped
  int32_t head_dim = 0;      // of queries and keys; kLatent: nope_dim + rope_dim
  float softmax_scale = 0.0f;
  bool qk_norm = false;            // RMSNorm over head_dim of q and k, before rope
  bool qk_norm_all_heads = false;  // qk_norm over the elements of all heads together
  bool qkv_bias = false;
  bool output_bias = false;
  int32_t sliding_window = 0;  // 0: all earlier tokens; else the last this many, the token itself included
  bool sinks = false;          // a learned logit per query head in the softmax's denominator
  RopeSpec rope;
  LatentSpec latent;  // kLatent

  // What a token leaves in the cache: this many heads, each with a key and a value. kLatent: one head, whose key
  // is latent | rope part and whose value is the latent in it.
  int32_t cache_heads() const { return kind == AttentionKind::kLatent ? 1 : num_kv_heads; }
  int32_t cache_key_dim() const {
    return kind == AttentionKind::kLatent ? latent.kv_rank + latent.rope_dim : head_dim;
  }
  int32_t cache_value_dim() const { return kind == AttentionKind::kLatent ? latent.kv_rank : head_dim; }
  // The elements of both; a latent value, being part of its key, counts once.
  int64_t cache_elements() const {
    return kind == AttentionKind::kLatent ? cache_key_dim() : int64_t{2} * num_kv_heads * head_dim;
  }
  // Of one query head's result, as the output matrix takes it.
  int32_t value_dim() const { return kind == AttentionKind::kLatent ? latent.value_dim : head_dim; }
};

enum class MlpKind { kDense, kMoe };

// act(gate, up) = g * sigmoid(sigmoid_scale * g) * (u + up_offset), g = min(gate, limit), u = clamp(up, -limit,
// limit): SwiGLU as it stands here.
struct ActivationSpec {
  float limit = std::numeric_limits<float>::infinity();
  float sigmoid_scale = 1.0f;
  float up_offset = 0.0f;
};

enum class RouterScore {
  kSoftmax,          // over all experts, before the choice
  kSigmoid,          // of each logit
  kSoftmaxSelected,  // over the chosen experts' logits
};

struct RouterSpec {
  RouterScore score = RouterScore::kSoftmax;  // in float32
  bool bias = false;                          // added to the logits
  bool selection_bias = false;                // added to the scores for the choice alone
  // The choice is limited to the topk_groups groups of neighbouring experts whose two best scores have the
  // largest sums; one group: no limit.
  int32_t num_groups = 1;
  int32_t topk_groups = 1;
  bool renormalize = false;  // divide the chosen scores by their sum
  float scale = 1.0f;        // multiplies the chosen scores
};

struct MlpSpec {
  MlpKind kind = MlpKind::kDense;
  int32_t intermediate_size = 0;  // of the dense MLP, or of one expert
  bool bias = false;              // on gate, up and down
  ActivationSpec activation;
  // kMoe
  int32_t num_experts = 0;
  int32_t num_experts_per_token = 0;
  int32_t shared_intermediate_size = 0;  // of an expert that every token uses, unweighted; 0: none
  RouterSpec router;
};

struct LayerSpec {
  AttentionSpec attention;
  MlpSpec mlp;
};

// What a checkpoint calls the parts of a layer whose names differ between families; each after "model.layers.N.".
// The experts' matrices stand alone ("EXPERTS.E.GATE.weight") or stacked ("EXPERTS.gate_up_proj" of shape [experts,
// 2 * intermediate, hidden] and "EXPERTS.down_proj", or either with its last two dimensions exchanged).
struct TensorNames {
  std::string router = "mlp.gate";
  std::string selection_bias = "mlp.gate.e_score_correction_bias";
  std::string experts = "mlp.experts";
  std::string shared_expert = "mlp.shared_experts";
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";  // of an expert that stands alone
  bool interleaved_gate_up = false;  // stacked: rows alternate between gate and up; else gate's come first
  bool transposed_experts = false;   // stacked: [experts, in, out], where the shape does not tell
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
  TensorNames names;
  // Layers that the checkpoint has after these, for predicting several tokens at once; not run.
  int32_t num_prediction_layers = 0;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_MODEL_SPEC_H_
