// A parsed PTX module: what the text says, with names resolved to registers, variables and labels. Nothing here knows
// how an instruction runs; the loader (machine/program.h) adds that.
#ifndef TESSERA_TESTS_PTX_PARSER_MODULE_H_
#define TESSERA_TESTS_PTX_PARSER_MODULE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/ptx/parser/type.h"

namespace tessera::ptx {

class Warp;
struct Function;
struct Instruction;

// Anything that lives in a state space: module and function variables, parameters.
struct Variable {
  std::string name;
  Space space = Space::kGlobal;
  Type type = Type::kB8;  // of one element
  uint64_t elements = 1;  // 0 for an extern array of unknown size
  uint32_t vector = 1;    // .v2, .v4
  uint32_t align = 1;     // bytes
  bool is_extern = false;
  std::vector<uint8_t> initial;  // empty if not initialised; else as long as the variable
  // Addresses inside the initialiser: 8 bytes at `at` get the address of `symbol` plus `addend`.
  struct Relocation {
    uint32_t at;
    std::string symbol;
    int64_t addend;
    bool generic;
  };
  std::vector<Relocation> relocations;

  // Where the loader put it: a host address for .global and .const, an offset in the CTA's window for .shared, in the
  // frame's per-lane memory for .local and .param of a function body, in the parameter block for kernel parameters.
  uint64_t address = 0;

  uint64_t Size() const { return elements * vector * static_cast<uint64_t>(Bytes(type)); }
};

// A virtual register of a function. `offset` is into Frame::storage; see machine/frame.h for the storage forms.
struct Register {
  // Bytes a lane takes in storage; 0 for a predicate, whose 32 lanes are one word.
  static uint8_t StorageWidth(Type type) {
    return type == Type::kPred ? 0 : Bits(type) < 16 ? 2 : Bytes(type);
  }

  std::string name;
  Type type = Type::kB32;
  uint32_t index = 0;   // among the function's registers
  uint32_t offset = 0;  // bytes
};

struct SourceLocation {
  int line = 0;         // in the PTX text, from 1
  int file = 0;         // .loc: index into Module::files, 0 if none
  int source_line = 0;  // .loc
};

struct Operand {
  enum class Kind : uint8_t {
    kNone,
    kRegister,   // %r1, and !%p1 with `negated`
    kImmediate,  // bits in `value`; `is_float` if written as 0f, 0d or with a decimal point
    kSpecial,    // %tid.x: `special`
    kVariable,   // the address of a variable plus `value`
    kAddress,    // [base], [base + value], or [base, {c0, c1}, ...]: elements[0] is the base
    kVector,     // {a, b, c, d}
    kList,       // (a, b): call arguments
    kLabel,      // branch target; `target` is the index of an instruction
    kFunction,   // the target of a call: `name`
    kSink,       // _
    kString,     // a bare word that is none of these
  };
  Kind kind = Kind::kNone;
  bool negated = false;  // !p, and -%r where allowed
  bool is_float = false;
  bool is_pair_second = false;  // the q of p|q
  Type type = Type::kNone;      // kRegister: the declared type
  uint32_t reg = 0;             // kRegister: Register::index
  uint32_t offset = 0;          // kRegister: Register::offset
  uint8_t width = 0;            // kRegister: bytes a lane in storage, 0 for a predicate
  uint64_t value =
      0;  // kImmediate: bits (integers sign-extended to 64; floats as double unless 0f, see `type`)
  int special = -1;  // kSpecial: machine/special.h
  const Variable* variable = nullptr;
  const Function* function = nullptr;
  int target = -1;
  std::string name;  // as written
  std::vector<Operand> elements;

  bool IsRegister() const { return kind == Kind::kRegister; }
  bool IsSink() const { return kind == Kind::kSink; }
};

// What Prepare (machine/registry.h) worked out of an instruction's modifiers, for its Execute.
struct Payload {
  virtual ~Payload() = default;
};

using ExecuteFn = void (*)(Warp&, const Instruction&);

struct Instruction {
  // "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16" -> opcode "wgmma", modifiers "mma_async", "sync", ...;
  // "::" stays inside a modifier ("shared::cta").
  std::string opcode;
  std::vector<std::string> modifiers;
  std::vector<Operand> operands;
  Operand guard;  // kNone if not predicated
  SourceLocation where;
  std::string text;  // as written, without the guard's or the statement's end
  const Function* function = nullptr;
  int index = 0;  // in Function::body

  // Set by the loader.
  ExecuteFn execute = nullptr;
  std::unique_ptr<Payload> payload;
  uint32_t priority =
      0;  // order of its basic block (parser/control_flow.h); lower runs first after a divergence
  // Small decoded facts of the scalar handlers, so that they need no payload.
  Type type = Type::kNone;
  Type type2 = Type::kNone;
  uint32_t flags = 0;
  uint32_t extra = 0;

  bool Has(std::string_view modifier) const {
    for (const std::string& m : modifiers) {
      if (m == modifier) return true;
    }
    return false;
  }
  template <class T>
  const T& As() const {
    return static_cast<const T&>(*payload);
  }
};

struct Function {
  std::string name;
  bool is_entry = false;
  bool has_body = false;
  std::vector<std::unique_ptr<Variable>>
      params;  // in order; for an entry, address = offset in the parameter block
  std::vector<std::unique_ptr<Variable>> results;    // .func return values
  std::vector<std::unique_ptr<Variable>> variables;  // declared in the body
  std::vector<std::unique_ptr<Register>> registers;
  std::vector<Instruction> body;

  // Performance-tuning and cluster directives; 0 where absent.
  uint32_t max_threads[3] = {0, 0, 0};       // .maxntid
  uint32_t required_threads[3] = {0, 0, 0};  // .reqntid
  uint32_t required_cluster[3] = {0, 0, 0};  // .reqnctapercluster
  uint32_t max_cluster_rank = 0;             // .maxclusterrank
  bool explicit_cluster = false;             // .explicitcluster
  uint32_t min_ctas = 0;                     // .minnctapersm

  uint32_t storage_bytes = 0;  // of all registers

  // Set by the loader.
  uint32_t local_bytes = 0;    // per-lane memory of a frame: .local, .param of the body
  uint32_t param_bytes = 0;    // entry: size of the parameter block
  uint32_t static_shared = 0;  // entry: bytes of .shared that it and what it calls declare, with the module's
};

struct Module {
  std::string name;  // for messages: a file name
  std::string version;
  std::string target;              // "sm_90a"
  std::vector<std::string> files;  // .file, index from 1; [0] is empty
  std::vector<std::unique_ptr<Variable>> variables;
  std::vector<std::unique_ptr<Function>> functions;

  const Function* Find(std::string_view name) const;
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_PARSER_MODULE_H_
