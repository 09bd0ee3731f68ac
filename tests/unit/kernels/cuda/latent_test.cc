#include "kernels/cuda/ops/latent.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/unit/kernels/cuda/gpu.h"

namespace tessera::cuda {
namespace {

struct Shape {
  int32_t heads, kv_rank, rope_dim, nope_dim, rope_offset, key_dim, nope_stride;
  bool interleaved;
};

// What a row of key_dim elements holds behind the latent: zeros around the rotated part.
std::vector<double> Rotated(const Shape& s, const float* x, int32_t position) {
  std::vector<double> row(s.key_dim - s.kv_rank, 0.0);
  const int32_t half = s.rope_dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    const double angle = position * std::pow(100.0, -double(i) / half);
    const int32_t first = s.interleaved ? 2 * i : i, second = s.interleaved ? 2 * i + 1 : i + half;
    double* out = &row[s.rope_offset - s.kv_rank];
    out[first] = x[first] * std::cos(angle) - x[second] * std::sin(angle);
    out[second] = x[second] * std::cos(angle) + x[first] * std::sin(angle);
  }
  return row;
}

void ExpectRow(const uint16_t* got, const std::vector<double>& want, const char* what) {
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(FromBf16(got[i]), want[i], std::abs(want[i]) * 0.005 + (want[i] == 0 ? 0 : 1e-5))
        << what << " element " << i;
  }
}

TEST(CudaLatent, WritesKeysAndQueries) {
  TESSERA_REQUIRE_GPU();
  for (const Shape& s : {Shape{3, 24, 6, 10, 24, 64, 64, true}, Shape{2, 512, 64, 128, 512, 576, 128, false},
                         Shape{1, 40, 8, 16, 48, 64, 64, false}}) {
    const int32_t tokens = 5, slots = 64;
    const int32_t kv_stride = s.kv_rank + s.rope_dim + 3;
    const int32_t head = s.nope_dim + s.rope_dim, heads_stride = s.heads * head + 2;
    const std::vector<float> kv = Normal(tokens * kv_stride, 1), heads = Normal(tokens * heads_stride, 2);
    const std::vector<float> norm = Normal(s.kv_rank, 3);
    std::vector<float> rope;
    for (int32_t position = 0; position < 12; ++position) {
      for (int32_t i = 0; i < s.rope_dim / 2; ++i) {
        const double angle = position * std::pow(100.0, -2.0 * i / s.rope_dim);
        rope.push_back(std::cos(angle));
        rope.push_back(std::sin(angle));
      }
    }
    const std::vector<int32_t> positions = {0, 11, 4, 5, 6};
    const std::vector<int64_t> places = {63, 0, 17, 18, 31};
    const DeviceBuffer<float> d_kv(kv), d_heads(heads), d_norm(norm), d_rope(rope);
    const DeviceBuffer<int32_t> d_positions(positions);
    const DeviceBuffer<int64_t> d_places(places);
    const DeviceBuffer<uint16_t> keys(slots * s.key_dim), nope(tokens * s.heads * s.nope_stride);
    const DeviceBuffer<uint16_t> q(tokens * s.heads * s.key_dim);
    LatentParams p;
    p.kv = d_kv.get();
    p.kv_stride = kv_stride;
    p.kv_norm = d_norm.get();
    p.eps = 1e-6f;
    p.heads = d_heads.get();
    p.heads_stride = heads_stride;
    p.rope = reinterpret_cast<const float2*>(d_rope.get());
    p.interleaved = s.interleaved;
    p.positions = d_positions.get();
    p.slots = d_places.get();
    p.tokens = tokens;
    p.num_heads = s.heads;
    p.kv_rank = s.kv_rank;
    p.rope_dim = s.rope_dim;
    p.nope_dim = s.nope_dim;
    p.rope_offset = s.rope_offset;
    p.key_dim = s.key_dim;
    p.nope_stride = s.nope_stride;
    p.k_cache = keys.get();
    p.q_nope = nope.get();
    p.q = q.get();
    const char* error = FinishLatent(p, nullptr);
    ASSERT_EQ(error, nullptr) << error;
    const std::vector<uint16_t> got_keys = keys.Read(), got_nope = nope.Read(), got_q = q.Read();
    std::vector<bool> written(slots, false);
    for (int32_t t = 0; t < tokens; ++t) {
      const float* latent = &kv[t * kv_stride];
      double sum = 0;
      for (int32_t i = 0; i < s.kv_rank; ++i) sum += double(latent[i]) * latent[i];
      std::vector<double> key(s.kv_rank);
      for (int32_t i = 0; i < s.kv_rank; ++i) {
        key[i] = latent[i] * norm[i] / std::sqrt(sum / s.kv_rank + 1e-6);
      }
      const std::vector<double> rotated = Rotated(s, latent + s.kv_rank, positions[t]);
      key.insert(key.end(), rotated.begin(), rotated.end());
      ExpectRow(&got_keys[places[t] * s.key_dim], key, "key");
      written[places[t]] = true;
      for (int32_t h = 0; h < s.heads; ++h) {
        const float* x = &heads[t * heads_stride + h * head];
        std::vector<double> first(x, x + s.nope_dim);
        first.resize(s.nope_stride, 0.0);
        const int32_t row = t * s.heads + h;
        ExpectRow(&got_nope[row * s.nope_stride], first, "query without positions");
        ExpectRow(&got_q[row * s.key_dim + s.kv_rank], Rotated(s, x + s.nope_dim, positions[t]), "query");
        for (int32_t i = 0; i < s.kv_rank; ++i) ASSERT_EQ(got_q[row * s.key_dim + i], 0xFFFF);
      }
    }
    for (int32_t slot = 0; slot < slots; ++slot) {
      if (!written[slot]) ASSERT_EQ(got_keys[slot * s.key_dim], 0xFFFF) << "slot " << slot;
    }
  }
}

