#include "server/model/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "server/model/file_io.h"

namespace tessera {
namespace {

struct DTypeEntry {
  DType dtype;
  const char* name;
  int64_t size;
};

constexpr DTypeEntry kDTypes[] = {
    {DType::kBool, "BOOL", 1},      {DType::kU8, "U8", 1},          {DType::kI8, "I8", 1},
    {DType::kF8E4M3, "F8_E4M3", 1}, {DType::kF8E5M2, "F8_E5M2", 1}, {DType::kF8E8M0, "F8_E8M0", 1},
    {DType::kI16, "I16", 2},        {DType::kU16, "U16", 2},        {DType::kF16, "F16", 2},
    {DType::kBf16, "BF16", 2},      {DType::kI32, "I32", 4},        {DType::kU32, "U32", 4},
    {DType::kF32, "F32", 4},        {DType::kI64, "I64", 8},        {DType::kU64, "U64", 8},
    {DType::kF64, "F64", 8},
};

std::optional<DType> DTypeFromName(absl::string_view name) {
  for (const DTypeEntry& entry : kDTypes) {
    if (name == entry.name) return entry.dtype;
  }
  return std::nullopt;
}

constexpr size_t kMaxDimensions = 16;

// Builds entries straight from the parser's events: keys that stand twice are seen (a DOM would keep the
// last), and no document tree of a hostile header is ever built.
//
//   depth 1: {"name": ..., "__metadata__": ...}    depth 2: {"dtype": "BF16", "shape": [...], "data_offsets":
//   [b, e]}
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderHandler(absl::string_view path) : path_(path) {}

  std::vector<HeaderEntry> entries;
  std::map<std::string, std::string> metadata;
  absl::Status status;

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected(absl::StrCat("the number ", Printable(text)));
  }
  bool number_integer(number_integer_t value) override {
    return Unexpected(absl::StrCat("the number ", value));
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != 2 || array_ == Array::kNone) return Unexpected(absl::StrCat("the number ", value));
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail(absl::StrCat("\"", field_, "\" holds ", value, ", which is more than 2^63 - 1"));
    }
    std::vector<int64_t>& list = array_ == Array::kShape ? current_.shape : offsets_;
    const size_t limit = array_ == Array::kShape ? kMaxDimensions : 2;
    if (list.size() == limit) {
      return Fail(absl::StrCat("\"", field_, "\" has more than ", limit, " entries"));
    }
    list.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (in_metadata_ && depth_ == 2 && array_ == Array::kNone) {
      if (!metadata.emplace(field_, value).second) return Fail("a metadata key stands twice");
      return true;
    }
    if (depth_ != 2 || array_ != Array::kNone || field_ != "dtype") {
      return Unexpected(absl::StrCat("the string \"", Printable(value), "\""));
    }
    const std::optional<DType> dtype = DTypeFromName(value);
    if (!dtype) {
      std::vector<absl::string_view> names;
      for (const DTypeEntry& entry : kDTypes) names.push_back(entry.name);
      return Fail(
          absl::StrCat("unknown dtype \"", Printable(value), "\"; known are ", absl::StrJoin(names, ", ")));
    }
    current_.dtype = *dtype;
    return true;
  }

  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool start_object(std::size_t) override {
    if (depth_ == 2 || array_ != Array::kNone) return Unexpected("an object");
    if (++depth_ == 2) {
      seen_.clear();
      offsets_.clear();
      in_metadata_ = name_ == "__metadata__";
      current_ = HeaderEntry{};
      current_.name = name_;
    }
    return true;
  }

  bool key(string_t& value) override {
    if (depth_ == 1) {
      name_ = value;
      if (!names_.insert(value).second) return Fail("the name stands twice in the header");
      return true;
    }
    field_ = value;
    if (in_metadata_) return true;
    if (value != "dtype" && value != "shape" && value != "data_offsets") {
      return Fail(
          absl::StrCat("unknown key \"", Printable(value), "\"; expected dtype, shape, data_offsets"));
    }
    if (!seen_.insert(value).second) return Fail(absl::StrCat("\"", value, "\" stands twice"));
    return true;
  }

  bool end_object() override {
    if (depth_-- == 2 && !in_metadata_) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!seen_.count(field)) return Fail(absl::StrCat("\"", field, "\" is missing"));
      }
      if (offsets_.size() != 2) {
        return Fail(
            absl::StrCat("\"data_offsets\" has ", offsets_.size(), " entries; expected [begin, end]"));
      }
      current_.begin = offsets_[0];
      current_.end = offsets_[1];
      entries.push_back(std::move(current_));
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || array_ != Array::kNone || in_metadata_) return Unexpected("an array");
    if (field_ == "shape") {
      array_ = Array::kShape;
    } else if (field_ == "data_offsets") {
      array_ = Array::kOffsets;
    } else {
      return Unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    array_ = Array::kNone;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    if (status.ok()) {
      status =
          absl::InvalidArgumentError(absl::StrCat(std::string(path_), ": header is not valid JSON at byte ",
                                                  8 + position, " of the file: ", Printable(error.what())));
    }
    return false;
  }

 private:
  enum class Array { kNone, kShape, kOffsets };

  bool Fail(const std::string& what) {
    const std::string where = depth_ == 0 ? "header" : absl::StrCat("tensor \"", Printable(name_), "\"");
    status = absl::InvalidArgumentError(absl::StrCat(std::string(path_), ": ", where, ": ", what));
    return false;
  }

  bool Unexpected(const std::string& found) {
    std::string expected = "an object of tensors";
    if (depth_ == 1) expected = "an object with dtype, shape and data_offsets";
    if (depth_ == 2 && in_metadata_) expected = "strings as metadata";
    if (depth_ == 2 && !in_metadata_) {
      if (field_ == "dtype") expected = "a type's name as \"dtype\"";
      if (field_ == "shape") expected = "a list of sizes of at least 0 as \"shape\"";
      if (field_ == "data_offsets") expected = "[begin, end] in bytes as \"data_offsets\"";
    }
    return Fail(absl::StrCat("expected ", expected, ", found ", found));
  }

  absl::string_view path_;
  int depth_ = 0;
  Array array_ = Array::kNone;
  bool in_metadata_ = false;
  std::string name_;
  std::string field_;
  std::set<std::string> names_;
  std::set<std::string> seen_;
  std::vector<int64_t> offsets_;
  HeaderEntry current_;
};

