#include "server/engine/active_request.h"

#include <utility>

namespace tessera {

std::unique_ptr<ActiveRequest> MakeGeneration(GenerateSpec spec, SequenceId first_id,
                                              const std::shared_ptr<const Tokenizer>& tokenizer,
                                              const std::vector<int32_t>& eos_token_ids) {
  auto request = std::make_unique<ActiveRequest>(RequestRecord::Kind::kGenerate, spec.arrival);
  request->serial = first_id;
  request->progress.prompt_tokens = static_cast<int32_t>(spec.prompt.size());
  request->progress.max_tokens = spec.stopping.max_tokens;
  request->progress.n = spec.n;
  request->live_sequences = spec.n;
  request->sequences.resize(spec.n);
  request->prompt = std::move(spec.prompt);
  const auto rules = std::make_shared<const StopRules>(spec.stopping, eos_token_ids);
  const bool scores_prompt = spec.prompt_logprobs >= 0;

  for (int32_t i = 0; i < spec.n; ++i) {
    ActiveSequence& sequence = request->sequences[i];
    sequence.request = request.get();
    sequence.id = first_id + static_cast<SequenceId>(i);
    sequence.index = i;
    sequence.prompt_tokens = request->progress.prompt_tokens;
    sequence.spec.id = sequence.id;
    sequence.spec.max_tokens = spec.stopping.max_tokens;
    sequence.spec.priority = spec.priority;
    sequence.spec.deadline = spec.arrival + spec.timeout;
    sequence.spec.cache_salt = spec.cache_salt;
    // A scored prompt has to be computed, in full and by output 0; the others may share what it computed.
    sequence.spec.read_prefix_cache = !spec.bypass_prefix_cache && !(scores_prompt && i == 0);
    if (i > 0) sequence.spec.after = first_id;

    SamplingParams sampling = spec.sampling;
    sampling.seed += static_cast<uint64_t>(i);
    sequence.sampler.emplace(std::move(sampling), request->prompt, rules->EndingTokens(),
                             spec.stopping.min_tokens, spec.logprobs);
    sequence.output.emplace(tokenizer, spec.skip_special_tokens, rules, spec.stopping.max_tokens);
    const bool last_use = i + 1 == spec.n && !scores_prompt;
    sequence.spec.prompt = last_use ? std::move(request->prompt) : request->prompt;
  }
  if (scores_prompt) request->sequences[0].prompt_scorer.emplace(request->prompt, spec.prompt_logprobs);
  return request;
}

std::unique_ptr<ActiveRequest> MakeEmbedding(EmbedSpec spec, SequenceId first_id, int32_t hidden_size) {
  auto request = std::make_unique<ActiveRequest>(RequestRecord::Kind::kEmbed, spec.arrival);
  request->serial = first_id;
  request->normalize = spec.normalize;
  request->live_sequences = static_cast<int32_t>(spec.inputs.size());
  request->sequences.resize(spec.inputs.size());
  for (size_t i = 0; i < spec.inputs.size(); ++i) {
    ActiveSequence& sequence = request->sequences[i];
    sequence.request = request.get();
    sequence.id = first_id + i;
    sequence.index = static_cast<int32_t>(i);
    sequence.prompt_tokens = static_cast<int32_t>(spec.inputs[i].size());
    sequence.spec.id = sequence.id;
    sequence.spec.priority = spec.priority;
    sequence.spec.read_prefix_cache = false;  // pooling sees the hidden state of every token
    sequence.spec.prompt = std::move(spec.inputs[i]);
    sequence.pooler.emplace(spec.pooling, hidden_size, sequence.prompt_tokens);
    request->progress.prompt_tokens += sequence.prompt_tokens;
  }
  return request;
}

}  // namespace tessera
