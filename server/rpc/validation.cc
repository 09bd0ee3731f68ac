#include "server/rpc/validation.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "server/rpc/prompt.h"

namespace tessera {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;
constexpr size_t kMaxCacheSaltBytes = 128;
constexpr int32_t kMaxOutputs = 64;
constexpr int32_t kMaxLogprobs = 20;
constexpr int kMaxLogitBias = 1024;
constexpr int kMaxStopStrings = 16;
constexpr size_t kMaxStopStringBytes = 256;
constexpr int kMaxStopTokenIds = 64;
constexpr int kMaxEmbedInputs = 256;
constexpr int kMaxAbortIds = 1024;

// Adds a violation unless `value` is a number within [low, high]; NaN is never within.
template <typename T>
void CheckRange(T value, T low, T high, const char* field, Violations* violations) {
  if (value >= low && value <= high) return;
  violations->Add(field, absl::StrCat("found ", value, ", expected ", low, " to ", high));
}

// The same for (0, high].
void CheckAboveZero(float value, float high, const char* field, Violations* violations) {
  if (value > 0.0f && value <= high) return;
  violations->Add(field, absl::StrCat("found ", value, ", expected above 0 and at most ", high));
}

SamplingParams MakeSampling(const v1::SamplingParams& request, const ServedModel& model,
                            Violations* violations) {
  const v1::SamplingParams& defaults = model.info.default_sampling();
  auto pick = [](bool has, auto value, bool has_default, auto model_default, auto fallback) {
    return has ? value : has_default ? model_default : fallback;
  };
  SamplingParams out;
  out.temperature = pick(request.has_temperature(), request.temperature(), defaults.has_temperature(),
                         defaults.temperature(), out.temperature);
  out.top_k = pick(request.has_top_k(), request.top_k(), defaults.has_top_k(), defaults.top_k(), out.top_k);
  out.top_p = pick(request.has_top_p(), request.top_p(), defaults.has_top_p(), defaults.top_p(), out.top_p);
  out.min_p = request.min_p();
  out.presence_penalty = request.presence_penalty();
  out.frequency_penalty = request.frequency_penalty();
  out.repetition_penalty =
      pick(request.has_repetition_penalty(), request.repetition_penalty(), defaults.has_repetition_penalty(),
           defaults.repetition_penalty(), out.repetition_penalty);

  CheckRange(out.temperature, 0.0f, 2.0f, "sampling.temperature", violations);
  if (out.top_k < 0) {
    violations->Add("sampling.top_k",
                    absl::StrCat("found ", out.top_k, ", expected 0 (keep all) or at least 1"));
  }
  CheckAboveZero(out.top_p, 1.0f, "sampling.top_p", violations);
  CheckRange(out.min_p, 0.0f, 1.0f, "sampling.min_p", violations);
  CheckRange(out.presence_penalty, -2.0f, 2.0f, "sampling.presence_penalty", violations);
  CheckRange(out.frequency_penalty, -2.0f, 2.0f, "sampling.frequency_penalty", violations);
  CheckAboveZero(out.repetition_penalty, 10.0f, "sampling.repetition_penalty", violations);

  if (request.has_seed()) {
    out.seed = request.seed();
  } else {
    thread_local absl::BitGen gen;
    out.seed = absl::Uniform<uint64_t>(gen) >> 11;  // short enough for a JSON number to hold
  }

  if (request.logit_bias_size() > kMaxLogitBias) {
    violations->Add("sampling.logit_bias", absl::StrCat("found ", request.logit_bias_size(),
                                                        " entries, expected at most ", kMaxLogitBias));
    return out;
  }
  out.logit_bias.assign(request.logit_bias().begin(), request.logit_bias().end());
  std::sort(out.logit_bias.begin(), out.logit_bias.end());
  for (const auto& [id, bias] : out.logit_bias) {
    const std::string field = absl::StrCat("sampling.logit_bias[", id, "]");
    if (id < 0 || id >= model.info.vocab_size()) {
      violations->Add(field,
                      absl::StrCat("found token id ", id, ", expected 0 to ", model.info.vocab_size() - 1));
    }
    CheckRange(bias, -100.0f, 100.0f, field.c_str(), violations);
  }
  return out;
}

StoppingParams MakeStopping(const v1::StoppingParams& request, const ServedModel& model,
                            Violations* violations) {
  StoppingParams out;
  out.max_tokens = request.has_max_tokens() ? request.max_tokens() : model.default_max_tokens;
  out.min_tokens = request.min_tokens();
  out.include_stop = request.include_stop();
  out.ignore_eos = request.ignore_eos();
  if (out.max_tokens < 1) {
    violations->Add("stopping.max_tokens", absl::StrCat("found ", out.max_tokens, ", expected at least 1"));
  }
  if (out.min_tokens < 0) {
    violations->Add("stopping.min_tokens", absl::StrCat("found ", out.min_tokens, ", expected at least 0"));
  } else if (request.has_max_tokens() && out.max_tokens >= 1 && out.min_tokens > out.max_tokens) {
    violations->Add("stopping.min_tokens", absl::StrCat("found ", out.min_tokens,
                                                        ", expected 0 to max_tokens (", out.max_tokens, ")"));
  }

  if (request.stop_strings_size() > kMaxStopStrings) {
    violations->Add("stopping.stop_strings", absl::StrCat("found ", request.stop_strings_size(),
                                                          " strings, expected at most ", kMaxStopStrings));
  } else {
    for (int i = 0; i < request.stop_strings_size(); ++i) {
      const std::string& text = request.stop_strings(i);
      if (text.empty() || text.size() > kMaxStopStringBytes) {
        violations->Add(absl::StrCat("stopping.stop_strings[", i, "]"),
                        absl::StrCat("found ", text.size(), " bytes, expected 1 to ", kMaxStopStringBytes));
      }
      out.stop_strings.push_back(text);
    }
    if (!out.stop_strings.empty() && model.tokenizer == nullptr) {
      violations->Add("stopping.stop_strings", "the model is served without a tokenizer; use stop_token_ids");
    }
  }

  if (request.stop_token_ids_size() > kMaxStopTokenIds) {
    violations->Add("stopping.stop_token_ids", absl::StrCat("found ", request.stop_token_ids_size(),
                                                            " ids, expected at most ", kMaxStopTokenIds));
  } else {
    CheckTokenIds(request.stop_token_ids(), "stopping.stop_token_ids", model, violations);
    out.stop_token_ids.assign(request.stop_token_ids().begin(), request.stop_token_ids().end());
    std::sort(out.stop_token_ids.begin(), out.stop_token_ids.end());
    out.stop_token_ids.erase(std::unique(out.stop_token_ids.begin(), out.stop_token_ids.end()),
                             out.stop_token_ids.end());
  }
  return out;
}

absl::Duration CheckTimeout(const google::protobuf::Duration& timeout, Violations* violations) {
  constexpr int64_t kMaxSeconds = 315576000000;  // google.protobuf.Duration's own limit
  const bool wellformed = timeout.seconds() >= 0 && timeout.seconds() <= kMaxSeconds &&
                          timeout.nanos() >= 0 && timeout.nanos() < 1000000000;
  const absl::Duration value = absl::Seconds(timeout.seconds()) + absl::Nanoseconds(timeout.nanos());
  if (!wellformed || value <= absl::ZeroDuration()) {
    violations->Add("timeout", absl::StrCat("found ", timeout.seconds(), " s and ", timeout.nanos(),
                                            " ns, expected more than 0 and at most ", kMaxSeconds, " s"));
  }
  return value;
}

// Adds a violation about a prompt's length, which is known only after tokenising; `tokens` is null if that stopped once
// they were too many.
void CheckPromptLength(std::optional<int64_t> tokens, int64_t room_for_output, const std::string& path,
                       const ServedModel& model, Violations* violations) {
  const int64_t limit = model.info.max_context() - room_for_output;
  if (tokens == 0) {
    violations->Add(path, "has no tokens, expected at least one");
    return;
  }
  if (tokens && *tokens <= limit) return;
  const std::string found = tokens ? absl::StrCat("has ", *tokens) : absl::StrCat("has more than ", limit);
  const std::string reason = room_for_output > 0 ? absl::StrCat(" (the context of ", model.info.max_context(),
                                                                " with room for one token of output)")
                                                 : std::string(" (the context); set truncate to cut it");
  violations->Add(path, absl::StrCat(found, " tokens, expected at most ", limit, reason));
}

}  // namespace

