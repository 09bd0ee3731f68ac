#include "server/backend/cpu/memory.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::cpu {
namespace {

// The number after `key` in a file of "key value" lines (/proc/meminfo, memory.stat).
std::optional<int64_t> ReadKey(const std::string& path, absl::string_view key) {
  std::ifstream file(path);
  std::string name;
  int64_t value;
  std::string rest;
  while (file >> name >> value) {
    if (name == key) return value;
    std::getline(file, rest);
  }
  return std::nullopt;
}

// The first number of a file; empty for "max" or no file.
std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t value;
  if (file >> value) return value;
  return std::nullopt;
}

// Directories of this process's control groups (version 2), from its own up to the root.
template <typename Fn>
void ForEachControlGroup(Fn&& fn) {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) != 0) continue;
    std::string path = line.substr(3);
    while (true) {
      fn(absl::StrCat("/sys/fs/cgroup", path == "/" ? "" : path, "/"));
      const size_t slash = path.find_last_of('/');
      if (path.empty() || path == "/" || slash == std::string::npos) return;
      path.resize(std::max<size_t>(slash, 1));
    }
  }
}

}  // namespace

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) munmap(data_, size_);
}

absl::StatusOr<MappedMemory> MappedMemory::Allocate(int64_t bytes, absl::string_view what) {
  MappedMemory memory;
  if (bytes == 0) return memory;
  const std::optional<int64_t> available = AvailableMemory();
  if (available && bytes > *available) {
    return absl::ResourceExhaustedError(
        absl::StrCat("not enough memory for ", what, ": ", bytes, " bytes needed, ", *available, " free"));
  }
  void* data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system refused ", bytes, " bytes for ", what, " (",
                     available ? absl::StrCat(*available, " free") : "free unknown", ")"));
  }
  madvise(data, bytes, MADV_HUGEPAGE);  // fewer page faults at load, fewer TLB misses later; a hint
  memory.data_ = static_cast<std::byte*>(data);
  memory.size_ = bytes;
  return memory;
}

std::optional<int64_t> AvailableMemory() {
  std::optional<int64_t> available = ReadKey("/proc/meminfo", "MemAvailable:");
  if (available) *available *= 1024;
  const auto limit_to = [&](int64_t limit, int64_t used, int64_t reclaimable) {
    const int64_t left = std::max<int64_t>(0, limit - std::max<int64_t>(0, used - reclaimable));
    available = std::min(available.value_or(left), left);
  };
  ForEachControlGroup([&](const std::string& dir) {
    const std::optional<int64_t> limit = ReadNumber(dir + "memory.max");
    const std::optional<int64_t> used = ReadNumber(dir + "memory.current");
    if (limit && used) limit_to(*limit, *used, ReadKey(dir + "memory.stat", "inactive_file").value_or(0));
  });
  return available;
}

int UsableCores() {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = CPU_COUNT(&set);
  ForEachControlGroup([&](const std::string& dir) {
    std::ifstream file(dir + "cpu.max");  // "quota period" in microseconds, quota may be "max"
    int64_t quota;
    int64_t period;
    if (file >> quota >> period && period > 0) {
      cores = std::min<int64_t>(cores, (quota + period - 1) / period);
    }
  });
  return std::max(cores, 1);
}

}  // namespace tessera::cpu
