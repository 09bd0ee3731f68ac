#include "client/cli/capacity.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::cli {
namespace {

using testing::ElementsAre;

// Qwen3-30B-A3B: 48 layers of 4 KV heads of 128, 16.3 GB of NVFP4 experts and some more.
ModelSpec Qwen() {
  ModelSpec spec;
  spec.max_context = 40960;
  LayerSpec layer;
  layer.attention.num_query_heads = 32;
  layer.attention.num_kv_heads = 4;
  layer.attention.head_dim = 128;
  spec.layers.assign(48, layer);
  return spec;
}

TEST(Capacity, CountsKeysAndValues) {
  EXPECT_EQ(KvBytesPerToken(Qwen()), 2 * 48 * 4 * 128 * 2);
  EXPECT_EQ(CacheBytes(100, 20), 72);
  EXPECT_EQ(CacheBytes(100, 130), -30);
}

TEST(Capacity, SaysWhatFits) {
  // 98304 bytes a token.
  EXPECT_THAT(
      DescribeCapacity(Qwen(), int64_t{18} * 1000 * 1000 * 1000),
      ElementsAre("24 GB (L4): room for 54931 tokens: 13 sequences of 4096, 1 sequences of 32768, "
                  "1 sequences of 40960",
                  "80 GB (H100): room for 567626 tokens: 138 sequences of 4096, 17 sequences of 32768, "
                  "13 sequences of 40960",
                  "141 GB (H200): room for 1126098 tokens: 274 sequences of 4096, 34 sequences of 32768, "
                  "27 sequences of 40960",
                  "192 GB (B200): room for 1593017 tokens: 388 sequences of 4096, 48 sequences of 32768, "
                  "38 sequences of 40960"));
  EXPECT_EQ(DescribeCapacity(Qwen(), int64_t{100} * 1000 * 1000 * 1000)[1],
            "80 GB (H100): no; the weights alone take 100.0 GB, 20.0 GB more than there is");
}

}  // namespace
}  // namespace tessera::cli
