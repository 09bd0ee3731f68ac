#include "tests/ptx/parser/body_parser.h"

#include <algorithm>
#include <bit>

#include "tests/ptx/parser/declarations.h"
#include "tests/ptx/parser/special.h"

namespace tessera::ptx {

void BodyParser::ParseLoc(TokenStream& in, SourceLocation* where) {
  const int line = in.Next().line;
  where->file = static_cast<int>(in.ExpectInteger("file"));
  where->source_line = static_cast<int>(in.ExpectInteger("line"));
  while (!in.AtEnd() && in.Peek().line == line) in.Next();
}

void BodyParser::Parse() {
  ParseScope();
  function_.has_body = true;
}

void BodyParser::ParseScope() {
  in_.Expect("{");
  scopes_.emplace_back();
  while (!in_.Accept("}")) {
    if (in_.AtEnd()) in_.Fail(Cat("the body of ", function_.name, " does not end"));
    if (in_.Accept(";")) continue;
    if (in_.Peek().Is("{")) {
      ParseScope();
    } else if (in_.Peek().kind == Token::Kind::kWord && in_.Peek(1).Is(":")) {
      const std::string_view name = in_.Next().text;
      in_.Next();
      if (in_.Peek().Is(".branchtargets")) {
        in_.Next();
        auto& table = scopes_.back().tables[name];
        do table.push_back(in_.ExpectWord("a label"));
        while (in_.Accept(","));
        in_.Expect(";");
      } else if (in_.Peek().Is(".callprototype") || in_.Peek().Is(".calltargets")) {
        scopes_.back().tables[name];
        while (!in_.Accept(";")) in_.Next();
      } else if (!scopes_.back().labels.emplace(name, static_cast<int>(function_.body.size())).second) {
        in_.Fail(Cat("label ", name, " is already there"));
      }
    } else if (in_.Peek().kind == Token::Kind::kWord && in_.Peek().text.starts_with('.')) {
      ParseDirective();
    } else {
      ParseInstruction();
    }
  }
  CloseScope();
}

// Labels used in this scope are resolved in it, or else by the scope around it.
void BodyParser::CloseScope() {
  Scope scope = std::move(scopes_.back());
  scopes_.pop_back();
  for (auto& [name, uses] : scope.uses) {
    if (scope.labels.contains(name) || scope.tables.contains(name)) {
      for (const LabelUse& use : uses) ResolveUse(use, scope, name);
    } else if (!scopes_.empty()) {
      auto& outer = scopes_.back().uses[name];
      outer.insert(outer.end(), uses.begin(), uses.end());
    } else {
      throw ParseError{uses[0].line, Cat("unknown name '", name, "'")};
    }
  }
}

Operand& BodyParser::At(const LabelUse& use) {
  Operand* operand = &function_.body[use.instruction].operands[use.path[0]];
  for (size_t i = 1; i < use.path.size(); ++i) operand = &operand->elements[use.path[i]];
  return *operand;
}

void BodyParser::ResolveUse(const LabelUse& use, const Scope& scope, std::string_view name) {
  Operand& operand = At(use);
  if (const auto label = scope.labels.find(name); label != scope.labels.end()) {
    operand.kind = Operand::Kind::kLabel;
    operand.target = label->second;
    return;
  }
  // A branch table: as a vector of labels.
  operand.kind = Operand::Kind::kVector;
  for (const std::string_view target : scope.tables.at(name)) {
    const auto label = scope.labels.find(target);
    if (label == scope.labels.end()) throw ParseError{use.line, Cat("unknown label '", target, "'")};
    Operand element;
    element.kind = Operand::Kind::kLabel;
    element.name = target;
    element.target = label->second;
    operand.elements.push_back(std::move(element));
  }
}

void BodyParser::ParseDirective() {
  const std::string_view word = in_.Peek().text;
  Space space;
  if (word == ".reg") {
    ParseRegisters();
  } else if (word == ".loc") {
    ParseLoc(in_, &where_);
  } else if (word == ".pragma") {
    while (!in_.Accept(";")) in_.Next();
  } else if (ParseVariableSpace(word, &space)) {
    in_.Next();
    for (auto& variable : ParseVariables(in_, space, false)) {
      function_.variables.push_back(std::move(variable));
      const Variable* added = function_.variables.back().get();
      scopes_.back().variables[added->name] = added;
    }
    in_.Expect(";");
  } else {
    in_.Fail(Cat("unknown directive ", word));
  }
}

// .reg .b32 %r<9>, %x;
void BodyParser::ParseRegisters() {
  in_.Next();
  const std::string_view word = in_.ExpectWord("a type");
  const auto type = ParseType(word.substr(1));
  if (!word.starts_with('.') || !type) in_.Fail(Cat("unknown register type ", word));
  const auto add = [&](std::string name) {
    auto reg = std::make_unique<Register>();
    reg->name = std::move(name);
    reg->type = *type;
    reg->index = static_cast<uint32_t>(function_.registers.size());
    reg->offset = function_.storage_bytes;
    const uint32_t bytes = *type == Type::kPred ? 4 : 32 * Register::StorageWidth(*type);
    function_.storage_bytes += (bytes + 63) / 64 * 64;
    function_.registers.push_back(std::move(reg));
    const Register* added = function_.registers.back().get();
    scopes_.back().registers[added->name] = added;
  };
  do {
    const std::string_view name = in_.ExpectWord("a register's name");
    if (in_.Accept("<")) {
      const int64_t count = in_.ExpectInteger("number of registers");
      if (count < 0 || count > 1'000'000) in_.Fail(Cat(count, " registers"));
      in_.Expect(">");
      for (int64_t i = 0; i < count; ++i) add(Cat(name, i));
    } else {
      add(std::string(name));
    }
  } while (in_.Accept(","));
  in_.Expect(";");
}

void BodyParser::ParseInstruction() {
  Instruction i;
  i.function = &function_;
  i.index = static_cast<int>(function_.body.size());
  i.where = where_;
  i.where.line = in_.Peek().line;
  if (in_.Accept("@")) {
    const bool negated = in_.Accept("!");
    std::vector<int> path{-1};
    i.guard = ParseName(path);
    if (!i.guard.IsRegister() || i.guard.type != Type::kPred) in_.Fail(Cat(i.guard.name, " is no predicate"));
    i.guard.negated = negated;
  }
  const Token& opcode = in_.Peek();
  const char* begin = opcode.text.data();
  i.modifiers = Split(in_.ExpectWord("an instruction"), '.');
  i.opcode = i.modifiers[0];
  i.modifiers.erase(i.modifiers.begin());
  // Uses of labels are noted by instruction index, so the instruction goes in first.
  function_.body.push_back(std::move(i));
  Instruction& added = function_.body.back();
  while (!in_.Peek().Is(";")) {
    std::vector<int> path{static_cast<int>(added.operands.size())};
    added.operands.emplace_back();
    added.operands.back() = ParseOperand(path);
    if (in_.Accept("|")) {
      path = {static_cast<int>(added.operands.size())};
      added.operands.emplace_back();
      Operand second = ParseOperand(path);
      second.is_pair_second = true;
      added.operands.back() = std::move(second);
    }
    if (!in_.Peek().Is(";")) in_.Expect(",");
  }
  const std::string_view raw(begin, in_.Peek().text.data() - begin);
  for (const char c : raw) {
    const bool blank = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (!blank)
      added.text += c;
    else if (!added.text.empty() && added.text.back() != ' ')
      added.text += ' ';
  }
  in_.Expect(";");
}

Operand BodyParser::ParseOperand(std::vector<int>& path) {
  if (in_.Accept("[")) return ParseAddress(path);
  if (in_.Accept("{")) return ParseGroup("}", Operand::Kind::kVector, path);
  if (in_.Accept("(")) return ParseGroup(")", Operand::Kind::kList, path);
  if (in_.Accept("!")) {
    Operand operand = ParseName(path);
    operand.negated = true;
    return operand;
  }
  const bool negative = in_.Accept("-");
  if (in_.Peek().kind == Token::Kind::kNumber) return ParseImmediate(negative);
  Operand operand = ParseName(path);
  operand.negated = negative;
  if (operand.kind == Operand::Kind::kVariable && in_.Accept("+"))
    operand.value = in_.ExpectInteger("offset");
  return operand;
}

// [base], [base+4], [base+-4], [base, {c0, c1}], [base], with nested operands after commas.
Operand BodyParser::ParseAddress(std::vector<int>& path) {
  Operand address;
  address.kind = Operand::Kind::kAddress;
  do {
    path.push_back(static_cast<int>(address.elements.size()));
    address.elements.push_back(ParseOperand(path));
    path.pop_back();
    while (in_.Peek().Is("+") || in_.Peek().Is("-")) {
      in_.Accept("+");
      const uint64_t offset = static_cast<uint64_t>(in_.ExpectInteger("offset"));
      // A variable's offset is its own; the base register's is the address's.
      if (address.elements.back().kind == Operand::Kind::kVariable)
        address.elements.back().value += offset;
      else
        address.value += offset;
    }
  } while (in_.Accept(","));
  in_.Expect("]");
  return address;
}

Operand BodyParser::ParseGroup(std::string_view close, Operand::Kind kind, std::vector<int>& path) {
  Operand group;
  group.kind = kind;
  while (!in_.Accept(close)) {
    path.push_back(static_cast<int>(group.elements.size()));
    group.elements.push_back(ParseOperand(path));
    path.pop_back();
    if (!in_.Peek().Is(close)) in_.Expect(",");
  }
  return group;
}

Operand BodyParser::ParseImmediate(bool negative) {
  Operand operand;
  operand.kind = Operand::Kind::kImmediate;
  operand.name = in_.Peek().text;
  if (!ParseNumber(in_.Peek().text, &operand.value, &operand.type)) {
    in_.Fail(Cat("'", in_.Peek().text, "' is no constant"));
  }
  in_.Next();
  operand.is_float = operand.type != Type::kB64;
  if (negative) {
    if (!operand.is_float)
      operand.value = -operand.value;
    else
      operand.value ^= operand.type == Type::kF32 ? uint64_t{1} << 31 : uint64_t{1} << 63;
  }
  return operand;
}

Operand BodyParser::ParseName(std::vector<int>& path) {
  const int line = in_.Peek().line;
  const std::string_view name = in_.ExpectWord("an operand");
  Operand operand;
  operand.name = name;
  if (name == "_") {
    operand.kind = Operand::Kind::kSink;
    return operand;
  }
  if (name == "WARP_SZ") {
    operand.kind = Operand::Kind::kImmediate;
    operand.type = Type::kB64;
    operand.value = 32;
    return operand;
  }
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto it = scope->registers.find(name); it != scope->registers.end()) {
      operand.kind = Operand::Kind::kRegister;
      operand.type = it->second->type;
      operand.reg = it->second->index;
      operand.offset = it->second->offset;
      operand.width = Register::StorageWidth(operand.type);
      return operand;
    }
    if (const auto it = scope->variables.find(name); it != scope->variables.end()) {
      operand.kind = Operand::Kind::kVariable;
      operand.variable = it->second;
      return operand;
    }
  }
  if (const auto special = ParseSpecial(name)) {
    operand.kind = Operand::Kind::kSpecial;
    operand.special = static_cast<int>(*special);
    return operand;
  }
  for (const auto* list : {&function_.params, &function_.results}) {
    for (const auto& parameter : *list) {
      if (parameter->name == name) {
        operand.kind = Operand::Kind::kVariable;
        operand.variable = parameter.get();
        return operand;
      }
    }
  }
  if (const auto it = names_.variables.find(name); it != names_.variables.end()) {
    operand.kind = Operand::Kind::kVariable;
    operand.variable = it->second;
    return operand;
  }
  if (const auto it = names_.functions.find(name); it != names_.functions.end()) {
    operand.kind = Operand::Kind::kFunction;
    operand.function = it->second;
    return operand;
  }
  if (path[0] < 0) in_.Fail(Cat("unknown predicate ", name));
  operand.kind = Operand::Kind::kString;
  scopes_.back().uses[name].push_back({static_cast<int>(function_.body.size()) - 1, path, line});
  return operand;
}

}  // namespace tessera::ptx
