#ifndef TESSERA_TESTS_BENCH_CLIENT_LOAD_OPTIONS_H_
#define TESSERA_TESTS_BENCH_CLIENT_LOAD_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace tessera::bench {

// Lengths drawn uniformly from [low, high].
struct Range {
  int32_t low = 0;
  int32_t high = 0;
};

struct LoadOptions {
  std::string address = "127.0.0.1:50051";
  int connections = 1;
  // Closed loop: this many streams at all times. With a rate: the most at one time; arrivals above it are counted as
  // not sent.
  int concurrency = 8;
  // Open loop: arrivals a second, exponentially spaced. 0: closed loop.
  double rate = 0;
  int64_t requests = 100;                              // ends after this many,
  absl::Duration duration = absl::InfiniteDuration();  // or after this long
  Range prompt_tokens{64, 64};
  Range output_tokens{64, 64};
  // Share of each prompt, from its start, that is the same in all of them.
  double shared_prefix = 0;
  // Share of the requests that are cancelled at a random point of their output.
  double cancel = 0;
  uint64_t seed = 1;
  double temperature = 0;
  // A server's process: its CPU time is reported.
  int64_t server_pid = 0;
  bool json = false;
};

// Reads the command line; exits with 0 after --help and with 2 after an error.
LoadOptions ParseLoadOptions(const std::vector<std::string>& words);

}  // namespace tessera::bench

#endif  // TESSERA_TESTS_BENCH_CLIENT_LOAD_OPTIONS_H_
