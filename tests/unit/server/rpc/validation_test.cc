#include "server/rpc/validation.h"

#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "test_server.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

const RequestId kId{"id"};

absl::StatusOr<GenerateSpec> Make(const v1::GenerateRequest& request,
                                  const ServedModel& model = TestModel()) {
  return MakeGenerateSpec(request, kId, model, absl::UnixEpoch());
}

// The names of the fields that a request violates.
std::vector<std::string> Violated(const absl::Status& status) {
  std::vector<std::string> fields;
  if (status.ok()) return fields;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  for (const auto& [field, description] : FieldViolations(ToGrpcStatus(status))) {
    fields.push_back(field);
    EXPECT_FALSE(description.empty());
  }
  return fields;
}

v1::GenerateRequest Valid() {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text("hello");
  return request;
}

struct Bound {
  const char* field;
  std::function<void(v1::GenerateRequest*)> set;
  bool good;
};

TEST(MakeGenerateSpec, BoundsOfEveryField) {
  auto sampling = [](v1::GenerateRequest* r) { return r->mutable_sampling(); };
  auto stopping = [](v1::GenerateRequest* r) { return r->mutable_stopping(); };
  std::vector<Bound> bounds;
  auto floats = [&bounds](const char* field, std::function<void(v1::GenerateRequest*, float)> set,
                          std::vector<float> good, std::vector<float> bad) {
    for (float v : good) bounds.push_back({field, [=](auto* r) { set(r, v); }, true});
    bad.insert(bad.end(), {kNan, kInf, -kInf});
    for (float v : bad) bounds.push_back({field, [=](auto* r) { set(r, v); }, false});
  };
  auto ints = [&bounds](const char* field, std::function<void(v1::GenerateRequest*, int32_t)> set,
                        std::vector<int32_t> good, std::vector<int32_t> bad) {
    for (int32_t v : good) bounds.push_back({field, [=](auto* r) { set(r, v); }, true});
    for (int32_t v : bad) bounds.push_back({field, [=](auto* r) { set(r, v); }, false});
  };
  constexpr int32_t kMin = std::numeric_limits<int32_t>::min(), kMax = std::numeric_limits<int32_t>::max();
  floats("sampling.temperature", [=](auto* r, float v) { sampling(r)->set_temperature(v); }, {0, 1e-9f, 1, 2},
         {-1e-9f, 2.0001f});
  floats("sampling.top_p", [=](auto* r, float v) { sampling(r)->set_top_p(v); }, {1e-9f, 0.5f, 1},
         {0, -1, 1.0001f});
  floats("sampling.min_p", [=](auto* r, float v) { sampling(r)->set_min_p(v); }, {0, 0.5f, 1}, {-0.1f, 1.1f});
  floats("sampling.presence_penalty", [=](auto* r, float v) { sampling(r)->set_presence_penalty(v); },
         {-2, 0, 2}, {-2.1f, 2.1f});
  floats("sampling.frequency_penalty", [=](auto* r, float v) { sampling(r)->set_frequency_penalty(v); },
         {-2, 0, 2}, {-2.1f, 2.1f});
  floats("sampling.repetition_penalty", [=](auto* r, float v) { sampling(r)->set_repetition_penalty(v); },
         {0.01f, 1, 10}, {0, -1, 10.1f});
  floats("sampling.logit_bias[7]", [=](auto* r, float v) { (*sampling(r)->mutable_logit_bias())[7] = v; },
         {-100, 0, 100}, {-101, 101});
  ints("sampling.top_k", [=](auto* r, int32_t v) { sampling(r)->set_top_k(v); }, {0, 1, kMax}, {-1, kMin});
  ints("stopping.max_tokens", [=](auto* r, int32_t v) { stopping(r)->set_max_tokens(v); }, {1, kMax},
       {0, -1, kMin});
  ints("stopping.min_tokens", [=](auto* r, int32_t v) { stopping(r)->set_min_tokens(v); }, {0, 16},
       {-1, 17, kMax, kMin});
  ints("n", [](auto* r, int32_t v) { r->set_n(v); }, {1, 64}, {0, -1, 65, kMax, kMin});
  ints("logprobs", [](auto* r, int32_t v) { r->set_logprobs(v); }, {0, 20}, {-1, 21, kMax});
  ints("prompt_logprobs", [](auto* r, int32_t v) { r->set_prompt_logprobs(v); }, {0, 20}, {-1, 21, kMax});
  ints("stopping.stop_token_ids[0]", [=](auto* r, int32_t v) { stopping(r)->add_stop_token_ids(v); },
       {0, 319}, {-1, 320, kMax, kMin});
  ints("prompt.token_ids.ids[0]",
       [](auto* r, int32_t v) { r->mutable_prompt()->mutable_token_ids()->add_ids(v); }, {0, 319},
       {-1, 320, kMax, kMin});
  ints("timeout", [](auto* r, int32_t v) { r->mutable_timeout()->set_nanos(v); }, {1, 999999999},
       {0, -1, 1000000000, kMin});
  auto strings = [&bounds](const char* field, std::function<void(v1::GenerateRequest*, std::string)> set,
                           std::vector<std::string> good, std::vector<std::string> bad) {
    for (const std::string& v : good) bounds.push_back({field, [=](auto* r) { set(r, v); }, true});
    for (const std::string& v : bad) bounds.push_back({field, [=](auto* r) { set(r, v); }, false});
  };
  strings("stopping.stop_strings[0]", [=](auto* r, std::string v) { stopping(r)->add_stop_strings(v); },
          {"x", std::string(256, 'x')}, {"", std::string(257, 'x')});
  strings("cache_salt", [](auto* r, std::string v) { r->set_cache_salt(v); }, {"", std::string(128, 'x')},
          {std::string(129, 'x')});
  auto chat = [](v1::GenerateRequest* r) { return r->mutable_prompt()->mutable_chat(); };
  strings("prompt.chat.messages[0].role",
          [=](auto* r, std::string v) { chat(r)->add_messages()->set_role(v); },
          {"user", std::string(64, 'x')}, {"", std::string(65, 'x')});
  strings("prompt.chat.template_variables_json",
          [=](auto* r, std::string v) {
            chat(r)->add_messages()->set_role("user");
            chat(r)->set_template_variables_json(v);
          },
          {"{}", R"({"enable_thinking": false})"},
          {"[]", "{", "1", "null", R"({"messages": []})", R"({"tools": 1})",
           R"({"add_generation_prompt": true})", "{\"x\": \"" + std::string(65536, 'x') + "\"}"});

  for (const Bound& bound : bounds) {
    v1::GenerateRequest request = Valid();
    bound.set(&request);
    const std::vector<std::string> violated = Violated(Make(request).status());
    if (bound.good) {
      EXPECT_THAT(violated, IsEmpty()) << request.ShortDebugString();
    } else {
      EXPECT_THAT(violated, testing::Contains(bound.field)) << request.ShortDebugString();
    }
  }
}

