// Reading the golden files of tests/golden/tokenizer (their format: make_vectors.py there).
#ifndef TESSERA_TESTS_UNIT_SERVER_TOKENIZER_TEST_FILES_H_
#define TESSERA_TESTS_UNIT_SERVER_TOKENIZER_TEST_FILES_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace tessera {

inline std::string GoldenPath(const std::string& relative) {
  return std::string(TESSERA_SOURCE_DIR) + "/tests/golden/" + relative;
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// The tokenizers that make_vectors.py trained and stored in a file of this name.
inline std::vector<std::string> FamiliesIn(const std::string& file) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(GoldenPath("tokenizer"))) {
    if (std::filesystem::exists(entry.path() / file)) names.push_back(entry.path().filename().string());
  }
  return names;
}

// All of them.
inline std::vector<std::string> TokenizerFamilies() {
  std::vector<std::string> names = FamiliesIn("tokenizer.json");
  for (std::string& name : FamiliesIn("tokenizer.model")) names.push_back(std::move(name));
  return names;
}

class GoldenReader {
 public:
  explicit GoldenReader(std::string data) : data_(std::move(data)) {}
  bool done() const { return pos_ >= data_.size(); }
  uint8_t Byte() { return static_cast<uint8_t>(data_.at(pos_++)); }
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const uint8_t b = Byte();
      value |= static_cast<uint64_t>(b & 0x7F) << shift;
      if (b < 0x80) return value;
    }
  }
  std::vector<int32_t> Ids() {
    std::vector<int32_t> ids(Varint());
    for (int32_t& id : ids) id = static_cast<int32_t>(Varint());
    return ids;
  }
  std::string Text() {
    const size_t size = Varint();
    pos_ += size;
    return data_.substr(pos_ - size, size);
  }

 private:
  std::string data_;
  size_t pos_ = 0;
};

inline std::vector<std::string> GoldenTexts(const std::string& folder = GoldenPath("tokenizer")) {
  std::vector<std::string> texts;
  for (GoldenReader in(ReadFile(folder + "/texts.bin")); !in.done();) texts.push_back(in.Text());
  return texts;
}

}  // namespace tessera

#endif  // TESSERA_TESTS_UNIT_SERVER_TOKENIZER_TEST_FILES_H_
