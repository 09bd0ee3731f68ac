// The state space in the modifiers of a memory instruction.
#ifndef TESSERA_TESTS_PTX_ISA_MEMORY_FORM_H_
#define TESSERA_TESTS_PTX_ISA_MEMORY_FORM_H_

#include "tests/ptx/parser/module.h"

namespace tessera::ptx {

// ".shared" counts as .shared::cta; none of them is kGeneric.
Space SpaceOf(const Instruction& i);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_ISA_MEMORY_FORM_H_
