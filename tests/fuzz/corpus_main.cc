// Stands in for libFuzzer where it is not: runs a fuzz target over the files and directories that it is given, and over
// some mutations of each, the same ones every time.
//
//   TARGET [--mutations N] [--prefix BYTES] PATH...
//
// --prefix puts these bytes before each file's content, in hexadecimal.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

std::string Mutate(std::string bytes, std::mt19937& random) {
  static const char* const kTokens[] = {
      "[", "]", "{", "}", "\"", "-1", "1e309", "null", "18446744073709551616", "0", ","};
  for (uint32_t changes = 1 + random() % 4; changes > 0 && !bytes.empty(); --changes) {
    const size_t at = random() % bytes.size();
    switch (random() % 5) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.insert(at, kTokens[random() % std::size(kTokens)]);
        break;
      case 2:
        bytes.erase(at, 1 + random() % 8);
        break;
      case 3:
        bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 32));
        break;
      default:
        if (random() % 8 == 0) bytes.resize(at);
    }
  }
  return bytes;
}

void Run(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

std::string FromHex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::strtol(text.substr(i, 2).c_str(), nullptr, 16)));
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  int mutations = 100, files = 0;
  std::string prefix;
  std::mt19937 random(1);
  Run("");
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--mutations") == 0 && i + 1 < argc) {
      mutations = std::atoi(argv[++i]);
      continue;
    }
    if (std::strcmp(argv[i], "--prefix") == 0 && i + 1 < argc) {
      prefix = FromHex(argv[++i]);
      continue;
    }
    std::vector<fs::path> paths;
    if (fs::is_directory(argv[i])) {
      for (const auto& entry : fs::recursive_directory_iterator(argv[i])) {
        if (entry.is_regular_file()) paths.push_back(entry.path());
      }
      std::sort(paths.begin(), paths.end());
    } else if (fs::exists(argv[i])) {
      paths.push_back(argv[i]);
    } else {
      std::fprintf(stderr, "%s: no such file\n", argv[i]);
      return 1;
    }
    for (const fs::path& path : paths) {
      std::ifstream file(path, std::ios::binary);
      const std::string bytes = prefix + std::string(std::istreambuf_iterator<char>(file), {});
      Run(bytes);
      for (int m = 0; m < mutations; ++m) Run(Mutate(bytes, random));
      ++files;
    }
  }
  if (files == 0) {
    std::fprintf(stderr, "no file was given\n");
    return 1;
  }
  std::printf("%d files, %d mutations of each\n", files, mutations);
  return 0;
}
