#include "kernels/cpu/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace tessera::cpu::reference {
namespace {

std::vector<double> Biased(std::vector<double> x, const float* bias) {
  for (size_t i = 0; i < x.size() && bias != nullptr; ++i) x[i] += bias[i];
  return x;
}

// One row of x (as doubles) times W^T.
std::vector<double> Product(const std::vector<double>& x, const std::vector<double>& w, int64_t n) {
  const int64_t k = static_cast<int64_t>(x.size());
  std::vector<double> y(n, 0.0);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < k; ++c) y[i] += x[c] * w[i * k + c];
  }
  return y;
}

std::vector<double> Row(const Bf16* x, int64_t k) {
  std::vector<double> row(k);
  for (int64_t c = 0; c < k; ++c) row[c] = ToFloat(x[c]);
  return row;
}

// Indices of the count largest values, ties to the lowest index.
std::vector<int32_t> Largest(const std::vector<double>& values, int count) {
  std::vector<int32_t> ids(values.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return values[a] > values[b]; });
  ids.resize(count);
  return ids;
}

std::vector<double> Softmax(std::vector<double> x) {
  const double max = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double& v : x) sum += v = std::exp(v - max);
  for (double& v : x) v /= sum;
  return x;
}

}  // namespace

double GatedActivation(const Glu& glu, double gate, double up) {
  const double limit = glu.limit;
  const double g = std::min(gate, limit);
  const double u = std::clamp(up, -limit, limit);
  return g / (1.0 + std::exp(-glu.sigmoid_scale * g)) * (u + glu.up_offset);
}

std::vector<double> Weights(const PackedLinear& weights) {
  std::vector<double> result(weights.n * weights.k);
  std::vector<float> row(weights.k);
  for (int64_t i = 0; i < weights.n; ++i) {
    UnpackRow(weights, i, row.data());
    for (int64_t c = 0; c < weights.k; ++c) {
      result[i * weights.k + c] = static_cast<double>(row[c]) * static_cast<double>(weights.tensor_scale);
    }
  }
  return result;
}

std::vector<double> Linear(const LinearInput& input, const PackedLinear& weights, const float* bias) {
  const std::vector<double> w = Weights(weights);
  std::vector<double> y;
  for (int64_t t = 0; t < input.tokens; ++t) {
    const std::vector<double> row =
        Biased(Product(Row(input.x + t * input.x_stride, weights.k), w, weights.n), bias);
    y.insert(y.end(), row.begin(), row.end());
  }
  return y;
}

std::vector<double> LinearMagnitude(const LinearInput& input, const PackedLinear& weights) {
  std::vector<double> w = Weights(weights);
  for (double& v : w) v = std::fabs(v);
  std::vector<double> y;
  for (int64_t t = 0; t < input.tokens; ++t) {
    std::vector<double> x = Row(input.x + t * input.x_stride, weights.k);
    for (double& v : x) v = std::fabs(v);
    const std::vector<double> row = Product(x, w, weights.n);
    y.insert(y.end(), row.begin(), row.end());
  }
  return y;
}

std::vector<double> Moe(const MoeArgs& args) {
  const int64_t hidden = args.experts[0].gate.k;
  const int64_t intermediate = args.experts[0].gate.n;
  std::vector<double> out(args.tokens * hidden, 0.0);
  for (int64_t e = 0; e < static_cast<int64_t>(args.experts.size()); ++e) {
    std::vector<double> gate, up, down;  // unpacked when the first token comes
    for (int64_t i = 0; i < args.tokens * args.top_k; ++i) {
      if (args.ids[i] != e) continue;
      if (gate.empty()) {
        gate = Weights(args.experts[e].gate);
        up = Weights(args.experts[e].up);
        down = Weights(args.experts[e].down);
      }
      const int64_t t = i / args.top_k;
      const std::vector<double> x = Row(args.x + t * args.x_stride, hidden);
      const std::vector<double> g = Biased(Product(x, gate, intermediate), args.experts[e].gate_bias);
      const std::vector<double> u = Biased(Product(x, up, intermediate), args.experts[e].up_bias);
      std::vector<double> h(intermediate);
      for (int64_t c = 0; c < intermediate; ++c)
        h[c] = ToFloat(ToBf16(static_cast<float>(GatedActivation(args.glu, g[c], u[c]))));
      const std::vector<double> y = Biased(Product(h, down, hidden), args.experts[e].down_bias);
      for (int64_t c = 0; c < hidden; ++c) out[t * hidden + c] += args.weights[i] * y[c];
    }
  }
  return out;
}

