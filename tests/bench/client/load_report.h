#ifndef TESSERA_TESTS_BENCH_CLIENT_LOAD_REPORT_H_
#define TESSERA_TESTS_BENCH_CLIENT_LOAD_REPORT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace tessera::bench {

// What the streams of a run measured. Times in seconds, as the client saw them.
struct LoadResults {
  std::vector<double> time_to_first_token;
  // One entry a token after the first: the time since the message before, shared among the tokens of one message.
  std::vector<double> inter_token_latency;
  std::vector<double> end_to_end;
  std::map<std::string, int64_t>
      outcomes;          // "ok", "cancelled", a gRPC code, or a finish reason that is a failure
  int64_t not_sent = 0;  // open loop: arrivals above the limit of concurrency
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  int64_t messages = 0;  // deltas
  absl::Duration elapsed;
  double client_cpu_seconds = 0;
  double server_cpu_seconds = -1;  // unknown
};

std::string TextReport(const LoadResults& results);
std::string JsonReport(const LoadResults& results);

}  // namespace tessera::bench

#endif  // TESSERA_TESTS_BENCH_CLIENT_LOAD_REPORT_H_
