#include "tests/ptx/parser/declarations.h"

#include <bit>
#include <cstring>

namespace tessera::ptx {
namespace {

// Appends the values between braces, or one value, to the initialiser.
class Initialiser {
 public:
  Initialiser(TokenStream& in, Variable& variable) : in_(in), variable_(variable) {}

  void Parse() {
    if (in_.Accept("{")) {
      while (!in_.Accept("}")) {
        Parse();
        if (!in_.Peek().Is("}")) in_.Expect(",");
      }
      return;
    }
    ParseValue();
  }

 private:
  void ParseValue() {
    const bool negative = in_.Accept("-");
    if (in_.Peek().kind == Token::Kind::kNumber) {
      uint64_t bits;
      Type type;
      if (!ParseNumber(in_.Peek().text, &bits, &type)) in_.Fail(Cat("not a constant: ", in_.Peek().text));
      in_.Next();
      // 0xFF(symbol) takes one byte of an address.
      if (in_.Peek().Is("(")) in_.Fail("mask operators in initialisers are not supported");
      AppendNumber(bits, type, negative);
      return;
    }
    const bool generic = in_.Accept("generic");
    if (generic) in_.Expect("(");
    Variable::Relocation relocation{static_cast<uint32_t>(variable_.initial.size()),
                                    std::string(in_.ExpectWord("a constant or a name")), 0, generic};
    if (generic) in_.Expect(")");
    if (in_.Accept("+")) relocation.addend = in_.ExpectInteger("offset");
    if (in_.Peek().Is("-")) relocation.addend = in_.ExpectInteger("offset");
    if (Bytes(variable_.type) != 8) in_.Fail("an address in an initialiser needs a 64-bit variable");
    variable_.relocations.push_back(std::move(relocation));
    variable_.initial.resize(variable_.initial.size() + 8);
  }
  void AppendNumber(uint64_t bits, Type type, bool negative) {
    const int bytes = Bytes(variable_.type);
    if (type == Type::kF32) {
      if (negative) bits ^= 0x80000000u;
      if (variable_.type == Type::kF64)
        bits = std::bit_cast<uint64_t>(double{std::bit_cast<float>(uint32_t(bits))});
    } else if (type == Type::kF64) {
      if (negative) bits ^= uint64_t{1} << 63;
      if (variable_.type == Type::kF32) {
        bits = std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
      }
    } else if (negative) {
      bits = -bits;
    }
    const size_t at = variable_.initial.size();
    variable_.initial.resize(at + bytes);
    std::memcpy(variable_.initial.data() + at, &bits, std::min(bytes, 8));
  }

  TokenStream& in_;
  Variable& variable_;
};

void ParsePointerAttributes(TokenStream& in) {
  if (!in.Accept(".ptr")) return;
  while (in.Peek().kind == Token::Kind::kWord && in.Peek().text.starts_with('.')) {
    if (in.Next().text == ".align") in.ExpectInteger("alignment");
  }
}

}  // namespace

bool ParseVariableSpace(std::string_view directive, Space* space) {
  if (directive == ".global")
    *space = Space::kGlobal;
  else if (directive == ".const")
    *space = Space::kConst;
  else if (directive == ".local")
    *space = Space::kLocal;
  else if (directive == ".shared")
    *space = Space::kSharedCta;
  else if (directive == ".param")
    *space = Space::kParam;
  else
    return false;
  return true;
}

std::vector<std::unique_ptr<Variable>> ParseVariables(TokenStream& in, Space space, bool is_parameter) {
  Variable prototype;
  prototype.space = space;
  uint32_t align = 0;
  bool typed = false;
  while (in.Peek().kind == Token::Kind::kWord && in.Peek().text.starts_with('.')) {
    const std::string_view word = in.Peek().text;
    if (word == ".align") {
      in.Next();
      const int64_t n = in.ExpectInteger("alignment");
      if (n <= 0 || (n & (n - 1)) != 0 || n > (1 << 20)) in.Fail(Cat("alignment ", n, " is no power of two"));
      align = n;
    } else if (word == ".v2" || word == ".v4" || word == ".v8") {
      in.Next();
      prototype.vector = word[2] - '0';
    } else if (word == ".ptr") {
      ParsePointerAttributes(in);
    } else if (word == ".attribute") {
      in.Next();
      in.SkipBalanced("(", ")");
    } else if (const auto type = ParseType(word.substr(1))) {
      in.Next();
      prototype.type = *type;
      typed = true;
    } else {
      in.Fail(Cat("unknown directive ", word, " in a declaration"));
    }
  }
  if (!typed) in.Fail(Cat("expected a type before '", in.Peek().text, "'"));

  std::vector<std::unique_ptr<Variable>> variables;
  do {
    auto variable = std::make_unique<Variable>();
    *variable = prototype;
    variable->name = in.ExpectWord("a variable's name");
    while (in.Accept("[")) {
      if (in.Accept("]")) {
        variable->elements = 0;
        variable->is_extern = true;
        continue;
      }
      const int64_t n = in.ExpectInteger("array size");
      if (n < 0 || n > (int64_t{1} << 40)) in.Fail(Cat("array size ", n));
      variable->elements *= static_cast<uint64_t>(n);
      in.Expect("]");
    }
    variable->align = std::max<uint32_t>(align, Bytes(prototype.type) * prototype.vector);
    if (in.Accept("=")) {
      Initialiser(in, *variable).Parse();
      if (variable->elements == 0) {
        variable->elements = variable->initial.size() / (Bytes(variable->type) * variable->vector);
        variable->is_extern = false;
      }
      if (variable->initial.size() > variable->Size()) {
        in.Fail(Cat("initialiser of ", variable->name, " has ", variable->initial.size(),
                    " bytes, the variable ", variable->Size()));
      }
      variable->initial.resize(variable->Size());
    }
    variables.push_back(std::move(variable));
  } while (!is_parameter && in.Accept(","));
  return variables;
}

}  // namespace tessera::ptx
