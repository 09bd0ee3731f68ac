// Many clients that do what clients do: end early, vanish, abort, run into deadlines, read slowly, ask for nonsense. The
// server must come out of it idle, with its counts right, no larger than before, and answering.
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/integration/generation.h"
#include "tests/integration/server_process.h"

namespace tessera {
namespace {

using testing::Generation;
using testing::Greedy;
using testing::MetricSamples;
using testing::Once;
using testing::Sampled;
using testing::ServerProcess;
using testing::Stream;
using testing::SumOf;

constexpr int kClients = 64;

// What the clients saw, to hold against what the server counted.
struct Tally {
  std::atomic<int> sent = 0;         // generation calls
  std::atomic<int> accepted = 0;     // ... of which an Accepted or an answer came
  std::atomic<int> with_tokens = 0;  // ... of which a token came
  std::atomic<int> refused = 0;      // INVALID_ARGUMENT
  std::atomic<int> embeds = 0;       // that succeeded
  std::atomic<int> unexpected = 0;   // statuses that no client caused
};

class RandomClient {
 public:
  RandomClient(const ServerProcess& server, int number, int most_tokens, Tally* tally)
      : client_(server.NewClient()),
        random_(number),
        number_(number),
        most_tokens_(most_tokens),
        tally_(tally) {}

  void Run(absl::Time until) {
    // Each client has a connection of its own, and 64 made at once can fail to connect at the first try (gRPC 1.51
    // takes a connect in progress for failed when another call has set errno meanwhile). Clients retry that; these
    // do not, so that each call counts once.
    const absl::Status connected = client_->WaitUntilServing({.timeout = absl::Minutes(1)});
    if (!connected.ok()) ADD_FAILURE() << connected;
    while (absl::Now() < until) Act();
  }

 private:
  int Below(int limit) { return static_cast<int>(random_() % limit); }

  v1::GenerateRequest Request() {
    static constexpr const char* kPrompts[] = {"Define: lantern", "The Lord said",
                                               "In the beginning God created", "Synonyms: car",
                                               "To create a table,"};
    std::string prompt = kPrompts[Below(5)];
    for (int i = Below(3) * Below(40); i > 0; --i)
      prompt += absl::StrCat(" ", Below(4) == 0 ? Below(1000) : i);
    v1::GenerateRequest request = Sampled(prompt, random_(), 1 + Below(most_tokens_));
    request.mutable_stopping()->set_ignore_eos(Below(2) == 0);
    if (Below(4) == 0) request.set_n(1 + Below(3));
    if (Below(4) == 0) request.set_priority(Below(3) - 1);
    if (Below(4) == 0) request.set_logprobs(Below(5));
    if (Below(16) == 0) request.set_prompt_logprobs(1);
    if (Below(8) == 0) request.mutable_stopping()->add_stop_strings("e");
    return request;
  }

  // `allowed`: codes that this client brings about itself.
  void Check(const absl::Status& status, std::initializer_list<absl::StatusCode> allowed) {
    if (status.ok() || status.code() == absl::StatusCode::kResourceExhausted) return;
    for (const absl::StatusCode code : allowed) {
      if (status.code() == code) return;
    }
    if (++tally_->unexpected <= 3) ADD_FAILURE() << status;
  }

  void Act() {
    switch (Below(10)) {
      case 0:
        return Embed();
      case 1:
        return Unary();
      case 2:
        return Nonsense();
      default:
        return Streamed();
    }
  }

  void Embed() {
    v1::EmbedRequest request;
    for (int i = Below(4); i >= 0; --i) request.add_inputs()->set_text(absl::StrCat("input ", Below(50)));
    CallOptions options;
    if (Below(3) == 0) options.timeout = absl::Milliseconds(Below(20));
    const absl::Status status = client_->Embed(request, options).status();
    if (status.ok()) ++tally_->embeds;
    Check(status, {absl::StatusCode::kDeadlineExceeded});
  }

