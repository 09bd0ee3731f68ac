// The life of a server process: its start and what may be wrong with it, drain, and clients that vanish.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "tests/integration/generation.h"
#include "tests/integration/server_process.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

using ::testing::AnyOf;
using testing::ChildProcess;
using testing::Generation;
using testing::Greedy;
using ::testing::HasSubstr;
using testing::HttpGet;
using testing::kBundledModel;
using testing::kClientProgram;
using testing::kServerProgram;
using ::testing::Not;
using testing::Once;
using testing::ScratchDirectory;
using testing::ServerProcess;
using testing::Stream;
using testing::WaitFor;

// Goes on for as long as the context allows, seconds of work.
v1::GenerateRequest Endless() {
  v1::GenerateRequest request = Greedy("The Lord said", 2000);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

// A stream whose first text has come; `tokens` counts that text's.
std::unique_ptr<GenerateStream> Begin(Client& client, const v1::GenerateRequest& request,
                                      int* tokens = nullptr) {
  std::unique_ptr<GenerateStream> stream = client.Generate(request);
  v1::GenerateResponse event;
  while (stream->Read(&event) && !event.has_delta()) {
  }
  EXPECT_TRUE(event.has_delta()) << event.ShortDebugString();
  if (tokens != nullptr) *tokens = event.delta().num_tokens();
  return stream;
}

// The rest of a stream that Begin returned; its last event in `last`.
absl::Status ReadToEnd(GenerateStream& stream, v1::GenerateResponse* last, int* tokens) {
  v1::GenerateResponse event;
  while (stream.Read(&event)) {
    *last = event;
    *tokens += event.delta().num_tokens();
  }
  return stream.Finish();
}

TEST(Drain, FinishesStreamsAndRefusesNewCalls) {
  const std::unique_ptr<ServerProcess> server = ServerProcess::Start();
  ASSERT_NE(server, nullptr);
  const std::unique_ptr<GenerateStream> stream = Begin(server->client(), Endless());
  EXPECT_THAT(HttpGet(server->metrics_port(), "/healthz"), HasSubstr("200 OK"));

  server->process().Signal(SIGTERM);
  EXPECT_TRUE(WaitFor([&] { return !server->client().CheckHealth().ok(); }));
  const absl::Status health = server->client().CheckHealth();
  EXPECT_EQ(health.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(health.message()), HasSubstr("NOT_SERVING"));
  EXPECT_TRUE(server->client().CheckHealth("tessera.v1.Control").ok()) << "alive, while it drains";
  EXPECT_THAT(HttpGet(server->metrics_port(), "/healthz"), HasSubstr("503"));
  EXPECT_THAT(HttpGet(server->metrics_port(), "/livez"), HasSubstr("200 OK"));
  EXPECT_EQ(server->Metric("tessera_draining"), 1);
  EXPECT_EQ(Once(server->client(), Greedy("Define: lantern")).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(Stream(server->client(), Greedy("Define: lantern")).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE(server->process().Running());

  v1::GenerateResponse last;
  int tokens = 1;
  const absl::Status status = ReadToEnd(*stream, &last, &tokens);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(last.finished().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(last.finished().usage().completion_tokens(), 2000);
  EXPECT_EQ(server->process().WaitForExit(absl::Seconds(20)), 0);
}

TEST(Drain, AnIdleServerExitsSoon) {
  const std::unique_ptr<ServerProcess> server = ServerProcess::Start();
  ASSERT_NE(server, nullptr);
  server->process().Signal(SIGINT);
  EXPECT_EQ(server->process().WaitForExit(absl::Seconds(5)), 0);
  EXPECT_THAT(server->log(), HasSubstr("stopped"));
}

TEST(Drain, TimeoutCutsWithAbort) {
  const std::unique_ptr<ServerProcess> server = ServerProcess::Start({"--drain-timeout", "0.1s"});
  ASSERT_NE(server, nullptr);
  int tokens = 0;
  const std::unique_ptr<GenerateStream> stream = Begin(server->client(), Endless(), &tokens);
  const absl::Time start = absl::Now();
  server->process().Signal(SIGTERM);
  v1::GenerateResponse last;
  const absl::Status status = ReadToEnd(*stream, &last, &tokens);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(last.finished().reason(), v1::FINISH_REASON_ABORT);
  EXPECT_FALSE(last.finished().error().empty());
  EXPECT_EQ(last.finished().usage().completion_tokens(), tokens) << "nothing that was generated is lost";
  EXPECT_LT(tokens, 2000);
  EXPECT_EQ(server->process().WaitForExit(absl::Seconds(20)), 0);
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(100));
}

TEST(Drain, ASecondSignalExitsAtOnce) {
  const std::unique_ptr<ServerProcess> server =
      ServerProcess::Start({"--drain-timeout", "60s", "--threads", "1"});
  ASSERT_NE(server, nullptr);
  std::vector<std::unique_ptr<GenerateStream>> streams;
  for (int i = 0; i < 8; ++i) streams.push_back(Begin(server->client(), Endless()));
  server->process().Signal(SIGTERM);
  ASSERT_TRUE(WaitFor([&] { return !server->client().CheckHealth().ok(); }));
  ASSERT_TRUE(server->process().Running());
  server->process().Signal(SIGTERM);
  EXPECT_EQ(server->process().WaitForExit(absl::Seconds(5)), 128 + SIGTERM);
  v1::GenerateResponse last;
  int tokens = 0;
  EXPECT_EQ(ReadToEnd(*streams[0], &last, &tokens).code(), absl::StatusCode::kUnavailable);
}

TEST(Drain, ASignalWhileStartingEndsIt) {
  // At moments from before main to after the model was loaded.
  for (const int milliseconds : {1, 5, 15, 30, 60, 100, 200, 400}) {
    ChildProcess server(kServerProgram,
                        {"--model", kBundledModel, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"});
    absl::SleepFor(absl::Milliseconds(milliseconds));
    server.Signal(SIGTERM);
    const std::optional<int> code = server.WaitForExit(absl::Seconds(20));
    ASSERT_TRUE(code.has_value()) << "after " << milliseconds << " ms: it did not end\n" << server.Output();
    EXPECT_THAT(*code, AnyOf(0, -SIGTERM, 128 + SIGTERM)) << "after " << milliseconds << " ms\n"
                                                          << server.Output();
  }
}

TEST(Clients, OneThatIsKilledLeavesNothingBehind) {
  const std::unique_ptr<ServerProcess> server = ServerProcess::Start();
  ASSERT_NE(server, nullptr);
  ChildProcess client(kClientProgram, {"generate", "--address", server->address(), "--max-tokens", "2000",
                                       "--ignore-eos", "--n", "4", "--temperature", "1", "The Lord said"});
  ASSERT_TRUE(WaitFor([&] { return server->Metric("tessera_running") == 4; })) << client.Output();
  EXPECT_GT(server->Metric("tessera_kv_cache_blocks{state=\"used\"}"), 0);
  client.Signal(SIGKILL);
  EXPECT_EQ(client.WaitForExit(absl::Seconds(10)), -SIGKILL);
  EXPECT_TRUE(server->WaitUntilIdle());
  EXPECT_TRUE(WaitFor([&] {
    return server->Metric("tessera_requests_total{kind=\"generate\",finish_reason=\"abort\"}") == 1;
  }));
  EXPECT_LT(server->Metric("tessera_generation_tokens_total"), 4 * 2000) << "it did not go on to the end";
  EXPECT_EQ(server->Terminate(), 0);
}

TEST(Clients, RefusedConnectionIsSaidClearly) {
  ChildProcess client(kClientProgram,
                      {"generate", "--address", "127.0.0.1:1", "--retries", "0", "Define: lantern"});
  const std::optional<int> code = client.WaitForExit(absl::Seconds(30));
  ASSERT_TRUE(code.has_value());
  EXPECT_GT(*code, 0);
  EXPECT_THAT(client.Output(), HasSubstr("cannot reach a server at 127.0.0.1:1"));
  EXPECT_THAT(client.Output(), HasSubstr("Connection refused"));
}

TEST(Clients, TheCommandLineGenerates) {
  const std::unique_ptr<ServerProcess> server = ServerProcess::Start();
  ASSERT_NE(server, nullptr);
  ChildProcess client(kClientProgram,
                      {"generate", "--address", server->address(), "--temperature", "0", "Define: lantern"});
  EXPECT_EQ(client.WaitForExit(absl::Seconds(30)), 0);
  EXPECT_THAT(client.Output(), HasSubstr("(noun) light in a transparent protective case.\n"));
}

TEST(Clients, AFullQueueRefusesAtOnceAndQueuedRequestsCanGo) {
  const std::unique_ptr<ServerProcess> server =
      ServerProcess::Start({"--max-running", "1", "--max-queued", "2"});
  ASSERT_NE(server, nullptr);
  v1::GenerateRequest request = Endless();
  request.set_request_id("running");
  const std::unique_ptr<GenerateStream> running = Begin(server->client(), request);
  v1::GenerateResponse event;
  request.set_request_id("to-abort");
  const std::unique_ptr<GenerateStream> to_abort = server->client().Generate(request);
  ASSERT_TRUE(to_abort->Read(&event) && event.has_accepted());
  request.set_request_id("to-cancel");
  const std::unique_ptr<GenerateStream> to_cancel = server->client().Generate(request);
  ASSERT_TRUE(to_cancel->Read(&event) && event.has_accepted());

  const absl::Time start = absl::Now();
  EXPECT_EQ(Once(server->client(), Greedy("Define: lantern")).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
  EXPECT_EQ(server->Metric("tessera_requests_rejected_total{code=\"RESOURCE_EXHAUSTED\"}"), 1);

  v1::AbortRequest abort;
  abort.add_request_ids("to-abort");
  abort.add_request_ids("unknown");
  const absl::StatusOr<v1::AbortResponse> aborted = server->client().Abort(abort);
  ASSERT_TRUE(aborted.ok()) << aborted.status();
  EXPECT_THAT(aborted->aborted(), ::testing::ElementsAre("to-abort"));
  EXPECT_THAT(aborted->not_found(), ::testing::ElementsAre("unknown"));
  v1::GenerateResponse last;
  int tokens = 0;
  EXPECT_TRUE(ReadToEnd(*to_abort, &last, &tokens).ok());
  EXPECT_EQ(last.finished().reason(), v1::FINISH_REASON_ABORT);
  EXPECT_EQ(tokens, 0);
  to_cancel->Cancel();
  EXPECT_EQ(to_cancel->Finish().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(WaitFor([&] { return server->Metric("tessera_waiting") == 0; }));

  // The one that runs has nothing of it, and keeps its id.
  request.set_request_id("running");
  EXPECT_EQ(Stream(server->client(), request).status().code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(running->Read(&event)) << running->Finish();
  EXPECT_GT(event.delta().num_tokens(), 0);
  running->Cancel();
  EXPECT_TRUE(server->WaitUntilIdle());
  const absl::StatusOr<Generation> after = Stream(server->client(), Greedy("Define: lantern"));
  EXPECT_TRUE(after.ok()) << after.status();
}

TEST(Servers, TwoSideBySide) {
  const std::unique_ptr<ServerProcess> one = ServerProcess::Start(), two = ServerProcess::Start();
  ASSERT_NE(one, nullptr);
  ASSERT_NE(two, nullptr);
  EXPECT_NE(one->port(), two->port());
  const std::unique_ptr<GenerateStream> stream = Begin(one->client(), Endless());
  const absl::StatusOr<Generation> result = Stream(two->client(), Greedy("Define: lantern"));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(two->Metric("tessera_generation_tokens_total"), result->usage.completion_tokens());
  EXPECT_EQ(two->Terminate(), 0);
  EXPECT_TRUE(one->client().CheckHealth().ok());
  stream->Cancel();
  EXPECT_TRUE(one->WaitUntilIdle());
}

// Runs a server that cannot start; returns what it said.
std::string FailToStart(const std::vector<std::string>& flags) {
  std::vector<std::string> arguments = {"--model",     kBundledModel, "--listen",
                                        "127.0.0.1:0", "--metrics",   "127.0.0.1:0"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  ChildProcess server(kServerProgram, arguments);
  const std::optional<int> code = server.WaitForExit(absl::Seconds(30));
  const std::string output = server.Output();
  EXPECT_TRUE(code.has_value()) << "it started, or hangs:\n" << output;
  EXPECT_THAT(code.value_or(-1), AnyOf(1, 2)) << output;
  EXPECT_THAT(output, Not(HasSubstr("serving "))) << "it never said so";
  return output;
}

// The status of a unary call with an empty request.
grpc::StatusCode CallEmpty(const ServerProcess& server, const std::string& method) {
  grpc::GenericStub stub(grpc::CreateChannel(server.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  grpc::CompletionQueue queue;
  const grpc::Slice nothing;
  const auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&nothing, 1), &queue);
  grpc::ByteBuffer answer;
  grpc::Status status;
  call->StartCall();
  call->Finish(&answer, &status, &answer);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status.error_code();
}

TEST(Start, ChannelzIsServedOnlyWhenAskedFor) {
  const std::string method = "/grpc.channelz.v1.Channelz/GetServers";
  const auto without = ServerProcess::Start();
  ASSERT_NE(without, nullptr);
  EXPECT_EQ(CallEmpty(*without, method), grpc::StatusCode::UNIMPLEMENTED);
  const auto with = ServerProcess::Start({"--channelz"});
  ASSERT_NE(with, nullptr);
  EXPECT_EQ(CallEmpty(*with, method), grpc::StatusCode::OK);
}

TEST(Start, PortInUse) {
  const std::unique_ptr<ServerProcess> server = ServerProcess::Start({"--device", "null"});
  ASSERT_NE(server, nullptr);
  EXPECT_THAT(FailToStart({"--listen", server->address()}),
              ::testing::AllOf(HasSubstr(absl::StrCat(":", server->port())), HasSubstr("in use")));
  EXPECT_THAT(FailToStart({"--metrics", absl::StrCat("127.0.0.1:", server->metrics_port())}),
              ::testing::AllOf(HasSubstr("--metrics"), HasSubstr(absl::StrCat(":", server->metrics_port()))));
  EXPECT_TRUE(server->client().CheckHealth().ok());
}

TEST(Start, PortFileThatCannotBeWritten) {
  EXPECT_THAT(FailToStart({"--device", "null", "--port-file", "/nonexistent/ports"}),
              HasSubstr("/nonexistent/ports"));
}

TEST(Start, MissingModel) {
  EXPECT_THAT(FailToStart({"--model", "/nonexistent/model"}), HasSubstr("/nonexistent/model"));
  ScratchDirectory empty;
  EXPECT_THAT(FailToStart({"--model", empty.path()}), HasSubstr("config.json"));
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

std::string Read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// The header of a safetensors file: its length in eight bytes, then JSON.
std::string Header(const std::string& json, uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
  return bytes + json;
}
std::string Header(const std::string& json) { return Header(json, json.size()); }

struct Spoiled {
  std::string name;
  std::string file;
  std::function<std::string(const std::string&)> contents;  // from the right ones
  std::string named = file;                                 // what the error must name
};
void PrintTo(const Spoiled& spoiled, std::ostream* os) { *os << spoiled.name; }

class SpoiledModelTest : public ::testing::TestWithParam<Spoiled> {};

TEST_P(SpoiledModelTest, IsRefusedWithTheReason) {
  ScratchDirectory directory;
  for (const char* file : {"config.json", "generation_config.json", "hf_quant_config.json",
                           "model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
    fs::copy_file(absl::StrCat(kBundledModel, "/", file), absl::StrCat(directory.path(), "/", file));
  }
  const std::string path = absl::StrCat(directory.path(), "/", GetParam().file);
  Write(path, GetParam().contents(Read(path)));
  const std::string output = FailToStart({"--model", directory.path()});
  EXPECT_THAT(output, HasSubstr(GetParam().named));
}

std::function<std::string(const std::string&)> Always(const std::string& contents) {
  return [contents](const std::string&) { return contents; };
}

std::function<std::string(const std::string&)> FirstPart(double share) {
  return [share](const std::string& whole) {
    return whole.substr(0, static_cast<size_t>(share * whole.size()));
  };
}

std::function<std::string(const std::string&)> Replace(const std::string& from, const std::string& to) {
  return [from, to](const std::string& whole) {
    std::string changed = whole;
    const size_t at = changed.find(from);
    EXPECT_NE(at, changed.npos) << "nothing to replace: " << from;
    return at == changed.npos ? changed : changed.replace(at, from.size(), to);
  };
}

INSTANTIATE_TEST_SUITE_P(
    All, SpoiledModelTest,
    ::testing::Values(
        Spoiled{"WeightsCutShort", "model.safetensors", FirstPart(0.7)},
        Spoiled{"WeightsCutInTheHeader", "model.safetensors", FirstPart(0.0005)},
        Spoiled{"WeightsEmpty", "model.safetensors", Always("")},
        Spoiled{"WeightsHugeHeader", "model.safetensors", Always(Header("{}", uint64_t{1} << 62))},
        Spoiled{"WeightsNotJson", "model.safetensors", Always(Header("not json"))},
        Spoiled{"WeightsNoTensor", "model.safetensors", Always(Header("{}")),
                "\"model.embed_tokens.weight\" is missing"},
        Spoiled{"WeightsDeepJson", "model.safetensors", Always(Header(std::string(1 << 20, '[')))},
        Spoiled{"WeightsNegativeOffset", "model.safetensors",
                Always(Header(R"({"x":{"dtype":"BF16","shape":[2],"data_offsets":[-4,0]}})"))},
        Spoiled{"WeightsBeyondTheFile", "model.safetensors",
                Always(Header(R"({"x":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})"))},
        Spoiled{
            "WeightsOverflowingShape", "model.safetensors",
            Always(Header(R"({"x":{"dtype":"BF16","shape":[9223372036854775807,4],"data_offsets":[0,0]}})"))},
        Spoiled{"WeightsAreText", "model.safetensors", Always(std::string(100000, 'A'))},
        Spoiled{"ConfigCutShort", "config.json", FirstPart(0.5)},
        Spoiled{"ConfigEmpty", "config.json", Always("")},
        Spoiled{"ConfigIsAList", "config.json", Always("[1, 2]")},
        Spoiled{"ConfigNegativeSize", "config.json",
                Replace("\"hidden_size\": 384", "\"hidden_size\": -384")},
        Spoiled{"ConfigHugeSize", "config.json",
                Replace("\"hidden_size\": 384", "\"hidden_size\": 2147483647")},
        Spoiled{"ConfigNoExperts", "config.json", Replace("\"num_experts\": 16", "\"num_experts\": 0")},
        Spoiled{"ConfigUnknownArchitecture", "config.json",
                Replace("Qwen3MoeForCausalLM", "NobodyForCausalLM")},
        Spoiled{"TokenizerCutShort", "tokenizer.json", FirstPart(0.5)},
        Spoiled{"TokenizerEmptyObject", "tokenizer.json", Always("{}")}),
    [](const ::testing::TestParamInfo<Spoiled>& info) { return info.param.name; });

TEST(Start, WrongFlagsAreExplained) {
  EXPECT_THAT(FailToStart({"--max-runing", "3"}), HasSubstr("--max-runing"));
  EXPECT_THAT(FailToStart({"--block-size", "12"}), HasSubstr("power of two"));
  EXPECT_THAT(FailToStart({"--block-size", "8"}), HasSubstr("at least 16"));
  EXPECT_THAT(FailToStart({"--max-context", "1000000"}), HasSubstr("--max-context"));
  EXPECT_THAT(FailToStart({"--kv-cache-bytes", "1"}), HasSubstr("--kv-cache-bytes"));
}

}  // namespace
}  // namespace tessera
