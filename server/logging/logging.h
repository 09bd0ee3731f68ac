#ifndef TESSERA_SERVER_LOGGING_LOGGING_H_
#define TESSERA_SERVER_LOGGING_LOGGING_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tessera {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };
enum class LogFormat {
  kText,  // 2024-05-06T07:08:09.123Z INFO message key=value
  kJson,  // one object a line: time, level, message, and the fields by name
};

// Sets up the process's log, on standard error. Call once, before other threads log.
void InitLogging(LogLevel level, LogFormat format);

// INVALID_ARGUMENT with the choices for any other word.
absl::Status ParseLogLevel(const std::string& text, LogLevel* level);
absl::Status ParseLogFormat(const std::string& text, LogFormat* format);

// A named value of a log line.
struct LogField {
  std::string_view name;
  std::variant<std::string, int64_t, double, bool> value;

  LogField(std::string_view n, std::string v) : name(n), value(std::move(v)) {}
  LogField(std::string_view n, const char* v) : name(n), value(std::string(v)) {}
  LogField(std::string_view n, bool v) : name(n), value(v) {}
  LogField(std::string_view n, double v) : name(n), value(v) {}
  LogField(std::string_view n, int64_t v) : name(n), value(v) {}
  LogField(std::string_view n, int32_t v) : name(n), value(static_cast<int64_t>(v)) {}
  LogField(std::string_view n, absl::Duration v) : name(n), value(absl::ToDoubleSeconds(v)) {}  // seconds
};

// Thread-safe. Never give it text of prompts or outputs.
void Log(LogLevel level, const std::string& message, std::initializer_list<LogField> fields = {});

inline void LogInfo(const std::string& message, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kInfo, message, fields);
}
inline void LogWarning(const std::string& message, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kWarning, message, fields);
}
inline void LogError(const std::string& message, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kError, message, fields);
}

}  // namespace tessera

#endif  // TESSERA_SERVER_LOGGING_LOGGING_H_