  void Unary() {
    CallOptions options;
    if (Below(2) == 0) options.timeout = absl::Milliseconds(1 + Below(100));
    ++tally_->sent;
    const absl::StatusOr<v1::GenerateOnceResponse> answer = client_->GenerateOnce(Request(), options);
    if (answer.ok()) {
      ++tally_->accepted;
      if (answer->usage().completion_tokens() > 0) ++tally_->with_tokens;
    }
    Check(answer.status(), {absl::StatusCode::kDeadlineExceeded});
  }

  void Nonsense() {
    v1::GenerateRequest request = Request();
    request.mutable_sampling()->set_temperature(-1);
    ++tally_->sent;
    const absl::Status status = client_->GenerateOnce(request).status();
    if (status.code() == absl::StatusCode::kInvalidArgument) ++tally_->refused;
    Check(status, {absl::StatusCode::kInvalidArgument});
  }

  void Streamed() {
    v1::GenerateRequest request = Request();
    request.set_request_id(absl::StrCat("client-", number_, "-", ++count_));
    const int manner = Below(6);
    if (manner == 1) request.mutable_timeout()->set_nanos(1'000'000 * (1 + Below(100)));
    CallOptions options;
    if (manner == 2) options.timeout = absl::Milliseconds(Below(60));
    const int act_after = Below(12);
    ++tally_->sent;
    const std::unique_ptr<GenerateStream> stream = client_->Generate(request, options);
    v1::GenerateResponse event;
    bool accepted = false, tokens = false;
    for (int i = 0; stream->Read(&event); ++i) {
      accepted = true;
      tokens |= event.delta().num_tokens() > 0;
      if (i == act_after && manner == 3) stream->Cancel();
      if (i == act_after && manner == 4) {
        v1::AbortRequest abort;
        abort.add_request_ids(request.request_id());
        Check(client_->Abort(abort).status(), {});
      }
      if (manner == 5) absl::SleepFor(absl::Milliseconds(Below(20)));
      if (i == act_after && manner == 0 && Below(4) == 0) break;  // Finish cancels
    }
    Check(stream->Finish(), {absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kCancelled});
    if (accepted) ++tally_->accepted;
    if (tokens) ++tally_->with_tokens;
  }

  std::unique_ptr<Client> client_;
  std::mt19937_64 random_;
  const int number_;
  const int most_tokens_;
  int count_ = 0;
  Tally* tally_;
};

void RunClients(const ServerProcess& server, int first, int most_tokens, absl::Duration time, Tally* tally) {
  const absl::Time until = absl::Now() + time;
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&, i] { RandomClient(server, first + i, most_tokens, tally).Run(until); });
  }
  for (std::thread& thread : threads) thread.join();
}

