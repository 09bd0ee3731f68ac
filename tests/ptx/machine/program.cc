#include "tests/ptx/machine/program.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <set>
#include <utility>

#include "tests/ptx/machine/fault.h"
#include "tests/ptx/machine/shared_memory.h"
#include "tests/ptx/parser/control_flow.h"
#include "tests/ptx/parser/parser.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

uint64_t AlignUp(uint64_t value, uint64_t align) { return (value + align - 1) / align * align; }

// An instruction that Prepare refused: raises when a lane reaches it.
struct Refused : Payload {
  std::string why;
};

void PrepareBody(Function& function, const Registry& registry) {
  for (Instruction& i : function.body) {
    const absl::Status status = registry.Prepare(i);
    if (status.ok() && i.execute != nullptr) continue;
    auto refused = std::make_unique<Refused>();
    refused->why = std::string(status.message());
    i.payload = std::move(refused);
    i.execute = [](Warp&, const Instruction& i) { Raise(Rule::kUnsupported, i.As<Refused>().why); };
  }
}

// Per-lane memory of a frame: results and parameters of a .func, then what the body declares.
void PlaceLocals(Function& function) {
  uint64_t end = 0;
  const auto place = [&](Variable& v) {
    end = AlignUp(end, std::max<uint32_t>(v.align, 1));
    v.address = end;
    end += v.Size();
  };
  if (!function.is_entry) {
    for (auto& v : function.results) place(*v);
    for (auto& v : function.params) place(*v);
  }
  for (auto& v : function.variables) {
    if (v->space == Space::kLocal || v->space == Space::kParam) place(*v);
  }
  function.local_bytes = static_cast<uint32_t>(AlignUp(end, 16));
}

void CollectShared(const Operand& operand, std::set<const Variable*>& variables,
                   std::set<const Function*>& functions) {
  if (operand.variable != nullptr && operand.variable->space == Space::kSharedCta)
    variables.insert(operand.variable);
  if (operand.function != nullptr) functions.insert(operand.function);
  for (const Operand& element : operand.elements) CollectShared(element, variables, functions);
}

// Shared variables that a kernel uses, itself or through calls.
std::set<const Variable*> SharedOf(const Function& entry) {
  std::set<const Variable*> variables;
  std::set<const Function*> seen, todo{&entry};
  while (!todo.empty()) {
    const Function* function = *todo.begin();
    todo.erase(todo.begin());
    if (!seen.insert(function).second) continue;
    for (const Instruction& i : function->body) {
      for (const Operand& operand : i.operands) CollectShared(operand, variables, todo);
    }
  }
  return variables;
}

}  // namespace

void Program::Storage::operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{256}); }

Program::~Program() {
  for (const auto& storage : storage_) memory_->Remove(storage.get());
}

absl::StatusOr<std::unique_ptr<Program>> Program::Load(std::string_view ptx, std::string name,
                                                       const Registry& registry, GlobalMemory& memory) {
  auto module = ParseModule(ptx, std::move(name));
  if (!module.ok()) return module.status();
  std::unique_ptr<Program> program(new Program());
  program->module_ = *std::move(module);
  program->memory_ = &memory;
  if (absl::Status status = program->Link(registry, memory); !status.ok()) return status;
  return program;
}