TEST(CudaLatent, TilesAndGathersHeads) {
  TESSERA_REQUIRE_GPU();
  for (const int32_t tokens : {1, 8, 21}) {
    const int32_t heads = 3, tile_slots = 8, dim = 300, head_stride = 304, row_stride = 1024;
    const int32_t most = MostHeadTiles(tokens, heads, tile_slots);
    const DeviceBuffer<int32_t> rows(tokens * heads), tile_head(most), num_tiles(1);
    const DeviceBuffer<int2> ranges(most);
    const SortedSlots tiles = {rows.get(), nullptr, tile_head.get(), ranges.get(), num_tiles.get()};
    ASSERT_EQ(TileHeads(tokens, heads, tile_slots, tiles, nullptr), nullptr);
    const std::vector<int32_t> got_rows = rows.Read(), got_heads = tile_head.Read();
    const std::vector<int2> got_ranges = ranges.Read();
    for (int32_t slot = 0; slot < tokens * heads; ++slot) {
      ASSERT_EQ(got_rows[slot], slot % tokens * heads + slot / tokens);
    }
    ASSERT_EQ(num_tiles.Read()[0], most);
    int32_t next = 0;
    for (int32_t i = 0; i < most; ++i) {
      ASSERT_EQ(got_ranges[i].x, next);
      ASSERT_GT(got_ranges[i].y, got_ranges[i].x);
      ASSERT_LE(got_ranges[i].y - got_ranges[i].x, tile_slots);
      ASSERT_EQ(got_ranges[i].x / tokens, got_heads[i]);
      ASSERT_EQ((got_ranges[i].y - 1) / tokens, got_heads[i]);
      next = got_ranges[i].y;
    }
    ASSERT_EQ(next, tokens * heads);

    const std::vector<float> values = Normal(tokens * heads * dim, 7);
    const DeviceBuffer<float> d_values(values);
    const DeviceBuffer<uint16_t> out(tokens * row_stride);
    ASSERT_EQ(GatherHeads(d_values.get(), tokens, heads, dim, out.get(), head_stride, row_stride, nullptr),
              nullptr);
    const std::vector<uint16_t> got = out.Read();
    for (int32_t t = 0; t < tokens; ++t) {
      for (int32_t i = 0; i < row_stride; ++i) {
        const int32_t head = i / head_stride, at = i % head_stride;
        const uint16_t want = head >= heads ? 0
                              : at >= dim   ? 0xFFFF
                                            : ToBf16(values[(head * tokens + t) * dim + at]);
        ASSERT_EQ(got[t * row_stride + i], want) << "token " << t << " element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::cuda
