#include "server/metrics/metrics.h"

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <sstream>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "prometheus/text_serializer.h"
#include "server/metrics/histogram.h"
#include "server/metrics/metrics_table.h"
#include "server/metrics/process_metrics.h"

namespace tessera {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;

using Labels = std::vector<ClientMetric::Label>;

// All combinations of a metric's label values, the last label varying fastest.
std::vector<Labels> LabelSets(const MetricDefinition& definition) {
  std::vector<Labels> sets = {{}};
  for (const LabelDimension& dimension : definition.labels) {
    std::vector<Labels> next;
    for (const Labels& set : sets) {
      for (const char* value : dimension.values) {
        next.push_back(set);
        next.back().push_back({dimension.name, value});
      }
    }
    sets = std::move(next);
  }
  return sets;
}

// Index of `value` in a label's values, or of the last one.
size_t ValueIndex(const LabelDimension& dimension, const std::string& value) {
  for (size_t i = 0; i < dimension.values.size(); ++i) {
    if (value == dimension.values[i]) return i;
  }
  return dimension.values.size() - 1;
}

double Seconds(absl::Duration duration) { return absl::ToDoubleSeconds(duration); }

// Higher is worse; as the help of requests_total says.
int Badness(const std::string& reason) {
  static constexpr std::array<const char*, 5> kOrder = {"stop", "length", "deadline", "abort", "error"};
  for (size_t i = 0; i < kOrder.size(); ++i) {
    if (reason == kOrder[i]) return static_cast<int>(i);
  }
  return static_cast<int>(kOrder.size());
}

}  // namespace

class Metrics::Impl : public prometheus::Collectable {
 public:
  explicit Impl(const std::vector<double>& latency_buckets) {
    series_.reserve(MetricsTable().size());
    for (const MetricDefinition& definition : MetricsTable()) {
      Series series;
      series.labels = LabelSets(definition);
      if (definition.kind == MetricKind::kCounter) {
        series.counters.reset(new std::atomic<uint64_t>[series.labels.size()]());
      } else if (definition.kind == MetricKind::kHistogram) {
        const std::vector<double> bounds =
            definition.buckets == BucketSet::kLatency && !latency_buckets.empty()
                ? latency_buckets
                : BucketBounds(definition.buckets);
        for (size_t i = 0; i < series.labels.size(); ++i) {
          series.histograms.push_back(std::make_unique<AtomicHistogram>(bounds));
        }
      }
      series_.push_back(std::move(series));
    }
  }

  void Add(MetricId id, uint64_t value, size_t index = 0) {
    series_[static_cast<size_t>(id)].counters[index].fetch_add(value, std::memory_order_relaxed);
  }
  void Observe(MetricId id, double value, size_t index = 0) {
    series_[static_cast<size_t>(id)].histograms[index]->Observe(value);
  }

  void SetLabels(MetricsLabels labels) {
    absl::MutexLock lock(&mu_);
    labels_ = std::move(labels);
  }
  void SetGaugeSource(std::function<GaugeValues()> source) {
    absl::MutexLock lock(&mu_);
    gauge_source_ = std::move(source);
  }
  void SetStartupPhase(const std::string& phase, double seconds) {
    absl::MutexLock lock(&mu_);
    for (auto& [name, value] : startup_) {
      if (name == phase) {
        value = seconds;
        return;
      }
    }
    startup_.emplace_back(phase, seconds);
  }

  std::vector<MetricFamily> Collect() const override {
    std::vector<MetricFamily> out;
    out.reserve(series_.size() + 8);
    for (const MetricDefinition& definition : MetricsTable()) {
      if (definition.kind == MetricKind::kGauge) continue;
      const Series& series = series_[static_cast<size_t>(definition.id)];
      MetricFamily family;
      family.name = definition.name;
      family.help = definition.help;
      family.type = definition.kind == MetricKind::kCounter ? prometheus::MetricType::Counter
                                                            : prometheus::MetricType::Histogram;
      for (size_t i = 0; i < series.labels.size(); ++i) {
        ClientMetric metric;
        metric.label = series.labels[i];
        if (definition.kind == MetricKind::kCounter) {
          metric.counter.value = static_cast<double>(series.counters[i].load(std::memory_order_relaxed));
        } else {
          metric.histogram = series.histograms[i]->Snapshot();
        }
        family.metric.push_back(std::move(metric));
      }
      out.push_back(std::move(family));
    }
    CollectGauges(&out);
    for (MetricFamily& family : CollectProcessMetrics()) out.push_back(std::move(family));
    return out;
  }

