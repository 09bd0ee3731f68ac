#include "tests/ptx/testing/mini_kernel.h"

#include "tests/ptx/text.h"

namespace tessera::ptx {

std::string MiniKernel(std::string_view body, std::string_view module, std::string_view attributes) {
  return Cat(".version 9.0\n.target sm_100a\n.address_size 64\n", module,
             "\n.visible .entry k(.param .u64 k_param_0)\n", attributes,
             R"(
{
.reg .pred %p<100>;
.reg .b16 %rs<100>;
.reg .b16 %h<100>;
.reg .b32 %r<100>;
.reg .b64 %rd<100>;
.reg .f32 %f<100>;
.reg .f64 %fd<100>;
ld.param.u64 %rd0, [k_param_0];
)",
             body, "\nret;\n}\n");
}

MiniRunner::MiniRunner(const Registry* registry) : registry_(registry) {
  if (registry_ == nullptr) {
    own_ = std::make_unique<Registry>();
    RegisterScalarIsa(*own_);
    registry_ = own_.get();
  }
  config.block = {32, 1, 1};
  options.threads = 1;
  options.instruction_limit = 1'000'000;
}

absl::Status MiniRunner::Run(std::string_view ptx) {
  memory_.Add(words.data(), words.size() * 8, "words");
  struct Remove {
    GlobalMemory& memory;
    const void* base;
    ~Remove() { memory.Remove(base); }
  } remove{memory_, words.data()};
  options.print = [this](const std::string& text) { printed += text; };
  auto program = Program::Load(ptx, "mini.ptx", *registry_, memory_);
  if (!program.ok()) return program.status();
  auto entry = (*program)->FindEntry("k");
  if (!entry.ok()) return entry.status();
  const uint64_t* parameter = words.data();
  return Launch(**program, **entry, config, std::as_bytes(std::span(&parameter, 1)), memory_, options,
                &statistics_);
}

}  // namespace tessera::ptx
