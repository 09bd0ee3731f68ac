#include "server/scheduler/block_manager.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace tessera {
namespace {

// One sequence's worth of blocks, by hand.
class BlockManagerTest : public testing::Test {
 protected:
  // Allocates and publishes the full blocks of `tokens`; returns the table.
  std::vector<int32_t> Fill(BlockManager& manager, int32_t salt, const std::vector<int32_t>& tokens) {
    const int32_t count = static_cast<int32_t>(tokens.size()) / manager.block_size();
    std::vector<uint64_t> hashes;
    manager.ExtendHashes(salt, tokens, count, &hashes);
    std::vector<int32_t> table;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t parent = i == 0 ? PrefixCache::Root(salt) : table.back();
      table.push_back(manager.Allocate());
      EXPECT_EQ(manager.Publish(
                    table.back(), hashes[i], parent,
                    absl::MakeConstSpan(tokens).subspan(i * manager.block_size(), manager.block_size())),
                table.back());
    }
    return table;
  }

  std::vector<int32_t> Found(BlockManager& manager, int32_t salt, const std::vector<int32_t>& tokens) {
    std::vector<uint64_t> hashes;
    manager.ExtendHashes(salt, tokens, static_cast<int32_t>(tokens.size()) / manager.block_size(), &hashes);
    PrefixMatch match;
    manager.Match(salt, tokens, hashes, &match);
    std::vector<int32_t> blocks;
    for (const PrefixMatch::Entry& entry : match.blocks) blocks.push_back(entry.block);
    return blocks;
  }
};

std::vector<int32_t> Sequence(int32_t first, int32_t count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TEST_F(BlockManagerTest, PublishedBlocksStayAndAreFoundWithinTheirSalt) {
  BlockManager manager(4, 2);
  const int32_t salt = manager.AcquireSalt("a"), other = manager.AcquireSalt("b");
  const std::vector<int32_t> tokens = Sequence(10, 6);
  const std::vector<int32_t> table = Fill(manager, salt, tokens);
  manager.ReleaseTable(table);
  EXPECT_EQ(manager.pool().num_cached(), 3);
  EXPECT_EQ(manager.available(), 4);
  EXPECT_EQ(Found(manager, salt, tokens), table);
  EXPECT_EQ(Found(manager, other, tokens), std::vector<int32_t>());
  EXPECT_EQ(Found(manager, salt, Sequence(11, 6)), std::vector<int32_t>());
  EXPECT_TRUE(manager.CheckInvariants().ok());
}

TEST_F(BlockManagerTest, EvictionTakesTheEndOfTheOldestChainFirst) {
  BlockManager manager(4, 2);
  const int32_t salt = manager.AcquireSalt("");
  const std::vector<int32_t> old_tokens = Sequence(10, 4), new_tokens = Sequence(50, 4);
  const std::vector<int32_t> old_table = Fill(manager, salt, old_tokens);
  const std::vector<int32_t> new_table = Fill(manager, salt, new_tokens);
  manager.ReleaseTable(old_table);
  manager.ReleaseTable(new_table);
  EXPECT_EQ(manager.Allocate(), old_table[1]);
  EXPECT_EQ(Found(manager, salt, old_tokens), std::vector<int32_t>{old_table[0]});
  EXPECT_EQ(manager.Allocate(), old_table[0]);
  EXPECT_EQ(Found(manager, salt, old_tokens), std::vector<int32_t>());
  EXPECT_EQ(Found(manager, salt, new_tokens), new_table);
  EXPECT_EQ(manager.Allocate(), new_table[1]);
  EXPECT_EQ(manager.Allocate(), new_table[0]);
  EXPECT_EQ(manager.Allocate(), -1);
  EXPECT_TRUE(manager.CheckInvariants().ok());
}

TEST_F(BlockManagerTest, AnEarlierMatchIsCutWhereItsBlocksWereReused) {
  BlockManager manager(4, 2);
  const int32_t salt = manager.AcquireSalt("");
  const std::vector<int32_t> tokens = Sequence(10, 6);
  const std::vector<int32_t> table = Fill(manager, salt, tokens);
  manager.ReleaseTable(table);
  std::vector<uint64_t> hashes;
  manager.ExtendHashes(salt, tokens, 3, &hashes);
  PrefixMatch match;
  manager.Match(salt, tokens, hashes, &match);
  ASSERT_EQ(match.blocks.size(), 3);
  EXPECT_EQ(manager.CountUsed(match), 0);

  manager.Allocate();  // the free one
  const int32_t reused = manager.Allocate();
  EXPECT_EQ(reused, table[2]);
  manager.Acquire(table[0]);
  manager.Match(salt, tokens, hashes, &match);
  EXPECT_EQ(match.blocks.size(), 2);
  EXPECT_EQ(manager.CountUsed(match), 1);
  // The same contents elsewhere: found again.
  EXPECT_EQ(manager.Publish(reused, hashes[2], table[1], Sequence(14, 2)), reused);
  manager.Match(salt, tokens, hashes, &match);
  EXPECT_EQ(match.blocks.size(), 3);
}

TEST_F(BlockManagerTest, TheSecondCopyIsNotPublished) {
  BlockManager manager(4, 2);
  const int32_t salt = manager.AcquireSalt("");
  const std::vector<int32_t> table = Fill(manager, salt, Sequence(1, 2));
  const int32_t copy = manager.Allocate();
  std::vector<uint64_t> hashes;
  manager.ExtendHashes(salt, Sequence(1, 2), 1, &hashes);
  EXPECT_EQ(manager.Publish(copy, hashes[0], PrefixCache::Root(salt), Sequence(1, 2)), table[0]);
  manager.Release(copy);
  EXPECT_EQ(manager.pool().num_free(), 3);
  EXPECT_TRUE(manager.CheckInvariants().ok());
}

TEST_F(BlockManagerTest, ASaltLivesAsLongAsItsBlocks) {
  BlockManager manager(2, 2);
  const int32_t salt = manager.AcquireSalt("tenant");
  manager.ReleaseTable(Fill(manager, salt, Sequence(1, 4)));
  manager.ReleaseSalt(salt);
  EXPECT_EQ(manager.salts().size(), 1);
  EXPECT_EQ(manager.AcquireSalt("tenant"), salt);
  EXPECT_EQ(Found(manager, salt, Sequence(1, 4)).size(), 2);
  manager.ReleaseSalt(salt);
  manager.ClearPrefixCache();
  EXPECT_EQ(manager.salts().size(), 0);
  EXPECT_EQ(manager.pool().num_free(), 2);
  EXPECT_TRUE(manager.CheckInvariants().ok());
}

TEST_F(BlockManagerTest, CollidingHashesDoNotMixUpContents) {
  BlockManager manager(6, 2, /*hash_bits=*/0);
  const int32_t salt = manager.AcquireSalt("");
  const std::vector<int32_t> a = Fill(manager, salt, Sequence(1, 6));
  const std::vector<int32_t> b = Fill(manager, salt, Sequence(100, 6));
  EXPECT_EQ(Found(manager, salt, Sequence(1, 6)), a);
  EXPECT_EQ(Found(manager, salt, Sequence(100, 6)), b);
  EXPECT_EQ(Found(manager, salt, Sequence(50, 6)), std::vector<int32_t>());
  EXPECT_TRUE(manager.CheckInvariants().ok());
}

}  // namespace
}  // namespace tessera
