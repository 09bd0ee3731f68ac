#include "server/tokenizer/json_view.h"

#include "absl/strings/str_cat.h"
#include "server/status_macros.h"

namespace tessera {
namespace {
constexpr size_t kMaxPathLength = 2048;
}  // namespace

absl::StatusOr<nlohmann::json> JsonView::ParseDocument(absl::string_view text, absl::string_view name) {
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& e) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": not JSON, at byte ", e.byte, ": ", e.what()));
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": not JSON: ", e.what()));
  }
}

JsonView JsonView::operator[](const char* key) const {
  static const nlohmann::json* const kNull = new nlohmann::json(nullptr);
  std::string path =
      absl::StrCat(path_, absl::string_view(path_).empty() || path_.back() == ' ' ? "" : ".", key);
  if (!value_->is_object()) return JsonView(*kNull, std::move(path));
  const auto it = value_->find(key);
  return JsonView(it == value_->end() ? *kNull : *it, std::move(path));
}

absl::StatusOr<std::vector<JsonView>> JsonView::Elements() const {
  if (!value_->is_array()) return Expected("an array");
  std::vector<JsonView> out;
  out.reserve(value_->size());
  for (const nlohmann::json& element : *value_) {
    out.emplace_back(element, absl::StrCat(path_, "[", out.size(), "]"));
  }
  return out;
}

absl::Status JsonView::ExpectObject() const {
  return value_->is_object() ? absl::OkStatus() : Expected("an object");
}

absl::StatusOr<std::string> JsonView::String() const {
  if (!value_->is_string()) return Expected("a string");
  return value_->get<std::string>();
}

absl::StatusOr<std::string> JsonView::StringOr(absl::string_view absent) const {
  if (is_null()) return std::string(absent.data(), absent.size());
  return String();
}

absl::StatusOr<bool> JsonView::BoolOr(bool absent) const {
  if (is_null()) return absent;
  if (!value_->is_boolean()) return Expected("true or false");
  return value_->get<bool>();
}

absl::StatusOr<int64_t> JsonView::Int(int64_t low, int64_t high) const {
  const std::string range = absl::StrCat("an integer from ", low, " to ", high);
  if (!value_->is_number_integer()) return Expected(range);
  const bool too_big =
      value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (too_big || value_->get<int64_t>() < low || value_->get<int64_t>() > high) {
    return Error(absl::StrCat("expected ", range, ", found ", value_->dump()));
  }
  return value_->get<int64_t>();
}

absl::StatusOr<std::string> JsonView::Kind() const {
  // Components nest in components; the path grows with each level.
  if (path_.size() > kMaxPathLength)
    return absl::InvalidArgumentError("the components are nested too deeply");
  TESSERA_RETURN_IF_ERROR(ExpectObject());
  return (*this)["type"].String();
}

absl::Status JsonView::Error(absl::string_view message) const {
  return absl::InvalidArgumentError(path_.empty() ? std::string(message)
                                                  : absl::StrCat(path_, ": ", message));
}

absl::Status JsonView::Expected(absl::string_view what) const {
  return Error(absl::StrCat("expected ", what, ", found ", is_null() ? "nothing" : value_->type_name()));
}

absl::Status JsonView::Unsupported(absl::string_view what) const {
  return absl::UnimplementedError(absl::StrCat(path_, ": ", what, " is not supported"));
}

}  // namespace tessera