Routing Route(const RouterConfig& config, const float* logits, int64_t logits_stride, int64_t tokens) {
  Routing result;
  const int group_size = config.num_experts / config.num_groups;
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<double> scores(logits + t * logits_stride, logits + t * logits_stride + config.num_experts);
    if (config.score == RouterScore::kSoftmax) scores = Softmax(scores);
    if (config.score == RouterScore::kSigmoid) {
      for (double& v : scores) v = 1.0 / (1.0 + std::exp(-v));
    }
    std::vector<double> choice = scores;
    for (int i = 0; i < config.num_experts && config.selection_bias != nullptr; ++i) {
      choice[i] += config.selection_bias[i];
    }
    if (config.num_groups > 1) {
      std::vector<double> group_scores;
      for (int g = 0; g < config.num_groups; ++g) {
        std::vector<double> group(choice.begin() + g * group_size, choice.begin() + (g + 1) * group_size);
        std::sort(group.rbegin(), group.rend());
        group_scores.push_back(group_size == 1 ? group[0] : group[0] + group[1]);
      }
      const std::vector<int32_t> kept = Largest(group_scores, config.topk_groups);
      for (int i = 0; i < config.num_experts; ++i) {
        if (std::find(kept.begin(), kept.end(), i / group_size) == kept.end()) {
          choice[i] = -std::numeric_limits<double>::infinity();
        }
      }
    }
    const std::vector<int32_t> ids = Largest(choice, config.top_k);
    std::vector<double> weights;
    for (int32_t id : ids) weights.push_back(scores[id]);
    if (config.score == RouterScore::kSoftmaxSelected) weights = Softmax(weights);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (double& w : weights) w = (config.renormalize ? w / sum : w) * config.scale;
    result.ids.insert(result.ids.end(), ids.begin(), ids.end());
    result.weights.insert(result.weights.end(), weights.begin(), weights.end());
  }
  return result;
}

std::vector<double> RmsNorm(const float* x, int64_t x_stride, int64_t tokens, int64_t dim,
                            const float* weight, double eps) {
  std::vector<double> out;
  for (int64_t t = 0; t < tokens; ++t) {
    double sum = 0;
    for (int64_t i = 0; i < dim; ++i) sum += static_cast<double>(x[t * x_stride + i]) * x[t * x_stride + i];
    const double scale = 1.0 / std::sqrt(sum / static_cast<double>(dim) + eps);
    for (int64_t i = 0; i < dim; ++i) {
      out.push_back(x[t * x_stride + i] * scale * (weight == nullptr ? 1.0 : weight[i]));
    }
  }
  return out;
}

std::vector<double> Attention(const AttentionArgs& args) {
  const KvCache& cache = args.cache;
  const int64_t dim = cache.head_dim;
  const int64_t value_dim = cache.value_dim;
  const int64_t group = args.q_heads / cache.kv_heads;
  const int64_t tokens = args.num_sequences == 0 ? 0 : args.q_start[args.num_sequences];
  std::vector<double> out(tokens * args.q_heads * value_dim, 0.0);
  for (int64_t s = 0; s < args.num_sequences; ++s) {
    const int64_t q_len = args.q_start[s + 1] - args.q_start[s];
    for (int64_t kv_head = 0; kv_head < cache.kv_heads && q_len > 0; ++kv_head) {
      std::vector<float> k(args.kv_len[s] * dim), v(args.kv_len[s] * value_dim);
      for (int64_t key = 0; key < args.kv_len[s]; ++key) {
        const int64_t block = args.block_table[s * args.block_table_stride + key / cache.block_size];
        ReadKv(cache, block * cache.block_size + key % cache.block_size, kv_head, k.data() + key * dim,
               v.data() + key * value_dim);
      }
      for (int64_t row = 0; row < q_len * group; ++row) {
        const int64_t token = args.q_start[s] + row / group;
        const int64_t head = kv_head * group + row % group;
        const int64_t position = args.kv_len[s] - q_len + row / group;
        const int64_t first = args.window > 0 ? std::max<int64_t>(0, position - args.window + 1) : 0;
        std::vector<double> q;
        for (int64_t d = 0; d < dim; ++d) {
          q.push_back(ToFloat(ToBf16(args.q[token * args.q_stride + head * dim + d])));
        }
        std::vector<double> scores;
        for (int64_t key = first; key <= position; ++key) {
          double score = 0;
          for (int64_t d = 0; d < dim; ++d) score += q[d] * k[key * dim + d];
          scores.push_back(score * args.softmax_scale);
        }
        if (args.sinks != nullptr) scores.push_back(args.sinks[head]);
        const std::vector<double> p = Softmax(scores);
        double* sum = out.data() + (token * args.q_heads + head) * value_dim;
        for (int64_t key = first; key <= position; ++key) {
          for (int64_t d = 0; d < value_dim; ++d) sum[d] += p[key - first] * v[key * value_dim + d];
        }
      }
    }
  }
  return out;
}

}  // namespace tessera::cpu::reference