absl::Status Program::Link(const Registry& registry, GlobalMemory& memory) {
  // Memory of the module's variables.
  std::vector<Variable*> variables;
  for (auto& v : module_->variables) variables.push_back(v.get());
  for (auto& f : module_->functions) {
    for (auto& v : f->variables) variables.push_back(v.get());
  }
  uint64_t shared_end = kSharedReserved;
  for (Variable* v : variables) {
    if (v->space == Space::kSharedCta && v->elements != 0) {
      const bool in_entry =
          std::any_of(module_->functions.begin(), module_->functions.end(), [&](const auto& f) {
            return f->is_entry && std::any_of(f->variables.begin(), f->variables.end(),
                                              [&](const auto& x) { return x.get() == v; });
          });
      if (in_entry) continue;
      v->address = shared_end = AlignUp(shared_end, v->align);
      shared_end += v->Size();
    }
    if (v->space != Space::kGlobal && v->space != Space::kConst) continue;
    if (v->is_extern) {
      return absl::UnimplementedError(
          Cat(module_->name, ": external variable ", v->name, ": modules are not linked"));
    }
    const uint64_t size = std::max<uint64_t>(v->Size(), 1);
    storage_.emplace_back(static_cast<std::byte*>(::operator new[](size, std::align_val_t{256})));
    std::byte* data = storage_.back().get();
    // CUDA zeroes what has no initialiser.
    std::memset(data, 0, size);
    std::memcpy(data, v->initial.data(), v->initial.size());
    v->address = reinterpret_cast<uint64_t>(data);
    memory.Add(data, size, Cat(".", SpaceName(v->space), " ", v->name),
               {.writable = v->space == Space::kGlobal});
  }
  for (Variable* v : variables) {
    for (const Variable::Relocation& r : v->relocations) {
      const auto target =
          std::find_if(variables.begin(), variables.end(), [&](Variable* t) { return t->name == r.symbol; });
      uint64_t address;
      if (target != variables.end())
        address = (*target)->address + static_cast<uint64_t>(r.addend);
      else if (const Function* f = module_->Find(r.symbol))
        address = reinterpret_cast<uint64_t>(f);
      else
        return absl::InvalidArgumentError(Cat(module_->name, ": the initialiser of ", v->name, " names ",
                                              r.symbol, ", which is not there"));
      std::memcpy(reinterpret_cast<void*>(v->address + r.at), &address, 8);
    }
  }

  for (auto& f : module_->functions) {
    PlaceLocals(*f);
    if (!f->has_body) continue;
    // The end of the body returns.
    Instruction end;
    end.opcode = "ret";
    end.text = "ret (end of the body)";
    end.function = f.get();
    end.index = static_cast<int>(f->body.size());
    if (!f->body.empty()) end.where = f->body.back().where;
    f->body.push_back(std::move(end));
    OrderBlocks(*f);
    PrepareBody(*f, registry);
  }
  for (auto& f : module_->functions) {
    if (!f->is_entry) continue;
    uint64_t end = shared_end;
    for (auto& v : f->variables) {
      if (v->space != Space::kSharedCta || v->elements == 0) continue;
      v->address = end = AlignUp(end, v->align);
      end += v->Size();
    }
    uint64_t used = kSharedReserved;
    for (const Variable* v : SharedOf(*f)) {
      if (v->elements != 0) used = std::max(used, v->address + v->Size());
    }
    f->static_shared = static_cast<uint32_t>(used - kSharedReserved);
  }
  return absl::OkStatus();
}

absl::StatusOr<const Function*> Program::FindEntry(std::string_view name) const {
  std::string names;
  for (const auto& f : module_->functions) {
    if (!f->is_entry) continue;
    if (f->name == name) return f.get();
    names += Cat("\n  ", f->name);
  }
  return absl::NotFoundError(
      Cat("no entry '", name, "' in ", module_->name, "; it has:", names.empty() ? " none" : names));
}

void* Program::FindVariable(std::string_view name, uint64_t* size) const {
  for (const auto& v : module_->variables) {
    if (v->name != name || (v->space != Space::kGlobal && v->space != Space::kConst)) continue;
    *size = v->Size();
    return reinterpret_cast<void*>(v->address);
  }
  return nullptr;
}

std::vector<std::string> Program::Unsupported() const {
  std::vector<std::string> lines;
  for (const auto& f : module_->functions) {
    for (const Instruction& i : f->body) {
      if (const auto* refused = dynamic_cast<const Refused*>(i.payload.get())) {
        lines.push_back(Cat(module_->name, ":", i.where.line, ": ", i.text, ": ", refused->why));
      }
    }
  }
  return lines;
}

}  // namespace tessera::ptx
