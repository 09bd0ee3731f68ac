#ifndef TESSERA_SERVER_BACKEND_CUDA_ATTENTION_SHAPE_H_
#define TESSERA_SERVER_BACKEND_CUDA_ATTENTION_SHAPE_H_

#include <cstdint>
#include <optional>

#include "server/model/model_spec.h"

namespace tessera::cuda {

// How a layer's heads lie in the queries and the cache: the attention kernels take a few dimensions, and what is smaller
// is padded with zeros, which change no score and no value.
struct AttentionShape {
  int32_t kv_heads = 0;
  int32_t key_dim = 0;    // of queries and keys
  int32_t value_dim = 0;  // of results
  // Latent attention: where a key's rotated part begins; the latent is at 0. Its values are the keys themselves.
  int32_t rope_offset = 0;
  bool shared_values = false;

  // Elements of one token's keys and values.
  int64_t cache_elements() const {
    return int64_t{kv_heads} * (shared_values ? key_dim : key_dim + value_dim);
  }
};

// Empty if no kernel takes heads so large.
inline std::optional<AttentionShape> AttentionShapeOf(const AttentionSpec& spec) {
  const bool latent = spec.kind == AttentionKind::kLatent;
  AttentionShape shape;
  shape.kv_heads = spec.cache_heads();
  shape.shared_values = latent;
  for (const int32_t dim : {64, 128, 256}) {
    if (spec.cache_key_dim() > dim) continue;
    shape.key_dim = shape.value_dim = dim;
    if (latent) shape.rope_offset = spec.latent.kv_rank;
    return shape;
  }
  if (!latent || spec.latent.kv_rank > 512 || spec.latent.rope_dim > 64) return std::nullopt;
  shape.key_dim = 576;
  shape.value_dim = shape.rope_offset = 512;
  return shape;
}

}  // namespace tessera::cuda

#endif  // TESSERA_SERVER_BACKEND_CUDA_ATTENTION_SHAPE_H_
