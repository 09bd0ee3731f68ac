// Tokeniser throughput on one thread.
//
//   tokenizer_bench TOKENIZER_DIR TEXT_FILE [SECONDS]
//
// Encodes the file's lines for about that long, again and again, and prints one JSON object: MB/s of the best round
// and the number of ids of a round. tokenizer_compare.py runs it side by side with the `tokenizers` library.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "server/tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s TOKENIZER_DIR TEXT_FILE [SECONDS]\n", argv[0]);
    return 2;
  }
  const auto tokenizer = tessera::Tokenizer::Load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
    return 1;
  }
  std::ifstream in(argv[2], std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  if (text.empty()) {
    std::fprintf(stderr, "%s: no text\n", argv[2]);
    return 1;
  }
  // Lines keep their ends, so that the whole text is encoded.
  std::vector<std::string> lines;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = std::min(text.find('\n', pos), text.size() - 1) + 1;
    lines.push_back(text.substr(pos, end - pos));
    pos = end;
  }
  const double limit = argc > 3 ? std::atof(argv[3]) : 1;
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  double best = 1e30;
  size_t ids = 0;
  do {
    const auto round = Clock::now();
    ids = 0;
    for (const std::string& line : lines) {
      const auto encoded = (*tokenizer)->Encode(line);
      if (!encoded.ok()) {
        std::fprintf(stderr, "%s\n", encoded.status().ToString().c_str());
        return 1;
      }
      ids += encoded->size();
    }
    best = std::min(best, std::chrono::duration<double>(Clock::now() - round).count());
  } while (std::chrono::duration<double>(Clock::now() - start).count() < limit);
  std::printf("{\"mb_per_s\": %.2f, \"ids\": %zu, \"bytes\": %zu}\n",
              static_cast<double>(text.size()) / best / 1e6, ids, text.size());
  return 0;
}
