#include "kernels/cpu/moe/moe.h"

#include <memory>
#include <numeric>

#include "kernels/cpu/reference.h"
#include "tests/unit/kernels/cpu/test_util.h"

namespace tessera::cpu {
namespace {

class Experts {
 public:
  Experts(WeightFormat format, int count, int64_t hidden, int64_t intermediate) {
    for (int e = 0; e < count; ++e) {
      // Weights of unit variance would blow up: activations of a layer are of the order of one.
      weights_.push_back(std::make_unique<TestWeights>(format, intermediate, hidden, 10 + e));
      weights_.push_back(std::make_unique<TestWeights>(format, intermediate, hidden, 100 + e));
      weights_.push_back(std::make_unique<TestWeights>(format, hidden, intermediate, 1000 + e));
      MoeExpert expert{Scaled(weights_[3 * e]->view(), hidden), Scaled(weights_[3 * e + 1]->view(), hidden),
                       Scaled(weights_[3 * e + 2]->view(), intermediate)};
      experts_.push_back(expert);
    }
  }
  absl::Span<const MoeExpert> view() const { return experts_; }

  // The same experts with a bias on each matrix.
  Experts& AddBiases() {
    Random random(12);
    for (MoeExpert& expert : experts_) {
      for (const auto& [bias, n] :
           {std::pair(&expert.gate_bias, expert.gate.n), std::pair(&expert.up_bias, expert.up.n),
            std::pair(&expert.down_bias, expert.down.n)}) {
        biases_.push_back(std::make_unique<std::vector<float>>(random.Normals(n)));
        *bias = biases_.back()->data();
      }
    }
    return *this;
  }

