#include "kernels/cuda/fmha/fmha_prefill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/fmha/fmha_decode.h"
#include "tests/unit/kernels/cuda/gpu.h"

namespace tessera::cuda {
namespace {

// The last `tokens` tokens of a sequence of `length` keys.
struct Piece {
  int32_t tokens, length;
};

struct Shape {
  int32_t query_heads, kv_heads, head_dim, block_size;
  std::vector<Piece> pieces;  // one a sequence
  int32_t window = 0;
  bool sinks = false;
  float growth =
      1.0f;  // how much larger the last keys are than the first: the running maximum moves again and again
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << s.query_heads << "/" << s.kv_heads << " d" << s.head_dim << " block " << s.block_size
             << " window " << s.window << " sinks " << s.sinks << " sequences " << s.pieces.size()
             << " first " << s.pieces[0].tokens << " of " << s.pieces[0].length;
}

constexpr uint16_t kNan = 0x7FC0, kUntouched = 0xFFFF;

// Random queries, keys and values in scattered blocks; every cache slot that belongs to no sequence is NaN. Between the
// sequences' tokens lies a token that no chunk names.
struct Problem {
  Shape shape;
  int32_t num_blocks = 3, stride = 1, num_tokens = 0;
  std::vector<int32_t> first_token;  // of each sequence
  std::vector<uint16_t> q, k, v;
  std::vector<int32_t> table;
  std::vector<float> sinks;

  explicit Problem(const Shape& s, uint32_t seed = 1) : shape(s) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    const int32_t n = static_cast<int32_t>(s.pieces.size());
    for (const Piece& piece : s.pieces) {
      const int32_t blocks = (piece.length + s.block_size - 1) / s.block_size;
      stride = std::max(stride, blocks);
      num_blocks += blocks;
      first_token.push_back(num_tokens + 1);
      num_tokens += piece.tokens + 1;
    }
    std::vector<int32_t> order(num_blocks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng);
    const size_t elements = size_t(num_blocks) * s.kv_heads * s.block_size * s.head_dim;
    k.assign(elements, kNan);
    v.assign(elements, kNan);
    table.assign(size_t(n) * stride, num_blocks - 1);
    int32_t next = 0;
    for (int32_t i = 0; i < n; ++i) {
      for (int32_t key = 0; key < s.pieces[i].length; ++key) {
        if (key % s.block_size == 0) table[size_t(i) * stride + key / s.block_size] = order[next++];
        const float scale = std::pow(s.growth, float(key) / s.pieces[i].length);
        for (int32_t h = 0; h < s.kv_heads; ++h) {
          for (int32_t d = 0; d < s.head_dim; ++d) {
            k[Slot(i, key, h) + d] = ToBf16(normal(rng) * scale);
            v[Slot(i, key, h) + d] = ToBf16(normal(rng));
          }
        }
      }
    }
    q.resize(size_t(num_tokens) * s.query_heads * s.head_dim);
    for (auto& x : q) x = ToBf16(normal(rng));
    sinks.resize(s.query_heads);
    for (auto& x : sinks) x = normal(rng) * 2;
  }

  size_t Slot(int32_t sequence, int32_t key, int32_t head) const {
    const int32_t block = table[size_t(sequence) * stride + key / shape.block_size];
    return ((size_t(block) * shape.kv_heads + head) * shape.block_size + key % shape.block_size) *
           shape.head_dim;
  }

  size_t Row(int32_t sequence, int32_t token, int32_t head) const {
    return (size_t(first_token[sequence] + token) * shape.query_heads + head) * shape.head_dim;
  }

  std::vector<double> Reference(int32_t sequence, int32_t token, int32_t head) const {
    const Piece& piece = shape.pieces[sequence];
    const int32_t position = piece.length - piece.tokens + token;
    const int32_t first = shape.window > 0 ? std::max(0, position - shape.window + 1) : 0;
    const int32_t kv_head = head / (shape.query_heads / shape.kv_heads);
    std::vector<double> scores;
    double maximum = shape.sinks ? sinks[head] : -std::numeric_limits<double>::infinity();
    for (int32_t key = first; key <= position; ++key) {
      double score = 0;
      for (int32_t d = 0; d < shape.head_dim; ++d) {
        score += double(FromBf16(q[Row(sequence, token, head) + d])) *
                 FromBf16(k[Slot(sequence, key, kv_head) + d]);
      }
      scores.push_back(score / std::sqrt(double(shape.head_dim)));
      maximum = std::max(maximum, scores.back());
    }
    double sum = shape.sinks ? std::exp(sinks[head] - maximum) : 0;
    std::vector<double> out(shape.head_dim);
    for (int32_t key = first; key <= position; ++key) {
      const double weight = std::exp(scores[key - first] - maximum);
      sum += weight;
      for (int32_t d = 0; d < shape.head_dim; ++d)
        out[d] += weight * FromBf16(v[Slot(sequence, key, kv_head) + d]);
    }
    for (double& x : out) x /= sum;
    return out;
  }

