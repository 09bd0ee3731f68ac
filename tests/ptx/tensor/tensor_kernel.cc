#include "tests/ptx/tensor/tensor_kernel.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tests/ptx/emulator.h"
#include "tests/ptx/tensor/hardware.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

constexpr uint32_t kOutBytes = 128 * 1024;  // of one CTA

constexpr char kPrologue[] = R"(.version 8.8
.target %s
.address_size 64
.extern .shared .align 1024 .b8 tile[];
.visible .entry k(.param .u64 image_p, .param .u64 odd_image_p, .param .u64 out_p, .param .u64 a_p, .param .u64 b_p,
                  .param .u64 extra_p, .param .u32 bytes_p, .param .u32 idesc_p)
{
  .reg .pred %%p<32>, %%leader, %%first_warp;
  .reg .b32 %%x<400>, %%thread, %%warp, %%lane, %%rank, %%tile, %%tmem, %%idesc, %%bytes, %%at;
  .reg .b64 %%y<64>, %%a, %%b, %%extra, %%out, %%image, %%base;
  .reg .f32 %%f<400>;
  .shared .align 8 .b64 bar;
  .shared .align 4 .b32 slot;
  mov.u32 %%thread, %%tid.x;
  shr.u32 %%warp, %%thread, 5;
  and.b32 %%lane, %%thread, 31;
  mov.u32 %%rank, %%cluster_ctarank;
  setp.eq.u32 %%leader, %%thread, 0;
  setp.eq.u32 %%first_warp, %%warp, 0;
  mov.u32 %%tile, tile;
  ld.param.u64 %%out, [out_p];
  mul.wide.u32 %%base, %%rank, 131072;
  add.u64 %%out, %%out, %%base;
  ld.param.u32 %%idesc, [idesc_p];
  ld.param.u64 %%extra, [extra_p];
  shr.u32 %%at, %%tile, 4;
  cvt.u64.u32 %%base, %%at;
  ld.param.u64 %%a, [a_p];
  add.u64 %%a, %%a, %%base;
  ld.param.u64 %%b, [b_p];
  add.u64 %%b, %%b, %%base;

  ld.param.u64 %%image, [image_p];
  and.b32 %%at, %%rank, 1;
  setp.eq.u32 %%p0, %%at, 0;
  @%%p0 bra EVEN;
  ld.param.u64 %%image, [odd_image_p];
EVEN:
  ld.param.u32 %%bytes, [bytes_p];
  shl.b32 %%at, %%thread, 4;
  mov.u32 %%x5, %%ntid.x;
  shl.b32 %%x5, %%x5, 4;
COPY:
  setp.ge.u32 %%p0, %%at, %%bytes;
  @%%p0 bra COPIED;
  cvt.u64.u32 %%base, %%at;
  add.u64 %%base, %%base, %%image;
  ld.global.v4.b32 {%%x0, %%x1, %%x2, %%x3}, [%%base];
  add.u32 %%x4, %%tile, %%at;
  st.shared.v4.b32 [%%x4], {%%x0, %%x1, %%x2, %%x3};
  add.u32 %%at, %%at, %%x5;
  bra COPY;
COPIED:
  fence.proxy.async.shared::cta;
  @!%%leader bra INITIALISED;
  mbarrier.init.shared::cta.b64 [bar], 1;
  fence.mbarrier_init.release.cluster;
INITIALISED:
)";

constexpr char kAlloc[] = R"(  @!%%first_warp bra ALLOCATED;
  tcgen05.alloc.cta_group::%d.sync.aligned.shared::cta.b32 [slot], 512;
  tcgen05.relinquish_alloc_permit.cta_group::%d.sync.aligned;
ALLOCATED:
)";

constexpr char kDealloc[] = R"(  tcgen05.fence::before_thread_sync;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  tcgen05.fence::after_thread_sync;
  @!%%first_warp bra FREED;
  tcgen05.dealloc.cta_group::%d.sync.aligned.b32 %%tmem, 512;
FREED:
)";

// The same kernel on the GPU must give the same bits.
absl::Status CompareWithHardware(const std::string& ptx, const TensorKernelLaunch& launch,
                                 const std::vector<std::byte>& params, std::vector<uint8_t> image,
                                 std::vector<uint8_t> odd, const std::vector<uint32_t>& expected) {
  std::vector<uint32_t> output(expected.size());
  absl::Status status = RunOnHardware(
      ptx, "k", launch.ctas, launch.threads, launch.shared_bytes, params,
      {{0, image.data(), image.size()}, {8, odd.data(), odd.size()}, {16, output.data(), output.size() * 4}});
  if (!status.ok()) return status;
  for (size_t i = 0; i < output.size(); ++i) {
    if (output[i] == expected[i]) continue;
    return absl::InternalError(absl::StrFormat(
        "word %d of the output is 0x%08x on the GPU, 0x%08x in the emulator", i, output[i], expected[i]));
  }
  return absl::OkStatus();
}

}  // namespace