 private:
  static PackedLinear Scaled(PackedLinear weights, int64_t k) {
    if (weights.format == WeightFormat::kNvfp4) weights.tensor_scale /= std::sqrt(static_cast<float>(k));
    return weights;
  }
  std::vector<std::unique_ptr<TestWeights>> weights_;
  std::vector<MoeExpert> experts_;
  std::vector<std::unique_ptr<std::vector<float>>> biases_;
};

struct Batch {
  int64_t tokens;
  int top_k;
  std::vector<Bf16> x;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Batch MakeBatch(int64_t tokens, int top_k, int experts, int64_t hidden, uint32_t seed) {
  Random random(seed);
  Batch batch{tokens, top_k, random.Bf16Normals(tokens * hidden), {}, {}};
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<int32_t> all(experts);
    std::iota(all.begin(), all.end(), 0);
    random.Shuffle(all.begin(), all.end());
    batch.ids.insert(batch.ids.end(), all.begin(), all.begin() + top_k);
    for (int j = 0; j < top_k; ++j) batch.weights.push_back(0.1f + std::fabs(random.Normal()));
  }
  return batch;
}

std::vector<float> RunMoe(absl::Span<const MoeExpert> experts, const Batch& batch, int64_t first,
                          int64_t tokens, int threads, MoeArgs* args_out = nullptr, const Glu& glu = {}) {
  const int64_t hidden = experts[0].gate.k;
  std::vector<float> out(tokens * hidden, kNaN);
  MoeArgs args;
  args.experts = experts;
  args.top_k = batch.top_k;
  args.glu = glu;
  args.x = batch.x.data() + first * hidden;
  args.x_stride = hidden;
  args.tokens = tokens;
  args.ids = batch.ids.data() + first * batch.top_k;
  args.weights = batch.weights.data() + first * batch.top_k;
  args.out = out.data();
  args.out_stride = hidden;
  ThreadPool pool(threads);
  AlignedBuffer<std::byte> workspace(
      MoeWorkspaceBytes(tokens, batch.top_k, static_cast<int>(experts.size()), hidden, experts[0].gate.n));
  const absl::Status status = MoeForward(args, workspace.workspace(), pool);
  EXPECT_TRUE(status.ok()) << status;
  if (args_out != nullptr) *args_out = args;
  return out;
}

class MoeTest : public EachIsa {};

TEST_P(MoeTest, MatchesDoublePrecision) {
  struct Case {
    WeightFormat format;
    int experts, top_k;
    int64_t hidden, intermediate, tokens;
  };
  for (const Case& c :
       {Case{WeightFormat::kNvfp4, 16, 4, 128, 48, 1}, Case{WeightFormat::kNvfp4, 16, 2, 192, 80, 37},
        Case{WeightFormat::kNvfp4, 3, 3, 64, 32, 64}, Case{WeightFormat::kNvfp4, 8, 1, 80, 112, 5},
        Case{WeightFormat::kBf16, 5, 2, 33, 19, 29}, Case{WeightFormat::kBf16, 4, 2, 32, 7, 1},
        Case{WeightFormat::kNvfp4, 40, 8, 208, 96, 3}}) {
    SCOPED_TRACE(::testing::Message()
                 << c.experts << " experts, hidden " << c.hidden << ", tokens " << c.tokens);
    const Experts experts(c.format, c.experts, c.hidden, c.intermediate);
    const Batch batch = MakeBatch(c.tokens, c.top_k, c.experts, c.hidden, 3);
    MoeArgs args;
    const std::vector<float> out = RunMoe(experts.view(), batch, 0, c.tokens, 2, &args);
    const std::vector<double> expected = reference::Moe(args);
    double magnitude = 0;
    for (double v : expected) magnitude = std::max(magnitude, std::fabs(v));
    // An intermediate value may fall on the other side of a BF16 rounding boundary: 2^-9 of one term.
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 3e-4 * magnitude) << i;
    double sum_error = 0;
    for (size_t i = 0; i < out.size(); ++i) sum_error += std::fabs(out[i] - expected[i]);
    EXPECT_LT(sum_error / static_cast<double>(out.size()), 1e-5 * magnitude);
  }
}

TEST_P(MoeTest, ATokenAloneGivesTheSameBitsAsInAnyBatch) {
  for (WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kBf16}) {
    const int64_t hidden = 96, tokens = 64;
    const Experts experts(format, 4, hidden, 48);
    const Batch batch = MakeBatch(tokens, 2, 4, hidden, 5);
    std::vector<float> alone;
    for (int64_t t = 0; t < tokens; ++t) {
      const std::vector<float> one = RunMoe(experts.view(), batch, t, 1, 1);
      alone.insert(alone.end(), one.begin(), one.end());
    }
    for (int64_t size : {2, 3, 7, 16, 25, 33, 64}) {
      for (int64_t first = 0; first + size <= tokens; first += size) {
        const std::vector<float> part =
            RunMoe(experts.view(), batch, first, size, 1 + static_cast<int>(size % 3));
        ASSERT_TRUE(SameBits(part.data(), alone.data() + first * hidden, size * hidden))
            << first << "+" << size;
      }
    }
  }
}

TEST_P(MoeTest, BiasesAndClampedActivationMatchDoublePrecisionAloneAndTogether) {
  const Glu glu{/*limit=*/1.5f, /*sigmoid_scale=*/1.702f, /*up_offset=*/1.0f};
  for (WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kBf16}) {
    const int64_t hidden = 48, intermediate = 80, tokens = 21;
    Experts experts(format, 5, hidden, intermediate);
    experts.AddBiases();
    const Batch batch = MakeBatch(tokens, 2, 5, hidden, 9);
    MoeArgs args;
    const std::vector<float> out = RunMoe(experts.view(), batch, 0, tokens, 2, &args, glu);
    const std::vector<double> expected = reference::Moe(args);
    double magnitude = 0;
    for (double v : expected) magnitude = std::max(magnitude, std::fabs(v));
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 3e-4 * magnitude) << i;
    for (int64_t t = 0; t < tokens; ++t) {
      const std::vector<float> one = RunMoe(experts.view(), batch, t, 1, 1, nullptr, glu);
      ASSERT_TRUE(SameBits(one.data(), out.data() + t * hidden, hidden)) << t;
    }
  }
}

