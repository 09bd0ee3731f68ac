#include "server/backend/step_rows.h"

#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int32_t kVocab = 4;

class StepRowsTest : public testing::Test {
 protected:
  StepRowsTest() {
    info_.vocab_size = kVocab;
    info_.max_context = 64;
    params_.temperature = 0;
  }

  BatchRow Row(const std::vector<int32_t>& tokens, int32_t start) const {
    BatchRow row;
    row.tokens = tokens;
    row.start = start;
    row.block_table = table_;
    return row;
  }

  BackendInfo info_;
  KvCacheConfig kv_{.num_blocks = 8, .block_size = 16};
  SamplingParams params_;
  std::vector<int32_t> table_ = {0, 1, 2, 3};
  std::vector<RowResult> results_;
  StepRows rows_;
};

TEST_F(StepRowsTest, LeavesOutWhatCannotRunAndListsWhatIsWanted) {
  const Sampler sampler(params_, {}, {}, 0, -1);
  const std::vector<int32_t> three = {1, 2, 3}, bad = {0, kVocab}, one = {2};
  PromptScorer scorer(three, 0);
  BatchRow rows[] = {Row(three, 5), Row(bad, 0), Row(three, 0), Row(one, 9)};
  rows[0].sampler = &sampler;
  rows[1].sampler = &sampler;
  rows[2].prompt_scorer = &scorer;
  rows_.Choose(rows, info_, kv_, &results_);
  ASSERT_EQ(results_.size(), 4);
  EXPECT_THAT(results_[1].status.message(), HasSubstr("4"));
  EXPECT_THAT(rows_.chosen(), ElementsAre(0, 2, 3));
  EXPECT_EQ(rows_.num_tokens(), 7);
  EXPECT_EQ(rows_.first_token(2), 3);
  EXPECT_EQ(rows_.first_token(3), 6);
  std::vector<std::vector<int32_t>> wanted;
  for (const WantedLogits& w : rows_.wanted()) wanted.push_back({w.row, w.token, w.position, w.last});
  // Of the first row the last position alone, of the scored one all, of the last nothing.
  EXPECT_THAT(wanted, ElementsAre(ElementsAre(0, 2, 7, 1), ElementsAre(2, 3, 0, 0), ElementsAre(2, 4, 1, 0),
                                  ElementsAre(2, 5, 2, 1)));
  rows_.Choose({}, info_, kv_, &results_);
  EXPECT_TRUE(results_.empty() && rows_.chosen().empty() && rows_.wanted().empty());
  EXPECT_EQ(rows_.num_tokens(), 0);
}

TEST_F(StepRowsTest, HandsLogitsOverInPiecesAndKeepsAFaultToItsRow) {
  const Sampler sampler(params_, {}, {}, 0, -1);
  const std::vector<int32_t> three = {1, 2, 3}, one = {2};
  PromptScorer scorer(three, 0);
  BatchRow rows[] = {Row(three, 0), Row(one, 3), Row(one, 0)};
  rows[0].prompt_scorer = &scorer;
  for (BatchRow& row : rows) row.sampler = &sampler;
  rows_.Choose(rows, info_, kv_, &results_);
  ASSERT_EQ(rows_.wanted().size(), 5);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> logits = {0, 0,   9, 0,  //
                               0, 0,   0, 9,  //
                               0, 9,   0, 0,  //
                               0, nan, 0, 0, 9, 0, 0, 0};
  cpu::ThreadPool pool(2);
  rows_.Consume(rows, 0, 2, logits.data(), kVocab, pool, &results_);
  rows_.Consume(rows, 2, 5, logits.data() + 2 * kVocab, kVocab, pool, &results_);
  EXPECT_TRUE(results_[0].status.ok() && results_[2].status.ok());
  EXPECT_EQ(results_[0].sampled.token, 1);
  EXPECT_FALSE(results_[1].status.ok());
  EXPECT_EQ(results_[2].sampled.token, 0);
  EXPECT_EQ(scorer.result()[1].token.rank, 1);  // 2 had the largest logit, then 3
  EXPECT_EQ(scorer.result()[2].token.rank, 1);
}

}  // namespace
}  // namespace tessera
