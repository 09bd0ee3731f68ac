#include "tests/bench/client/load_report.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace tessera::bench {
namespace {

// The smallest value that at least `share` of the values do not exceed.
double Quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const size_t rank = static_cast<size_t>(std::ceil(share * sorted.size()));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

struct Latency {
  size_t count;
  double mean, p50, p90, p99, max;
};

Latency Summarise(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {values.size(),          values.empty() ? 0 : sum / values.size(),
          Quantile(values, 0.5),  Quantile(values, 0.9),
          Quantile(values, 0.99), values.empty() ? 0 : values.back()};
}

double Rate(int64_t count, const LoadResults& results) {
  const double seconds = absl::ToDoubleSeconds(results.elapsed);
  return seconds > 0 ? count / seconds : 0;
}

double Coalescing(const LoadResults& results) {
  return results.messages > 0 ? static_cast<double>(results.output_tokens) / results.messages : 0;
}

}  // namespace

std::string TextReport(const LoadResults& results) {
  std::string out =
      absl::StrFormat("%-22s %9s %9s %9s %9s %9s %9s\n", "", "count", "mean ms", "p50", "p90", "p99", "max");
  const std::pair<const char*, const std::vector<double>*> rows[] = {
      {"time to first token", &results.time_to_first_token},
      {"inter-token latency", &results.inter_token_latency},
      {"end to end", &results.end_to_end}};
  for (const auto& [name, values] : rows) {
    const Latency latency = Summarise(*values);
    absl::StrAppendFormat(&out, "%-22s %9d %9.3f %9.3f %9.3f %9.3f %9.3f\n", name, latency.count,
                          latency.mean * 1e3, latency.p50 * 1e3, latency.p90 * 1e3, latency.p99 * 1e3,
                          latency.max * 1e3);
  }
  out += "\noutcomes:";
  int64_t total = 0;
  for (const auto& [outcome, count] : results.outcomes) {
    absl::StrAppend(&out, " ", outcome, " ", count);
    total += count;
  }
  if (results.not_sent > 0) absl::StrAppend(&out, " not sent ", results.not_sent);
  absl::StrAppendFormat(&out,
                        "\n%.1f requests/s, %.0f output tokens/s, %.0f prompt tokens/s (%.1f %% cached), "
                        "%.0f messages/s, %.2f tokens a message\n",
                        Rate(total, results), Rate(results.output_tokens, results),
                        Rate(results.prompt_tokens, results),
                        results.prompt_tokens > 0 ? 100.0 * results.cached_tokens / results.prompt_tokens : 0,
                        Rate(results.messages, results), Coalescing(results));
  const double seconds = std::max(absl::ToDoubleSeconds(results.elapsed), 1e-9);
  absl::StrAppendFormat(&out, "%.2f s; CPU cores used: client %.2f", seconds,
                        results.client_cpu_seconds / seconds);
  if (results.server_cpu_seconds >= 0) {
    absl::StrAppendFormat(
        &out, ", server %.2f (%.1f us a token)", results.server_cpu_seconds / seconds,
        results.output_tokens > 0 ? 1e6 * results.server_cpu_seconds / results.output_tokens : 0);
  }
  return out + "\n";
}

std::string JsonReport(const LoadResults& results) {
  nlohmann::ordered_json out;
  const std::pair<const char*, const std::vector<double>*> rows[] = {
      {"time_to_first_token", &results.time_to_first_token},
      {"inter_token_latency", &results.inter_token_latency},
      {"end_to_end", &results.end_to_end}};
  for (const auto& [name, values] : rows) {
    const Latency latency = Summarise(*values);
    out[name] = {{"count", latency.count}, {"mean", latency.mean}, {"p50", latency.p50},
                 {"p90", latency.p90},     {"p99", latency.p99},   {"max", latency.max}};
  }
  out["outcomes"] = results.outcomes;
  out["not_sent"] = results.not_sent;
  out["seconds"] = absl::ToDoubleSeconds(results.elapsed);
  out["prompt_tokens"] = results.prompt_tokens;
  out["cached_tokens"] = results.cached_tokens;
  out["output_tokens"] = results.output_tokens;
  out["messages"] = results.messages;
  out["output_tokens_per_second"] = Rate(results.output_tokens, results);
  out["messages_per_second"] = Rate(results.messages, results);
  out["tokens_per_message"] = Coalescing(results);
  out["client_cpu_seconds"] = results.client_cpu_seconds;
  if (results.server_cpu_seconds >= 0) out["server_cpu_seconds"] = results.server_cpu_seconds;
  return out.dump(2) + "\n";
}

}  // namespace tessera::bench