TEST_P(MoeTest, AllTokensOnOneExpertAndATokenNamedTwice) {
  const Experts experts(WeightFormat::kNvfp4, 6, 64, 32);
  Batch batch = MakeBatch(40, 2, 6, 64, 6);
  for (int32_t& id : batch.ids) id = 5;
  MoeArgs args;
  const std::vector<float> out = RunMoe(experts.view(), batch, 0, 40, 2, &args);
  const std::vector<double> expected = reference::Moe(args);
  for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 2e-3);
}

TEST_P(MoeTest, ANaNTokenLeavesTheOthersAlone) {
  const Experts experts(WeightFormat::kNvfp4, 4, 64, 32);
  Batch batch = MakeBatch(20, 2, 4, 64, 7);
  const std::vector<float> clean = RunMoe(experts.view(), batch, 0, 20, 2);
  batch.x[9 * 64 + 3] = Bf16{0x7fc0};
  const std::vector<float> dirty = RunMoe(experts.view(), batch, 0, 20, 2);
  EXPECT_TRUE(SameBits(clean.data(), dirty.data(), 9 * 64));
  EXPECT_TRUE(SameBits(clean.data() + 10 * 64, dirty.data() + 10 * 64, 10 * 64));
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(std::isnan(dirty[9 * 64 + i]));
}

TEST_P(MoeTest, AccumulatesOntoAResidual) {
  const Experts experts(WeightFormat::kNvfp4, 4, 64, 32);
  const Batch batch = MakeBatch(3, 2, 4, 64, 8);
  MoeArgs args;
  const std::vector<float> plain = RunMoe(experts.view(), batch, 0, 3, 1, &args);
  std::vector<float> out = Random(1).Normals(3 * 70);
  const std::vector<float> before = out;
  args.out = out.data();
  args.out_stride = 70;
  args.accumulate = true;
  ThreadPool pool(1);
  AlignedBuffer<std::byte> workspace(MoeWorkspaceBytes(3, 2, 4, 64, 32));
  ASSERT_TRUE(MoeForward(args, workspace.workspace(), pool).ok());
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t i = 0; i < 70; ++i) {
      EXPECT_EQ(out[t * 70 + i], i < 64 ? before[t * 70 + i] + plain[t * 64 + i] : before[t * 70 + i]);
    }
  }
}

TEST_P(MoeTest, RefusesWhatDoesNotFit) {
  const Experts experts(WeightFormat::kNvfp4, 4, 64, 32);
  const Experts others(WeightFormat::kNvfp4, 1, 64, 48);
  Batch batch = MakeBatch(3, 2, 4, 64, 8);
  MoeArgs good;
  RunMoe(experts.view(), batch, 0, 3, 1, &good);
  std::vector<float> out(3 * 64, 5.0f);
  good.out = out.data();
  ThreadPool pool(1);
  AlignedBuffer<std::byte> workspace(MoeWorkspaceBytes(3, 2, 4, 64, 32));
  MoeArgs args = good;
  args.top_k = 5;
  EXPECT_FALSE(MoeForward(args, workspace.workspace(), pool).ok());
  args = good;
  args.x = nullptr;
  EXPECT_FALSE(MoeForward(args, workspace.workspace(), pool).ok());
  args = good;
  args.out_stride = 60;
  EXPECT_FALSE(MoeForward(args, workspace.workspace(), pool).ok());
  EXPECT_FALSE(MoeForward(good, {workspace.data(), 100}, pool).ok());
  std::vector<MoeExpert> mixed(experts.view().begin(), experts.view().end());
  mixed[2] = others.view()[0];
  args = good;
  args.experts = mixed;
  EXPECT_FALSE(MoeForward(args, workspace.workspace(), pool).ok());
  batch.ids[3] = 4;
  EXPECT_EQ(MoeForward(good, workspace.workspace(), pool).message(),
            "MoeForward: expert id 4 of token 1 is outside 0..3");
  EXPECT_EQ(out, std::vector<float>(3 * 64, 5.0f));
}

TESSERA_EACH_ISA(MoeTest);

}  // namespace
}  // namespace tessera::cpu
