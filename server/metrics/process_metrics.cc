#include "server/metrics/process_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace {

std::optional<std::string> ReadSmallFile(const char* path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<int> CountOpenFds() {
  DIR* dir = opendir("/proc/self/fd");
  if (dir == nullptr) return std::nullopt;
  int entries = 0;
  while (readdir(dir) != nullptr) ++entries;
  closedir(dir);
  return entries - 3;  // ".", ".." and the directory's own descriptor
}

// Seconds since 1970 at which the machine came up.
std::optional<double> BootTime() {
  const std::optional<std::string> stat = ReadSmallFile("/proc/stat");
  if (!stat) return std::nullopt;
  const size_t at = stat->find("btime ");
  if (at == std::string::npos) return std::nullopt;
  std::vector<std::string> words = absl::StrSplit(stat->substr(at, stat->find('\n', at) - at), ' ');
  double value = 0;
  if (words.size() < 2 || !absl::SimpleAtod(words[1], &value)) return std::nullopt;
  return value;
}

}  // namespace

std::vector<prometheus::MetricFamily> CollectProcessMetrics() {
  std::vector<prometheus::MetricFamily> out;
  auto add = [&out](const char* name, const char* help, prometheus::MetricType type, double value) {
    prometheus::ClientMetric metric;
    if (type == prometheus::MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    out.push_back({name, help, type, {metric}});
  };
  using prometheus::MetricType;

  // Fields of /proc/self/stat after the parenthesised name, which may itself hold spaces: utime and stime are the 12th
  // and 13th, num_threads the 18th, starttime the 20th, vsize the 21st, rss the 22nd (proc(5) counts from 1, with two
  // fields before these).
  if (const std::optional<std::string> stat = ReadSmallFile("/proc/self/stat")) {
    const size_t name_end = stat->rfind(')');
    if (name_end != std::string::npos && name_end + 2 < stat->size()) {
      const std::vector<std::string> fields = absl::StrSplit(stat->substr(name_end + 2), ' ');
      auto field = [&fields](size_t index) -> double {
        double value = 0;
        return index < fields.size() && absl::SimpleAtod(fields[index], &value) ? value : 0;
      };
      const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
      if (fields.size() > 21 && ticks > 0) {
        add("process_cpu_seconds_total", "User and system CPU time.", MetricType::Counter,
            (field(11) + field(12)) / ticks);
        add("process_threads", "Threads.", MetricType::Gauge, field(17));
        add("process_virtual_memory_bytes", "Virtual memory.", MetricType::Gauge, field(20));
        add("process_resident_memory_bytes", "Resident memory.", MetricType::Gauge,
            field(21) * static_cast<double>(sysconf(_SC_PAGESIZE)));
        static const std::optional<double> boot_time = BootTime();
        if (boot_time) {
          add("process_start_time_seconds", "Start of the process, seconds since 1970.", MetricType::Gauge,
              *boot_time + field(19) / ticks);
        }
      }
    }
  }
  if (const std::optional<int> fds = CountOpenFds()) {
    add("process_open_fds", "Open file descriptors.", MetricType::Gauge, *fds);
  }
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    add("process_max_fds", "Most file descriptors that may be open.", MetricType::Gauge,
        static_cast<double>(limit.rlim_cur));
  }
  return out;
}

}  // namespace tessera
