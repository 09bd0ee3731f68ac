#include "tests/integration/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#include "gtest/gtest.h"

namespace tessera::testing {
namespace {

std::string UniquePath(const char* kind) {
  static int count = 0;
  return ::testing::TempDir() + "/tessera_" + kind + "_" + std::to_string(getpid()) + "_" +
         std::to_string(++count);
}

}  // namespace

ChildProcess::ChildProcess(const std::string& program, const std::vector<std::string>& arguments)
    : output_path_(UniquePath("output")) {
  // All that allocates comes before the fork: this process has threads.
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::string_view(*entry).substr(0, 8) != "TESSERA_") environment.push_back(*entry);
  }
  environment.push_back(nullptr);
  const int output = open(output_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  const int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(input, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    execve(program.c_str(), argv.data(), environment.data());
    _exit(127);
  }
  close(output);
  close(input);
}

ChildProcess::~ChildProcess() {
  if (Running()) {
    Signal(SIGKILL);
    WaitForExit(absl::Seconds(30));
  }
  unlink(output_path_.c_str());
}

void ChildProcess::Signal(int signal) const {
  if (pid_ > 0 && !exit_) kill(pid_, signal);
}

bool ChildProcess::Running() { return !WaitForExit(absl::ZeroDuration()).has_value(); }

std::optional<int> ChildProcess::WaitForExit(absl::Duration timeout) {
  WaitFor(
      [this] {
        int status = 0;
        if (!exit_ && waitpid(pid_, &status, WNOHANG) != 0) {
          exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        }
        return exit_.has_value();
      },
      timeout);
  return exit_;
}

std::string ChildProcess::Output() const {
  std::ifstream in(output_path_);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

ScratchDirectory::ScratchDirectory() : path_(UniquePath("scratch")) {
  std::filesystem::create_directories(path_);
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace tessera::testing
