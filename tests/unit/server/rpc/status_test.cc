#include "server/rpc/status.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "test_server.h"

namespace tessera {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(ToGrpcStatus, KeepsEveryCode) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    EXPECT_EQ(ToGrpcStatus(status).error_code(), code);
    EXPECT_EQ(ToGrpcStatus(status).error_message(), code == 0 ? "" : "why");
    EXPECT_TRUE(ToGrpcStatus(status).error_details().empty());
  }
}

TEST(Violations, OneIsItsOwnMessage) {
  const absl::Status status = InvalidField("n", "found 0, expected 1 to 64");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "n: found 0, expected 1 to 64");
  EXPECT_EQ(FieldViolations(ToGrpcStatus(status)).at("n"), "found 0, expected 1 to 64");
}

TEST(Violations, NoneIsOk) { EXPECT_TRUE(Violations().ToStatus().ok()); }

TEST(Violations, AreBoundedAndTheRestIsCounted) {
  Violations violations;
  for (int i = 0; i < 100000; ++i)
    violations.Add(absl::StrCat("field", i, std::string(500, 'f')), std::string(5000, 'd'));
  const grpc::Status status = ToGrpcStatus(violations.ToStatus());
  // What travels in the trailers: the message percent-encoded (at worst three times as long) and the details in base64.
  EXPECT_LT(status.error_message().size() * 3 + status.error_details().size() * 4 / 3, 12000u);
  EXPECT_LT(status.error_message().size() + status.error_details().size(), 7000u);
  EXPECT_THAT(status.error_message(), HasSubstr("100000 invalid fields"));
  EXPECT_THAT(status.error_message(), EndsWith("more"));
  EXPECT_EQ(FieldViolations(status).size(), 16u);
}

TEST(ToGrpcStatus, CutsLongMessagesBetweenCharacters) {
  std::string text(1023, 'x');
  text += "\xf0\x9f\x98\x80";
  text += std::string(100, 'y');
  EXPECT_EQ(ToGrpcStatus(absl::InternalError(text)).error_message(), std::string(1023, 'x') + "...");
}

TEST(RetryAfter, TravelsAsDetailAndIsReadBack) {
  const absl::Status status = WithRetryAfter(absl::ResourceExhaustedError("full"), absl::Milliseconds(1250));
  ASSERT_TRUE(RetryAfter(status).has_value());
  EXPECT_EQ(*RetryAfter(status), absl::Milliseconds(1250));
  EXPECT_FALSE(RetryAfter(absl::ResourceExhaustedError("full")).has_value());
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(ToGrpcStatus(status).error_details()));
  google::rpc::RetryInfo info;
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.retry_delay().seconds(), 1);
  EXPECT_EQ(info.retry_delay().nanos(), 250000000);
}

TEST(Quoted, EscapesAndCuts) {
  EXPECT_EQ(Quoted("a\nb\xff"), "\"a\\nb\\xff\"");
  EXPECT_EQ(Quoted(std::string(100, 'x')), "\"" + std::string(64, 'x') + "...\"");
}

}  // namespace
}  // namespace tessera
