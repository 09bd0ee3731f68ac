// Small kernels for the tests of the tensor-core instructions: a frame of PTX that copies an image into shared memory,
// allocates tensor memory and frees it, around the lines that a test is about.
#ifndef TESSERA_TESTS_PTX_TENSOR_TENSOR_KERNEL_H_
#define TESSERA_TESTS_PTX_TENSOR_TENSOR_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "tests/ptx/machine/async_queue.h"
#include "tests/ptx/machine/global_memory.h"
#include "tests/ptx/machine/launch.h"

namespace tessera::ptx {

struct TensorKernelLaunch {
  uint32_t threads = 128;
  uint32_t ctas = 1;  // of one cluster
  AsyncPolicy async = AsyncPolicy::kLazy;
  uint64_t seed = 0;
  uint32_t shared_bytes = 64 * 1024;  // dynamic
};

// Arguments of the kernels below.
struct TensorKernelArguments {
  std::vector<uint8_t> image;  // goes to the start of the dynamic shared memory; the same in each CTA, unless
  std::vector<uint8_t> odd_image;  // this is not empty: of CTAs of odd rank
  uint64_t a = 0, b = 0;           // descriptors whose start is an offset in the image
  uint32_t idesc = 0;
  uint64_t extra = 0;
};

// PTX of a kernel `k` for sm_100a with `body` in it. Registers that the body finds:
//   %thread, %warp, %lane, %rank (of the CTA), %tile (shared address of the image), %tmem (address of 512 columns)
//   %a, %b (descriptors of the image's place), %idesc, %extra, %out (global, of this CTA: 64 KB each)
//   %leader: predicate of thread 0;  bar: mbarrier of one arrival in shared memory
//   scratch: %p<>, %x<> (b32), %y<> (b64), %f<>
// The body runs in all threads and must leave them together. `cta_group` is that of alloc and dealloc; 0 leaves tensor
// memory out (then `target` may be sm_90a).
std::string TensorKernel(std::string_view body, int cta_group = 1, std::string_view target = "sm_100a");

// "{%x0, %x1, ...}" of `count` registers from `first`.
std::string RegisterList(std::string_view prefix, int first, int count);

// Lines that load `columns` words from column `column` of this warp's quarter (32x32b) into %x100.. and write them to
// out[thread][columns].
std::string StoreAccumulator(int columns, int column = 0);

// Lines that thread 0 alone executes (each a tcgen05 operation of cta_group::1), then a commit to `bar`, for which all
// threads wait.
std::string IssueAndWait(std::string_view lines);
// The same with another predicate for who issues, and another commit.
std::string IssueAndWait(std::string_view lines, std::string_view issuer, std::string_view commit);

// Loads a module and launches one of its kernels. `params` is the block of parameters at their offsets.
absl::Status LaunchEntry(std::string_view ptx, std::string_view entry, const LaunchConfig& config,
                         const std::vector<std::byte>& params, GlobalMemory& memory,
                         const ExecutionOptions& options);

// Runs it; `out` gets `words` 32-bit words of each CTA's output, CTA by CTA. With TESSERA_PTX_HARDWARE in the environment
// kernels for sm_90a that ran without a fault run on the GPU as well, and another output there is an error.
absl::Status RunTensorKernel(const std::string& ptx, const TensorKernelArguments& arguments,
                             const TensorKernelLaunch& launch, int words, std::vector<uint32_t>* out);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TENSOR_TENSOR_KERNEL_H_
