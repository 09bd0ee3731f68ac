#include "client/cli/describe_layers.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::cli {
namespace {

std::string DescribeAttention(const AttentionSpec& attention) {
  std::string text;
  if (attention.kind == AttentionKind::kLatent) {
    const LatentSpec& latent = attention.latent;
    text = absl::StrCat(attention.num_query_heads, " query heads of ", latent.nope_dim, " + ",
                        latent.rope_dim, ", values of ", latent.value_dim, ", from a latent of ",
                        latent.kv_rank, " + ", latent.rope_dim);
  } else {
    text = absl::StrCat(attention.num_query_heads, " query and ", attention.num_kv_heads, " KV heads of ",
                        attention.head_dim);
    if (attention.rope.style != RopeStyle::kNone && attention.rope.rotary_dim != attention.head_dim) {
      absl::StrAppend(&text, " (", attention.rope.rotary_dim, " rotate)");
    }
  }
  if (attention.rope.style == RopeStyle::kNone) absl::StrAppend(&text, ", no positions");
  if (attention.qk_norm)
    absl::StrAppend(&text, ", QK norm", attention.qk_norm_all_heads ? " over all heads" : "");
  if (attention.sinks) absl::StrAppend(&text, ", sinks");
  if (attention.sliding_window > 0) absl::StrAppend(&text, ", window ", attention.sliding_window);
  return text;
}

std::string DescribeMlp(const MlpSpec& mlp) {
  if (mlp.kind == MlpKind::kDense) return absl::StrCat("dense MLP of ", mlp.intermediate_size);
  std::string text = absl::StrCat(mlp.num_experts, " experts of ", mlp.intermediate_size, ", ",
                                  mlp.num_experts_per_token, " a token");
  if (mlp.router.num_groups > 1) {
    absl::StrAppend(&text, " from ", mlp.router.topk_groups, " of ", mlp.router.num_groups, " groups");
  }
  if (mlp.shared_intermediate_size > 0) {
    absl::StrAppend(&text, ", and a shared one of ", mlp.shared_intermediate_size);
  }
  return text;
}

// "layer 3", "layers 0 to 5", "layers 0, 2, 4 to 6", "layers 0 to 34, every 2nd".
std::string NameLayers(const std::vector<size_t>& layers) {
  if (layers.size() == 1) return absl::StrCat("layer ", layers[0]);
  const size_t step = layers[1] - layers[0];
  bool even = true;
  for (size_t i = 1; i < layers.size(); ++i) even = even && layers[i] - layers[i - 1] == step;
  if (even && (step == 1 || (step == 2 && layers.size() > 2))) {
    return absl::StrCat("layers ", layers.front(), " to ", layers.back(), step == 2 ? ", every 2nd" : "");
  }
  std::string text = "layers ";
  for (size_t i = 0; i < layers.size();) {
    size_t end = i + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
    absl::StrAppend(&text, i == 0 ? "" : ", ", layers[i]);
    if (end - i > 1) absl::StrAppend(&text, " to ", layers[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace

std::vector<std::string> DescribeLayers(const ModelSpec& spec) {
  std::vector<std::pair<std::string, std::vector<size_t>>> kinds;  // in the order of their first layers
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    std::string text =
        absl::StrCat(DescribeAttention(spec.layers[i].attention), "; ", DescribeMlp(spec.layers[i].mlp));
    const auto known =
        std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) { return kind.first == text; });
    if (known != kinds.end()) {
      known->second.push_back(i);
    } else {
      kinds.push_back({std::move(text), {i}});
    }
  }
  std::vector<std::string> lines;
  for (const auto& [text, layers] : kinds) lines.push_back(absl::StrCat(NameLayers(layers), ": ", text));
  return lines;
}

}  // namespace tessera::cli
