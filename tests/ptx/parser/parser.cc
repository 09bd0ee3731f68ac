#include "tests/ptx/parser/parser.h"

#include <unordered_map>
#include <utility>

#include "tests/ptx/parser/body_parser.h"
#include "tests/ptx/parser/declarations.h"
#include "tests/ptx/parser/token_stream.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

class ModuleParser {
 public:
  ModuleParser(std::vector<Token> tokens, Module& module) : in_(std::move(tokens)), module_(module) {
    module_.files.emplace_back();
  }

  void Run() {
    while (!in_.AtEnd()) ParseStatement();
  }

 private:
  void ParseStatement() {
    if (in_.Accept(";")) return;
    const std::string_view word = in_.Peek().text;
    Space space;
    if (word == ".version") {
      in_.Next();
      module_.version = in_.Next().text;
    } else if (word == ".target") {
      in_.Next();
      module_.target = in_.ExpectWord("a target");
      while (in_.Accept(",")) in_.Next();  // "debug", "texmode_..."
    } else if (word == ".address_size") {
      in_.Next();
      if (in_.ExpectInteger("address size") != 64) in_.Fail("only 64-bit addresses are supported");
    } else if (word == ".file") {
      ParseFile();
    } else if (word == ".section") {
      in_.Next();
      in_.Next();
      in_.SkipBalanced("{", "}");
    } else if (word == ".loc") {
      SourceLocation ignored;
      BodyParser::ParseLoc(in_, &ignored);
    } else if (word == ".pragma" || word == ".alias") {
      while (!in_.Accept(";")) in_.Next();
    } else if (word == ".visible" || word == ".weak" || word == ".common") {
      in_.Next();
    } else if (word == ".extern") {
      in_.Next();
      extern_ = true;
      return;
    } else if (word == ".entry" || word == ".func") {
      ParseFunction();
    } else if (ParseVariableSpace(word, &space) && space != Space::kParam && space != Space::kLocal) {
      in_.Next();
      for (auto& variable : ParseVariables(in_, space, false)) AddVariable(std::move(variable));
      in_.Expect(";");
    } else {
      in_.Fail(Cat("unknown statement '", word, "'"));
    }
    extern_ = false;
  }

  void ParseFile() {
    const int line = in_.Next().line;
    const int64_t index = in_.ExpectInteger("file index");
    if (index < 0 || index > 100'000) in_.Fail(Cat("file index ", index));
    if (in_.Peek().kind != Token::Kind::kString) in_.Fail("expected the file's name");
    if (module_.files.size() <= static_cast<size_t>(index)) module_.files.resize(index + 1);
    module_.files[index] = in_.Next().text;
    while (!in_.AtEnd() && in_.Peek().line == line) in_.Next();  // time stamp and size
  }

  void AddVariable(std::unique_ptr<Variable> variable) {
    variable->is_extern |= extern_;
    // A declaration and its definition are one variable to those who use it.
    const auto it = variables_.find(variable->name);
    if (it != variables_.end()) {
      if (!variable->is_extern) {
        for (auto& existing : module_.variables) {
          if (existing->name == variable->name) *existing = std::move(*variable);
        }
      }
      return;
    }
    module_.variables.push_back(std::move(variable));
    variables_[module_.variables.back()->name] = module_.variables.back().get();
  }

  void ParseParameters(std::vector<std::unique_ptr<Variable>>* to) {
    if (!in_.Accept("(")) return;
    while (!in_.Accept(")")) {
      // .param, or .reg in the device functions of hand-written PTX.
      const std::string_view space = in_.ExpectWord("'.param'");
      if (space != ".param") in_.Fail(Cat("parameters in ", space, " are not supported"));
      auto parameters = ParseVariables(in_, Space::kParam, true);
      to->push_back(std::move(parameters[0]));
      if (!in_.Peek().Is(")")) in_.Expect(",");
    }
  }

  void ParseFunction() {
    auto parsed = std::make_unique<Function>();
    parsed->is_entry = in_.Next().text == ".entry";
    if (!parsed->is_entry) ParseParameters(&parsed->results);
    const std::string_view name = in_.ExpectWord("a function's name");
    parsed->name = name;
    ParseParameters(&parsed->params);
    // A prototype before the body: calls refer to the same function.
    Function* function = nullptr;
    for (auto& existing : module_.functions) {
      if (existing->name == name) function = existing.get();
    }
    if (function == nullptr) {
      module_.functions.push_back(std::move(parsed));
      function = module_.functions.back().get();
      functions_[function->name] = function;
    } else if (!function->has_body) {
      function->params = std::move(parsed->params);
      function->results = std::move(parsed->results);
    } else {
      in_.Fail(Cat("function ", name, " has a body already"));
    }
    ParseAttributes(*function);
    if (in_.Accept(";")) return;
    uint64_t offset = 0;
    for (auto& parameter : function->params) {
      offset = (offset + parameter->align - 1) / parameter->align * parameter->align;
      parameter->address = offset;
      offset += parameter->Size();
    }
    function->param_bytes = static_cast<uint32_t>(offset);
    BodyParser(in_, {variables_, functions_}, *function).Parse();
  }

  void ParseThree(uint32_t (&to)[3]) {
    for (int i = 0; i < 3; ++i) {
      if (i > 0 && !in_.Accept(",")) {
        to[i] = 1;
        continue;
      }
      to[i] = static_cast<uint32_t>(in_.ExpectInteger("dimension"));
    }
  }

  void ParseAttributes(Function& f) {
    while (in_.Peek().kind == Token::Kind::kWord && in_.Peek().text.starts_with('.')) {
      const std::string_view word = in_.Next().text;
      if (word == ".maxntid") {
        ParseThree(f.max_threads);
      } else if (word == ".reqntid") {
        ParseThree(f.required_threads);
      } else if (word == ".reqnctapercluster") {
        ParseThree(f.required_cluster);
      } else if (word == ".minnctapersm") {
        f.min_ctas = static_cast<uint32_t>(in_.ExpectInteger("CTAs"));
      } else if (word == ".maxnctapersm" || word == ".maxnreg") {
        in_.ExpectInteger("limit");
      } else if (word == ".maxclusterrank") {
        f.max_cluster_rank = static_cast<uint32_t>(in_.ExpectInteger("rank"));
      } else if (word == ".explicitcluster") {
        f.explicit_cluster = true;
      } else if (word == ".pragma") {
        while (!in_.Accept(";")) in_.Next();
      } else if (word != ".noreturn" && word != ".blocksareclusters") {
        in_.Fail(Cat("unknown directive ", word, " of a function"));
      }
    }
  }

  TokenStream in_;
  Module& module_;
  bool extern_ = false;
  std::unordered_map<std::string_view, const Variable*> variables_;
  std::unordered_map<std::string_view, const Function*> functions_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Module>> ParseModule(std::string_view text, std::string name) {
  auto module = std::make_unique<Module>();
  module->name = name;
  auto tokens = Tokenize(text);
  if (!tokens.ok())
    return absl::InvalidArgumentError(Cat(name, ": ", std::string(tokens.status().message())));
  try {
    ModuleParser(*std::move(tokens), *module).Run();
  } catch (const ParseError& error) {
    return absl::InvalidArgumentError(Cat(name, ":", error.line, ": ", error.what));
  }
  if (module->target.empty()) {
    return absl::InvalidArgumentError(Cat(name, ": no .target directive: this is not PTX"));
  }
  return module;
}

const Function* Module::Find(std::string_view name) const {
  for (const auto& function : functions) {
    if (function->name == name) return function.get();
  }
  return nullptr;
}

}  // namespace tessera::ptx
