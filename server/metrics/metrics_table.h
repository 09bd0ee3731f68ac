#ifndef TESSERA_SERVER_METRICS_METRICS_TABLE_H_
#define TESSERA_SERVER_METRICS_METRICS_TABLE_H_

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace tessera {

// Every metric of the server. The order is that of MetricsTable().
enum class MetricId {
  kTimeToFirstToken,
  kInterTokenLatency,
  kRequestE2e,
  kRequestQueue,
  kRequestPrefill,
  kRequestDecode,
  kStep,
  kStepDeviceIdle,
  kStepTokens,
  kStepRows,
  kRequestPromptTokens,
  kRequestGenerationTokens,
  kRequestMaxTokens,
  kRequestOutputs,
  kRequestsAccepted,
  kRequests,
  kRequestsRejected,
  kOutputs,
  kPromptTokens,
  kGenerationTokens,
  kComputedTokens,
  kPrefixCacheQueriesTokens,
  kPrefixCacheHitsTokens,
  kPreemptions,
  kInvalidLogits,
  kSlowReaderAborts,
  kBlockedCallsClosed,
  kRunning,
  kWaiting,
  kKvCacheUsage,
  kKvCacheBlocks,
  kHealthy,
  kDraining,
  kStartup,
  kBuildInfo,
  kModelInfo,
  kCount,
};

enum class MetricKind { kCounter, kGauge, kHistogram };

// Which bucket bounds a histogram has.
enum class BucketSet {
  kNone,
  kLatency,  // seconds; configurable
  kTokens,   // a 1-2-5 series of token counts
  kSmall,    // powers of two, for rows and outputs
};

// One label and every value that it can take, all of which are exported from the start, at 0.
struct LabelDimension {
  const char* name;
  std::vector<const char*> values;
};

struct MetricDefinition {
  MetricId id;
  MetricKind kind;
  const char* name;  // Prometheus conventions: base units, counters end in _total
  const char* unit;  // "seconds", "tokens", "blocks", "ratio", or "" for a plain count
  const char* help;
  BucketSet buckets = BucketSet::kNone;
  std::vector<LabelDimension> labels = {};
};

// The table, in order of MetricId.
absl::Span<const MetricDefinition> MetricsTable();
inline const MetricDefinition& Definition(MetricId id) { return MetricsTable()[static_cast<size_t>(id)]; }

// Bounds of a set, strictly increasing, without the +Inf that the exposition adds.
std::vector<double> BucketBounds(BucketSet set);

}  // namespace tessera

#endif  // TESSERA_SERVER_METRICS_METRICS_TABLE_H_
