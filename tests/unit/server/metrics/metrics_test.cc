#include "server/metrics/metrics.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <map>
#include <regex>
#include <set>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/metrics/metrics_endpoint.h"
#include "server/metrics/metrics_table.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::unique_ptr<Metrics> Make(std::vector<double> buckets = {}) {
  Metrics::Options options;
  options.labels = {"tiny", "1.2.3", "cpu", "Qwen3MoeForCausalLM", "NVFP4,BF16"};
  options.latency_buckets = std::move(buckets);
  absl::StatusOr<std::unique_ptr<Metrics>> metrics = Metrics::Create(options);
  EXPECT_TRUE(metrics.ok()) << metrics.status();
  return *std::move(metrics);
}

// "name{labels}" to value.
std::map<std::string, double> Samples(const Metrics& metrics) {
  std::map<std::string, double> out;
  for (absl::string_view line : absl::StrSplit(metrics.Expose(), '\n')) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    double value = 0;
    EXPECT_TRUE(absl::SimpleAtod(line.substr(space + 1), &value)) << line;
    EXPECT_TRUE(out.emplace(std::string(line.substr(0, space)), value).second) << "twice: " << line;
  }
  return out;
}

RequestRecord Finished(RequestRecord::Kind kind, std::vector<std::string> reasons) {
  RequestRecord record;
  record.kind = kind;
  record.finish_reasons = std::move(reasons);
  record.prompt_tokens = 10;
  record.completion_tokens = kind == RequestRecord::Kind::kGenerate ? 5 : 0;
  record.queue = absl::Milliseconds(1);
  record.prefill = absl::Milliseconds(2);
  record.decode = absl::Milliseconds(3);
  record.total = absl::Milliseconds(6);
  return record;
}

TEST(MetricsTable, IsInOrderAndFollowsTheConventions) {
  ASSERT_EQ(MetricsTable().size(), static_cast<size_t>(MetricId::kCount));
  std::set<std::string> names;
  for (size_t i = 0; i < MetricsTable().size(); ++i) {
    const MetricDefinition& definition = MetricsTable()[i];
    const std::string name = definition.name;
    EXPECT_EQ(static_cast<size_t>(definition.id), i) << name;
    EXPECT_TRUE(names.insert(name).second) << name << " twice";
    EXPECT_THAT(name, testing::MatchesRegex("tessera_[a-z0-9_]+"));
    EXPECT_FALSE(std::string(definition.help).empty()) << name;
    EXPECT_EQ(name.ends_with("_total"), definition.kind == MetricKind::kCounter) << name;
    EXPECT_EQ(definition.buckets != BucketSet::kNone, definition.kind == MetricKind::kHistogram) << name;
    EXPECT_THAT(name, HasSubstr(definition.unit));
  }
}

TEST(MetricsTable, BoundsIncreaseAndLatenciesStartBelowAMillisecond) {
  for (BucketSet set : {BucketSet::kLatency, BucketSet::kTokens, BucketSet::kSmall}) {
    const std::vector<double> bounds = BucketBounds(set);
    ASSERT_FALSE(bounds.empty());
    for (size_t i = 1; i < bounds.size(); ++i) EXPECT_LT(bounds[i - 1], bounds[i]);
  }
  EXPECT_LT(BucketBounds(BucketSet::kLatency).front(), 0.001);
  EXPECT_GE(BucketBounds(BucketSet::kLatency).back(), 640);
}

TEST(Metrics, EveryLabelValueIsThereFromTheStart) {
  const std::map<std::string, double> samples = Samples(*Make());
  for (const char* reason : {"stop", "length", "abort", "deadline", "error"}) {
    EXPECT_EQ(
        samples.at(absl::StrCat("tessera_requests_total{kind=\"embed\",finish_reason=\"", reason, "\"}")), 0);
    EXPECT_EQ(samples.at(absl::StrCat("tessera_outputs_total{finish_reason=\"", reason, "\"}")), 0);
  }
  EXPECT_EQ(samples.at("tessera_requests_rejected_total{code=\"RESOURCE_EXHAUSTED\"}"), 0);
  EXPECT_EQ(samples.at("tessera_time_to_first_token_seconds_count"), 0);
  EXPECT_EQ(samples.at("tessera_build_info{version=\"1.2.3\",device=\"cpu\"}"), 1);
  EXPECT_EQ(samples.at("tessera_model_info{model_name=\"tiny\",architecture=\"Qwen3MoeForCausalLM\","
                       "weight_formats=\"NVFP4,BF16\"}"),
            1);
  EXPECT_GT(samples.at("process_resident_memory_bytes"), 0);
  EXPECT_GT(samples.at("process_open_fds"), 0);
  EXPECT_GT(samples.at("process_start_time_seconds"), 1.6e9);
}

