#include "test_server.h"

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "google/rpc/status.pb.h"
#include "grpc/grpc.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

constexpr char kChatTemplate[] =
    "{% for message in messages %}{% if message.role == 'robot' %}{{ raise_exception('no robots') }}{% endif "
    "%}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}";

// The character that stands for a byte in byte-level tokenizers: printable ones for themselves, the others counted from
// U+0100.
std::string ByteCharacter(int byte) {
  auto printable = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 128) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
}

nlohmann::json ByteTokenizerJson() {
  nlohmann::json json;
  json["version"] = "1.0";
  for (int byte = 0; byte < 256; ++byte) json["model"]["vocab"][ByteCharacter(byte)] = byte;
  json["model"]["type"] = "BPE";
  json["model"]["merges"] = nlohmann::json::array();
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  json["decoder"] = {{"type", "ByteLevel"}};
  for (const auto& [id, content] : {std::pair(kImStart, "<|im_start|>"), std::pair(kImEnd, "<|im_end|>")}) {
    json["added_tokens"].push_back({{"id", id}, {"content", content}, {"special", true}});
  }
  return json;
}

std::shared_ptr<const Tokenizer> ParseTokenizer(const nlohmann::json& json, const std::string& config) {
  auto parsed = Tokenizer::Parse(json.dump(), config);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *parsed;
}

}  // namespace

std::shared_ptr<const Tokenizer> ByteTokenizer() {
  static const std::shared_ptr<const Tokenizer> tokenizer = ParseTokenizer(ByteTokenizerJson(), "");
  return tokenizer;
}

std::shared_ptr<const Tokenizer> ByteTokenizerWithBos() {
  nlohmann::json json = ByteTokenizerJson();
  json["added_tokens"].push_back({{"id", kBos}, {"content", "<s>"}, {"special", true}});
  json["post_processor"] = nlohmann::json::parse(
      R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
          {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [258]}}})");
  return ParseTokenizer(json, R"({"bos_token": "<s>"})");
}

ServedModel TestModel(int32_t max_context) {
  ServedModel model;
  model.info.set_name("test-model");
  model.info.set_vocab_size(kVocabSize);
  model.info.set_hidden_size(64);
  model.info.set_max_context(max_context);
  model.info.set_default_pooling(v1::POOLING_LAST);
  model.tokenizer = ByteTokenizer();
  auto chat_template = ChatTemplate::Parse(kChatTemplate);
  EXPECT_TRUE(chat_template.ok()) << chat_template.status();
  model.chat_template = *chat_template;
  model.default_max_tokens = 16;
  return model;
}

TestServer::TestServer(TestServerOptions options) : options_(std::move(options)) {
  // Never balanced: when the last user of gRPC goes, the library waits for a poll of up to 10 s.
  static const bool keep_grpc = (grpc_init(), true);
  (void)keep_grpc;
  metrics_ = *Metrics::Create({});
  options_.backend.vocab_size = kVocabSize;
  options_.backend.first_token = 'a';
  options_.backend.num_tokens = 26;
  options_.rpc.listen = "127.0.0.1:0";
  options_.rpc.version = "1.2.3";
  options_.engine.scheduler.num_blocks = options_.num_blocks;
  options_.engine.scheduler.max_context = 2048;
  auto backend = std::make_unique<NullBackend>(options_.backend);
  EXPECT_TRUE(backend->AllocateKvCache({options_.num_blocks, options_.engine.scheduler.block_size}).ok());
  engine_ = std::make_unique<Engine>(options_.engine, std::move(backend), ByteTokenizer(), metrics_.get());
  engine_->Start();
  auto rpc = RpcServer::Start(options_.rpc, metrics_.get());
  EXPECT_TRUE(rpc.ok()) << rpc.status();
  rpc_ = *std::move(rpc);
  if (options_.serve) Serve();
  std::shared_ptr<grpc::Channel> channel = NewChannel();
  inference_ = v1::Inference::NewStub(channel);
  control_ = v1::Control::NewStub(channel);
  health_ = grpc::health::v1::Health::NewStub(channel);
}

TestServer::~TestServer() {
  rpc_.reset();  // before the engine it uses
  engine_.reset();
}

void TestServer::Serve() { rpc_->Serve(options_.model ? *options_.model : TestModel(), engine_.get()); }

std::shared_ptr<grpc::Channel> TestServer::NewChannel() const {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(rpc_->address(), grpc::InsecureChannelCredentials(), arguments);
}

double TestServer::Metric(const std::string& name) const {
  for (absl::string_view line : absl::StrSplit(metrics_->Expose(), '\n')) {
    const size_t space = line.rfind(' ');
    double value = 0;
    if (line.substr(0, space) == name && absl::SimpleAtod(line.substr(space + 1), &value)) return value;
  }
  ADD_FAILURE() << "no metric " << name;
  return -1;
}

bool TestServer::WaitIdle() {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (absl::Now() < deadline) {
    const SchedulerStats stats = engine_->Load().scheduler;
    if (stats.running == 0 && stats.waiting == 0 && stats.blocks_used == 0) return true;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return false;
}

bool TestServer::WaitMetric(const std::string& name, double value) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (absl::Now() < deadline) {
    if (Metric(name) >= value) return true;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return false;
}

std::map<std::string, std::string> FieldViolations(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), status.error_code());
  EXPECT_EQ(details.message(), status.error_message());
  std::map<std::string, std::string> out;
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::BadRequest bad_request;
    if (!any.UnpackTo(&bad_request)) continue;
    for (const auto& violation : bad_request.field_violations())
      out[violation.field()] = violation.description();
  }
  return out;
}

Collected Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request) {
  Collected out;
  const int n = request.has_n() ? request.n() : 1;
  out.texts.resize(n);
  out.num_tokens.resize(n);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  auto reader = stub.Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    ++out.messages;
    if (response.has_accepted()) {
      EXPECT_EQ(out.messages, 1);
      out.accepted = response.accepted();
    } else if (response.has_delta()) {
      out.texts.at(response.delta().index()) += response.delta().text();
      out.num_tokens.at(response.delta().index()) += response.delta().num_tokens();
    } else {
      out.finished.push_back(response.finished());
    }
  }
  out.status = reader->Finish();
  for (const auto& [key, value] : context.GetServerTrailingMetadata()) {
    out.trailers.emplace(std::string(key.data(), key.size()), std::string(value.data(), value.size()));
  }
  return out;
}

v1::GenerateRequest TextRequest(const std::string& text, int32_t max_tokens) {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text(text);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_seed(1);
  return request;
}

}  // namespace tessera
