#include "server/rpc/api_keys.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Write(const std::string& text) {
  const std::string path = ::testing::TempDir() + "/api_keys_test.txt";
  std::ofstream(path) << text;
  return path;
}

TEST(ApiKeys, WithoutKeysEverybodyMayCall) { EXPECT_TRUE(ApiKeys().Check("").ok()); }

TEST(ApiKeys, ChecksTheBearer) {
  const absl::StatusOr<ApiKeys> keys =
      ApiKeys::Load(Write("# callers\n\nfirst-key-0123456789\r\nsecond-key-0123456789\n"));
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_TRUE(keys->Check("Bearer first-key-0123456789").ok());
  EXPECT_TRUE(keys->Check("bearer second-key-0123456789").ok());
  for (const char* bad : {"", "Bearer ", "Bearer first-key-012345678", "Bearer first-key-01234567890",
                          "first-key-0123456789", "Basic first-key-0123456789", "Bearer # callers"}) {
    const absl::Status status = keys->Check(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << bad;
    EXPECT_THAT(status.message(), Not(HasSubstr("first-key")));
  }
}

TEST(ApiKeys, ErrorsNameFileAndLineButNoKey) {
  const absl::Status weak = ApiKeys::Load(Write("first-key-0123456789\nsecret\n")).status();
  EXPECT_EQ(weak.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(weak.message(), HasSubstr("api_keys_test.txt:2:"));
  EXPECT_THAT(weak.message(), Not(HasSubstr("secret")));
  EXPECT_THAT(ApiKeys::Load(Write("# nothing\n")).status().message(), HasSubstr("holds no key"));
  EXPECT_THAT(ApiKeys::Load(Write("has a space in it, too\n")).status().message(), HasSubstr(":1:"));
  EXPECT_THAT(ApiKeys::Load("/no/such/file").status().message(), HasSubstr("/no/such/file: No such file"));
}

}  // namespace
}  // namespace tessera
