#include "tests/unit/server/engine/engine_test_util.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/tokenizer/unicode.h"

namespace tessera {
namespace {

// The printable characters that stand for bytes in byte-level vocabularies (GPT-2's rule).
std::vector<std::string> ByteCharacters() {
  std::vector<std::string> characters(256);
  char32_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    unicode::AppendUtf8(printable ? static_cast<char32_t>(byte) : next++, &characters[byte]);
  }
  return characters;
}

}  // namespace

ByteTokenizer::ByteTokenizer(const std::vector<std::string>& words) {
  const std::vector<std::string> characters = ByteCharacters();
  nlohmann::json vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary[characters[byte]] = byte;
  int32_t id = 256;
  for (const std::string& word : words) {
    std::string spelled;
    for (char byte : word) spelled += characters[static_cast<uint8_t>(byte)];
    vocabulary[spelled] = id++;
  }
  eos_ = id;
  nlohmann::json file;
  file["version"] = "1.0";
  file["added_tokens"] = {{{"id", eos_},
                           {"content", "<eos>"},
                           {"single_word", false},
                           {"lstrip", false},
                           {"rstrip", false},
                           {"normalized", false},
                           {"special", true}}};
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  file["post_processor"] = nullptr;
  file["decoder"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  file["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"vocab", vocabulary},
                   {"merges", nlohmann::json::array()}};
  auto parsed = Tokenizer::Parse(file.dump());
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  tokenizer_ = *std::move(parsed);
}

std::function<void()> Reader::OnReady() const {
  return [signal = signal_] {
    std::lock_guard<std::mutex> lock(signal->mu);
    signal->ready = true;
    signal->changed.notify_all();
  };
}

void Reader::ReadOnce() {
  {
    std::unique_lock<std::mutex> lock(signal_->mu);
    signal_->changed.wait(lock, [this] { return signal_->ready; });
    signal_->ready = false;
  }
  std::vector<RequestEvent> events;
  const bool more = stream_->Take(&events);
  for (RequestEvent& event : events) Take(std::move(event));
  if (!more) {
    ended_ = true;
    EXPECT_TRUE(!collected_.embeddings.empty() || saw_usage_) << "ended without the last event";
    for (const CollectedOutput& output : collected_.outputs) EXPECT_TRUE(output.finished.has_value());
    EXPECT_FALSE(stream_->Take(&events));
    EXPECT_TRUE(events.empty());
  }
}

Collected Reader::ReadAll(absl::Duration pause) {
  while (!ended_) {
    if (pause > absl::ZeroDuration()) absl::SleepFor(pause);
    ReadOnce();
  }
  return collected_;
}

void Reader::ReadTokens(int tokens) {
  while (!ended_ && tokens_ < tokens) ReadOnce();
}

void Reader::Take(RequestEvent event) {
  EXPECT_FALSE(saw_usage_) << "an event after the last";
  if (auto* embedding = std::get_if<EmbeddingResult>(&event)) {
    EXPECT_TRUE(collected_.embeddings.emplace(embedding->index, std::move(*embedding)).second);
    return;
  }
  const int32_t index = std::holds_alternative<OutputDelta>(event) ? std::get<OutputDelta>(event).index
                                                                   : std::get<OutputFinished>(event).index;
  if (collected_.outputs.size() <= static_cast<size_t>(index)) collected_.outputs.resize(index + 1);
  CollectedOutput& output = collected_.outputs[index];
  EXPECT_FALSE(output.finished.has_value()) << "an event after the output's end";
  if (auto* delta = std::get_if<OutputDelta>(&event)) {
    EXPECT_EQ(unicode::FindInvalid(delta->text), absl::string_view::npos) << "a delta is not UTF-8";
    EXPECT_TRUE(!delta->text.empty() || !delta->token_ids.empty());
    if (!delta->prompt_logprobs.empty()) {
      EXPECT_EQ(index, 0);
      EXPECT_EQ(output.deltas, 0);
      collected_.prompt_logprobs = std::move(delta->prompt_logprobs);
    }
    ++output.deltas;
    output.text += delta->text;
    output.tokens.insert(output.tokens.end(), delta->token_ids.begin(), delta->token_ids.end());
    output.logprobs.insert(output.logprobs.end(), delta->logprobs.begin(), delta->logprobs.end());
    tokens_ += static_cast<int>(delta->token_ids.size());
    return;
  }
  OutputFinished& finished = std::get<OutputFinished>(event);
  EXPECT_EQ(finished.usage.has_value(), finished.timings.has_value());
  if (finished.usage.has_value()) {
    saw_usage_ = true;
    collected_.usage = *finished.usage;
    collected_.timings = *finished.timings;
  }
  output.finished = std::move(finished);
}

TestEngine::TestEngine(TestEngineOptions options) {
  metrics_ = *Metrics::Create({});
  options.backend.max_context = options.max_context;
  if (std::getenv("TESSERA_TEST_OVERLAP") != nullptr) options.backend.overlaps = true;
  auto backend = std::make_unique<NullBackend>(options.backend);
  EXPECT_TRUE(backend->AllocateKvCache({options.num_blocks, options.block_size}).ok());
  SchedulerConfig& scheduler = options.engine.scheduler;
  scheduler.num_blocks = options.num_blocks;
  scheduler.block_size = options.block_size;
  scheduler.max_running = options.max_running;
  scheduler.max_batched_tokens = options.max_batched_tokens;
  scheduler.max_prefill_chunk = options.max_prefill_chunk;
  scheduler.max_context = options.max_context;
  scheduler.prefix_cache = options.prefix_cache;
  engine_ = std::make_unique<Engine>(options.engine, std::move(backend), options.tokenizer, metrics_.get(),
                                     options.clock);
  if (options.start) engine_->Start();
}

Reader TestEngine::Generate(GenerateSpec spec) {
  Reader reader;
  auto stream = engine_->Generate(std::move(spec), reader.OnReady());
  EXPECT_TRUE(stream.ok()) << stream.status();
  reader.Attach(*std::move(stream));
  return reader;
}

Reader TestEngine::Embed(EmbedSpec spec) {
  Reader reader;
  auto stream = engine_->Embed(std::move(spec), reader.OnReady());
  EXPECT_TRUE(stream.ok()) << stream.status();
  reader.Attach(*std::move(stream));
  return reader;
}

double TestEngine::Metric(const std::string& series) const {
  const std::string exposition = metrics_->Expose();
  for (absl::string_view line : absl::StrSplit(exposition, '\n')) {
    if (line.size() > series.size() && line.substr(0, series.size()) == absl::string_view(series) &&
        line[series.size()] == ' ') {
      return std::strtod(std::string(line.substr(series.size() + 1)).c_str(), nullptr);
    }
  }
  ADD_FAILURE() << "no series " << series;
  return -1;
}

void TestEngine::ExpectIdle() const {
  const EngineLoad load = engine_->Load();
  EXPECT_EQ(load.scheduler.running, 0);
  EXPECT_EQ(load.scheduler.waiting, 0);
  EXPECT_EQ(load.scheduler.blocks_used, 0);
  EXPECT_EQ(load.scheduler.blocks_free + load.scheduler.blocks_cached, load.scheduler.blocks_total);
  EXPECT_EQ(Metric("tessera_running"), 0);
  EXPECT_EQ(Metric("tessera_waiting"), 0);
  EXPECT_EQ(Metric("tessera_kv_cache_usage_ratio"), 0);
}

GenerateSpec MakeSpec(const std::string& id, int prompt_tokens, int max_tokens, int salt) {
  GenerateSpec spec;
  spec.request_id = id;
  for (int i = 0; i < prompt_tokens; ++i) spec.prompt.push_back((i * 7 + salt * 31 + i * i % 11) % 200);
  spec.sampling.temperature = 0;
  spec.stopping.max_tokens = max_tokens;
  spec.arrival = absl::Now();
  return spec;
}

}  // namespace tessera
