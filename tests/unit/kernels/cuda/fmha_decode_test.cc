#include "kernels/cuda/fmha/fmha_decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/kernels/cuda/gpu.h"

namespace tessera::cuda {
namespace {

struct Shape {
  int32_t query_heads, kv_heads, head_dim, block_size;
  std::vector<int32_t> lengths;
  int32_t q_len = 1;
  int32_t window = 0;
  bool sinks = false;
  int32_t v_head_dim = 0;  // 0: head_dim; else MLA: the values are the first elements of the keys

  bool e4m3 = false;
  // The keys are given as a list of slots in random order, some of them none.
  bool listed = false;

  // How much larger the last keys are than the first: scores that keep growing, so that the running maximum moves.
  float growth = 1.0f;

  int32_t ValueDim() const { return v_head_dim ? v_head_dim : head_dim; }
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << s.query_heads << "/" << s.kv_heads << " d" << s.head_dim << " block " << s.block_size << " q "
             << s.q_len << " window " << s.window << " sinks " << s.sinks << " sequences " << s.lengths.size()
             << " first " << s.lengths[0] << (s.e4m3 ? " e4m3" : "") << (s.listed ? " listed" : "");
}

float FromE4m3(uint8_t code) {
  const float magnitude =
      code % 128 < 8 ? std::ldexp(code % 8, -9) : std::ldexp(8 + code % 8, code % 128 / 8 - 10);
  return code < 128 ? magnitude : -magnitude;
}

// A problem on the host: random queries, keys and values in scattered blocks; every cache slot that belongs to no
// sequence is NaN.
struct Problem {
  Shape shape;
  int32_t num_blocks = 0, stride = 0;
  std::vector<uint16_t> q, k, v;
  std::vector<uint8_t> k_codes, v_codes;  // e4m3: what k and v hold in bf16, without the scales
  float k_scale = 1.0f, v_scale = 1.0f;
  std::vector<int32_t> table;
  std::vector<int32_t> slots;         // listed: [sequence][longest]
  std::vector<std::vector<bool>> in;  // listed: which keys of a sequence are in the list
  std::vector<float> sinks;

  explicit Problem(const Shape& s, uint32_t seed = 1) : shape(s) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    const int32_t n = static_cast<int32_t>(s.lengths.size());
    for (int32_t length : s.lengths) {
      stride = std::max(stride, (length + s.block_size - 1) / s.block_size);
      num_blocks += (length + s.block_size - 1) / s.block_size;
    }
    num_blocks += 3;
    std::vector<int32_t> order(num_blocks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng);
    const size_t block_elements = size_t(s.kv_heads) * s.block_size * s.head_dim;
    k.assign(num_blocks * block_elements, 0x7FC0);
    v.assign(num_blocks * block_elements, 0x7FC0);
    table.assign(size_t(n) * stride, num_blocks - 1);
    if (s.e4m3) {
      k_scale = 0.3f;
      v_scale = 0.7f;
      k_codes.assign(k.size(), 0x7F);
      v_codes.assign(v.size(), 0x7F);
    }
    const auto value = [&](float scale, size_t at, std::vector<uint8_t>* codes) {
      if (!s.e4m3) return ToBf16(normal(rng) * scale);
      (*codes)[at] = rng() % 80 + rng() % 2 * 128;  // below 8, some of them subnormal
      return ToBf16(FromE4m3((*codes)[at]));
    };
    int32_t next = 0;
    for (int32_t i = 0; i < n; ++i) {
      in.emplace_back(s.lengths[i], true);
      for (int32_t key = 0; key < s.lengths[i]; ++key) {
        if (key % s.block_size == 0) table[size_t(i) * stride + key / s.block_size] = order[next++];
        if (s.listed && key > 0 && rng() % 4 == 0) {
          in[i][key] = false;
          continue;
        }
        for (int32_t h = 0; h < s.kv_heads; ++h) {
          for (int32_t d = 0; d < s.head_dim; ++d) {
            const size_t at = Slot(i, key, h) + d;
            k[at] = value(std::pow(s.growth, float(key) / s.lengths[i]), at, &k_codes);
            v[at] = s.v_head_dim ? k[at] : value(1.0f, at, &v_codes);
          }
        }
      }
    }
    if (s.listed) List(rng);
    q.resize(size_t(n) * s.q_len * s.query_heads * s.head_dim);
    for (auto& x : q) x = ToBf16(normal(rng));
    sinks.resize(s.query_heads);
    for (auto& x : sinks) x = normal(rng) * 2;
  }

