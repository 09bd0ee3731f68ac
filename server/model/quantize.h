#ifndef TESSERA_SERVER_MODEL_QUANTIZE_H_
#define TESSERA_SERVER_MODEL_QUANTIZE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

struct QuantizeProgress {
  int64_t tensors_done = 0;
  int64_t tensors_total = 0;  // of the input
  int64_t bytes_done = 0;
  int64_t bytes_total = 0;
  std::string tensor;  // the one at work
};

// How the output's tensors are named and its scales are meant.
enum class QuantizeDialect {
  kModelOpt,           // weight, weight_scale, weight_scale_2; hf_quant_config.json
  kCompressedTensors,  // weight_packed, weight_scale, weight_global_scale (a divisor)
};

struct QuantizeOptions {
  QuantizeDialect dialect = QuantizeDialect::kModelOpt;
  // Per block, also try the scale that maps the largest value to 4 instead of 6, and keep the smaller squared
  // error (arXiv 2512.02010). The tensor scale is then amax / (6 * 256). Readers need not know.
  bool four_over_six = false;
  // Quantise q, k, v and o projections too; else they stay BF16.
  bool attention = true;
  // Replace an output directory that exists.
  bool overwrite = false;
  // Threads; 0 for one a core.
  int num_threads = 0;
  // Called from one thread at a time, after each tensor.
  std::function<void(const QuantizeProgress&)> progress;
  // Asked often, from any thread; once it says true the work ends soon with CANCELLED, and nothing is left behind.
  std::function<bool()> cancelled;
};

// How far the quantised tensor is from the original.
struct TensorError {
  std::string name;  // in the output, without ".weight"
  int64_t rows = 0;
  int64_t cols = 0;
  double relative_rms = 0;  // sqrt(sum (q - w)^2 / sum w^2)
  double max_abs = 0;       // largest |q - w|
  double sqnr_db = 0;       // 10 log10(sum w^2 / sum (q - w)^2)
};

struct QuantizeReport {
  std::vector<TensorError> tensors;  // the quantised ones, in the output's order
  int64_t tensors_kept = 0;          // written as BF16
  int64_t input_bytes = 0;
  int64_t output_bytes = 0;  // of the safetensors file
  double relative_rms = 0;   // over all quantised weights
  std::vector<std::string> warnings;
};

// Turns the checkpoint in `in_dir`, of any family that is read and in BF16, F16, F32, FP8 or MXFP4, into NVFP4 in
// `out_dir`: model.safetensors, config.json with quantization_config (and hf_quant_config.json in ModelOpt's dialect;
// weights only, activations stay BF16), and copies of the tokenizer and generation files. MXFP4 is cast without error
// where its exponents allow it. Gate and up projections of an expert share a tensor scale, and so do q, k and v of a
// layer. Router, norms, embeddings and the output matrix are written as BF16; scales of a
// cache of keys and values stay. Experts that were stacked in one tensor
// stand alone in the output. Layers that predict several tokens at once are left out.
//
// Streams: one matrix in memory at a time and thread. `out_dir` appears whole or not at all: all is written
// in a hidden directory beside it, synced, and renamed. ALREADY_EXISTS if `out_dir` exists and `overwrite` is
// off; CANCELLED; INVALID_ARGUMENT for an input that is broken, NVFP4 already, or holds NaN or infinity (names
// tensor and index).
absl::StatusOr<QuantizeReport> Quantize(const std::string& in_dir, const std::string& out_dir,
                                        const QuantizeOptions& options);

}  // namespace tessera

#endif  // TESSERA_SERVER_MODEL_QUANTIZE_H_
