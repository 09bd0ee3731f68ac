// ptx-emulate: runs one kernel of a .ptx file on the CPU. See Usage.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/ptx/emulator.h"
#include "tests/ptx/parser/token_stream.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

constexpr const char* kUsage = R"(ptx-emulate KERNELS.ptx [--entry NAME] [options] [--arg ARG ...]

Without --entry: lists the kernels of the file with their parameters, and the instructions that cannot be run.
  --entry NAME          the kernel; a part of its name is enough if only one has it
  --grid X[,Y[,Z]]      CTAs (1)        --block X[,Y[,Z]]   threads of a CTA (32)
  --cluster X[,Y[,Z]]   CTAs of a cluster (1)
  --shared BYTES        dynamic shared memory (0)
  --arg TYPE:VALUE      the next parameter: u8..u64, s8..s64, f32, f64, or b16 (bits)
  --arg buffer:TYPE:COUNT[:zero|iota|random|none]   a pointer to so many elements; printed after the run unless --quiet.
                        none: reads of what the kernel has not written stop it
  --arg bytes:N         a parameter of N zero bytes
  --async lazy|eager|random   when asynchronous operations complete (lazy)
  --seed N              varies the order of warps and of asynchronous completions
  --races               stop at accesses to shared memory that nothing orders
  --threads N           host threads (all cores)
  --limit N             warp instructions a cluster may execute
  --trace               print every instruction executed (one host thread)
  --print N             elements of a buffer to print (16)
  --quiet               print no buffers
)";

struct Argument {
  std::vector<std::byte> value;
  // Buffers.
  Type type = Type::kNone;
  std::vector<std::byte> memory;
  bool tracked = false;
};

[[noreturn]] void Die(const std::string& what) {
  std::cerr << "ptx-emulate: " << what << "\n";
  std::exit(2);
}

uint64_t Number(const std::string& text) {
  uint64_t bits;
  Type type;
  const bool negative = text.starts_with('-');
  if (!ParseNumber(std::string_view(text).substr(negative), &bits, &type) || type != Type::kB64)
    Die("not a number: " + text);
  return negative ? -bits : bits;
}

Dim3 Dimensions(const std::string& text) {
  const auto parts = Split(text, ',');
  if (parts.size() > 3) Die("not X,Y,Z: " + text);
  Dim3 d;
  uint32_t* const to[] = {&d.x, &d.y, &d.z};
  for (size_t k = 0; k < parts.size(); ++k) *to[k] = static_cast<uint32_t>(Number(parts[k]));
  return d;
}

uint64_t Encode(Type type, const std::string& text) {
  if (type == Type::kF32) {
    const float f = std::strtof(text.c_str(), nullptr);
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    return bits;
  }
  if (type == Type::kF64) {
    const double d = std::strtod(text.c_str(), nullptr);
    uint64_t bits;
    std::memcpy(&bits, &d, 8);
    return bits;
  }
  return Number(text);
}

void Fill(Argument& a, const std::string& how, uint64_t count) {
  const int bytes = Bytes(a.type);
  std::mt19937_64 random(1);
  for (uint64_t k = 0; k < count && how != "zero"; ++k) {
    double value =
        how == "iota" ? static_cast<double>(k) : std::uniform_real_distribution<double>(-1, 1)(random);
    uint64_t bits = how == "iota" ? k : random();
    if (a.type == Type::kF32) {
      const auto f = static_cast<float>(value);
      std::memcpy(&bits, &f, 4);
    } else if (a.type == Type::kF64) {
      std::memcpy(&bits, &value, 8);
    }
    std::memcpy(a.memory.data() + k * bytes, &bits, bytes);
  }
}

std::unique_ptr<Argument> ParseArgument(const std::string& text) {
  auto a = std::make_unique<Argument>();
  auto parts = Split(text, ':');
  if (parts[0] == "bytes" && parts.size() == 2) {
    a->value.resize(Number(parts[1]));
    return a;
  }
  const bool buffer = parts[0] == "buffer";
  if (parts.size() < (buffer ? 3u : 2u)) Die("not an argument: " + text);
  const auto type = ParseType(buffer ? parts[1] : parts[0]);
  if (!type || Bits(*type) < 8 || Bits(*type) > 64) Die("unknown type in " + text);
  if (!buffer) {
    const uint64_t bits = Encode(*type, parts[1]);
    a->value.resize(Bytes(*type));
    std::memcpy(a->value.data(), &bits, a->value.size());
    return a;
  }
  a->type = *type;
  const uint64_t count = Number(parts[2]);
  const std::string how = parts.size() > 3 ? parts[3] : "zero";
  if (how != "zero" && how != "iota" && how != "random" && how != "none") Die("unknown contents in " + text);
  a->memory.resize(count * Bytes(*type));
  a->tracked = how == "none";
  if (!a->tracked) Fill(*a, how, count);
  const std::byte* pointer = a->memory.data();
  a->value.resize(8);
  std::memcpy(a->value.data(), &pointer, 8);
  return a;
}

void PrintBuffer(size_t index, const Argument& a, uint64_t limit) {
  const int bytes = Bytes(a.type);
  const uint64_t count = a.memory.size() / bytes;
  std::cout << "buffer " << index << ":";
  for (uint64_t k = 0; k < std::min(count, limit); ++k) {
    uint64_t bits = 0;
    std::memcpy(&bits, a.memory.data() + k * bytes, bytes);
    if (a.type == Type::kF32) {
      float f;
      std::memcpy(&f, &bits, 4);
      std::cout << ' ' << f;
    } else if (a.type == Type::kF64) {
      double d;
      std::memcpy(&d, &bits, 8);
      std::cout << ' ' << d;
    } else if (IsSigned(a.type)) {
      std::cout << ' ' << (static_cast<int64_t>(bits << (64 - 8 * bytes)) >> (64 - 8 * bytes));
    } else {
      std::cout << ' ' << bits;
    }
  }
  std::cout << (count > limit ? " ...\n" : "\n");
}

