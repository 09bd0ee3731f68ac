// A row of tests/bench/results/*.jsonl, as tests/bench/cpu/results.py writes them.
#ifndef TESSERA_TESTS_BENCH_KERNELS_RESULT_ROW_H_
#define TESSERA_TESTS_BENCH_KERNELS_RESULT_ROW_H_

#include <string>

namespace tessera {

struct ResultRow {
  std::string bench;
  std::string shape;
  double value = 0;
  std::string unit;
  double ceiling = 0;  // in the same unit, measured in the same run; 0: none
};

// Appends the row to a file, with today's date and the commit of the working tree. Exits if it can't.
void AppendResult(const std::string& path, const ResultRow& row);

}  // namespace tessera

#endif  // TESSERA_TESTS_BENCH_KERNELS_RESULT_ROW_H_
