// Variable declarations and the names they bring into scope; shared by the module's and the bodies' parsers.
#ifndef TESSERA_TESTS_PTX_PARSER_DECLARATIONS_H_
#define TESSERA_TESTS_PTX_PARSER_DECLARATIONS_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/ptx/parser/module.h"
#include "tests/ptx/parser/token_stream.h"

namespace tessera::ptx {

// ".shared" -> kSharedCta; false if the directive is no state space of variables.
bool ParseVariableSpace(std::string_view directive, Space* space);

// After the space: ".align 16 .b8 name[64] = {1, 2}" and more names after commas, without the end. Parameters have
// one name, and the attributes of pointers (.ptr .global .align 4) are read and dropped.
std::vector<std::unique_ptr<Variable>> ParseVariables(TokenStream& in, Space space, bool is_parameter);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_PARSER_DECLARATIONS_H_
