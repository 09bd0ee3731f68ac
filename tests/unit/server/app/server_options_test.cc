#include "server/app/server_options.h"

#include <fstream>
#include <regex>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<ServerOptions> Parse(std::vector<std::string> arguments) {
  return ParseServerOptions(arguments, nullptr);
}

TEST(ServerOptions, DefaultsAreLocal) {
  const absl::StatusOr<ServerOptions> options = Parse({});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->listen, "127.0.0.1:50051");
  EXPECT_EQ(options->metrics, "127.0.0.1:9464");
  EXPECT_EQ(options->device, "auto");
  EXPECT_FALSE(options->log_requests);
}

TEST(ServerOptions, TakesTheFlags) {
  const absl::StatusOr<ServerOptions> options = Parse(
      {"--listen=[::1]:0", "--metrics=", "--device=null", "--load-format=dummy", "--kv-cache-bytes=1G",
       "--latency-buckets=0.001,0.1,1", "--log-level=debug", "--log-format=json", "--max-batched-tokens=64"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->listen, "[::1]:0");
  EXPECT_EQ(options->metrics, "");
  EXPECT_TRUE(options->dummy_weights);
  EXPECT_EQ(options->kv_cache_bytes, 1 << 30);
  EXPECT_THAT(options->latency_buckets, ElementsAre(0.001, 0.1, 1));
  EXPECT_EQ(options->log_level, LogLevel::kDebug);
  EXPECT_EQ(options->log_format, LogFormat::kJson);
  EXPECT_EQ(options->max_running, 64);  // not more sequences than tokens in a step
}

TEST(ServerOptions, PrefillChunkSuitsTheDevice) {
  const ServerOptions options = *Parse({}), given = *Parse({"--max-prefill-chunk=7"});
  EXPECT_EQ(PrefillChunk(options, /*gpu=*/false), 512);
  EXPECT_EQ(PrefillChunk(options, /*gpu=*/true), options.max_batched_tokens);
  EXPECT_EQ(PrefillChunk(given, /*gpu=*/false), 7);
  EXPECT_EQ(PrefillChunk(given, /*gpu=*/true), 7);
}

TEST(ServerOptions, AllMistakesAtOnce) {
  const absl::Status status =
      Parse({"--device=tpu", "--listen=nowhere", "--metrics=1.2.3.4", "--block-size=24", "--tls-key=k",
             "--kv-blocks=1", "--kv-cache-bytes=1G", "--latency-buckets=1,0.5", "--log-level=loud",
             "--max-request-bytes=3G", "--slow-reader-timeout=0", "--lisen=x"})
          .status();
  for (const char* part :
       {"--device: found \"tpu\"", "--listen: found \"nowhere\"", "--metrics: found \"1.2.3.4\"",
        "--block-size: found 24, expected a power of two", "--tls-cert: required with --tls-key",
        "--kv-blocks: set together", "--latency-buckets: found \"1,0.5\"", "--log-level: found \"loud\"",
        "--max-request-bytes: expected less than 2G", "--slow-reader-timeout: found 0s",
        "--lisen: unknown flag; did you mean --listen?"}) {
    EXPECT_THAT(status.message(), HasSubstr(part));
  }
}

TEST(ServerOptions, HelpWinsOverMistakes) {
  EXPECT_TRUE(Parse({"--help", "--nonsense"})->help);
  EXPECT_TRUE(Parse({"--version"})->version);
}

}  // namespace
}  // namespace tessera
