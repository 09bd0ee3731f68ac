// The body of a function: declarations, labels, instructions, nested scopes.
#ifndef TESSERA_TESTS_PTX_PARSER_BODY_PARSER_H_
#define TESSERA_TESTS_PTX_PARSER_BODY_PARSER_H_

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tests/ptx/parser/module.h"
#include "tests/ptx/parser/token_stream.h"

namespace tessera::ptx {

class BodyParser {
 public:
  // Looks up names of the module: variables and functions declared so far.
  struct ModuleNames {
    const std::unordered_map<std::string_view, const Variable*>& variables;
    const std::unordered_map<std::string_view, const Function*>& functions;
  };
  BodyParser(TokenStream& in, ModuleNames names, Function& function)
      : in_(in), names_(names), function_(function) {}

  // From '{' to its '}'.
  void Parse();
  // .loc FILE LINE COLUMN [, ...]: one line, without an end.
  static void ParseLoc(TokenStream& in, SourceLocation* where);

 private:
  struct LabelUse {
    int instruction;
    std::vector<int> path;  // operand, element, ...
    int line;
  };
  struct Scope {
    std::unordered_map<std::string_view, const Register*> registers;
    std::unordered_map<std::string_view, const Variable*> variables;
    std::unordered_map<std::string_view, int> labels;
    std::unordered_map<std::string_view, std::vector<std::string_view>> tables;  // .branchtargets
    std::unordered_map<std::string_view, std::vector<LabelUse>> uses;            // not yet resolved
  };

  void ParseScope();
  void CloseScope();
  void ParseDirective();
  void ParseRegisters();
  void ParseInstruction();
  Operand ParseOperand(std::vector<int>& path);
  Operand ParseAddress(std::vector<int>& path);
  Operand ParseGroup(std::string_view close, Operand::Kind kind, std::vector<int>& path);
  Operand ParseName(std::vector<int>& path);
  Operand ParseImmediate(bool negative);
  Operand& At(const LabelUse& use);
  void ResolveUse(const LabelUse& use, const Scope& scope, std::string_view name);

  TokenStream& in_;
  ModuleNames names_;
  Function& function_;
  std::vector<Scope> scopes_;
  SourceLocation where_;
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_PARSER_BODY_PARSER_H_