TEST(Metrics, ExpositionHasHelpAndTypeOfEveryFamilyOnce) {
  const std::unique_ptr<Metrics> metrics = Make();
  metrics->OnStartupPhase("load", absl::Seconds(1));
  const std::string text = metrics->Expose();
  for (const MetricDefinition& definition : MetricsTable()) {
    const std::string type = absl::StrCat("# TYPE ", definition.name, " ",
                                          definition.kind == MetricKind::kCounter     ? "counter"
                                          : definition.kind == MetricKind::kHistogram ? "histogram"
                                                                                      : "gauge");
    EXPECT_THAT(text, HasSubstr(type));
    EXPECT_EQ(text.find(type), text.rfind(type)) << type;
    EXPECT_THAT(text, HasSubstr(absl::StrCat("# HELP ", definition.name, " ", definition.help)));
  }
}

TEST(Metrics, RequestCountersAgreeOnceAllRequestsHaveEnded) {
  const std::unique_ptr<Metrics> metrics = Make();
  using Kind = RequestRecord::Kind;
  const std::vector<std::vector<std::string>> endings = {{"stop"},
                                                         {"length"},
                                                         {"abort"},
                                                         {"deadline"},
                                                         {"error"},
                                                         {"stop", "length", "error"},
                                                         {"stop", "abort", "length"}};
  for (const std::vector<std::string>& reasons : endings) {
    metrics->OnRequestAccepted(Kind::kGenerate, 10);
    metrics->OnFirstToken(absl::Milliseconds(3));
    metrics->OnInterTokenLatencies({0.001, 0.001, 0.002, 0.003});
    StepRecord step;
    step.generated_tokens = 5;
    metrics->OnStep(step);
    metrics->OnRequestFinished(Finished(Kind::kGenerate, reasons));
  }
  metrics->OnRequestAccepted(Kind::kEmbed, 10);
  metrics->OnRequestFinished(Finished(Kind::kEmbed, {"stop"}));

  const std::map<std::string, double> samples = Samples(*metrics);
  auto requests = [&](const char* kind, const char* reason) {
    return samples.at(
        absl::StrCat("tessera_requests_total{kind=\"", kind, "\",finish_reason=\"", reason, "\"}"));
  };
  EXPECT_EQ(requests("generate", "stop"), 1);
  EXPECT_EQ(requests("generate", "length"), 1);
  EXPECT_EQ(requests("generate", "abort"), 2);  // its own, and the worst of three outputs
  EXPECT_EQ(requests("generate", "deadline"), 1);
  EXPECT_EQ(requests("generate", "error"), 2);
  EXPECT_EQ(requests("embed", "stop"), 1);
  EXPECT_EQ(samples.at("tessera_requests_accepted_total{kind=\"generate\"}"), 7);
  EXPECT_EQ(samples.at("tessera_request_e2e_seconds_count{kind=\"generate\"}"), 7);
  EXPECT_EQ(samples.at("tessera_request_e2e_seconds_count{kind=\"embed\"}"), 1);
  EXPECT_EQ(samples.at("tessera_outputs_total{finish_reason=\"stop\"}"), 3);
  EXPECT_EQ(samples.at("tessera_time_to_first_token_seconds_count"), 7);
  EXPECT_EQ(samples.at("tessera_inter_token_latency_seconds_count"), 28);
  EXPECT_EQ(samples.at("tessera_prompt_tokens_total"),
            samples.at("tessera_request_prompt_tokens_sum{kind=\"generate\"}") +
                samples.at("tessera_request_prompt_tokens_sum{kind=\"embed\"}"));
  EXPECT_EQ(samples.at("tessera_generation_tokens_total"),
            samples.at("tessera_request_generation_tokens_sum"));
}

TEST(Metrics, BucketBoundsAreInclusiveAndCumulative) {
  const std::unique_ptr<Metrics> metrics = Make({0.5, 1, 2});
  for (double value : {0.5, 0.500001, 1.0, 2.0, 3.0}) metrics->OnFirstToken(absl::Seconds(value));
  const std::map<std::string, double> samples = Samples(*metrics);
  const std::string name = "tessera_time_to_first_token_seconds";
  EXPECT_EQ(samples.at(name + "_bucket{le=\"0.5\"}"), 1);
  EXPECT_EQ(samples.at(name + "_bucket{le=\"1\"}"), 3);
  EXPECT_EQ(samples.at(name + "_bucket{le=\"2\"}"), 4);
  EXPECT_EQ(samples.at(name + "_bucket{le=\"+Inf\"}"), 5);
  EXPECT_EQ(samples.at(name + "_count"), 5);
  EXPECT_NEAR(samples.at(name + "_sum"), 7.000001, 1e-9);
}