 private:
  struct Series {
    std::vector<Labels> labels;
    std::unique_ptr<std::atomic<uint64_t>[]> counters;
    std::vector<std::unique_ptr<AtomicHistogram>> histograms;
  };

  void CollectGauges(std::vector<MetricFamily>* out) const {
    absl::MutexLock lock(&mu_);
    const GaugeValues values = gauge_source_ ? gauge_source_() : GaugeValues();
    auto add = [out](MetricId id, std::vector<std::pair<Labels, double>> samples) {
      MetricFamily family;
      family.name = Definition(id).name;
      family.help = Definition(id).help;
      family.type = prometheus::MetricType::Gauge;
      for (auto& [labels, value] : samples) {
        ClientMetric metric;
        metric.label = std::move(labels);
        metric.gauge.value = value;
        family.metric.push_back(std::move(metric));
      }
      out->push_back(std::move(family));
    };
    const double total = values.kv_blocks_total;
    const double used = values.kv_blocks_used;
    const double cached = values.kv_blocks_cached;
    add(MetricId::kRunning, {{{}, static_cast<double>(values.running)}});
    add(MetricId::kWaiting, {{{}, static_cast<double>(values.waiting)}});
    add(MetricId::kKvCacheUsage, {{{}, total > 0 ? used / total : 0.0}});
    add(MetricId::kKvCacheBlocks, {{{{"state", "used"}}, used},
                                   {{{"state", "cached"}}, cached},
                                   {{{"state", "free"}}, total - used - cached}});
    add(MetricId::kHealthy, {{{}, values.healthy ? 1.0 : 0.0}});
    add(MetricId::kDraining, {{{}, values.draining ? 1.0 : 0.0}});
    std::vector<std::pair<Labels, double>> startup;
    for (const auto& [phase, seconds] : startup_) startup.push_back({{{"phase", phase}}, seconds});
    if (!startup.empty()) add(MetricId::kStartup, std::move(startup));
    add(MetricId::kBuildInfo, {{{{"version", labels_.version}, {"device", labels_.device}}, 1.0}});
    add(MetricId::kModelInfo, {{{{"model_name", labels_.model_name},
                                 {"architecture", labels_.architecture},
                                 {"weight_formats", labels_.weight_formats}},
                                1.0}});
  }

  std::vector<Series> series_;  // in order of MetricId; fixed after construction
  // Held while gauges are collected; the engine's calls never take it, but for OnStartupPhase.
  mutable absl::Mutex mu_;
  std::function<GaugeValues()> gauge_source_ ABSL_GUARDED_BY(mu_);
  MetricsLabels labels_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<std::string, double>> startup_ ABSL_GUARDED_BY(mu_);
};