void CheckRequestId(const RequestId& id, Violations* violations) {
  if (id.repeated) {
    violations->Add(id.field, "sent more than once");
    return;
  }
  const bool printable = std::all_of(id.id.begin(), id.id.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (printable && !id.id.empty() && id.id.size() <= kMaxRequestIdBytes) return;
  violations->Add(id.field, absl::StrCat("found ", id.id.size(), " bytes ", Quoted(id.id), ", expected 1 to ",
                                         kMaxRequestIdBytes, " printable ASCII characters without spaces"));
}

absl::Status CheckModelName(const std::string& name, const ServedModel& model) {
  if (name.empty() || name == model.info.name()) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("the model ", Quoted(name), " is not served here; \"", model.info.name(), "\" is"));
}

absl::StatusOr<GenerateSpec> MakeGenerateSpec(const v1::GenerateRequest& request, const RequestId& id,
                                              const ServedModel& model, absl::Time arrival) {
  if (absl::Status status = CheckModelName(request.model(), model); !status.ok()) return status;

  Violations violations;
  CheckRequestId(id, &violations);
  GenerateSpec spec;
  spec.request_id = id.id;
  spec.arrival = arrival;
  CheckPrompt(request.prompt(), "prompt", model, &violations);
  spec.sampling = MakeSampling(request.sampling(), model, &violations);
  spec.stopping = MakeStopping(request.stopping(), model, &violations);
  spec.n = request.has_n() ? request.n() : 1;
  CheckRange(spec.n, 1, kMaxOutputs, "n", &violations);
  if (spec.n > 1 && spec.sampling.temperature == 0.0f) {
    violations.Add(
        "n", absl::StrCat("found ", spec.n, ", expected 1 when temperature is 0: all would be the same"));
  }
  spec.priority = request.priority();
  if (request.has_timeout()) spec.timeout = CheckTimeout(request.timeout(), &violations);
  if (request.has_logprobs()) {
    CheckRange(request.logprobs(), 0, kMaxLogprobs, "logprobs", &violations);
    spec.logprobs = request.logprobs();
  }
  if (request.has_prompt_logprobs()) {
    CheckRange(request.prompt_logprobs(), 0, kMaxLogprobs, "prompt_logprobs", &violations);
    spec.prompt_logprobs = request.prompt_logprobs();
  }
  spec.skip_special_tokens = !request.has_skip_special_tokens() || request.skip_special_tokens();
  if (request.cache_salt().size() > kMaxCacheSaltBytes) {
    violations.Add("cache_salt", absl::StrCat("found ", request.cache_salt().size(),
                                              " bytes, expected at most ", kMaxCacheSaltBytes));
  }
  spec.cache_salt = request.cache_salt();
  spec.bypass_prefix_cache = request.bypass_prefix_cache();
  if (!violations.empty()) return violations.ToStatus();

  absl::StatusOr<std::vector<int32_t>> prompt =
      TokenizePrompt(request.prompt(), "prompt", model,
                     {.max_tokens = static_cast<size_t>(std::max(model.info.max_context() - 1, 0))});
  if (absl::IsOutOfRange(prompt.status())) {
    CheckPromptLength(std::nullopt, 1, "prompt", model, &violations);
    return violations.ToStatus();
  }
  if (!prompt.ok()) return prompt.status();
  spec.prompt = *std::move(prompt);
  const int64_t prompt_tokens = static_cast<int64_t>(spec.prompt.size());
  CheckPromptLength(prompt_tokens, 1, "prompt", model, &violations);
  if (!violations.empty()) return violations.ToStatus();

  // The context ends an output as max_tokens does.
  const int32_t left = static_cast<int32_t>(model.info.max_context() - prompt_tokens);
  spec.stopping.max_tokens = std::min(spec.stopping.max_tokens, left);
  if (spec.stopping.min_tokens > spec.stopping.max_tokens) {
    return InvalidField("stopping.min_tokens",
                        absl::StrCat("found ", spec.stopping.min_tokens, ", expected at most the ",
                                     spec.stopping.max_tokens, " tokens that may be generated (prompt ",
                                     prompt_tokens, ", context ", model.info.max_context(), ")"));
  }
  return spec;
}