TEST(MakeGenerateSpec, CountsAreBounded) {
  v1::GenerateRequest request = Valid();
  for (int i = 0; i < 17; ++i) request.mutable_stopping()->add_stop_strings("x");
  for (int i = 0; i < 65; ++i) request.mutable_stopping()->add_stop_token_ids(1);
  for (int i = 0; i < 1025; ++i) (*request.mutable_sampling()->mutable_logit_bias())[i] = 1;
  EXPECT_THAT(
      Violated(Make(request).status()),
      UnorderedElementsAre("stopping.stop_strings", "stopping.stop_token_ids", "sampling.logit_bias"));
  v1::GenerateRequest chat;
  chat.mutable_prompt()->mutable_chat();
  EXPECT_THAT(Violated(Make(chat).status()), ElementsAre("prompt.chat.messages"));
}

TEST(MakeGenerateSpec, FillsInTheDefaults) {
  v1::GenerateRequest request = Valid();
  absl::StatusOr<GenerateSpec> spec = Make(request);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->request_id, "id");
  EXPECT_THAT(spec->prompt, ElementsAre('h', 'e', 'l', 'l', 'o'));
  EXPECT_EQ(spec->sampling.temperature, 1.0f);
  EXPECT_EQ(spec->sampling.top_k, 0);
  EXPECT_EQ(spec->sampling.top_p, 1.0f);
  EXPECT_EQ(spec->sampling.repetition_penalty, 1.0f);
  EXPECT_EQ(spec->stopping.max_tokens, 16);
  EXPECT_EQ(spec->n, 1);
  EXPECT_EQ(spec->logprobs, -1);
  EXPECT_EQ(spec->prompt_logprobs, -1);
  EXPECT_EQ(spec->timeout, absl::InfiniteDuration());
  EXPECT_TRUE(spec->skip_special_tokens);
  EXPECT_FALSE(spec->bypass_prefix_cache);
  EXPECT_EQ(spec->arrival, absl::UnixEpoch());
  EXPECT_NE(Make(request)->sampling.seed, spec->sampling.seed);  // drawn anew

  ServedModel model = TestModel();
  model.info.mutable_default_sampling()->set_temperature(0.25f);
  model.info.mutable_default_sampling()->set_top_k(7);
  model.info.mutable_default_sampling()->set_repetition_penalty(1.5f);
  spec = Make(request, model);
  EXPECT_EQ(spec->sampling.temperature, 0.25f);
  EXPECT_EQ(spec->sampling.top_k, 7);
  EXPECT_EQ(spec->sampling.repetition_penalty, 1.5f);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_top_k(0);
  spec = Make(request, model);
  EXPECT_EQ(spec->sampling.temperature, 0.0f);
  EXPECT_EQ(spec->sampling.top_k, 0);
}

