#include "server/model/config_keys.h"

#include "absl/strings/str_cat.h"
#include "server/model/safetensors_header.h"

namespace tessera {
namespace {

std::string Shown(const nlohmann::json& value) {
  return Printable(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

// As an integer, whichever way the file writes it; empty if it is none.
std::optional<int64_t> AsInt(const nlohmann::json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

}  // namespace

const nlohmann::json* ConfigKeys::Find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void ConfigKeys::Problem(absl::string_view what) { problems_->push_back(absl::StrCat(where_, ": ", what)); }

void ConfigKeys::WrongType(const char* key, absl::string_view expected, const nlohmann::json& found) {
  Problem(absl::StrCat("\"", key, "\": expected ", expected, ", found ", Shown(found)));
}

int64_t ConfigKeys::Int(const char* key, int64_t min, int64_t max, std::optional<int64_t> fallback) {
  const nlohmann::json* value = Find(key);
  const std::string expected = absl::StrCat("an integer from ", min, " to ", max);
  if (value == nullptr) {
    if (!fallback) Problem(absl::StrCat("\"", key, "\" is missing; expected ", expected));
    return fallback.value_or(min);
  }
  const std::optional<int64_t> number = AsInt(*value);
  if (!number || *number < min || *number > max) {
    WrongType(key, expected, *value);
    return fallback.value_or(min);
  }
  return *number;
}

double ConfigKeys::Number(const char* key, double min, double max, std::optional<double> fallback) {
  const nlohmann::json* value = Find(key);
  const std::string expected = absl::StrCat("a number from ", min, " to ", max);
  if (value == nullptr) {
    if (!fallback) Problem(absl::StrCat("\"", key, "\" is missing; expected ", expected));
    return fallback.value_or(min);
  }
  const double number = value->is_number() ? value->get<double>() : min - 1;
  if (!(number >= min && number <= max)) {
    WrongType(key, expected, *value);
    return fallback.value_or(min);
  }
  return number;
}

bool ConfigKeys::Bool(const char* key, bool fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    WrongType(key, "true or false", *value);
    return fallback;
  }
  return value->get<bool>();
}

std::string ConfigKeys::String(const char* key, std::optional<std::string> fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) {
    if (!fallback) Problem(absl::StrCat("\"", key, "\" is missing; expected a string"));
    return fallback.value_or("");
  }
  if (!value->is_string()) {
    WrongType(key, "a string", *value);
    return fallback.value_or("");
  }
  return value->get<std::string>();
}

std::vector<std::string> ConfigKeys::StringList(const char* key) {
  std::vector<std::string> result;
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return result;
  const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({nullptr});
  for (const nlohmann::json& item : list) {
    if (!item.is_string()) {
      WrongType(key, "a list of strings", *value);
      return {};
    }
    result.push_back(item.get<std::string>());
  }
  return result;
}

void ConfigKeys::Only(const char* key, const nlohmann::json& supported) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr || *value == supported) return;
  const auto quoted = [](const nlohmann::json& v) {
    return v.is_string() ? absl::StrCat("\"", Printable(v.get<std::string>()), "\"") : Shown(v);
  };
  Problem(
      absl::StrCat("\"", key, "\": ", quoted(*value), " is not supported; supported is ", quoted(supported)));
}

std::vector<int32_t> ConfigKeys::IntList(const char* key, int64_t min, int64_t max) {
  std::vector<int32_t> result;
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return result;
  const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
  for (const nlohmann::json& item : list) {
    const std::optional<int64_t> number = AsInt(item);
    if (!number || *number < min || *number > max) {
      WrongType(key, absl::StrCat("integers from ", min, " to ", max), *value);
      return {};
    }
    result.push_back(static_cast<int32_t>(*number));
  }
  return result;
}

}  // namespace tessera
