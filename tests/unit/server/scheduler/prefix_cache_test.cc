#include "server/scheduler/prefix_cache.h"

#include <gtest/gtest.h>

#include <vector>

#include "server/scheduler/block_hash.h"
#include "server/scheduler/salt_table.h"

namespace tessera {
namespace {

using Tokens = std::vector<int32_t>;

TEST(PrefixCache, FindsWhatWasInsertedUnderItsParent) {
  PrefixCache cache(8, 2);
  const int32_t root = PrefixCache::Root(0);
  EXPECT_EQ(cache.Find(5, root, Tokens{1, 2}), -1);
  cache.Insert(3, 5, root, Tokens{1, 2});
  cache.Insert(4, 6, 3, Tokens{3, 4});
  EXPECT_EQ(cache.Find(5, root, Tokens{1, 2}), 3);
  EXPECT_EQ(cache.Find(6, 3, Tokens{3, 4}), 4);
  EXPECT_EQ(cache.Find(6, root, Tokens{3, 4}), -1);
  EXPECT_EQ(cache.size(), 2);
  EXPECT_TRUE(cache.CheckInvariants().ok());
}

TEST(PrefixCache, EqualHashesAreToldApartByTokensParentAndSalt) {
  PrefixCache cache(8, 2);
  const int32_t root = PrefixCache::Root(0), other_root = PrefixCache::Root(7);
  cache.Insert(0, 9, root, Tokens{1, 2});
  cache.Insert(1, 9, root, Tokens{1, 3});
  cache.Insert(2, 9, other_root, Tokens{1, 2});
  cache.Insert(3, 9, 0, Tokens{1, 2});
  cache.Insert(4, 9, 1, Tokens{1, 2});
  EXPECT_EQ(cache.Find(9, root, Tokens{1, 2}), 0);
  EXPECT_EQ(cache.Find(9, root, Tokens{1, 3}), 1);
  EXPECT_EQ(cache.Find(9, other_root, Tokens{1, 2}), 2);
  EXPECT_EQ(cache.Find(9, 0, Tokens{1, 2}), 3);
  EXPECT_EQ(cache.Find(9, 1, Tokens{1, 2}), 4);
  EXPECT_EQ(cache.Find(9, PrefixCache::Root(1), Tokens{1, 2}), -1);
  EXPECT_EQ(cache.Find(9, root, Tokens{2, 1}), -1);
  EXPECT_TRUE(cache.CheckInvariants().ok());
  cache.Erase(3);
  EXPECT_EQ(cache.Find(9, 0, Tokens{1, 2}), -1);
  EXPECT_EQ(cache.Find(9, root, Tokens{1, 2}), 0);
  EXPECT_EQ(cache.Find(9, 1, Tokens{1, 2}), 4);
  EXPECT_TRUE(cache.CheckInvariants().ok());
}

TEST(PrefixCache, ASerialTellsAReusedBlock) {
  PrefixCache cache(4, 2);
  EXPECT_EQ(cache.serial(1), 0);
  cache.Insert(1, 5, PrefixCache::Root(0), Tokens{1, 2});
  const uint64_t first = cache.serial(1);
  EXPECT_TRUE(cache.Contains(1));
  cache.Erase(1);
  EXPECT_FALSE(cache.Contains(1));
  cache.Insert(1, 5, PrefixCache::Root(0), Tokens{1, 2});
  EXPECT_NE(cache.serial(1), first);
}

TEST(PrefixCache, InvariantsNameAnOrphan) {
  PrefixCache cache(4, 2);
  cache.Insert(0, 5, PrefixCache::Root(0), Tokens{1, 2});
  cache.Insert(1, 6, 0, Tokens{3, 4});
  cache.Erase(0);
  EXPECT_EQ(cache.CheckInvariants().message(), "block 1 outlived its parent 0");
}

TEST(PrefixCache, InvariantsNameADuplicate) {
  PrefixCache cache(4, 2);
  cache.Insert(0, 5, PrefixCache::Root(0), Tokens{1, 2});
  cache.Insert(1, 5, PrefixCache::Root(0), Tokens{1, 2});
  EXPECT_FALSE(cache.CheckInvariants().ok());
}

TEST(BlockHash, DependsOnEveryTokenItsPlaceAndTheParent) {
  const uint64_t base = HashBlock(1, Tokens{1, 2, 3});
  EXPECT_EQ(base, HashBlock(1, Tokens{1, 2, 3}));
  EXPECT_NE(base, HashBlock(2, Tokens{1, 2, 3}));
  EXPECT_NE(base, HashBlock(1, Tokens{2, 1, 3}));
  EXPECT_NE(base, HashBlock(1, Tokens{1, 2, 4}));
  EXPECT_NE(base, HashBlock(1, Tokens{1, 2, -3}));
  EXPECT_NE(HashSalt("a"), HashSalt("b"));
  EXPECT_NE(HashSalt(""), HashSalt(absl::string_view("\0", 1)));
}

TEST(SaltTable, NumbersAreSharedAndComeBackWhenUnused) {
  SaltTable salts;
  const int32_t a = salts.Acquire("a");
  const int32_t b = salts.Acquire("b");
  EXPECT_NE(a, b);
  EXPECT_EQ(salts.Acquire("a"), a);
  EXPECT_EQ(salts.references(a), 2);
  EXPECT_EQ(salts.hash(a), HashSalt("a"));
  salts.Release(a);
  EXPECT_EQ(salts.size(), 2);
  salts.Release(a);
  EXPECT_EQ(salts.size(), 1);
  const int32_t c = salts.Acquire("c");
  EXPECT_EQ(c, a);
  EXPECT_EQ(salts.hash(c), HashSalt("c"));
  EXPECT_EQ(salts.Acquire("b"), b);
}

}  // namespace
}  // namespace tessera
