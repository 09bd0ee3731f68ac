#include "server/scheduler/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(BlockPool, StartsFreeAndHandsOutEachBlockOnce) {
  BlockPool pool(3);
  EXPECT_EQ(pool.num_free(), 3);
  std::vector<int32_t> blocks = {pool.TakeFree(), pool.TakeFree(), pool.TakeFree()};
  EXPECT_THAT(blocks, testing::UnorderedElementsAre(0, 1, 2));
  EXPECT_EQ(pool.TakeFree(), -1);
  EXPECT_EQ(pool.num_used(), 3);
  EXPECT_TRUE(pool.CheckInvariants().ok());
}

TEST(BlockPool, ABlockIsUsedUntilItsLastHolderGoes) {
  BlockPool pool(2);
  const int32_t block = pool.TakeFree();
  pool.Acquire(block);
  EXPECT_EQ(pool.references(block), 2);
  pool.Release(block, /*keep=*/false);
  EXPECT_EQ(pool.num_used(), 1);
  pool.Release(block, /*keep=*/false);
  EXPECT_EQ(pool.num_used(), 0);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_TRUE(pool.CheckInvariants().ok());
}

TEST(BlockPool, CachedBlocksAgeInOrderOfRelease) {
  BlockPool pool(3);
  const int32_t a = pool.TakeFree(), b = pool.TakeFree(), c = pool.TakeFree();
  EXPECT_EQ(pool.OldestCached(), -1);
  pool.Release(b, /*keep=*/true);
  pool.Release(a, /*keep=*/true);
  pool.Release(c, /*keep=*/true);
  EXPECT_EQ(pool.num_cached(), 3);
  EXPECT_EQ(pool.OldestCached(), b);
  pool.Acquire(b);  // from the end
  EXPECT_EQ(pool.OldestCached(), a);
  pool.Release(b, /*keep=*/true);  // the newest now
  pool.Acquire(c);                 // from the middle
  EXPECT_TRUE(pool.CheckInvariants().ok());
  pool.Drop(a);
  EXPECT_EQ(pool.OldestCached(), b);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.num_cached(), 1);
  EXPECT_EQ(pool.num_used(), 1);
  pool.Drop(b);
  EXPECT_EQ(pool.OldestCached(), -1);
  EXPECT_TRUE(pool.CheckInvariants().ok());
}

}  // namespace
}  // namespace tessera
