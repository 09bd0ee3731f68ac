#include "kernels/cpu/fmha/attention.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "kernels/cpu/reference.h"
#include "tests/unit/kernels/cpu/test_util.h"

namespace tessera::cpu {
namespace {

struct Shape {
  int64_t q_heads = 4;
  int64_t kv_heads = 2;
  int64_t head_dim = 64;
  int64_t block_size = 16;
  int64_t window = 0;
  bool sinks = false;
  int64_t value_dim = 0;  // 0: as head_dim
  bool shared = false;    // keys begin with their values

  int64_t values() const { return value_dim > 0 ? value_dim : head_dim; }
};

// A KV cache in which each sequence's blocks are scattered; every slot that no token was written to is NaN.
class Fixture {
 public:
  Fixture(const Shape& shape, const std::vector<int64_t>& lengths, uint32_t seed)
      : shape_(shape), random_(seed), lengths_(lengths) {
    max_len_ = *std::max_element(lengths.begin(), lengths.end());
    table_stride_ = (max_len_ + shape.block_size - 1) / shape.block_size + 1;
    cache_.num_blocks = table_stride_ * static_cast<int64_t>(lengths.size()) + 3;
    cache_.kv_heads = shape.kv_heads;
    cache_.block_size = shape.block_size;
    cache_.head_dim = shape.head_dim;
    cache_.value_dim = shape.values();
    cache_.shared_dim = shape.shared ? shape.values() : 0;
    k_.emplace(cache_.k_elements());
    v_.emplace(cache_.v_elements());
    cache_.k = k_->data();
    cache_.v = v_->data();
    std::vector<int32_t> blocks(cache_.num_blocks);
    std::iota(blocks.begin(), blocks.end(), 0);
    random_.Shuffle(blocks.begin(), blocks.end());
    block_table_.assign(table_stride_ * lengths.size(),
                        0x7fffffff);  // an entry past the end must not be used
    size_t next = 0;
    const int64_t row = shape.kv_heads * shape.head_dim;
    const int64_t v_row = shape.kv_heads * shape.values();
    ThreadPool pool(1);
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (int64_t b = 0; b * shape.block_size < lengths[s]; ++b)
        block_table_[s * table_stride_ + b] = blocks[next++];
      std::vector<int64_t> slots;
      for (int64_t t = 0; t < lengths[s]; ++t) slots.push_back(Slot(s, t));
      const std::vector<float> k = random_.Normals(lengths[s] * row);
      const std::vector<float> v = random_.Normals(lengths[s] * v_row);
      EXPECT_TRUE(WriteKv(cache_, k.data(), row, v.data(), v_row, slots.data(), lengths[s], pool).ok());
      q_.push_back(random_.Normals(lengths[s] * shape.q_heads * shape.head_dim, 2.0f));
    }
    sinks_ = random_.Normals(shape.q_heads);
  }

  int64_t Slot(int64_t s, int64_t t) const {
    return block_table_[s * table_stride_ + t / shape_.block_size] * shape_.block_size +
           t % shape_.block_size;
  }

  // Attention of tokens [first[s], end[s]) of each sequence, as one batch.
  std::vector<float> Run(const std::vector<int64_t>& first, const std::vector<int64_t>& end, int threads,
                         std::vector<double>* expected = nullptr) {
    const int64_t row = shape_.q_heads * shape_.head_dim;
    const int64_t out_row = shape_.q_heads * shape_.values();
    std::vector<int32_t> q_start = {0}, kv_len;
    std::vector<float> q;
    for (size_t s = 0; s < lengths_.size(); ++s) {
      q.insert(q.end(), q_[s].begin() + first[s] * row, q_[s].begin() + end[s] * row);
      q_start.push_back(q_start.back() + static_cast<int32_t>(end[s] - first[s]));
      kv_len.push_back(static_cast<int32_t>(end[s]));
    }
    const int64_t tokens = q_start.back();
    std::vector<float> out(tokens * out_row, kNaN);
    std::vector<Bf16> out_bf16(tokens * out_row);
    AttentionArgs args;
    args.cache = cache_;
    args.q_heads = shape_.q_heads;
    args.q = q.data();
    args.q_stride = row;
    args.num_sequences = static_cast<int64_t>(lengths_.size());
    args.q_start = q_start.data();
    args.kv_len = kv_len.data();
    args.block_table = block_table_.data();
    args.block_table_stride = table_stride_;
    args.softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    args.window = shape_.window;
    args.sinks = shape_.sinks ? sinks_.data() : nullptr;
    args.out_float = out.data();
    args.out_float_stride = out_row;
    args.out = out_bf16.data();
    args.out_stride = out_row;
    ThreadPool pool(threads);
    AlignedBuffer<std::byte> workspace(AttentionWorkspaceBytes(tokens, args.num_sequences, max_len_,
                                                               shape_.q_heads, shape_.values(), threads));
    const absl::Status status = Attention(args, workspace.workspace(), pool);
    EXPECT_TRUE(status.ok()) << status;
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out_bf16[i], ToBf16(out[i]));
    if (expected != nullptr) *expected = reference::Attention(args);
    return out;
  }

