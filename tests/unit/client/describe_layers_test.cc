#include "client/cli/describe_layers.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::cli {
namespace {

using testing::ElementsAre;

ModelSpec Grouped(int layers) {
  ModelSpec spec;
  spec.layers.resize(layers);
  for (LayerSpec& layer : spec.layers) {
    layer.attention.num_query_heads = 8;
    layer.attention.num_kv_heads = 2;
    layer.attention.head_dim = layer.attention.rope.rotary_dim = 64;
    layer.mlp.intermediate_size = 256;
  }
  return spec;
}

TEST(DescribeLayers, LikeLayersShareALine) {
  EXPECT_THAT(DescribeLayers(Grouped(3)),
              ElementsAre("layers 0 to 2: 8 query and 2 KV heads of 64; dense MLP of 256"));
  ModelSpec alternating = Grouped(6);
  for (int i : {0, 2, 4}) {
    alternating.layers[i].attention.sliding_window = 128;
    alternating.layers[i].attention.sinks = true;
  }
  EXPECT_THAT(
      DescribeLayers(alternating),
      ElementsAre(
          "layers 0 to 4, every 2nd: 8 query and 2 KV heads of 64, sinks, window 128; dense MLP of 256",
          "layers 1 to 5, every 2nd: 8 query and 2 KV heads of 64; dense MLP of 256"));
  ModelSpec scattered = Grouped(6);
  scattered.layers[2].attention.rope.rotary_dim = 32;
  EXPECT_THAT(DescribeLayers(scattered),
              ElementsAre("layers 0 to 1, 3 to 5: 8 query and 2 KV heads of 64; dense MLP of 256",
                          "layer 2: 8 query and 2 KV heads of 64 (32 rotate); dense MLP of 256"));
}

TEST(DescribeLayers, LatentAttentionAndExperts) {
  ModelSpec spec = Grouped(1);
  AttentionSpec& attention = spec.layers[0].attention;
  attention.kind = AttentionKind::kLatent;
  attention.latent = {.kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128};
  MlpSpec& mlp = spec.layers[0].mlp;
  mlp.kind = MlpKind::kMoe;
  mlp.num_experts = 16;
  mlp.num_experts_per_token = 4;
  mlp.shared_intermediate_size = 512;
  mlp.router.num_groups = 4;
  mlp.router.topk_groups = 2;
  EXPECT_THAT(
      DescribeLayers(spec),
      ElementsAre("layer 0: 8 query heads of 128 + 64, values of 128, from a latent of 512 + 64; 16 experts "
                  "of 256, 4 a token from 2 of 4 groups, and a shared one of 512"));
}

}  // namespace
}  // namespace tessera::cli