  // A piece as one chunk.
  FmhaPrefillChunk Whole(int32_t sequence) const {
    return {first_token[sequence], shape.pieces[sequence].tokens, shape.pieces[sequence].length, sequence};
  }
  std::vector<FmhaPrefillChunk> All() const {
    std::vector<FmhaPrefillChunk> all;
    for (int32_t i = 0; i < static_cast<int32_t>(shape.pieces.size()); ++i) all.push_back(Whole(i));
    return all;
  }
};

// A problem on the device.
class Device {
 public:
  explicit Device(const Problem& problem)
      : problem_(problem),
        q_(problem.q),
        k_(problem.k),
        v_(problem.v),
        out_(problem.q.size()),
        table_(problem.table),
        sinks_(problem.sinks),
        workspace_(FmhaPrefillWorkspaceBytes(problem.shape.head_dim)) {
    workspace_.Zero();
  }

  // A launch with these chunks; what they leave out stays as it is.
  void Prefill(const std::vector<FmhaPrefillChunk>& chunks) {
    const Shape& s = problem_.shape;
    DeviceBuffer<FmhaPrefillChunk> d_chunks(chunks);
    FmhaPrefillParams p;
    p.q = q_.get();
    p.out = out_.get();
    p.k_cache = k_.get();
    p.v_cache = v_.get();
    p.block_table = table_.get();
    p.chunks = d_chunks.get();
    p.sinks = s.sinks ? sinks_.get() : nullptr;
    p.num_chunks = chunks.size();
    for (const FmhaPrefillChunk& chunk : chunks) p.num_tokens += chunk.num_tokens;
    p.num_query_heads = s.query_heads;
    p.num_kv_heads = s.kv_heads;
    p.head_dim = s.head_dim;
    p.num_blocks = problem_.num_blocks;
    p.block_size = s.block_size;
    p.block_table_stride = problem_.stride;
    p.sliding_window = s.window;
    p.softmax_scale = 1.0f / std::sqrt(float(s.head_dim));
    p.workspace = workspace_.get();
    const char* error = FmhaPrefill(p, nullptr);
    EXPECT_EQ(error, nullptr) << error;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  // The tokens of a piece one by one.
  void Decode(int32_t sequence) {
    const Shape& s = problem_.shape;
    const Piece& piece = s.pieces[sequence];
    std::vector<int32_t> lengths(piece.tokens);
    std::iota(lengths.begin(), lengths.end(), piece.length - piece.tokens + 1);
    for (int32_t first = 0; first < piece.tokens; first += 512) {
      const int32_t count = std::min(512, piece.tokens - first);
      DeviceBuffer<int32_t> d_lengths(
          std::vector<int32_t>(lengths.begin() + first, lengths.begin() + first + count));
      DeviceBuffer<int32_t> rows(std::vector<int32_t>(count, sequence));
      DeviceBuffer<uint8_t> workspace(
          FmhaDecodeWorkspaceBytes(count, 1, s.query_heads, s.kv_heads, s.head_dim));
      workspace.Zero();
      FmhaDecodeParams p;
      p.q = q_.get() + problem_.Row(sequence, first, 0);
      p.out = out_.get() + problem_.Row(sequence, first, 0);
      p.k_cache = k_.get();
      p.v_cache = v_.get();
      p.block_table = table_.get();
      p.table_rows = rows.get();
      p.lengths = d_lengths.get();
      p.sinks = s.sinks ? sinks_.get() : nullptr;
      p.num_sequences = count;
      p.num_query_heads = s.query_heads;
      p.num_kv_heads = s.kv_heads;
      p.head_dim = s.head_dim;
      p.num_blocks = problem_.num_blocks;
      p.block_size = s.block_size;
      p.block_table_stride = problem_.stride;
      p.sliding_window = s.window;
      p.softmax_scale = 1.0f / std::sqrt(float(s.head_dim));
      p.workspace = workspace.get();
      const char* error = FmhaDecode(p, nullptr);
      EXPECT_EQ(error, nullptr) << error;
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
  }

  // What the launches since the last call wrote.
  std::vector<uint16_t> Take() {
    std::vector<uint16_t> out = out_.Read();
    EXPECT_EQ(cudaMemset(out_.get(), 0xFF, out.size() * 2), cudaSuccess);
    return out;
  }

 private:
  const Problem& problem_;
  DeviceBuffer<uint16_t> q_, k_, v_, out_;
  DeviceBuffer<int32_t> table_;
  DeviceBuffer<float> sinks_;
  DeviceBuffer<uint8_t> workspace_;
};

void ExpectEqualsDoublePrecision(const Problem& problem) {
  const Shape& s = problem.shape;
  Device device(problem);
  device.Prefill(problem.All());
  const std::vector<uint16_t> out = device.Take();
  device.Prefill(problem.All());
  EXPECT_EQ(out, device.Take()) << "two runs differ";
  double worst = 0, error2 = 0, norm2 = 0;
  std::mt19937 rng(7);
  for (int32_t i = 0; i < static_cast<int32_t>(s.pieces.size()); ++i) {
    const Piece& piece = s.pieces[i];
    for (int32_t h = 0; h < s.query_heads * s.head_dim; ++h) {
      ASSERT_EQ(out[problem.Row(i, -1, 0) + h], kUntouched) << "before sequence " << i;
    }
    for (int32_t token = 0; token < piece.tokens; ++token) {
      for (int32_t head = 0; head < s.query_heads; ++head) {
        for (int32_t d = 0; d < s.head_dim; ++d) {
          ASSERT_TRUE(std::isfinite(FromBf16(out[problem.Row(i, token, head) + d])))
              << "sequence " << i << " token " << token << " head " << head << " d " << d;
        }
        // The reference is slow: of long pieces the first, the last and some tokens.
        const bool checked =
            token < 8 || token >= piece.tokens - 8 || rng() % 2048 * piece.length < (1 << 16);
        if (!checked) continue;
        const std::vector<double> want = problem.Reference(i, token, head);
        for (int32_t d = 0; d < s.head_dim; ++d) {
          const double error = FromBf16(out[problem.Row(i, token, head) + d]) - want[d];
          worst = std::max(worst, std::abs(error));
          error2 += error * error;
          norm2 += want[d] * want[d];
        }
      }
    }
  }
  // The weights and the result are rounded to bf16: 2^-9 relative each.
  EXPECT_LT(std::sqrt(error2 / norm2), 4e-3);
  EXPECT_LT(worst, 3e-2);
}

class FmhaPrefillShapes : public testing::TestWithParam<Shape> {};

TEST_P(FmhaPrefillShapes, EqualsDoublePrecision) {
  TESSERA_REQUIRE_HOPPER();
  ExpectEqualsDoublePrecision(Problem(GetParam()));
}

TEST_P(FmhaPrefillShapes, EqualsDecodedTokens) {
  TESSERA_REQUIRE_HOPPER();
  const Problem problem(GetParam());
  Device device(problem);
  device.Prefill(problem.All());
  const std::vector<uint16_t> prefilled = device.Take();
  for (size_t i = 0; i < problem.shape.pieces.size(); ++i) device.Decode(i);
  EXPECT_EQ(prefilled, device.Take());
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, FmhaPrefillShapes,
    testing::Values(Shape{8, 1, 128, 64, {{1, 1}}},
                    Shape{8, 1, 128, 64, {{64, 64}, {17, 200}, {1, 65}, {3, 128}}},
                    Shape{4, 4, 128, 32, {{150, 150}}}, Shape{8, 2, 128, 16, {{70, 333}, {16, 16}}},
                    Shape{10, 2, 128, 128, {{60, 129}, {33, 33}}}, Shape{12, 1, 128, 256, {{40, 300}}},
                    Shape{8, 1, 64, 64, {{100, 100}, {30, 700}}}, Shape{3, 3, 64, 16, {{80, 99}}},
                    Shape{16, 2, 64, 64, {{50, 400}}, 100, true},
                    Shape{8, 1, 128, 16, {{90, 390}, {20, 20}}, 70, true},
                    Shape{2, 2, 128, 64, {{200, 333}}, 128}, Shape{4, 4, 128, 64, {{130, 130}}, 1},
                    Shape{8, 1, 256, 64, {{50, 300}, {5, 5}}}, Shape{5, 1, 256, 16, {{30, 77}}, 40, true}));

// More splits than one, of several sizes in one work item.
INSTANTIATE_TEST_SUITE_P(LongShapes, FmhaPrefillShapes,
                         testing::Values(Shape{8, 1, 128, 64, {{64, 2080}}},
                                         Shape{1, 1, 128, 64, {{110, 4150}}},
                                         Shape{4, 1, 64, 16, {{40, 4110}, {5, 9000}}},
                                         Shape{2, 1, 256, 64, {{80, 2090}}}));

TEST(FmhaPrefill, FollowsAGrowingMaximum) {
  TESSERA_REQUIRE_HOPPER();
  for (const auto& [head_dim, window] : {std::pair{128, 0}, {64, 0}, {256, 0}, {128, 300}}) {
    ExpectEqualsDoublePrecision(Problem({8, 1, head_dim, 64, {{40, 900}, {77, 77}}, window, false, 40.0f}));
  }
}

// However a prompt is cut, and in whatever order its chunks come, its tokens get the same bits.
TEST(FmhaPrefill, DoesNotDependOnTheChunks) {
  TESSERA_REQUIRE_HOPPER();
  for (const Shape& shape :
       {Shape{8, 1, 128, 64, {{300, 420}, {31, 500}}}, Shape{5, 1, 64, 16, {{211, 211}}, 90, true},
        Shape{2, 1, 256, 32, {{150, 270}}}}) {
    const Problem problem(shape);
    Device device(problem);
    device.Prefill(problem.All());
    const std::vector<uint16_t> whole = device.Take();
    std::mt19937 rng(11);
    for (int round = 0; round < 3; ++round) {
      std::vector<FmhaPrefillChunk> chunks;
      for (const FmhaPrefillChunk& all : problem.All()) {
        for (int32_t token = 0; token < all.num_tokens;) {
          const int32_t count = std::min<int32_t>(1 + rng() % 80, all.num_tokens - token);
          chunks.push_back(
              {all.first_token + token, count, all.length - all.num_tokens + token + count, all.table_row});
          token += count;
        }
      }
      std::shuffle(chunks.begin(), chunks.end(), rng);
      if (round == 0) {
        for (const FmhaPrefillChunk& chunk : chunks) device.Prefill({chunk});
      } else {
        device.Prefill(chunks);
      }
      EXPECT_EQ(whole, device.Take()) << shape << " round " << round;
    }
  }
}

// More chunks than lanes in a warp, more items than CTAs.
TEST(FmhaPrefill, TakesManyChunks) {
  TESSERA_REQUIRE_HOPPER();
  Shape shape{4, 2, 64, 16, {}};
  std::mt19937 rng(5);
  for (int i = 0; i < 75; ++i) {
    const int32_t tokens = 1 + rng() % 20;
    shape.pieces.push_back({tokens, tokens + int32_t(rng() % 60)});
  }
  ExpectEqualsDoublePrecision(Problem(shape));
}

TEST(FmhaPrefill, RefusesShapesItCannotTake) {
  FmhaPrefillParams p;
  EXPECT_NE(FmhaPrefill(p, nullptr), nullptr);
  int dummy;
  FmhaPrefillChunk chunk;
  p.q = p.k_cache = p.v_cache = &dummy;
  p.out = p.workspace = &dummy;
  p.block_table = &dummy;
  p.chunks = &chunk;
  p.num_chunks = 2;
  p.num_tokens = 1;
  EXPECT_NE(std::string(FmhaPrefill(p, nullptr)).find("num_chunks"), std::string::npos);
  p.num_chunks = 1;
  p.num_query_heads = 8;
  p.num_kv_heads = 3;
  p.num_blocks = p.block_table_stride = 1;
  p.block_size = 64;
  p.head_dim = 128;
  EXPECT_NE(std::string(FmhaPrefill(p, nullptr)).find("num_query_heads"), std::string::npos);
  p.num_kv_heads = 8;
  p.head_dim = 96;
  EXPECT_NE(std::string(FmhaPrefill(p, nullptr)).find("head_dim"), std::string::npos);
  p.head_dim = 128;
  p.block_size = 48;
  EXPECT_NE(std::string(FmhaPrefill(p, nullptr)).find("block_size"), std::string::npos);
  EXPECT_FALSE(HasFmhaPrefill(96));
}

}  // namespace
}  // namespace tessera::cuda
