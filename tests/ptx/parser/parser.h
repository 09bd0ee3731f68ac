// PTX text -> Module. Takes what nvcc emits for the targets sm_90a and sm_100a, and hand-written PTX of the same kind.
#ifndef TESSERA_TESTS_PTX_PARSER_PARSER_H_
#define TESSERA_TESTS_PTX_PARSER_PARSER_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "tests/ptx/parser/module.h"

namespace tessera::ptx {

// Errors are InvalidArgument: "NAME:LINE: what was wrong and what was expected".
absl::StatusOr<std::unique_ptr<Module>> ParseModule(std::string_view text, std::string name);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_PARSER_PARSER_H_
