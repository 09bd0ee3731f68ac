// A tokenizer behind a pipe, for comparison with other implementations from Python (pipe.py).
//
//   tokenizer_pipe DIRECTORY
//
// Standard input is a sequence of records: an operation byte, a little-endian uint32 size, that many bytes. The answers
// come in the same order on standard output.
//   0 to 3  encode the bytes, a text: bit 0 parses special tokens, bit 1 adds them -> uint32 count, int32 ids; or
//           uint32 max, uint32 size, an error message
//   8, 9    decode the bytes, int32 ids; bit 0 skips special tokens -> uint32 size, text
//   16      -> float64: seconds of processor time spent on encoding since the last time this was asked
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "server/tokenizer/tokenizer.h"

namespace {

double ProcessorSeconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

bool Read(void* to, size_t size) { return fread(to, 1, size, stdin) == size; }

template <typename T>
void Write(const T& value) {
  fwrite(&value, sizeof(value), 1, stdout);
}

void WriteText(const std::string& text) {
  Write(static_cast<uint32_t>(text.size()));
  fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: tokenizer_pipe DIRECTORY\n");
    return 2;
  }
  const auto tokenizer = tessera::Tokenizer::Load(argv[1]);
  if (!tokenizer.ok()) {
    fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
    return 1;
  }
  double seconds = 0;
  uint8_t operation;
  uint32_t size;
  std::string bytes;
  while (Read(&operation, 1) && Read(&size, sizeof(size))) {
    bytes.resize(size);
    if (!Read(bytes.data(), size)) return 1;
    if (operation < 4) {
      const double start = ProcessorSeconds();
      const auto ids = (*tokenizer)
                           ->Encode(bytes, {.add_special_tokens = (operation & 2) != 0,
                                            .parse_special = (operation & 1) != 0});
      seconds += ProcessorSeconds() - start;
      if (ids.ok()) {
        Write(static_cast<uint32_t>(ids->size()));
        fwrite(ids->data(), sizeof(int32_t), ids->size(), stdout);
      } else {
        Write(UINT32_MAX);
        WriteText(ids.status().ToString());
      }
    } else if (operation == 8 || operation == 9) {
      std::vector<int32_t> ids(size / sizeof(int32_t));
      std::memcpy(ids.data(), bytes.data(), ids.size() * sizeof(int32_t));
      const auto text = (*tokenizer)->Decode(ids, operation == 9);
      WriteText(text.ok() ? *text : text.status().ToString());
    } else if (operation == 16) {
      Write(seconds);
      seconds = 0;
      fflush(stdout);
    } else {
      fprintf(stderr, "unknown operation %d\n", operation);
      return 1;
    }
  }
  return 0;
}
