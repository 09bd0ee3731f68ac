// A token's logits are the same bits whatever shares its step: other rows, the cut into chunks, block placement, number
// of threads, what the cache held before. On every instruction set of the machine, over models of all kinds of layer.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "gtest/gtest.h"
#include "kernels/cpu/isa.h"
#include "tests/unit/server/backend/golden_model.h"

namespace tessera {
namespace {

constexpr int32_t kNumBlocks = 64;

class InvarianceTest : public testing::TestWithParam<std::tuple<cpu::Isa, std::string>> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(cpu::ForceIsa(std::get<0>(GetParam())).ok());
    directory_ = GoldenDirectory(std::get<1>(GetParam()));
  }
  void TearDown() override { ASSERT_TRUE(cpu::ForceIsa(cpu::BestIsa()).ok()); }

  static std::vector<int32_t> RandomTokens(const ModelSpec& spec, int length, int seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> tokens(length);
    for (int32_t& token : tokens) token = random() % spec.vocab_size;
    return tokens;
  }

  // `count` different blocks.
  static std::vector<int32_t> RandomBlocks(std::vector<int32_t>* free, int count) {
    std::vector<int32_t> blocks(free->end() - count, free->end());
    free->resize(free->size() - count);
    return blocks;
  }

  static std::vector<int32_t> ShuffledBlocks(int seed) {
    std::vector<int32_t> blocks(kNumBlocks);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(seed));
    return blocks;
  }

  static void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
          << "value " << i << ": " << a[i] << " and " << b[i];
    }
  }

  std::string directory_;
};

TEST_P(InvarianceTest, ChunksThreadsAndBlocksDoNotMatter) {
  TestModel one(directory_, 1, kNumBlocks);
  TestModel three(directory_, 3, kNumBlocks);
  ASSERT_TRUE(one.ok() && three.ok());
  const std::vector<int32_t> tokens = RandomTokens(one.spec(), 150, 7);
  std::vector<int32_t> in_order(10);
  std::iota(in_order.begin(), in_order.end(), 0);
  const std::vector<float> expected = one.RunChunked(tokens, in_order, {150});
  int seed = 0;
  for (const std::vector<int32_t>& chunks :
       {std::vector<int32_t>{150}, {1}, {64, 64, 22}, {3, 61, 16, 17, 1}, {149, 1}}) {
    std::vector<int32_t> free = ShuffledBlocks(++seed);
    ExpectSameBits(three.RunChunked(tokens, RandomBlocks(&free, 10), chunks), expected);
  }
}

TEST_P(InvarianceTest, OtherRowsDoNotMatter) {
  TestModel alone(directory_, 2, kNumBlocks);
  TestModel batched(directory_, 2, kNumBlocks);
  ASSERT_TRUE(alone.ok() && batched.ok());
  constexpr int kSequences = 7;
  const int32_t vocab = alone.spec().vocab_size;
  std::vector<std::vector<int32_t>> tokens(kSequences), tables(kSequences);
  std::vector<std::vector<float>> expected(kSequences), actual(kSequences);
  std::vector<int32_t> free = ShuffledBlocks(99);
  for (int s = 0; s < kSequences; ++s) {
    const int length = 20 + 17 * s;
    tokens[s] = RandomTokens(alone.spec(), length, s);
    tables[s] = RandomBlocks(&free, (length + 15) / 16);
    expected[s] = alone.RunChunked(tokens[s], tables[s], {length});
  }
  // Decode rows and prefill chunks of all sizes mixed, rows in changing order, sequences joining late.
  std::mt19937 random(5);
  std::vector<int> position(kSequences, 0);
  for (int step = 0; true; ++step) {
    std::vector<int> order;
    for (int s = 0; s < kSequences; ++s) {
      if (step >= s && position[s] < static_cast<int>(tokens[s].size())) order.push_back(s);
    }
    if (order.empty()) break;
    std::shuffle(order.begin(), order.end(), random);
    std::vector<BatchRow> rows;
    for (const int s : order) {
      const int left = tokens[s].size() - position[s];
      const int size = std::min<int>(left, random() % 3 == 0 ? 1 + random() % 40 : 1);
      BatchRow row;
      row.tokens = absl::MakeConstSpan(tokens[s]).subspan(position[s], size);
      row.start = position[s];
      row.block_table = tables[s];
      rows.push_back(row);
    }
    const std::vector<float> logits = batched.Run(rows);
    const float* next = logits.data();
    for (size_t r = 0; r < rows.size(); ++r) {
      const int s = order[r];
      actual[s].insert(actual[s].end(), next, next + rows[r].tokens.size() * vocab);
      next += rows[r].tokens.size() * vocab;
      position[s] += rows[r].tokens.size();
    }
  }
  for (int s = 0; s < kSequences; ++s) ExpectSameBits(actual[s], expected[s]);
}

INSTANTIATE_TEST_SUITE_P(Isas, InvarianceTest,
                         testing::Combine(testing::ValuesIn(cpu::SupportedIsas()),
                                          testing::ValuesIn(TinyModels())),
                         [](const auto& info) {
                           std::string name(cpu::IsaName(std::get<0>(info.param)));
                           name += "_" + std::get<1>(info.param);
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
                           return name;
                         });

}  // namespace
}  // namespace tessera