int ListKernels(const Program& program) {
  for (const auto& f : program.module().functions) {
    if (!f->is_entry) continue;
    std::cout << f->name << "\n  " << f->body.size() << " instructions, " << f->static_shared
              << " bytes of static shared memory\n";
    for (const auto& p : f->params) {
      std::cout << "  +" << p->address << " ." << TypeName(p->type) << " x " << p->elements << "  " << p->name
                << "\n";
    }
  }
  const auto unsupported = program.Unsupported();
  for (const std::string& line : unsupported) std::cout << line << "\n";
  std::cout << unsupported.size() << " instructions cannot be run\n";
  return unsupported.empty() ? 0 : 1;
}

const Function& FindEntry(const Program& program, const std::string& name) {
  const Function* found = nullptr;
  for (const auto& f : program.module().functions) {
    if (!f->is_entry || f->name.find(name) == f->name.npos) continue;
    if (f->name == name) return *f;
    if (found != nullptr)
      Die("more than one kernel is called like " + name + ": " + found->name + ", " + f->name);
    found = f.get();
  }
  if (found == nullptr) Die(std::string(program.FindEntry(name).status().message()));
  return *found;
}

int Main(int argc, char** argv) {
  std::string file, entry;
  LaunchConfig config;
  config.block.x = 32;
  ExecutionOptions options;
  std::vector<std::unique_ptr<Argument>> arguments;
  uint64_t print = 16;
  bool quiet = false;
  for (int k = 1; k < argc; ++k) {
    const std::string word = argv[k];
    const auto next = [&]() -> std::string {
      if (k + 1 >= argc) Die(word + " needs a value");
      return argv[++k];
    };
    if (word == "--help") {
      std::cout << kUsage;
      return 0;
    }
    if (word == "--entry")
      entry = next();
    else if (word == "--grid")
      config.grid = Dimensions(next());
    else if (word == "--block")
      config.block = Dimensions(next());
    else if (word == "--cluster")
      config.cluster = Dimensions(next());
    else if (word == "--shared")
      config.dynamic_shared_bytes = static_cast<uint32_t>(Number(next()));
    else if (word == "--arg")
      arguments.push_back(ParseArgument(next()));
    else if (word == "--seed")
      options.seed = Number(next());
    else if (word == "--threads")
      options.threads = static_cast<int>(Number(next()));
    else if (word == "--limit")
      options.instruction_limit = Number(next());
    else if (word == "--print")
      print = Number(next());
    else if (word == "--quiet")
      quiet = true;
    else if (word == "--races")
      options.check_races = true;
    else if (word == "--trace") {
      options.threads = 1;
      options.trace = [](const std::string& line) { std::cout << line << "\n"; };
    } else if (word == "--async") {
      const std::string policy = next();
      if (policy != "lazy" && policy != "eager" && policy != "random")
        Die("--async is lazy, eager or random");
      options.async = policy == "lazy"    ? AsyncPolicy::kLazy
                      : policy == "eager" ? AsyncPolicy::kEager
                                          : AsyncPolicy::kRandom;
    } else if (word.starts_with("--") || !file.empty()) {
      Die("unknown argument " + word + "; --help tells");
    } else {
      file = word;
    }
  }
  if (file.empty()) {
    std::cerr << kUsage;
    return 2;
  }
  std::ifstream in(file);
  if (!in) Die("cannot read " + file);
  std::stringstream text;
  text << in.rdbuf();

  GlobalMemory memory;
  auto program = Program::Load(text.str(), file, FullRegistry(), memory);
  if (!program.ok()) Die(std::string(program.status().message()));
  if (entry.empty()) return ListKernels(**program);

  const Function& kernel = FindEntry(**program, entry);
  if (arguments.size() != kernel.params.size()) {
    Die(Cat(kernel.name, " takes ", kernel.params.size(), " arguments, not ", arguments.size()));
  }
  std::vector<std::byte> block(kernel.param_bytes);
  for (size_t k = 0; k < arguments.size(); ++k) {
    const Variable& p = *kernel.params[k];
    if (arguments[k]->value.size() != p.Size()) {
      Die(Cat("argument ", k, " has ", arguments[k]->value.size(), " bytes, the parameter ", p.Size()));
    }
    std::memcpy(block.data() + p.address, arguments[k]->value.data(), p.Size());
    if (!arguments[k]->memory.empty()) {
      memory.Add(arguments[k]->memory.data(), arguments[k]->memory.size(), Cat("buffer ", k),
                 {.writable = true, .track_defined = arguments[k]->tracked});
    }
  }
  LaunchStatistics statistics;
  const absl::Status status = Launch(**program, kernel, config, block, memory, options, &statistics);
  if (!status.ok()) {
    std::cerr << std::string(status.message()) << "\n";
    return 1;
  }
  for (size_t k = 0; k < arguments.size() && !quiet; ++k) {
    if (!arguments[k]->memory.empty()) PrintBuffer(k, *arguments[k], print);
  }
  std::fprintf(stderr,
               "%llu warp instructions, %llu lane instructions, %.3f s (%.1f M lane instructions/s)\n",
               static_cast<unsigned long long>(statistics.warp_instructions),
               static_cast<unsigned long long>(statistics.lane_instructions), statistics.seconds,
               statistics.lane_instructions / statistics.seconds * 1e-6);
  return 0;
}

}  // namespace
}  // namespace tessera::ptx

int main(int argc, char** argv) { return tessera::ptx::Main(argc, argv); }