TEST(MakeGenerateSpec, ContradictionsAreRefused) {
  v1::GenerateRequest request = Valid();
  request.mutable_sampling()->set_temperature(0);
  request.set_n(2);
  EXPECT_THAT(Violated(Make(request).status()), ElementsAre("n"));
  ServedModel greedy = TestModel();
  greedy.info.mutable_default_sampling()->set_temperature(0);
  request.clear_sampling();
  EXPECT_THAT(Violated(Make(request, greedy).status()), ElementsAre("n"));
  request.set_n(1);
  request.mutable_stopping()->set_max_tokens(5);
  request.mutable_stopping()->set_min_tokens(6);
  EXPECT_THAT(Violated(Make(request).status()), ElementsAre("stopping.min_tokens"));
  v1::GenerateRequest empty;
  EXPECT_THAT(Violated(Make(empty).status()), ElementsAre("prompt"));
}

TEST(MakeGenerateSpec, TimeoutMayHoldAnyNumbers) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t seconds : {kLeast, int64_t{-1}, int64_t{315576000001}, kMost}) {
    v1::GenerateRequest request = Valid();
    request.mutable_timeout()->set_seconds(seconds);
    EXPECT_THAT(Violated(Make(request).status()), ElementsAre("timeout")) << seconds;
  }
  for (const int32_t nanos : {std::numeric_limits<int32_t>::min(), -1, 1000000000}) {
    v1::GenerateRequest request = Valid();
    request.mutable_timeout()->set_seconds(1);
    request.mutable_timeout()->set_nanos(nanos);
    EXPECT_THAT(Violated(Make(request).status()), ElementsAre("timeout")) << nanos;
  }
}

TEST(MakeGenerateSpec, PromptLogprobsLeaveTheOtherOutputsTheCache) {
  v1::GenerateRequest request = Valid();
  request.set_prompt_logprobs(0);
  EXPECT_FALSE(Make(request)->bypass_prefix_cache);
}

TEST(MakeGenerateSpec, SortsAndDeduplicates) {
  v1::GenerateRequest request = Valid();
  for (int32_t id : {9, 3, 9, 5}) request.mutable_stopping()->add_stop_token_ids(id);
  for (int32_t id : {9, 3, 5}) (*request.mutable_sampling()->mutable_logit_bias())[id] = id;
  const absl::StatusOr<GenerateSpec> spec = Make(request);
  ASSERT_TRUE(spec.ok());
  EXPECT_THAT(spec->stopping.stop_token_ids, ElementsAre(3, 5, 9));
  EXPECT_THAT(spec->sampling.logit_bias, ElementsAre(Pair(3, 3.0f), Pair(5, 5.0f), Pair(9, 9.0f)));
}

TEST(MakeGenerateSpec, WithoutATokenizerOnlyTokenIds) {
  ServedModel model = TestModel();
  model.tokenizer = nullptr;
  EXPECT_EQ(Make(Valid(), model).status().code(), absl::StatusCode::kFailedPrecondition);
  v1::GenerateRequest request;
  request.mutable_prompt()->mutable_token_ids()->add_ids(5);
  EXPECT_TRUE(Make(request, model).ok());
  request.mutable_stopping()->add_stop_strings("x");
  EXPECT_THAT(Violated(Make(request, model).status()), ElementsAre("stopping.stop_strings"));
}