absl::StatusOr<EmbedCall> MakeEmbedCall(const v1::EmbedRequest& request, const RequestId& id,
                                        const ServedModel& model, absl::Time arrival) {
  if (absl::Status status = CheckModelName(request.model(), model); !status.ok()) return status;

  Violations violations;
  CheckRequestId(id, &violations);
  if (request.inputs().empty() || request.inputs_size() > kMaxEmbedInputs) {
    violations.Add("inputs",
                   absl::StrCat("found ", request.inputs_size(), ", expected 1 to ", kMaxEmbedInputs));
  }
  for (int i = 0; i < std::min(request.inputs_size(), kMaxEmbedInputs); ++i) {
    CheckPrompt(request.inputs(i), absl::StrCat("inputs[", i, "]"), model, &violations);
  }
  EmbedCall call;
  call.spec.request_id = id.id;
  call.spec.arrival = arrival;
  call.spec.priority = request.priority();
  call.spec.normalize = !request.has_normalize() || request.normalize();
  switch (request.pooling() == v1::POOLING_UNSPECIFIED ? model.info.default_pooling() : request.pooling()) {
    case v1::POOLING_UNSPECIFIED:
    case v1::POOLING_LAST:
      call.spec.pooling = PoolingKind::kLast;
      break;
    case v1::POOLING_MEAN:
      call.spec.pooling = PoolingKind::kMean;
      break;
    case v1::POOLING_CLS:
      call.spec.pooling = PoolingKind::kCls;
      break;
    default:
      violations.Add("pooling",
                     absl::StrCat("found ", static_cast<int>(request.pooling()), ", which is no Pooling"));
  }
  if (!v1::TruncationSide_IsValid(request.truncation_side())) {
    violations.Add("truncation_side", absl::StrCat("found ", static_cast<int>(request.truncation_side()),
                                                   ", which is no TruncationSide"));
  } else if (request.truncation_side() != v1::TRUNCATION_SIDE_UNSPECIFIED && !request.truncate()) {
    violations.Add("truncation_side", "set without truncate");
  }
  if (!violations.empty()) return violations.ToStatus();

  const size_t max_context = model.info.max_context();
  const bool left = request.truncation_side() == v1::TRUNCATION_SIDE_LEFT;
  TextOptions options{.max_tokens = max_context};
  if (request.truncate()) {
    options.truncate = true;
    // One more tells that there is something to cut. What the end of a text becomes is known only from all of it.
    options.max_tokens = left ? kAnyNumberOfTokens : max_context + 1;
  }
  for (int i = 0; i < request.inputs_size(); ++i) {
    const std::string path = absl::StrCat("inputs[", i, "]");
    absl::StatusOr<std::vector<int32_t>> ids = TokenizePrompt(request.inputs(i), path, model, options);
    if (absl::IsOutOfRange(ids.status())) {
      CheckPromptLength(std::nullopt, 0, path, model, &violations);
      continue;
    }
    if (!ids.ok()) return ids.status();
    const bool cut = request.truncate() && ids->size() > max_context;
    if (cut && left) {
      ids->erase(ids->begin(), ids->end() - max_context);
    } else if (cut) {
      ids->resize(max_context);
    }
    CheckPromptLength(ids->size(), 0, path, model, &violations);
    call.spec.inputs.push_back(*std::move(ids));
    call.truncated.push_back(cut);
  }
  if (!violations.empty()) return violations.ToStatus();
  return call;
}

absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request, const ServedModel& model) {
  if (absl::Status status = CheckModelName(request.model(), model); !status.ok()) return status;
  Violations violations;
  CheckPrompt(request.prompt(), "prompt", model, &violations);
  const bool text = request.prompt().kind_case() == v1::Prompt::kText;
  if (!text && request.has_add_special_tokens())
    violations.Add("add_special_tokens", "set for a prompt that is not text");
  if (!text && request.parse_special()) violations.Add("parse_special", "set for a prompt that is not text");
  if (request.return_pieces() && model.tokenizer == nullptr) {
    violations.Add("return_pieces", "the model is served without a tokenizer");
  }
  if (!violations.empty()) return violations.ToStatus();

  TextOptions options;
  options.add_special_tokens = !request.has_add_special_tokens() || request.add_special_tokens();
  options.parse_special = request.parse_special();
  absl::StatusOr<std::vector<int32_t>> ids = TokenizePrompt(request.prompt(), "prompt", model, options);
  if (!ids.ok()) return ids.status();
  v1::TokenizeResponse response;
  response.mutable_token_ids()->Add(ids->begin(), ids->end());
  if (request.return_pieces()) {
    for (int32_t id : *ids) response.add_pieces(std::string(model.tokenizer->TokenBytes(id)));
  }
  response.set_max_context(model.info.max_context());
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request,
                                                  const ServedModel& model) {
  if (absl::Status status = CheckModelName(request.model(), model); !status.ok()) return status;
  Violations violations;
  CheckTokenIds(request.token_ids(), "token_ids", model, &violations);
  if (!violations.empty()) return violations.ToStatus();
  if (model.tokenizer == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model \"", model.info.name(), "\" is served without a tokenizer"));
  }
  // A model's vocabulary may be wider than its tokenizer's (padding); such ids stand for no text.
  std::vector<int32_t> ids;
  for (int32_t id : request.token_ids()) {
    if (model.tokenizer->IsValidId(id)) ids.push_back(id);
  }
  absl::StatusOr<std::string> text =
      model.tokenizer->Decode(ids, !request.has_skip_special_tokens() || request.skip_special_tokens());
  if (!text.ok()) return text.status();
  v1::DetokenizeResponse response;
  response.set_text(*std::move(text));
  return response;
}

absl::Status CheckAbortRequest(const v1::AbortRequest& request) {
  Violations violations;
  if (request.all() && !request.request_ids().empty()) {
    violations.Add("all", "set together with request_ids");
  } else if (!request.all() && (request.request_ids().empty() || request.request_ids_size() > kMaxAbortIds)) {
    violations.Add("request_ids", absl::StrCat("found ", request.request_ids_size(), ", expected 1 to ",
                                               kMaxAbortIds, ", or all"));
  } else {
    for (int i = 0; i < request.request_ids_size(); ++i) {
      CheckRequestId({.id = request.request_ids(i), .field = absl::StrCat("request_ids[", i, "]")},
                     &violations);
    }
  }
  return violations.ToStatus();
}

}  // namespace tessera