void CheckCounts(const ServerProcess& server, const Tally& tally) {
  const MetricSamples m = server.Scrape();
  auto value = [&m](const std::string& name) {
    const auto found = m.find(name);
    EXPECT_NE(found, m.end()) << name;
    return found == m.end() ? -1 : found->second;
  };
  for (const std::string kind : {"{kind=\"generate\"", "{kind=\"embed\""}) {
    const double accepted = value("tessera_requests_accepted_total" + kind + "}");
    EXPECT_EQ(SumOf(m, "tessera_requests_total" + kind), accepted) << "each ended in one way";
    for (const std::string histogram :
         {"request_e2e_seconds", "request_queue_seconds", "request_prompt_tokens"}) {
      EXPECT_EQ(value("tessera_" + histogram + "_count" + kind + "}"), accepted) << histogram;
    }
  }
  const double generated = value("tessera_requests_accepted_total{kind=\"generate\"}");
  EXPECT_GE(generated, tally.accepted);
  EXPECT_LE(generated, tally.sent - tally.refused);
  EXPECT_GE(value("tessera_requests_accepted_total{kind=\"embed\"}"), tally.embeds);
  EXPECT_EQ(value("tessera_requests_rejected_total{code=\"INVALID_ARGUMENT\"}"), tally.refused);

  const double first_tokens = value("tessera_time_to_first_token_seconds_count");
  EXPECT_EQ(first_tokens, value("tessera_request_decode_seconds_count"))
      << "both once a request with a token";
  EXPECT_GE(first_tokens, tally.with_tokens);
  EXPECT_LE(first_tokens, generated);
  EXPECT_EQ(value("tessera_request_generation_tokens_count"), generated);
  EXPECT_EQ(value("tessera_request_generation_tokens_sum"), value("tessera_generation_tokens_total"));
  EXPECT_EQ(SumOf(m, "tessera_request_prompt_tokens_sum"), value("tessera_prompt_tokens_total"));
  EXPECT_EQ(SumOf(m, "tessera_outputs_total"), value("tessera_request_outputs_sum"));
  // One interval a token after the first of an output; every request with a token has an output with a first.
  const double intervals = value("tessera_inter_token_latency_seconds_count");
  EXPECT_LE(intervals, value("tessera_generation_tokens_total") - first_tokens);
  EXPECT_GE(intervals, value("tessera_generation_tokens_total") - value("tessera_request_outputs_sum"));
  EXPECT_EQ(SumOf(m, "tessera_requests_total{kind=\"generate\",finish_reason=\"error\"}"), 0);
  EXPECT_EQ(value("tessera_healthy"), 1);
  EXPECT_EQ(SumOf(m, "tessera_kv_cache_blocks{state=\"cached\"}") +
                SumOf(m, "tessera_kv_cache_blocks{state=\"free\"}"),
            SumOf(m, "tessera_kv_cache_blocks"));
}

struct Setting {
  std::string name;
  std::vector<std::string> flags;
  int most_tokens;
};
void PrintTo(const Setting& setting, std::ostream* os) { *os << setting.name; }

class LoadTest : public ::testing::TestWithParam<Setting> {};

TEST_P(LoadTest, LeavesNothingBehind) {
  const std::unique_ptr<ServerProcess> server = ServerProcess::Start(GetParam().flags);
  ASSERT_NE(server, nullptr);
  const absl::StatusOr<Generation> before = Once(server->client(), Greedy("Define: lantern"));
  ASSERT_TRUE(before.ok()) << before.status();

  Tally tally;
  ++tally.sent, ++tally.accepted, ++tally.with_tokens;  // the one above
  RunClients(*server, 0, GetParam().most_tokens, absl::Seconds(3), &tally);
  EXPECT_TRUE(server->WaitUntilIdle());
  const int64_t resident = server->ResidentBytes();
  RunClients(*server, kClients, GetParam().most_tokens, absl::Seconds(3), &tally);
  EXPECT_TRUE(server->WaitUntilIdle());

  // As much load again, from as many connections, finds its memory there.
  EXPECT_LT(server->ResidentBytes(), resident + (96 << 20));
  EXPECT_GT(tally.with_tokens, kClients);
  CheckCounts(*server, tally);
  const absl::StatusOr<Generation> after = Stream(server->client(), Greedy("Define: lantern"));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->outputs[0], before->outputs[0]);
  std::printf("%s: %d generations, %d accepted, %d with tokens, %.0f preemptions, %lld MiB resident\n",
              GetParam().name.c_str(), tally.sent.load(), tally.accepted.load(), tally.with_tokens.load(),
              server->Metric("tessera_preemptions_total"),
              static_cast<long long>(server->ResidentBytes() >> 20));
  EXPECT_EQ(server->Terminate(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, LoadTest,
    ::testing::Values(
        Setting{"Null", {"--device", "null", "--kv-blocks", "600", "--slow-reader-timeout", "1s"}, 400},
        Setting{"Bundled", {"--kv-blocks", "128", "--max-queued", "100"}, 60}),
    [](const ::testing::TestParamInfo<Setting>& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