TEST(MakeGenerateSpec, WithoutAChatTemplateNoChat) {
  ServedModel model = TestModel();
  model.chat_template.reset();
  v1::GenerateRequest request;
  request.mutable_prompt()->mutable_chat()->add_messages()->set_role("user");
  EXPECT_EQ(Make(request, model).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(MakeGenerateSpec, EmptyTextHasNoTokens) {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text("");
  EXPECT_THAT(Violated(Make(request).status()), ElementsAre("prompt"));
}

TEST(CheckRequestId, Characters) {
  auto violations = [](RequestId id) {
    Violations v;
    CheckRequestId(id, &v);
    return v.size();
  };
  EXPECT_EQ(violations({"a"}), 0u);
  EXPECT_EQ(violations({std::string(128, '~')}), 0u);
  EXPECT_EQ(violations({""}), 1u);
  EXPECT_EQ(violations({std::string(129, 'x')}), 1u);
  for (const char* bad : {"a b", "a\n", "\x7f", "\xc3\xa9", "a\tb"}) EXPECT_EQ(violations({bad}), 1u) << bad;
  EXPECT_EQ(violations({std::string("a\0b", 3)}), 1u);
  EXPECT_EQ(violations({"ok", "metadata x-request-id", true}), 1u);
}

absl::StatusOr<EmbedCall> MakeEmbed(const v1::EmbedRequest& request) {
  return MakeEmbedCall(request, kId, TestModel(), absl::UnixEpoch());
}

TEST(MakeEmbedCall, ChecksEveryInput) {
  v1::EmbedRequest request;
  EXPECT_THAT(Violated(MakeEmbed(request).status()), ElementsAre("inputs"));
  request.add_inputs()->set_text("fine");
  request.add_inputs();
  request.add_inputs()->mutable_token_ids()->add_ids(-5);
  EXPECT_THAT(Violated(MakeEmbed(request).status()),
              UnorderedElementsAre("inputs[1]", "inputs[2].token_ids.ids[0]"));
  request.clear_inputs();
  for (int i = 0; i < 257; ++i) request.add_inputs()->set_text("x");
  EXPECT_THAT(Violated(MakeEmbed(request).status()), ElementsAre("inputs"));
  request.mutable_inputs()->RemoveLast();
  EXPECT_TRUE(MakeEmbed(request).ok());
}

TEST(MakeEmbedCall, NamesAllInputsThatAreTooLongOrEmpty) {
  v1::EmbedRequest request;
  request.add_inputs()->set_text(std::string(2049, 'x'));
  request.add_inputs()->set_text(std::string(2048, 'x'));
  request.add_inputs()->set_text("");
  EXPECT_THAT(Violated(MakeEmbed(request).status()), UnorderedElementsAre("inputs[0]", "inputs[2]"));
}

TEST(MakeEmbedCall, EnumsAndContradictions) {
  v1::EmbedRequest request;
  request.add_inputs()->set_text("x");
  request.set_pooling(static_cast<v1::Pooling>(99));
  request.set_truncation_side(static_cast<v1::TruncationSide>(99));
  EXPECT_THAT(Violated(MakeEmbed(request).status()), UnorderedElementsAre("pooling", "truncation_side"));
  request.set_pooling(v1::POOLING_MEAN);
  request.set_truncation_side(v1::TRUNCATION_SIDE_LEFT);
  EXPECT_THAT(Violated(MakeEmbed(request).status()), ElementsAre("truncation_side"));
  request.set_truncate(true);
  const absl::StatusOr<EmbedCall> call = MakeEmbed(request);
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(call->spec.pooling, PoolingKind::kMean);
  EXPECT_TRUE(call->spec.normalize);
}

TEST(MakeEmbedCall, TruncatesTheSideThatWasAskedFor) {
  v1::EmbedRequest request;
  request.add_inputs()->set_text("a" + std::string(2047, 'x') + "b");
  request.set_truncate(true);
  EXPECT_EQ(MakeEmbed(request)->spec.inputs[0].front(), 'a');
  EXPECT_EQ(MakeEmbed(request)->spec.inputs[0].size(), 2048u);
  request.set_truncation_side(v1::TRUNCATION_SIDE_LEFT);
  EXPECT_EQ(MakeEmbed(request)->spec.inputs[0].back(), 'b');
  EXPECT_EQ(MakeEmbed(request)->spec.inputs[0].size(), 2048u);
  EXPECT_TRUE(MakeEmbed(request)->truncated[0]);
}

TEST(Tokenize, RefusesOptionsForOtherThanText) {
  v1::TokenizeRequest request;
  request.mutable_prompt()->mutable_token_ids()->add_ids(1);
  EXPECT_TRUE(Tokenize(request, TestModel()).ok());
  request.set_parse_special(true);
  request.set_add_special_tokens(true);
  EXPECT_THAT(Violated(Tokenize(request, TestModel()).status()),
              UnorderedElementsAre("parse_special", "add_special_tokens"));
}

TEST(CheckAbortRequest, IdsThatNoRequestCanHaveAreRefused) {
  v1::AbortRequest request;
  request.add_request_ids("good");
  request.add_request_ids("");
  request.add_request_ids(std::string(100000, 'x'));
  EXPECT_THAT(Violated(CheckAbortRequest(request)), ElementsAre("request_ids[1]", "request_ids[2]"));
}

TEST(CheckAbortRequest, IdsOrAllButNotBoth) {
  v1::AbortRequest request;
  EXPECT_THAT(Violated(CheckAbortRequest(request)), ElementsAre("request_ids"));
  request.set_all(true);
  EXPECT_TRUE(CheckAbortRequest(request).ok());
  request.add_request_ids("x");
  EXPECT_THAT(Violated(CheckAbortRequest(request)), ElementsAre("all"));
  request.set_all(false);
  EXPECT_TRUE(CheckAbortRequest(request).ok());
}

}  // namespace
}  // namespace tessera
