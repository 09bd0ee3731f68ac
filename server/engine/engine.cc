#include "server/engine/engine.h"

#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/engine/active_request.h"
#include "server/engine/engine_loop.h"
#include "server/engine/heartbeat.h"
#include "server/engine/inbox.h"
#include "server/engine/load_board.h"

namespace tessera {

class Engine::Impl {
 public:
  Impl(EngineConfig config_in, std::unique_ptr<Backend> backend_in,
       std::shared_ptr<const Tokenizer> tokenizer_in, Metrics* metrics_in,
       std::function<absl::Time()> clock_in)
      : config(std::move(config_in)),
        backend(std::move(backend_in)),
        tokenizer(std::move(tokenizer_in)),
        metrics(metrics_in),
        clock(clock_in ? std::move(clock_in) : [] { return absl::Now(); }),
        inbox(std::make_shared<Inbox>(config.max_queued_sequences, config.max_queued_tokens)),
        loop(config, {backend.get(), metrics, inbox.get(), &heartbeat, &board, clock}) {}

  absl::Status CheckGenerate(const GenerateSpec& spec) const;
  absl::Status CheckEmbed(const EmbedSpec& spec) const;
  absl::StatusOr<std::shared_ptr<RequestStream>> Submit(std::unique_ptr<ActiveRequest> request,
                                                        std::string request_id,
                                                        std::function<void()> on_ready);
  GaugeValues Gauges() const;

