#ifndef TESSERA_TESTS_UNIT_SERVER_MODEL_TEST_FILES_H_
#define TESSERA_TESTS_UNIT_SERVER_MODEL_TEST_FILES_H_

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tessera {

inline std::string GoldenDirectory(const std::string& name) {
  return absl::StrCat(TESSERA_SOURCE_DIR, "/tests/golden/model/", name);
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

inline void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary).write(content.data(), content.size());
}

// The bytes of a safetensors file with this header and so many bytes of data.
inline std::string FileBytes(const std::string& header, size_t data_bytes) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(header.size() >> (8 * i)));
  return bytes + header + std::string(data_bytes, '\1');
}

// A directory of the test's own, removed with it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = testing::TempDir() + "/tessera_model_XXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  // Names in it, hidden ones included.
  size_t num_entries() const {
    return std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator());
  }

 private:
  std::string path_;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_UNIT_SERVER_MODEL_TEST_FILES_H_
