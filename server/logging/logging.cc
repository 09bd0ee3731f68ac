#include "server/logging/logging.h"

#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "spdlog/formatter.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

// The fields of the line that this thread is logging; the sink is synchronous, so its formatter sees them.
thread_local const std::initializer_list<LogField>* current_fields = nullptr;

const char* LevelName(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::trace:
    case spdlog::level::debug:
      return "DEBUG";
    case spdlog::level::info:
      return "INFO";
    case spdlog::level::warn:
      return "WARNING";
    default:
      return "ERROR";
  }
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

std::string FormatTime(std::chrono::system_clock::time_point time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(time), absl::UTCTimeZone());
}

// Invalid UTF-8 becomes U+FFFD; control characters are escaped.
std::string Quote(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json ToJson(const LogField& field) {
  return std::visit([](const auto& value) { return Json(value); }, field.value);
}

std::string FieldText(const LogField& field) {
  if (const std::string* text = std::get_if<std::string>(&field.value)) {
    const bool plain = !text->empty() && text->find_first_not_of(
                                             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                             "0123456789-_.:/+,") == std::string::npos;
    return plain ? *text : Quote(*text);
  }
  return ToJson(field).dump();
}

class Formatter : public spdlog::formatter {
 public:
  explicit Formatter(LogFormat format) : format_(format) {}

  void format(const spdlog::details::log_msg& msg, spdlog::memory_buf_t& out) override {
    std::string line;
    const std::string message(msg.payload.data(), msg.payload.size());
    if (format_ == LogFormat::kJson) {
      Json object = {{"time", FormatTime(msg.time)}, {"level", LevelName(msg.level)}, {"message", message}};
      if (current_fields != nullptr) {
        for (const LogField& field : *current_fields) object[std::string(field.name)] = ToJson(field);
      }
      line = object.dump(-1, ' ', false, Json::error_handler_t::replace);
    } else {
      line = absl::StrCat(FormatTime(msg.time), " ", LevelName(msg.level), " ", message);
      if (current_fields != nullptr) {
        for (const LogField& field : *current_fields) {
          absl::StrAppend(&line, " ", std::string(field.name), "=", FieldText(field));
        }
      }
    }
    line += '\n';
    out.append(line.data(), line.data() + line.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<Formatter>(format_); }

 private:
  LogFormat format_;
};

}  // namespace

void InitLogging(LogLevel level, LogFormat format) {
  auto logger =
      std::make_shared<spdlog::logger>("tessera", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_formatter(std::make_unique<Formatter>(format));
  logger->set_level(ToSpdlog(level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

absl::Status ParseLogLevel(const std::string& text, LogLevel* level) {
  static constexpr std::pair<const char*, LogLevel> kLevels[] = {{"debug", LogLevel::kDebug},
                                                                 {"info", LogLevel::kInfo},
                                                                 {"warning", LogLevel::kWarning},
                                                                 {"error", LogLevel::kError},
                                                                 {"off", LogLevel::kOff}};
  for (const auto& [name, value] : kLevels) {
    if (text == name) {
      *level = value;
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("found \"", text, "\", expected debug, info, warning, error or off"));
}

absl::Status ParseLogFormat(const std::string& text, LogFormat* format) {
  if (text == "text" || text == "json") {
    *format = text == "json" ? LogFormat::kJson : LogFormat::kText;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("found \"", text, "\", expected text or json"));
}

void Log(LogLevel level, const std::string& message, std::initializer_list<LogField> fields) {
  spdlog::logger* logger = spdlog::default_logger_raw();
  if (logger == nullptr || !logger->should_log(ToSpdlog(level))) return;
  current_fields = &fields;
  logger->log(ToSpdlog(level), spdlog::string_view_t(message.data(), message.size()));
  current_fields = nullptr;
}

}  // namespace tessera