// Checks one entry's bytes against its shape and the data section.
absl::Status CheckEntry(const HeaderEntry& entry, int64_t data_bytes, absl::string_view path) {
  const std::string where = absl::StrCat(std::string(path), ": tensor \"", Printable(entry.name), "\": ");
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(where, "data_offsets [", entry.begin, ", ", entry.end,
                                                   "] do not lie in the file's ", data_bytes,
                                                   " bytes of data (is the file cut short?)"));
  }
  int64_t bytes = DTypeSize(entry.dtype);
  bool zero = false;
  bool overflow = false;
  for (const int64_t size : entry.shape) {
    if (size == 0) zero = true;
    if (size != 0 && __builtin_mul_overflow(bytes, size, &bytes)) overflow = true;
  }
  if (zero) bytes = 0;
  if (overflow && !zero) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "shape [", absl::StrJoin(entry.shape, ", "), "] has more than 2^63 - 1 bytes"));
  }
  if (bytes != entry.end - entry.begin) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, DTypeName(entry.dtype), " of shape [", absl::StrJoin(entry.shape, ", "), "] takes ", bytes,
        " bytes, data_offsets [", entry.begin, ", ", entry.end, "] give ", entry.end - entry.begin));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t DTypeSize(DType dtype) {
  for (const DTypeEntry& entry : kDTypes) {
    if (entry.dtype == dtype) return entry.size;
  }
  return 0;
}

absl::string_view DTypeName(DType dtype) {
  for (const DTypeEntry& entry : kDTypes) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "?";
}

std::string Printable(absl::string_view name) {
  constexpr size_t kLongest = 200;
  std::string text = absl::CHexEscape(name.substr(0, kLongest));
  if (name.size() > kLongest) absl::StrAppend(&text, "... (", name.size(), " bytes)");
  return text;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json, int64_t data_bytes,
                                                         absl::string_view path) {
  HeaderHandler handler(path);
  const bool parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &handler);
  if (!handler.status.ok()) return handler.status;
  if (!parsed)
    return absl::InvalidArgumentError(absl::StrCat(std::string(path), ": header is not valid JSON"));

  SafetensorsHeader header;
  header.entries = std::move(handler.entries);
  header.metadata = std::move(handler.metadata);
  for (const HeaderEntry& entry : header.entries) {
    if (absl::Status status = CheckEntry(entry, data_bytes, path); !status.ok()) return status;
  }
  std::sort(header.entries.begin(), header.entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  int64_t covered = 0;
  const HeaderEntry* last = nullptr;
  for (const HeaderEntry& entry : header.entries) {
    if (entry.begin == entry.end) continue;
    if (entry.begin < covered) {
      return absl::InvalidArgumentError(absl::StrCat(
          std::string(path), ": tensors \"", Printable(last->name), "\" [", last->begin, ", ", last->end,
          "] and \"", Printable(entry.name), "\" [", entry.begin, ", ", entry.end, "] overlap"));
    }
    header.hole_bytes += entry.begin - covered;
    covered = entry.end;
    last = &entry;
  }
  header.hole_bytes += data_bytes - covered;
  return header;
}

absl::StatusOr<std::map<std::string, std::string>> ParseWeightMap(absl::string_view json,
                                                                  const std::string& path) {
  absl::StatusOr<nlohmann::json> index = ParseJsonObject(json, path);
  if (!index.ok()) return index.status();
  const auto map = index->find("weight_map");
  if (map == index->end() || !map->is_object() || map->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": expected \"weight_map\", an object of tensor names and the files that hold them"));
  }
  std::map<std::string, std::string> result;
  for (const auto& [name, value] : map->items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos ||
        file.find('\0') != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": weight_map[\"", Printable(name),
                       "\"]: expected the name of a file beside the index, found ", Printable(value.dump())));
    }
    result[name] = file;
  }
  return result;
}

}  // namespace tessera
