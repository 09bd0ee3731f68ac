#include "tests/bench/kernels/result_row.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace tessera {
namespace {

// As `git describe` tells it; "unknown" outside of a working tree.
std::string Commit() {
  std::string commit;
  if (FILE* pipe = popen("git -C '" TESSERA_SOURCE_DIR "' describe --always --dirty 2>/dev/null", "r")) {
    std::array<char, 128> line;
    if (std::fgets(line.data(), line.size(), pipe) != nullptr) commit = line.data();
    pclose(pipe);
  }
  while (!commit.empty() && commit.back() == '\n') commit.pop_back();
  return commit.empty() ? "unknown" : commit;
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::array<char, 16> text;
  std::strftime(text.data(), text.size(), "%Y-%m-%d", std::localtime(&now));
  return text.data();
}

}  // namespace

void AppendResult(const std::string& path, const ResultRow& row) {
  FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) {
    std::perror(path.c_str());
    std::exit(1);
  }
  static const std::string commit = Commit();
  char ceiling[64] = "null, \"fraction\": null";
  if (row.ceiling > 0) {
    std::snprintf(ceiling, sizeof(ceiling), "%.5g, \"fraction\": %.4f", row.ceiling, row.value / row.ceiling);
  }
  std::fprintf(file,
               "{\"bench\": \"%s\", \"shape\": \"%s\", \"value\": %.5g, \"unit\": \"%s\", \"ceiling\": %s, "
               "\"peer\": null, \"peer_value\": null, \"date\": \"%s\", \"commit\": \"%s\"}\n",
               row.bench.c_str(), row.shape.c_str(), row.value, row.unit.c_str(), ceiling, Today().c_str(),
               commit.c_str());
  std::fclose(file);
}

}  // namespace tessera