  const EngineConfig config;
  const std::unique_ptr<Backend> backend;
  const std::shared_ptr<const Tokenizer> tokenizer;
  Metrics* const metrics;
  const std::function<absl::Time()> clock;
  const std::shared_ptr<Inbox> inbox;
  Heartbeat heartbeat;
  LoadBoard board;
  EngineLoop loop;
  std::atomic<SequenceId> next_sequence{1};
  std::atomic<bool> draining{false};
  std::thread thread;
};

absl::Status Engine::Impl::CheckGenerate(const GenerateSpec& spec) const {
  if (spec.n < 1) return absl::InvalidArgumentError(absl::StrCat("n is ", spec.n, "; at least 1"));
  if (spec.stopping.max_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens is ", spec.stopping.max_tokens, "; at least 1"));
  }
  if (tokenizer == nullptr && !spec.stopping.stop_strings.empty()) {
    return absl::InvalidArgumentError("stop strings need a tokenizer, and this server runs without one");
  }
  if (absl::Status fits = loop.CheckFits(static_cast<int64_t>(spec.prompt.size()), spec.stopping.max_tokens);
      !fits.ok()) {
    return fits;
  }
  return inbox->CheckRoom(spec.request_id, spec.n, static_cast<int64_t>(spec.prompt.size()) * spec.n);
}

absl::Status Engine::Impl::CheckEmbed(const EmbedSpec& spec) const {
  if (spec.inputs.empty()) return absl::InvalidArgumentError("no inputs; at least one is needed");
  int64_t tokens = 0;
  for (size_t i = 0; i < spec.inputs.size(); ++i) {
    tokens += static_cast<int64_t>(spec.inputs[i].size());
    if (absl::Status fits = loop.CheckFits(static_cast<int64_t>(spec.inputs[i].size()), 0); !fits.ok()) {
      return absl::Status(fits.code(), absl::StrCat("input ", i, ": ", fits.message()));
    }
  }
  return inbox->CheckRoom(spec.request_id, static_cast<int64_t>(spec.inputs.size()), tokens);
}

absl::StatusOr<std::shared_ptr<RequestStream>> Engine::Impl::Submit(std::unique_ptr<ActiveRequest> request,
                                                                    std::string request_id,
                                                                    std::function<void()> on_ready) {
  auto on_cancel = [inbox = inbox, serial = request->serial] {
    inbox->EndBySerial(serial, absl::CancelledError("cancelled by the caller"));
  };
  auto stream =
      std::make_shared<RequestStream>(std::move(request_id), std::move(on_ready), std::move(on_cancel));
  request->stream = stream;
  const RequestRecord::Kind kind = request->kind;
  const int32_t prompt_tokens = request->progress.prompt_tokens;
  if (absl::Status status =
          inbox->Submit(std::move(request), [&] { metrics->OnRequestAccepted(kind, prompt_tokens); });
      !status.ok()) {
    return status;
  }
  return stream;
}

GaugeValues Engine::Impl::Gauges() const {
  const SchedulerStats stats = board.stats();
  GaugeValues values;
  values.running = stats.running;
  values.waiting = stats.waiting + inbox->submitted_sequences();
  values.kv_blocks_used = stats.blocks_used;
  values.kv_blocks_cached = stats.blocks_cached;
  values.kv_blocks_total = stats.blocks_total;
  values.healthy = heartbeat.Healthy(clock(), config.watchdog_timeout);
  values.draining = draining.load(std::memory_order_relaxed);
  return values;
}

Engine::Engine(EngineConfig config, std::unique_ptr<Backend> backend,
               std::shared_ptr<const Tokenizer> tokenizer, Metrics* metrics,
               std::function<absl::Time()> clock)
    : impl_(std::make_unique<Impl>(std::move(config), std::move(backend), std::move(tokenizer), metrics,
                                   std::move(clock))) {
  metrics->SetGaugeSource([impl = impl_.get()] { return impl->Gauges(); });
}

Engine::~Engine() {
  impl_->inbox->Refuse(absl::UnavailableError("the server is shutting down"));
  impl_->inbox->Stop();
  if (impl_->thread.joinable()) {
    impl_->thread.join();
  } else {
    impl_->loop.Run();  // never started: ends what was queued
  }
  impl_->metrics->SetGaugeSource(nullptr);
}

void Engine::Start() {
  if (impl_->thread.joinable()) return;
  impl_->heartbeat.Start();
  impl_->thread = std::thread([impl = impl_.get()] { impl->loop.Run(); });
}

absl::StatusOr<std::shared_ptr<RequestStream>> Engine::Generate(GenerateSpec spec,
                                                                std::function<void()> on_ready) {
  if (absl::Status status = impl_->CheckGenerate(spec); !status.ok()) return status;
  if (spec.arrival == absl::Time()) spec.arrival = impl_->clock();
  const SequenceId first_id = impl_->next_sequence.fetch_add(spec.n, std::memory_order_relaxed);
  std::string request_id = spec.request_id;
  return impl_->Submit(
      MakeGeneration(std::move(spec), first_id, impl_->tokenizer, impl_->config.eos_token_ids),
      std::move(request_id), std::move(on_ready));
}

absl::StatusOr<std::shared_ptr<RequestStream>> Engine::Embed(EmbedSpec spec, std::function<void()> on_ready) {
  if (absl::Status status = impl_->CheckEmbed(spec); !status.ok()) return status;
  if (spec.arrival == absl::Time()) spec.arrival = impl_->clock();
  const SequenceId first_id = impl_->next_sequence.fetch_add(spec.inputs.size(), std::memory_order_relaxed);
  std::string request_id = spec.request_id;
  return impl_->Submit(MakeEmbedding(std::move(spec), first_id, impl_->backend->info().hidden_size),
                       std::move(request_id), std::move(on_ready));
}

bool Engine::Abort(const std::string& request_id, absl::Status why) {
  return impl_->inbox->End(request_id, std::move(why));
}

std::vector<std::string> Engine::AbortAll(absl::Status why) { return impl_->inbox->EndAll(std::move(why)); }

void Engine::Wake() { impl_->inbox->Wake(); }

void Engine::Drain() {
  impl_->draining.store(true, std::memory_order_relaxed);
  impl_->inbox->Refuse(absl::UnavailableError("the server is draining; try another one"));
}

bool Engine::WaitDrained(absl::Time deadline) {
  const auto real = [this](absl::Time time) { return absl::Now() + (time - impl_->clock()); };
  if (impl_->inbox->WaitUntilNoneLive(real(deadline))) return true;
  // The loop ends them at its next step. A device that hangs must not hold up the shutdown.
  constexpr absl::Duration kGrace = absl::Seconds(10);
  impl_->inbox->EndAll(absl::UnavailableError("the server was shut down"));
  impl_->inbox->WaitUntilNoneLive(absl::Now() + kGrace);
  return false;
}

EngineLoad Engine::Load() const {
  const absl::Time now = impl_->clock();
  EngineLoad load;
  load.scheduler = impl_->board.stats();
  load.scheduler.waiting += impl_->inbox->submitted_sequences();
  load.generation_tokens_per_second = impl_->board.generated_tokens.PerSecond(now);
  load.prompt_tokens_per_second = impl_->board.prompt_tokens.PerSecond(now);
  load.prefix_cache_hit_rate = impl_->board.PrefixHitRate();
  return load;
}

bool Engine::Healthy() const {
  return impl_->heartbeat.Healthy(impl_->clock(), impl_->config.watchdog_timeout);
}

const BackendInfo& Engine::backend_info() const { return impl_->backend->info(); }

const EngineConfig& Engine::config() const { return impl_->config; }

}  // namespace tessera