Metrics::Metrics(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Metrics::~Metrics() = default;

absl::StatusOr<std::unique_ptr<Metrics>> Metrics::Create(Options options) {
  double previous = 0;
  for (double bound : options.latency_buckets) {
    if (!std::isfinite(bound) || bound <= previous) {
      return absl::InvalidArgumentError(
          absl::StrCat("latency buckets must be finite, above 0 and strictly increasing; found ", bound,
                       previous > 0 ? absl::StrCat(" after ", previous) : std::string()));
    }
    previous = bound;
  }
  auto impl = std::make_unique<Impl>(options.latency_buckets);
  impl->SetLabels(std::move(options.labels));
  return std::unique_ptr<Metrics>(new Metrics(std::move(impl)));
}

void Metrics::SetLabels(MetricsLabels labels) { impl_->SetLabels(std::move(labels)); }

void Metrics::SetGaugeSource(std::function<GaugeValues()> source) {
  impl_->SetGaugeSource(std::move(source));
}

void Metrics::OnRequestAccepted(RequestRecord::Kind kind, int32_t prompt_tokens) {
  impl_->Add(MetricId::kRequestsAccepted, 1, static_cast<size_t>(kind));
  impl_->Add(MetricId::kPromptTokens, prompt_tokens);
}

void Metrics::OnFirstToken(absl::Duration time_to_first_token) {
  impl_->Observe(MetricId::kTimeToFirstToken, Seconds(time_to_first_token));
}

void Metrics::OnInterTokenLatencies(const std::vector<double>& seconds) {
  for (double value : seconds) impl_->Observe(MetricId::kInterTokenLatency, value);
}

void Metrics::OnRequestFinished(const RequestRecord& record) {
  const size_t kind = static_cast<size_t>(record.kind);
  const LabelDimension& reasons = Definition(MetricId::kOutputs).labels[0];
  const bool generate = record.kind == RequestRecord::Kind::kGenerate;

  std::string worst = record.finish_reasons.empty() ? "error" : record.finish_reasons.front();
  for (const std::string& reason : record.finish_reasons) {
    if (generate) impl_->Add(MetricId::kOutputs, 1, ValueIndex(reasons, reason));
    if (Badness(reason) > Badness(worst)) worst = reason;
  }
  impl_->Add(MetricId::kRequests, 1, kind * reasons.values.size() + ValueIndex(reasons, worst));

  impl_->Observe(MetricId::kRequestE2e, Seconds(record.total), kind);
  impl_->Observe(MetricId::kRequestQueue, Seconds(record.queue), kind);
  if (record.prefill) impl_->Observe(MetricId::kRequestPrefill, Seconds(*record.prefill), kind);
  impl_->Observe(MetricId::kRequestPromptTokens, record.prompt_tokens, kind);
  if (!generate) return;
  if (record.decode) impl_->Observe(MetricId::kRequestDecode, Seconds(*record.decode));
  impl_->Observe(MetricId::kRequestGenerationTokens, record.completion_tokens);
  impl_->Observe(MetricId::kRequestMaxTokens, record.max_tokens);
  impl_->Observe(MetricId::kRequestOutputs, record.n);
}

void Metrics::OnRequestRejected(const std::string& code) {
  impl_->Add(MetricId::kRequestsRejected, 1,
             ValueIndex(Definition(MetricId::kRequestsRejected).labels[0], code));
}

void Metrics::OnStep(const StepRecord& record) {
  impl_->Observe(MetricId::kStep, Seconds(record.plan), 0);
  impl_->Observe(MetricId::kStep, Seconds(record.run), 1);
  impl_->Observe(MetricId::kStep, Seconds(record.publish), 2);
  impl_->Observe(MetricId::kStepDeviceIdle, Seconds(record.device_idle));
  impl_->Observe(MetricId::kStepTokens, record.prefill_tokens + record.decode_tokens);
  impl_->Observe(MetricId::kStepRows, record.rows);
  impl_->Add(MetricId::kComputedTokens, record.prefill_tokens, 0);
  impl_->Add(MetricId::kComputedTokens, record.decode_tokens, 1);
  impl_->Add(MetricId::kGenerationTokens, record.generated_tokens);
  impl_->Add(MetricId::kPrefixCacheQueriesTokens, record.cache_looked_up_tokens);
  impl_->Add(MetricId::kPrefixCacheHitsTokens, record.cache_hit_tokens);
  impl_->Add(MetricId::kPreemptions, record.preemptions);
}

void Metrics::OnInvalidLogits() { impl_->Add(MetricId::kInvalidLogits, 1); }
void Metrics::OnSlowReaderAbort() { impl_->Add(MetricId::kSlowReaderAborts, 1); }
void Metrics::OnBlockedCallsClosed(int calls) { impl_->Add(MetricId::kBlockedCallsClosed, calls); }

void Metrics::OnStartupPhase(const std::string& phase, absl::Duration time) {
  impl_->SetStartupPhase(phase, Seconds(time));
}

const prometheus::Collectable& Metrics::collectable() const { return *impl_; }

std::string Metrics::Expose() const {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, impl_->Collect());
  return out.str();
}

}  // namespace tessera
