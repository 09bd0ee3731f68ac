#ifndef TESSERA_SERVER_MODEL_MXFP4_CAST_H_
#define TESSERA_SERVER_MODEL_MXFP4_CAST_H_

#include <optional>

#include "server/model/linear_weights.h"

namespace tessera {

// MXFP4 as NVFP4, without any error: the codes stay, a block's power of two becomes the E4M3 scale of both its halves,
// and the tensor scale takes what is common. E4M3 holds 2^-9 to 2^8, so the exponents of blocks that are not all zero
// may spread over 17; ModelOpt casts the same way.

// The exponents (scale - 127) of blocks that hold anything but zeros. Reads the whole matrix.
struct Mxfp4Exponents {
  int least = 0;
  int most = 0;

  void Merge(const Mxfp4Exponents& other);
  // 2^(most - 8), or empty if the spread is too wide for it.
  std::optional<float> TensorScale() const;
};
// Empty for a matrix of zeros.
std::optional<Mxfp4Exponents> FindMxfp4Exponents(const LinearWeights& weights);

// One row's `columns / 16` E4M3 scales from its `columns / 32` E8M0 ones. All-zero blocks get 1.
void CastMxfp4Scales(const uint8_t* codes, const uint8_t* scales, int64_t columns, float tensor_scale,
                     uint8_t* out);

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_MXFP4_CAST_H_