  Bf16* k() { return cache_.k; }
  const KvCache& cache() const { return cache_; }

 private:
  Shape shape_;
  Random random_;
  std::vector<int64_t> lengths_;
  int64_t max_len_;
  int64_t table_stride_;
  KvCache cache_;
  std::optional<AlignedBuffer<Bf16>> k_, v_;
  std::vector<int32_t> block_table_;
  std::vector<std::vector<float>> q_;
  std::vector<float> sinks_;
};

class AttentionTest : public EachIsa {};

TEST_P(AttentionTest, MatchesDoublePrecision) {
  const Shape shapes[] = {{4, 2, 64},
                          {8, 1, 128},
                          {3, 3, 80},
                          {12, 4, 256, 32},
                          {6, 2, 96, 64},
                          {5, 1, 72},
                          {2, 1, 6},
                          {7, 1, 512},
                          {16, 1, 64},
                          {4, 4, 128, 16, 100},
                          {8, 2, 64, 16, 0, true},
                          {10, 2, 64, 32, 37, true},
                          {4, 2, 64, 16, 1},
                          {16, 1, 576, 16, 0, false, 512},
                          {16, 1, 576, 16, 0, false, 512, true},
                          {5, 1, 36, 32, 0, false, 28, true},
                          {6, 2, 80, 16, 50, true, 64, true},
                          {5, 1, 40, 16, 0, false, 24},
                          {6, 2, 36, 32, 30, true, 18}};
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(::testing::Message()
                 << shape.q_heads << " query heads, " << shape.kv_heads << " KV heads, dim " << shape.head_dim
                 << " block " << shape.block_size << " window " << shape.window);
    Fixture fixture(shape, {1, 17, 64, 65, 150, 300}, 5);
    std::vector<double> expected;
    // Decode, a chunk, a whole prompt, nothing.
    const std::vector<float> out =
        fixture.Run({0, 16, 60, 65, 0, 290}, {1, 17, 64, 65, 150, 300}, 2, &expected);
    ASSERT_EQ(out.size(), expected.size());
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 1e-5) << i;
  }
}

TEST_P(AttentionTest, LongSequenceMatchesDoublePrecisionWhoeverShares) {
  for (int64_t window : {0, 700}) {
    Fixture fixture({4, 2, 64, 16, window}, {3000}, 6);
    std::vector<double> expected;
    const std::vector<float> one = fixture.Run({2999}, {3000}, 1, &expected);
    for (size_t i = 0; i < one.size(); ++i) ASSERT_NEAR(one[i], expected[i], 3e-6) << i;
    for (int threads : {2, 3, 8}) {
      const std::vector<float> many = fixture.Run({2999}, {3000}, threads);
      EXPECT_TRUE(SameBits(one.data(), many.data(), one.size())) << threads << " threads, window " << window;
    }
  }
}