std::string TensorKernel(std::string_view body, int cta_group, std::string_view target) {
  std::string ptx = absl::StrFormat(kPrologue, target);
  if (cta_group != 0) absl::StrAppendFormat(&ptx, kAlloc, cta_group, cta_group);
  ptx += "  barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;\n";
  if (cta_group != 0) ptx += "  ld.shared.b32 %tmem, [slot];\n";
  ptx += "// ---- the test\n";
  ptx += body;
  ptx += "\n// ----\n";
  if (cta_group != 0) absl::StrAppendFormat(&ptx, kDealloc, cta_group);
  ptx += "  ret;\n}\n";
  return ptx;
}

std::string RegisterList(std::string_view prefix, int first, int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(absl::StrFormat("%s%d", prefix, first + i));
  return absl::StrCat("{", absl::StrJoin(names, ", "), "}");
}

std::string StoreAccumulator(int columns, int column) {
  std::string body = R"(
  shl.b32 %x90, %warp, 21;
  add.u32 %x90, %x90, %tmem;
  mul.wide.u32 %y50, %thread, )" +
                     std::to_string(4 * columns) + R"(;
  add.u64 %y50, %y50, %out;
)";
  // Sizes of loads: the binary digits of `columns`, so that any multiple of eight does.
  int done = 0;
  for (int size = 128; size >= 1; size /= 2) {
    if (((columns - done) & size) == 0 && columns - done < 2 * size) continue;
    while (columns - done >= size) {
      absl::StrAppendFormat(&body, "  tcgen05.ld.sync.aligned.32x32b.x%d.b32 %s, [%%x90 + %d];\n", size,
                            RegisterList("%x", 100, size), column + done);
      body += "  tcgen05.wait::ld.sync.aligned;\n";
      for (int i = 0; i < size; ++i) {
        absl::StrAppendFormat(&body, "  st.global.b32 [%%y50 + %d], %%x%d;\n", 4 * (done + i), 100 + i);
      }
      done += size;
    }
  }
  return body;
}

std::string IssueAndWait(std::string_view lines) {
  return IssueAndWait(lines, "%leader",
                      "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar];");
}

std::string IssueAndWait(std::string_view lines, std::string_view issuer, std::string_view commit) {
  return Cat("  @!", issuer, " bra ISSUED;\n", lines, "  ", commit, R"(
ISSUED:
WAITING:
  mbarrier.try_wait.parity.shared::cta.b64 %p7, [bar], 0;
  @!%p7 bra WAITING;
  tcgen05.fence::after_thread_sync;
)");
}

absl::Status LaunchEntry(std::string_view ptx, std::string_view entry, const LaunchConfig& config,
                         const std::vector<std::byte>& params, GlobalMemory& memory,
                         const ExecutionOptions& options) {
  absl::StatusOr<std::unique_ptr<Program>> program = Program::Load(ptx, "mini", FullRegistry(), memory);
  if (!program.ok()) return program.status();
  absl::StatusOr<const Function*> function = (*program)->FindEntry(entry);
  if (!function.ok()) return function.status();
  return Launch(**program, **function, config, params, memory, options);
}

absl::Status RunTensorKernel(const std::string& ptx, const TensorKernelArguments& arguments,
                             const TensorKernelLaunch& launch, int words, std::vector<uint32_t>* out) {
  const auto padded = [](std::vector<uint8_t> bytes) {
    bytes.resize((bytes.size() + 31) / 16 * 16);
    return bytes;
  };
  const std::vector<uint8_t> image = padded(arguments.image);
  const std::vector<uint8_t> odd =
      padded(arguments.odd_image.empty() ? arguments.image : arguments.odd_image);
  std::vector<uint32_t> output(launch.ctas * kOutBytes / 4);
  GlobalMemory memory;
  memory.Add(image.data(), image.size(), "image");
  memory.Add(odd.data(), odd.size(), "odd image");
  memory.Add(output.data(), output.size() * 4, "out");

  std::vector<std::byte> params(56);
  const auto put = [&params](size_t offset, const auto& value) {
    std::memcpy(&params[offset], &value, sizeof(value));
  };
  put(0, image.data());
  put(8, odd.data());
  put(16, output.data());
  put(24, arguments.a);
  put(32, arguments.b);
  put(40, arguments.extra);
  put(48, static_cast<uint32_t>(arguments.image.size()));
  put(52, arguments.idesc);

  LaunchConfig config;
  config.grid = {launch.ctas, 1, 1};
  config.block = {launch.threads, 1, 1};
  config.cluster = {launch.ctas, 1, 1};
  config.dynamic_shared_bytes = launch.shared_bytes;
  ExecutionOptions options;
  options.threads = 1;
  options.async = launch.async;
  options.seed = launch.seed;
  options.instruction_limit = 1 << 22;
  if (absl::Status status = LaunchEntry(ptx, "k", config, params, memory, options); !status.ok())
    return status;
  if (std::getenv("TESSERA_PTX_HARDWARE") != nullptr && ptx.find(".target sm_90a") != std::string::npos) {
    absl::Status same = CompareWithHardware(ptx, launch, params, image, odd, output);
    if (!same.ok()) return same;
  }
  out->clear();
  for (uint32_t cta = 0; cta < launch.ctas; ++cta) {
    const auto begin = output.begin() + cta * kOutBytes / 4;
    out->insert(out->end(), begin, begin + words);
  }
  return absl::OkStatus();
}

}  // namespace tessera::ptx