  void List(std::mt19937& rng) {
    const int32_t longest = *std::max_element(shape.lengths.begin(), shape.lengths.end());
    slots.assign(shape.lengths.size() * longest, -1);
    for (size_t i = 0; i < shape.lengths.size(); ++i) {
      int32_t* row = &slots[i * longest];
      for (int32_t key = 0; key < shape.lengths[i]; ++key) {
        const int32_t block = table[i * stride + key / shape.block_size];
        if (in[i][key]) row[key] = block * shape.block_size + key % shape.block_size;
      }
      std::shuffle(row, row + shape.lengths[i], rng);
    }
  }

  size_t Slot(int32_t sequence, int32_t key, int32_t head) const {
    const int32_t block = table[size_t(sequence) * stride + key / shape.block_size];
    return ((size_t(block) * shape.kv_heads + head) * shape.block_size + key % shape.block_size) *
           shape.head_dim;
  }

  // One query row in double precision.
  std::vector<double> Reference(int32_t sequence, int32_t token, int32_t head) const {
    const int32_t length = shape.lengths[sequence];
    const int32_t position = length - shape.q_len + token;
    const int32_t first = shape.window > 0 ? std::max(0, position - shape.window + 1) : 0;
    const int32_t kv_head = head / (shape.query_heads / shape.kv_heads);
    const size_t q_at =
        ((size_t(sequence) * shape.q_len + token) * shape.query_heads + head) * shape.head_dim;
    std::vector<double> scores;
    double maximum = shape.sinks ? sinks[head] : -std::numeric_limits<double>::infinity();
    for (int32_t key = first; key <= position; ++key) {
      double score = 0;
      if (!in[sequence][key]) {
        scores.push_back(-std::numeric_limits<double>::infinity());
        continue;
      }
      for (int32_t d = 0; d < shape.head_dim; ++d) {
        score += double(FromBf16(q[q_at + d])) * FromBf16(k[Slot(sequence, key, kv_head) + d]);
      }
      scores.push_back(score * k_scale / std::sqrt(double(shape.head_dim)));
      maximum = std::max(maximum, scores.back());
    }
    double sum = shape.sinks ? std::exp(sinks[head] - maximum) : 0;
    std::vector<double> out(shape.ValueDim());
    for (int32_t key = first; key <= position; ++key) {
      if (!in[sequence][key]) continue;
      const double weight = std::exp(scores[key - first] - maximum);
      sum += weight;
      for (int32_t d = 0; d < shape.ValueDim(); ++d)
        out[d] += weight * FromBf16(v[Slot(sequence, key, kv_head) + d]);
    }
    const double scale = shape.v_head_dim && shape.e4m3 ? k_scale : v_scale;
    for (double& x : out) x *= scale / sum;
    return out;
  }
};

// Runs the sequences `which` of a problem as one batch.
std::vector<uint16_t> RunDecode(const Problem& problem, const std::vector<int32_t>& which) {
  const Shape& s = problem.shape;
  const size_t row = size_t(s.q_len) * s.query_heads * s.head_dim;
  std::vector<uint16_t> q;
  std::vector<int32_t> table, lengths, slots;
  const size_t longest = problem.slots.size() / s.lengths.size();
  for (int32_t i : which) {
    slots.insert(slots.end(), problem.slots.begin() + i * longest, problem.slots.begin() + (i + 1) * longest);
    q.insert(q.end(), problem.q.begin() + i * row, problem.q.begin() + (i + 1) * row);
    table.insert(table.end(), problem.table.begin() + size_t(i) * problem.stride,
                 problem.table.begin() + size_t(i + 1) * problem.stride);
    lengths.push_back(s.lengths[i]);
  }
  DeviceBuffer<uint16_t> d_q(q), d_k(problem.k), d_v(problem.v), d_out(q.size() / s.head_dim * s.ValueDim());
  DeviceBuffer<uint8_t> k_codes(problem.k_codes), v_codes(problem.v_codes);
  DeviceBuffer<int32_t> d_table(table), d_lengths(lengths), d_slots(slots);
  DeviceBuffer<float> d_sinks(problem.sinks);
  DeviceBuffer<uint8_t> workspace(
      FmhaDecodeWorkspaceBytes(which.size(), s.q_len, s.query_heads, s.kv_heads, s.ValueDim()));
  // Poisoned but for the counters; query heads that are too many for one item are divided, each part with counters.
  const int32_t parts = (s.q_len * (s.query_heads / s.kv_heads) + 15) / 16;
  EXPECT_EQ(cudaMemset(workspace.get(), 0, 256 + 512 * s.kv_heads * parts * 4), cudaSuccess);
  FmhaDecodeParams p;
  p.q = d_q.get();
  p.out = d_out.get();
  p.k_cache = d_k.get();
  p.v_cache = s.v_head_dim ? nullptr : d_v.get();
  if (s.e4m3) {
    p.kv_format = FmhaKvFormat::kE4m3;
    p.k_cache = k_codes.get();
    p.v_cache = s.v_head_dim ? nullptr : v_codes.get();
    p.k_scale = problem.k_scale;
    p.v_scale = s.v_head_dim ? problem.k_scale : problem.v_scale;
  }
  if (s.listed) {
    p.key_slots = d_slots.get();
    p.key_slots_stride = longest;
  } else {
    p.block_table = d_table.get();
  }
  p.lengths = d_lengths.get();
  p.sinks = s.sinks ? d_sinks.get() : nullptr;
  p.num_sequences = which.size();
  p.q_len = s.q_len;
  p.num_query_heads = s.query_heads;
  p.num_kv_heads = s.kv_heads;
  p.head_dim = s.head_dim;
  p.v_head_dim = s.v_head_dim;
  p.num_blocks = problem.num_blocks;
  p.block_size = s.block_size;
  p.block_table_stride = problem.stride;
  p.sliding_window = s.window;
  p.softmax_scale = 1.0f / std::sqrt(float(s.head_dim));
  p.workspace = workspace.get();
  std::vector<uint16_t> first;
  for (int round = 0; round < 2; ++round) {  // the second round finds the workspace as the first left it
    const char* error = FmhaDecode(p, nullptr);
    EXPECT_EQ(error, nullptr) << error;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    if (round == 0) {
      first = d_out.Read();
      EXPECT_EQ(cudaMemset(d_out.get(), 0xFF, first.size() * 2), cudaSuccess);
    } else {
      EXPECT_EQ(first, d_out.Read()) << "two runs differ";
    }
  }
  return first;
}

std::vector<int32_t> All(const Problem& problem) {
  std::vector<int32_t> all(problem.shape.lengths.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void ExpectEqualsDoublePrecision(const Problem& problem) {
  const Shape& s = problem.shape;
  const std::vector<uint16_t> out = RunDecode(problem, All(problem));
  double worst = 0, error2 = 0, norm2 = 0;
  std::mt19937 rng(7);
  for (int32_t i = 0; i < static_cast<int32_t>(s.lengths.size()); ++i) {
    for (int32_t token = 0; token < s.q_len; ++token) {
      for (int32_t head = 0; head < s.query_heads; ++head) {
        if (s.lengths[i] > 4096 && rng() % 4 != 0) continue;  // the reference is slow
        const std::vector<double> want = problem.Reference(i, token, head);
        const size_t at = ((size_t(i) * s.q_len + token) * s.query_heads + head) * s.ValueDim();
        for (int32_t d = 0; d < s.ValueDim(); ++d) {
          const double got = FromBf16(out[at + d]);
          ASSERT_TRUE(std::isfinite(got))
              << "sequence " << i << " token " << token << " head " << head << " d " << d;
          worst = std::max(worst, std::abs(got - want[d]));
          error2 += (got - want[d]) * (got - want[d]);
          norm2 += want[d] * want[d];
        }
      }
    }
  }
  // The weights and the result are rounded to bf16: 2^-9 relative each.
  EXPECT_LT(std::sqrt(error2 / norm2), 4e-3);
  EXPECT_LT(worst, 3e-2);
}

class FmhaDecodeShapes : public testing::TestWithParam<Shape> {};

TEST_P(FmhaDecodeShapes, EqualsDoublePrecision) {
  TESSERA_REQUIRE_GPU();
  ExpectEqualsDoublePrecision(Problem(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, FmhaDecodeShapes,
    testing::Values(
        Shape{8, 1, 128, 64, {1}}, Shape{8, 1, 128, 64, {64, 65, 63, 1, 128}},
        Shape{64, 8, 128, 64, {1000, 17, 4097, 2, 640}}, Shape{32, 4, 128, 16, {333, 16, 15, 1025, 2048}},
        Shape{16, 8, 128, 128, {500, 129, 1}}, Shape{4, 4, 128, 256, {700, 256}},
        Shape{64, 8, 64, 64, {1, 100, 5000}}, Shape{64, 4, 64, 16, {777, 31}},
        Shape{32, 1, 128, 64, {300, 65}}, Shape{16, 2, 256, 64, {900, 3}}, Shape{16, 1, 256, 16, {70, 2000}},
        Shape{32, 4, 128, 64, {130, 4, 999}, 2}, Shape{32, 4, 128, 16, {130, 4, 3000}, 4},
        Shape{32, 8, 128, 64, {500, 2000, 64}, 1, 128}, Shape{64, 8, 64, 16, {500, 2000, 129}, 1, 128, true},
        Shape{32, 4, 128, 64, {500, 70}, 3, 100, true}, Shape{64, 8, 64, 64, {1, 900}, 1, 0, true},
        Shape{16, 4, 64, 128, {200, 2, 385}, 2, 70}, Shape{64, 1, 128, 64, {300, 65}},
        Shape{24, 1, 256, 32, {140}, 2}, Shape{32, 4, 128, 16, {130, 8, 3000}, 8},
        Shape{64, 8, 64, 64, {900, 31}, 7, 0, true}, Shape{40, 1, 128, 64, {333}, 1, 100, true}));

// Many splits.
INSTANTIATE_TEST_SUITE_P(LongShapes, FmhaDecodeShapes,
                         testing::Values(Shape{32, 4, 128, 32, {9000}},
                                         Shape{32, 4, 128, 64, {20000, 70, 33000}}));

INSTANTIATE_TEST_SUITE_P(LargeHeads, FmhaDecodeShapes,
                         testing::Values(Shape{8, 1, 512, 64, {300, 17}},
                                         Shape{32, 2, 512, 16, {130}, 1, 100, true},
                                         Shape{32, 1, 512, 64, {1100, 5}},
                                         Shape{16, 1, 576, 64, {200, 33}, 1, 0, false, 512},
                                         Shape{128, 1, 576, 64, {140}, 1, 0, false, 512},
                                         Shape{64, 1, 576, 16, {50}, 1, 0, true, 512},
                                         Shape{16, 1, 576, 32, {2, 700, 1030}, 2, 0, false, 512}));

Shape E4m3(Shape shape) {
  shape.e4m3 = true;
  return shape;
}

Shape Listed(Shape shape) {
  shape.listed = true;
  return shape;
}

INSTANTIATE_TEST_SUITE_P(
    E4m3, FmhaDecodeShapes,
    testing::Values(E4m3({8, 1, 128, 64, {1, 64, 65, 700}}), E4m3({32, 4, 128, 16, {333, 15, 1025}}),
                    E4m3({64, 8, 64, 64, {100, 31, 900}}), E4m3({16, 1, 64, 128, {130}, 2, 100, true}),
                    E4m3({16, 2, 256, 32, {300, 3}}), E4m3({32, 1, 256, 64, {140}}),
                    E4m3({32, 1, 128, 64, {200}, 1, 70}), E4m3({64, 1, 128, 64, {150}}),
                    E4m3({16, 1, 64, 32, {90}, 4}), E4m3({32, 2, 512, 16, {130}}),
                    E4m3({32, 1, 512, 64, {70}}), E4m3({16, 1, 576, 64, {200, 33}, 1, 0, false, 512}),
                    E4m3({32, 1, 576, 16, {70}, 1, 0, true, 512})));

INSTANTIATE_TEST_SUITE_P(Listed, FmhaDecodeShapes,
                         testing::Values(Listed({8, 1, 128, 64, {1, 64, 65, 700}}),
                                         Listed({64, 8, 64, 16, {100, 31}, 1, 0, true}),
                                         Listed({16, 2, 256, 32, {300, 3}}), Listed({32, 1, 512, 64, {70}}),
                                         Listed({16, 1, 576, 64, {200, 33, 2000}, 1, 0, false, 512}),
                                         Listed({128, 1, 576, 64, {70}, 1, 0, false, 512}),
                                         E4m3(Listed({32, 4, 128, 16, {333, 15}})),
                                         E4m3(Listed({64, 8, 64, 64, {150}})),
                                         E4m3(Listed({16, 1, 576, 64, {200, 33}, 1, 0, false, 512}))));

// A list that names all keys in order gives the bits of the block table; what stands in it past the length is not read.
TEST(FmhaDecode, KeySlotsInOrderEqualTheBlockTable) {
  TESSERA_REQUIRE_GPU();
  for (const bool e4m3 : {false, true}) {
    Shape shape{16, 2, 128, 16, {77, 640, 1}};
    shape.e4m3 = e4m3;
    Problem problem(shape);
    const std::vector<uint16_t> by_table = RunDecode(problem, All(problem));
    problem.shape.listed = true;
    problem.slots.assign(3 * 640, 1 << 30);
    for (int32_t i = 0; i < 3; ++i) {
      for (int32_t key = 0; key < shape.lengths[i]; ++key) {
        problem.slots[i * 640 + key] = problem.table[i * problem.stride + key / 16] * 16 + key % 16;
      }
    }
    EXPECT_EQ(by_table, RunDecode(problem, All(problem)));
  }
}

// Scores whose maximum grows by more than the slack again and again: the output is rescaled, within splits and between.
TEST(FmhaDecode, FollowsAGrowingMaximum) {
  TESSERA_REQUIRE_GPU();
  for (const auto& [head_dim, window] : {std::pair{128, 0}, {64, 0}, {256, 0}, {128, 300}, {512, 0}}) {
    Shape shape{16, 2, head_dim, 64, {1500, 3000, 77}, 1, window};
    shape.growth = 40.0f;
    ExpectEqualsDoublePrecision(Problem(shape));
  }
}

TEST(FmhaDecode, DoesNotDependOnTheBatch) {
  TESSERA_REQUIRE_GPU();
  Shape shape{32, 4, 128, 16, {}};
  std::mt19937 rng(3);
  for (int i = 0; i < 256; ++i) shape.lengths.push_back(1 + rng() % 1500);
  const Problem problem(shape);
  const std::vector<uint16_t> batch = RunDecode(problem, All(problem));
  const size_t row = size_t(shape.query_heads) * shape.head_dim;
  for (int32_t i : {0, 1, 77, 128, 255}) {
    const std::vector<uint16_t> alone = RunDecode(problem, {i});
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), batch.begin() + i * row)) << "sequence " << i;
  }
}

// One sequence alone has a CTA for each of its splits, which combine them together; among a few others the last CTA does;
// among many, one CTA attends to all of its splits. (So on a device of few multiprocessors, which the emulator is; on an
// H200 DoesNotDependOnTheBatch takes the third way.)
class FmhaDecodeItems : public testing::TestWithParam<Shape> {};

TEST_P(FmhaDecodeItems, AllGiveTheSameBits) {
  TESSERA_REQUIRE_GPU();
  Shape shape = GetParam();
  while (shape.lengths.size() < 40) shape.lengths.push_back(shape.lengths[shape.lengths.size() % 3] + 1);
  const Problem problem(shape);
  const size_t row = size_t(shape.q_len) * shape.query_heads * shape.ValueDim();
  const auto first_rows = [&](int32_t count) {
    std::vector<int32_t> which(count);
    std::iota(which.begin(), which.end(), 0);
    std::vector<uint16_t> out = RunDecode(problem, which);
    out.resize(row);
    return out;
  };
  const std::vector<uint16_t> alone = first_rows(1);
  EXPECT_EQ(alone, first_rows(6));
  EXPECT_EQ(alone, first_rows(12));
  EXPECT_EQ(alone, first_rows(40));
}

INSTANTIATE_TEST_SUITE_P(Shapes, FmhaDecodeItems,
                         testing::Values(Shape{8, 1, 128, 64, {900, 640, 800}},
                                         Shape{4, 1, 64, 16, {1200, 300, 700}, 2, 0, true},
                                         Shape{16, 1, 128, 64, {700, 650, 800}, 1, 600},
                                         Shape{4, 1, 256, 64, {600, 530, 520}},
                                         Shape{4, 1, 512, 64, {520, 530, 515}},
                                         Shape{16, 1, 576, 64, {530, 520, 515}, 1, 0, false, 512},
                                         E4m3({8, 1, 128, 64, {900, 640, 800}})));

// The tokens of a prompt chunk, attended to in aligned runs and one by one: the same bits.
class FmhaDecodeRuns : public testing::TestWithParam<std::pair<Shape, int32_t>> {};

TEST_P(FmhaDecodeRuns, EqualSingleTokens) {
  TESSERA_REQUIRE_GPU();
  const auto& [shape, run] = GetParam();
  const Problem problem(shape);
  DeviceBuffer<uint16_t> q(problem.q), k(problem.k), v(problem.v);
  DeviceBuffer<int32_t> table(problem.table);
  DeviceBuffer<float> sinks(problem.sinks);
  // Attends with runs of `length` tokens whose first tokens are `firsts`; what it leaves out stays as it is.
  const auto attend = [&](int32_t length, const std::vector<int32_t>& firsts, DeviceBuffer<uint16_t>* out) {
    std::vector<int32_t> lengths;
    for (int32_t first : firsts) lengths.push_back(shape.lengths[0] - shape.q_len + first + length);
    DeviceBuffer<int32_t> d_firsts(firsts), d_lengths(lengths), rows(std::vector<int32_t>(firsts.size(), 0));
    DeviceBuffer<uint8_t> workspace(
        FmhaDecodeWorkspaceBytes(firsts.size(), length, shape.query_heads, shape.kv_heads, shape.head_dim));
    EXPECT_EQ(cudaMemset(workspace.get(), 0, 256 + 512 * shape.kv_heads * 4), cudaSuccess);
    FmhaDecodeParams p;
    p.q = q.get();
    p.out = out->get();
    p.k_cache = k.get();
    p.v_cache = v.get();
    p.block_table = table.get();
    p.table_rows = rows.get();
    p.first_tokens = d_firsts.get();
    p.lengths = d_lengths.get();
    p.sinks = shape.sinks ? sinks.get() : nullptr;
    p.num_sequences = firsts.size();
    p.q_len = length;
    p.num_query_heads = shape.query_heads;
    p.num_kv_heads = shape.kv_heads;
    p.head_dim = shape.head_dim;
    p.num_blocks = problem.num_blocks;
    p.block_size = shape.block_size;
    p.block_table_stride = problem.stride;
    p.sliding_window = shape.window;
    p.softmax_scale = 1.0f / std::sqrt(float(shape.head_dim));
    p.workspace = workspace.get();
    EXPECT_EQ(FmhaDecode(p, nullptr), nullptr);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  };
  DeviceBuffer<uint16_t> one_by_one(problem.q.size()), in_runs(problem.q.size());
  std::vector<int32_t> all(shape.q_len), firsts, rest;
  std::iota(all.begin(), all.end(), 0);
  attend(1, all, &one_by_one);
  for (int32_t token = 0, start = shape.lengths[0] - shape.q_len; token < shape.q_len;) {
    const bool whole = (start + token) % run == 0 && token + run <= shape.q_len;
    (whole ? firsts : rest).push_back(token);
    token += whole ? run : 1;
  }
  std::reverse(firsts.begin(), firsts.end());
  ASSERT_GT(firsts.size(), 1u);
  attend(run, firsts, &in_runs);
  if (!rest.empty()) attend(1, rest, &in_runs);
  EXPECT_EQ(one_by_one.Read(), in_runs.Read());
}

INSTANTIATE_TEST_SUITE_P(Shapes, FmhaDecodeRuns,
                         testing::Values(std::pair{Shape{32, 4, 128, 16, {1103}, 40}, 8},
                                         std::pair{Shape{32, 4, 128, 64, {203}, 75}, 4},
                                         std::pair{Shape{64, 8, 64, 64, {700}, 33, 100, true}, 8},
                                         std::pair{Shape{16, 2, 256, 64, {330}, 20}, 2},
                                         std::pair{Shape{4, 4, 128, 32, {600}, 100}, 32},
                                         std::pair{Shape{8, 1, 512, 32, {530}, 12}, 4}));

TEST(FmhaDecode, RefusesShapesItCannotTake) {
  FmhaDecodeParams p;
  EXPECT_NE(FmhaDecode(p, nullptr), nullptr);
  int dummy;
  p.q = p.k_cache = p.v_cache = &dummy;
  p.out = p.workspace = &dummy;
  p.block_table = p.lengths = &dummy;
  p.num_sequences = 1;
  p.num_query_heads = 8;
  p.num_kv_heads = 3;
  p.num_blocks = p.block_table_stride = 1;
  p.block_size = 64;
  p.head_dim = 128;
  EXPECT_NE(std::string(FmhaDecode(p, nullptr)).find("num_query_heads"), std::string::npos);
  p.num_kv_heads = 8;
  p.head_dim = 96;
  EXPECT_NE(std::string(FmhaDecode(p, nullptr)).find("head_dim"), std::string::npos);
  p.head_dim = 128;
  p.key_slots = &dummy;
  p.key_slots_stride = 1;
  p.q_len = 2;
  EXPECT_NE(std::string(FmhaDecode(p, nullptr)).find("key_slots"), std::string::npos);
  p.key_slots = nullptr;
  p.q_len = 1;
  p.block_size = 48;
  EXPECT_NE(std::string(FmhaDecode(p, nullptr)).find("block_size"), std::string::npos);
}

}  // namespace
}  // namespace tessera::cuda
