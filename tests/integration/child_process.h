#ifndef TESSERA_TESTS_INTEGRATION_CHILD_PROCESS_H_
#define TESSERA_TESTS_INTEGRATION_CHILD_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tessera::testing {

// A program that runs beside the test. Its output, both streams in the order written, goes to a file. It is killed
// when this object or the test's process ends. One thread uses it.
class ChildProcess {
 public:
  // Without TESSERA_* variables in its environment. A program that cannot be started exits with 127.
  ChildProcess(const std::string& program, const std::vector<std::string>& arguments);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  bool Running();
  // The exit code, or minus the number of the signal that ended it; nullopt if it still runs after `timeout`.
  std::optional<int> WaitForExit(absl::Duration timeout);
  // All that it wrote so far.
  std::string Output() const;

 private:
  pid_t pid_ = -1;
  std::string output_path_;
  std::optional<int> exit_;
};

// Polls `condition` until it is true; false if it was not within `timeout`.
template <typename Condition>
bool WaitFor(Condition condition, absl::Duration timeout = absl::Seconds(30)) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

// A directory under the test's temporary one that is deleted with this object.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_INTEGRATION_CHILD_PROCESS_H_