TEST_P(AttentionTest, DecodeAndAnyPrefillChunkGiveTheSameBits) {
  for (const Shape& shape :
       {Shape{4, 2, 64}, Shape{3, 3, 80}, Shape{8, 1, 64, 32}, Shape{10, 2, 64, 16, 90, true},
        Shape{9, 1, 144, 16, 0, false, 128}, Shape{9, 1, 144, 16, 0, false, 128, true}}) {
    const int64_t length = 540;
    Fixture fixture(shape, {length}, 7);
    const int64_t row = shape.q_heads * shape.values();
    const std::vector<float> whole = fixture.Run({0}, {length}, 2);
    for (int64_t t : {0, 1, 15, 16, 63, 64, 65, 127, 400, 511, 512, 513, 539}) {
      const std::vector<float> decode = fixture.Run({t}, {t + 1}, 3);
      ASSERT_TRUE(SameBits(decode.data(), whole.data() + t * row, row)) << "position " << t;
    }
    for (int64_t chunk : {7, 64, 333}) {
      for (int64_t t = 0; t < length; t += chunk) {
        const int64_t end = std::min(length, t + chunk);
        const std::vector<float> part = fixture.Run({t}, {end}, 1 + static_cast<int>(t % 3));
        ASSERT_TRUE(SameBits(part.data(), whole.data() + t * row, (end - t) * row))
            << "chunk " << t << ".." << end;
      }
    }
  }
}

TEST_P(AttentionTest, TheRestOfTheBatchDoesNotMatter) {
  Fixture fixture({6, 2, 64}, {700, 30, 1, 1500, 257}, 8);
  const std::vector<int64_t> first = {699, 0, 0, 1490, 256};
  const std::vector<int64_t> end = {700, 30, 1, 1500, 257};
  const std::vector<float> together = fixture.Run(first, end, 4);
  int64_t at = 0;
  for (size_t s = 0; s < first.size(); ++s) {
    std::vector<int64_t> only_first = end, only_end = end;
    only_first[s] = first[s];
    const std::vector<float> alone = fixture.Run(only_first, only_end, 2);
    ASSERT_EQ(alone.size(), (end[s] - first[s]) * 6 * 64);
    EXPECT_TRUE(SameBits(alone.data(), together.data() + at, alone.size())) << "sequence " << s;
    at += static_cast<int64_t>(alone.size());
  }
}

TEST_P(AttentionTest, FutureKeysHoldingNaNDoNotReachEarlierQueries) {
  Fixture fixture({4, 2, 64}, {100}, 9);
  const std::vector<float> clean = fixture.Run({0}, {100}, 2);
  // Key and value of token 70, both heads.
  std::vector<float> nan(2 * 64, kNaN);
  const int64_t slot = fixture.Slot(0, 70);
  ThreadPool pool(1);
  ASSERT_TRUE(WriteKv(fixture.cache(), nan.data(), 128, nan.data(), 128, &slot, 1, pool).ok());
  const std::vector<float> dirty = fixture.Run({0}, {100}, 2);
  EXPECT_TRUE(SameBits(clean.data(), dirty.data(), 70 * 4 * 64));
  for (size_t i = 70 * 4 * 64; i < dirty.size(); ++i) ASSERT_TRUE(std::isnan(dirty[i])) << i;
}

TEST_P(AttentionTest, FutureValuesHoldingNaNDoNotReachEarlierQueriesThroughSharedKeys) {
  Fixture fixture({4, 1, 48, 16, 0, false, 32, true}, {100}, 9);
  const std::vector<float> clean = fixture.Run({0}, {100}, 2);
  std::vector<float> nan(48, kNaN);
  const int64_t slot = fixture.Slot(0, 70);
  ThreadPool pool(1);
  ASSERT_TRUE(WriteKv(fixture.cache(), nan.data(), 48, nan.data(), 48, &slot, 1, pool).ok());
  const std::vector<float> dirty = fixture.Run({0}, {100}, 2);
  EXPECT_TRUE(SameBits(clean.data(), dirty.data(), 70 * 4 * 32));
  for (size_t i = 70 * 4 * 32; i < dirty.size(); ++i) ASSERT_TRUE(std::isnan(dirty[i])) << i;
}

