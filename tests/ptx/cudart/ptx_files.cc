#include "tests/ptx/cudart/ptx_files.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tessera::ptx {
namespace {

std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// What follows each occurrence of `word`, up to the first character that no identifier has.
std::vector<std::string> WordsAfter(std::string_view text, std::string_view word) {
  std::vector<std::string> words;
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at)) {
    at += word.size();
    const auto end = std::find_if(text.begin() + at, text.end(),
                                  [](char c) { return !absl::ascii_isalnum(c) && c != '_' && c != '$'; });
    words.emplace_back(text.begin() + at, end);
  }
  return words;
}

}  // namespace

absl::Status PtxFiles::ReadList() {
  const std::optional<std::string> list = ReadFile(list_);
  if (!list) return absl::UnavailableError(absl::StrCat("the list of PTX files, ", list_, ", can't be read"));
  for (const std::string& path :
       std::vector<std::string>(absl::StrSplit(*list, '\n', absl::SkipWhitespace()))) {
    File file{path, 0, {}};
    const std::optional<std::string> text = ReadFile(file.path);
    if (!text) {  // of a library that was not built
      missing_.push_back(path);
      continue;
    }
    const std::vector<std::string> target = WordsAfter(text->substr(0, 4096), ".target sm_");
    std::string arch = target.empty() ? "" : target.front();
    while (!arch.empty() && !absl::ascii_isdigit(arch.back())) arch.pop_back();  // the a of sm_90a
    if (!absl::SimpleAtoi(arch, &file.arch)) {
      return absl::UnavailableError(absl::StrCat(path, ", which ", list_, " names, has no .target sm_N"));
    }
    for (std::string& entry : WordsAfter(*text, ".entry ")) file.entries.insert(std::move(entry));
    files_.push_back(std::move(file));
  }
  return absl::OkStatus();
}

absl::StatusOr<PtxImage> PtxFiles::Find(int arch, const std::vector<std::string>& entries) {
  if (!read_) read_ = ReadList();
  if (!read_->ok()) return *read_;
  for (const File& file : files_) {
    if (file.arch != arch) continue;
    const bool all = std::all_of(entries.begin(), entries.end(), [&](const std::string& entry) {
      return file.entries.find(entry) != file.entries.end();
    });
    if (!all) continue;
    std::optional<std::string> text = ReadFile(file.path);
    if (!text) return absl::UnavailableError(absl::StrCat(file.path, " can't be read any more"));
    return PtxImage{arch, file.path, *std::move(text)};
  }
  return absl::NotFoundError(
      absl::StrCat("none of the PTX files for sm_", arch, " of ", list_, " has all ", entries.size(),
                   " entries of ", entries.empty() ? "" : entries.front(), "'s module",
                   missing_.empty() ? "" : absl::StrCat("; there is no ", absl::StrJoin(missing_, ", "))));
}

}  // namespace tessera::ptx
