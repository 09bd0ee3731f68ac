#include "client/retry.h"

#include <set>

#include "gtest/gtest.h"

namespace tessera {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1000);

TEST(RetryState, GrowsExponentiallyWithinJitterUpToTheMaximum) {
  RetryPolicy policy{.max_attempts = 6,
                     .initial_backoff = absl::Milliseconds(100),
                     .max_backoff = absl::Milliseconds(500),
                     .multiplier = 2,
                     .jitter = 0.2};
  RetryState retry(policy, absl::InfiniteFuture());
  for (const double base : {100., 200., 400., 500., 500.}) {
    const auto wait = retry.Next(absl::UnavailableError(""), std::nullopt, kNow);
    ASSERT_TRUE(wait.has_value());
    EXPECT_GE(absl::ToDoubleMilliseconds(*wait), base * 0.8 - 0.001);
    EXPECT_LE(absl::ToDoubleMilliseconds(*wait), base * 1.2 + 0.001);
  }
  EXPECT_FALSE(retry.Next(absl::UnavailableError(""), std::nullopt, kNow).has_value())
      << "6 tries are all used";
}

TEST(RetryState, JitterSpreadsClients) {
  std::set<absl::Duration> waits;
  for (int i = 0; i < 20; ++i) {
    waits.insert(
        *RetryState({}, absl::InfiniteFuture()).Next(absl::UnavailableError(""), std::nullopt, kNow));
  }
  EXPECT_GT(waits.size(), 10);
}

TEST(RetryState, OtherCodesAreFinal) {
  for (const absl::Status& status :
       {absl::InvalidArgumentError(""), absl::NotFoundError(""), absl::DeadlineExceededError(""),
        absl::CancelledError(""), absl::InternalError(""), absl::UnknownError(""),
        absl::UnauthenticatedError("")}) {
    EXPECT_FALSE(RetryState({}, absl::InfiniteFuture()).Next(status, std::nullopt, kNow).has_value())
        << status;
  }
}

TEST(RetryState, PushbackTakesThePlaceOfTheBackoff) {
  RetryState retry({}, absl::InfiniteFuture());
  EXPECT_EQ(retry.Next(absl::UnavailableError(""), 1234, kNow), absl::Milliseconds(1234));
  EXPECT_EQ(retry.Next(absl::ResourceExhaustedError(""), 0, kNow), absl::ZeroDuration());
}

TEST(RetryState, NegativePushbackForbidsTheRetry) {
  EXPECT_FALSE(RetryState({}, absl::InfiniteFuture()).Next(absl::UnavailableError(""), -1, kNow).has_value());
}

TEST(RetryState, ResourceExhaustedNeedsAPushback) {
  const absl::Status full = absl::ResourceExhaustedError("");
  EXPECT_FALSE(RetryState({}, absl::InfiniteFuture()).Next(full, std::nullopt, kNow).has_value());
  EXPECT_TRUE(RetryState({}, absl::InfiniteFuture()).Next(full, 10, kNow).has_value());
  EXPECT_FALSE(
      RetryState({.retry_when_full = false}, absl::InfiniteFuture()).Next(full, 10, kNow).has_value());
}

TEST(RetryState, DoesNotBeginAWaitThatReachesTheDeadline) {
  RetryState retry({}, kNow + absl::Seconds(1));
  EXPECT_TRUE(retry.Next(absl::UnavailableError(""), 999, kNow).has_value());
  EXPECT_FALSE(retry.Next(absl::UnavailableError(""), 1000, kNow).has_value());
}

TEST(RetryState, OneAttemptNeverRetries) {
  EXPECT_FALSE(RetryState({.max_attempts = 1}, absl::InfiniteFuture())
                   .Next(absl::UnavailableError(""), std::nullopt, kNow)
                   .has_value());
}

}  // namespace
}  // namespace tessera
