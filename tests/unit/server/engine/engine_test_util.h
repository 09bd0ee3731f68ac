#ifndef TESSERA_TESTS_UNIT_SERVER_ENGINE_ENGINE_TEST_UTIL_H_
#define TESSERA_TESTS_UNIT_SERVER_ENGINE_ENGINE_TEST_UTIL_H_

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/backend/null/null_backend.h"
#include "server/engine/engine.h"
#include "server/metrics/metrics.h"
#include "server/tokenizer/tokenizer.h"

namespace tessera {

// A byte-level tokenizer: ids 0 to 255 are the bytes, then the words given here, then the special token "<eos>".
class ByteTokenizer {
 public:
  explicit ByteTokenizer(const std::vector<std::string>& words = {});
  const std::shared_ptr<const Tokenizer>& get() const { return tokenizer_; }
  int32_t eos() const { return eos_; }
  int32_t Word(size_t index) const { return 256 + static_cast<int32_t>(index); }
  int32_t vocab_size() const { return eos_ + 1; }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  int32_t eos_;
};

// One output, put together from its events.
struct CollectedOutput {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<PositionLogprobs> logprobs;
  std::optional<OutputFinished> finished;
  int deltas = 0;
};

struct Collected {
  std::vector<CollectedOutput> outputs;
  std::vector<PositionLogprobs> prompt_logprobs;
  std::map<int32_t, EmbeddingResult> embeddings;
  RequestUsage usage;
  RequestTimings timings;
};

// A reader that waits. Checks the rules of the stream while it collects: whole characters, nothing after an output's
// end, one end an output, usage with the last one alone.
class Reader {
 public:
  std::function<void()> OnReady() const;
  void Attach(std::shared_ptr<RequestStream> stream) { stream_ = std::move(stream); }
  const std::shared_ptr<RequestStream>& stream() const { return stream_; }

  // Reads to the end. With `unary`, looks at the stream only when it is woken the next time after `pause`.
  Collected ReadAll(absl::Duration pause = absl::ZeroDuration());
  // Waits until at least this many tokens came, or the end.
  void ReadTokens(int tokens);
  const Collected& collected() const { return collected_; }
  bool ended() const { return ended_; }

 private:
  struct Signal {
    std::mutex mu;
    std::condition_variable changed;
    bool ready = false;
  };
  void ReadOnce();
  void Take(RequestEvent event);

  std::shared_ptr<Signal> signal_ = std::make_shared<Signal>();
  std::shared_ptr<RequestStream> stream_;
  Collected collected_;
  int tokens_ = 0;
  int unfinished_ = -1;
  bool saw_usage_ = false;
  bool ended_ = false;
};

// An engine over the null backend, with everything that tests like to set.
struct TestEngineOptions {
  int32_t num_blocks = 4096;
  int32_t block_size = 4;
  int32_t max_running = 64;
  int32_t max_batched_tokens = 256;
  int32_t max_prefill_chunk = 64;
  int32_t max_context = 4096;
  bool prefix_cache = true;
  bool start = true;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::function<absl::Time()> clock;
  EngineConfig engine;        // its scheduler part is filled from the above
  NullBackendConfig backend;  // its context likewise
};

class TestEngine {
 public:
  explicit TestEngine(TestEngineOptions options = {});

  Engine* operator->() const { return engine_.get(); }
  Engine& engine() const { return *engine_; }
  void Destroy() { engine_.reset(); }

  // Submits and attaches; the test fails if it is refused.
  Reader Generate(GenerateSpec spec);
  Reader Embed(EmbedSpec spec);
  Collected GenerateAll(GenerateSpec spec) { return Generate(std::move(spec)).ReadAll(); }

  // The value of a line of the exposition, for example `tessera_outputs_total{finish_reason="stop"}`.
  double Metric(const std::string& series) const;
  // No sequence left anywhere, no block held, all gauges at zero.
  void ExpectIdle() const;

 private:
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Engine> engine_;
};

// A request with `id`, a prompt of `prompt_tokens` tokens that depend on `salt`, greedy.
GenerateSpec MakeSpec(const std::string& id, int prompt_tokens, int max_tokens, int salt = 0);

}  // namespace tessera

#endif  // TESSERA_TESTS_UNIT_SERVER_ENGINE_ENGINE_TEST_UTIL_H_