TEST(Metrics, RefusesBadBuckets) {
  for (const std::vector<double>& bad : {std::vector<double>{0.0, 1},
                                         {1, 1},
                                         {2, 1},
                                         {-1},
                                         {std::numeric_limits<double>::infinity()},
                                         {std::numeric_limits<double>::quiet_NaN()}}) {
    Metrics::Options options;
    options.latency_buckets = bad;
    EXPECT_EQ(Metrics::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(Metrics, GaugesComeFromTheSourceAtScrapeTime) {
  const std::unique_ptr<Metrics> metrics = Make();
  int calls = 0;
  metrics->SetGaugeSource([&calls] {
    GaugeValues values;
    values.running = ++calls;
    values.kv_blocks_total = 100;
    values.kv_blocks_used = 25;
    values.kv_blocks_cached = 15;
    values.healthy = true;
    return values;
  });
  EXPECT_EQ(Samples(*metrics).at("tessera_running"), 1);
  const std::map<std::string, double> samples = Samples(*metrics);
  EXPECT_EQ(samples.at("tessera_running"), 2);
  EXPECT_EQ(samples.at("tessera_kv_cache_usage_ratio"), 0.25);
  EXPECT_EQ(samples.at("tessera_kv_cache_blocks{state=\"used\"}"), 25);
  EXPECT_EQ(samples.at("tessera_kv_cache_blocks{state=\"cached\"}"), 15);
  EXPECT_EQ(samples.at("tessera_kv_cache_blocks{state=\"free\"}"), 60);
  EXPECT_EQ(samples.at("tessera_healthy"), 1);
  metrics->SetGaugeSource(nullptr);
  EXPECT_EQ(Samples(*metrics).at("tessera_running"), 0);
}

TEST(Metrics, UnknownCodesAreCounted) {
  const std::unique_ptr<Metrics> metrics = Make();
  metrics->OnRequestRejected("RESOURCE_EXHAUSTED");
  metrics->OnRequestRejected("DATA_LOSS");
  const std::map<std::string, double> samples = Samples(*metrics);
  EXPECT_EQ(samples.at("tessera_requests_rejected_total{code=\"RESOURCE_EXHAUSTED\"}"), 1);
  EXPECT_EQ(samples.at("tessera_requests_rejected_total{code=\"OTHER\"}"), 1);
}

TEST(Metrics, ScrapesUnderLoadSeeConsistentHistograms) {
  const std::unique_ptr<Metrics> metrics = Make();
  std::atomic<bool> done = false;
  std::vector<std::thread> writers;
  for (int t = 0; t < 2; ++t) {
    writers.emplace_back([&] {
      while (!done) {
        metrics->OnStep(
            StepRecord{absl::Microseconds(10), absl::Milliseconds(1), absl::Microseconds(20), 1, 2, 3});
        metrics->OnInterTokenLatencies({0.0001, 0.01, 100.0, 1000.0});
      }
    });
  }
  uint64_t previous = 0;
  for (int i = 0; i < 50; ++i) {
    for (const prometheus::MetricFamily& family : metrics->collectable().Collect()) {
      if (family.type != prometheus::MetricType::Histogram) continue;
      for (const prometheus::ClientMetric& metric : family.metric) {
        uint64_t below = 0;
        for (const auto& bucket : metric.histogram.bucket) {
          EXPECT_LE(below, bucket.cumulative_count);
          below = bucket.cumulative_count;
        }
        EXPECT_LE(below, metric.histogram.sample_count);
      }
      if (family.name == "tessera_inter_token_latency_seconds") {
        EXPECT_LE(previous, family.metric[0].histogram.sample_count);
        previous = family.metric[0].histogram.sample_count;
      }
    }
  }
  done = true;
  for (std::thread& writer : writers) writer.join();
}

// A whole HTTP exchange with 127.0.0.1:`port`.
std::string Http(int port, const std::string& request) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string reply;
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) reply.append(buffer, n);
  close(fd);
  return reply;
}

TEST(MetricsEndpoint, ServesMetricsAndProbes) {
  const std::unique_ptr<Metrics> metrics = Make();
  std::atomic<bool> ready = false;
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", metrics.get(),
                                         {[&] { return ready.load(); }, [] { return true; }});
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const int port = (*endpoint)->port();
  ASSERT_GT(port, 0);
  auto get = [port](const std::string& path) {
    return Http(port, absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
  };
  const std::string reply = get("/metrics");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(reply, HasSubstr("text/plain; version=0.0.4"));
  EXPECT_THAT(reply, HasSubstr("tessera_running 0"));
  EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 503"));
  ready = true;
  EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(get("/livez"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(get("/"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(get("/etc/passwd"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Http(port, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"),
              StartsWith("HTTP/1.1 405"));
}

TEST(MetricsEndpoint, SaysWhichAddressIsTaken) {
  const std::unique_ptr<Metrics> metrics = Make();
  const MetricsEndpoint::Probes probes = {[] { return true; }, [] { return true; }};
  auto first = MetricsEndpoint::Start("127.0.0.1:0", metrics.get(), probes);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string address = absl::StrCat("127.0.0.1:", (*first)->port());
  auto second = MetricsEndpoint::Start(address, metrics.get(), probes);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr(address));
}

}  // namespace
}  // namespace tessera
