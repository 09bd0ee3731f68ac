#include "server/app/memory_budget.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

BackendInfo Info(int64_t kv_bytes_per_token) {
  BackendInfo info;
  info.device = "cpu";
  info.kv_bytes_per_token = kv_bytes_per_token;
  return info;
}

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(KvBlocks, DefaultIsAQuarterOfWhatIsFreeAndAtMostFourGiB) {
  const ServerOptions options;
  EXPECT_EQ(*KvBlocks(options, Info(1 << 20), 1 << 20, 8 * kGiB), 2 * kGiB / (16 << 20));
  EXPECT_EQ(*KvBlocks(options, Info(1 << 20), 1 << 20, 800 * kGiB), 4 * kGiB / (16 << 20));
}

TEST(KvBlocks, NotMoreThanTheSequencesCanUse) {
  ServerOptions options;
  options.max_running = 3;
  EXPECT_EQ(*KvBlocks(options, Info(1), 100, 8 * kGiB), 4 * 7);
}

TEST(KvBlocks, FlagsDecide) {
  ServerOptions options;
  options.kv_blocks = 7;
  EXPECT_EQ(*KvBlocks(options, Info(1 << 20), 4096, 0), 7);
  options.kv_blocks = 0;
  options.kv_cache_bytes = 160 << 20;
  EXPECT_EQ(*KvBlocks(options, Info(1 << 20), 4096, 0), 10);
}

TEST(KvBlocks, TooLittleIsAnErrorWithTheNumbers) {
  ServerOptions options;
  const absl::Status none = KvBlocks(options, Info(1 << 20), 4096, 32 << 20).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(none.message(), HasSubstr("16777216 bytes"));
  options.kv_cache_bytes = 1;
  const absl::Status flag = KvBlocks(options, Info(1 << 20), 4096, 8 * kGiB).status();
  EXPECT_EQ(flag.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(flag.message(), HasSubstr("expected at least 16777216"));
}

TEST(AvailableMemory, IsSomething) { EXPECT_GT(AvailableMemory(), 1 << 20); }

}  // namespace
}  // namespace tessera