TEST_P(AttentionTest, RefusesWhatDoesNotFit) {
  AlignedBuffer<Bf16> k(4 * 2 * 16 * 64), v(4 * 2 * 16 * 64);
  std::vector<float> q(2 * 4 * 64), out(2 * 4 * 64, 5.0f);
  const int32_t q_start[] = {0, 2}, kv_len[] = {20}, table[] = {0, 3};
  AttentionArgs good;
  good.cache = {k.data(), v.data(), 4, 2, 16, 64, 64};
  good.q_heads = 4;
  good.q = q.data();
  good.q_stride = 256;
  good.num_sequences = 1;
  good.q_start = q_start;
  good.kv_len = kv_len;
  good.block_table = table;
  good.block_table_stride = 2;
  good.softmax_scale = 0.125f;
  good.out_float = out.data();
  good.out_float_stride = 256;
  ThreadPool pool(2);
  AlignedBuffer<std::byte> workspace(AttentionWorkspaceBytes(2, 1, 20, 4, 64, 2));
  const auto refused = [&](auto change) {
    AttentionArgs args = good;
    change(args);
    return !Attention(args, workspace.workspace(), pool).ok();
  };
  EXPECT_TRUE(refused([](AttentionArgs& a) { a.q_heads = 3; }));
  EXPECT_TRUE(refused([](AttentionArgs& a) { a.cache.block_size = 24; }));
  EXPECT_TRUE(refused([](AttentionArgs& a) { a.cache.block_size = 8; }));
  EXPECT_TRUE(refused([](AttentionArgs& a) { a.cache.head_dim = 63; }));
  EXPECT_TRUE(refused([](AttentionArgs& a) { a.cache.head_dim = 1024; }));
  EXPECT_TRUE(refused([](AttentionArgs& a) { a.cache.value_dim = 66; }));
  EXPECT_TRUE(refused([](AttentionArgs& a) { a.cache.value_dim = 31; }));
  EXPECT_TRUE(refused([](AttentionArgs& a) { a.cache.shared_dim = 32; }));
  EXPECT_TRUE(refused([](AttentionArgs& a) { a.cache.shared_dim = 64; }));
  EXPECT_TRUE(refused([](AttentionArgs& a) { a.cache.k = nullptr; }));
  EXPECT_TRUE(refused([](AttentionArgs& a) { a.cache.num_blocks = 3; }));
  EXPECT_TRUE(refused([](AttentionArgs& a) { a.q_stride = 255; }));
  EXPECT_TRUE(refused([](AttentionArgs& a) { a.out_float = nullptr; }));
  EXPECT_TRUE(refused([](AttentionArgs& a) { a.window = -1; }));
  const int32_t short_len[] = {1}, negative_block[] = {0, -1};
  EXPECT_TRUE(refused([&](AttentionArgs& a) { a.kv_len = short_len; }));
  EXPECT_TRUE(refused([&](AttentionArgs& a) { a.block_table = negative_block; }));
  EXPECT_FALSE(Attention(good, {workspace.data(), 32}, pool).ok());
  EXPECT_EQ(out, std::vector<float>(out.size(), 5.0f));
}

TEST(KvCacheTest, WritesAndReadsEverySlotAndSkipsNegativeOnes) {
  AlignedBuffer<Bf16> k(3 * 2 * 32 * 10), v(3 * 2 * 32 * 10);
  const KvCache cache = {k.data(), v.data(), 3, 2, 32, 10, 10};
  Random random(4);
  const int64_t tokens = 96;
  const std::vector<float> keys = random.Normals(tokens * 20), values = random.Normals(tokens * 20);
  std::vector<int64_t> slots(tokens);
  std::iota(slots.begin(), slots.end(), 0);
  random.Shuffle(slots.begin(), slots.end());
  slots[5] = -1;
  ThreadPool pool(2);
  ASSERT_TRUE(WriteKv(cache, keys.data(), 20, values.data(), 20, slots.data(), tokens, pool).ok());
  std::vector<float> key(10), value(10);
  for (int64_t t = 0; t < tokens; ++t) {
    if (slots[t] < 0) continue;
    for (int64_t h = 0; h < 2; ++h) {
      ReadKv(cache, slots[t], h, key.data(), value.data());
      for (int64_t d = 0; d < 10; ++d) {
        EXPECT_EQ(key[d], ToFloat(ToBf16(keys[t * 20 + h * 10 + d])));
        EXPECT_EQ(value[d], ToFloat(ToBf16(values[t * 20 + h * 10 + d])));
      }
    }
  }
  slots[7] = 96;
  EXPECT_EQ(WriteKv(cache, keys.data(), 20, values.data(), 20, slots.data(), tokens, pool).message(),
            "WriteKv: slot 96 of token 7 is outside a cache of 96 slots");
}

TESSERA_EACH_ISA(AttentionTest);

}  // namespace
}  // namespace tessera::cpu
