// Runs short hand-written kernels in tests.
#ifndef TESSERA_TESTS_PTX_TESTING_MINI_KERNEL_H_
#define TESSERA_TESTS_PTX_TESTING_MINI_KERNEL_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "tests/ptx/machine/global_memory.h"
#include "tests/ptx/machine/launch.h"
#include "tests/ptx/machine/program.h"
#include "tests/ptx/machine/registry.h"

namespace tessera::ptx {

// A kernel `k` with one parameter, a pointer to 64-bit words; `%rd0` holds it, and %r, %rd, %f, %fd, %rs, %h, %p (100
// each) are declared. `body` is all the rest. `module` comes before the entry.
std::string MiniKernel(std::string_view body, std::string_view module = "", std::string_view attributes = "");

class MiniRunner {
 public:
  explicit MiniRunner(const Registry* registry = nullptr);  // null: the scalar instructions

  LaunchConfig config;  // one block of 32 threads unless changed
  ExecutionOptions options;
  // What the kernel's parameter points to.
  std::vector<uint64_t> words = std::vector<uint64_t>(256);

  // Loads the text, launches `k`, returns the launch's status.
  absl::Status Run(std::string_view ptx);
  const LaunchStatistics& statistics() const { return statistics_; }
  std::string printed;

 private:
  const Registry* registry_;
  std::unique_ptr<Registry> own_;
  GlobalMemory memory_;
  LaunchStatistics statistics_;
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TESTING_MINI_KERNEL_H_
