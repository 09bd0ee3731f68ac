// The order in which diverged lanes of a warp run.
//
// Of the groups of lanes that have different program counters, the one that is first in this order runs. For lanes to
// meet where hardware makes them meet, at the join of the branch that parted them, the order must put every block after
// its predecessors (but for loops' back edges) and a whole loop before what follows it. A weak topological order
// (F. Bourdoncle, "Efficient chaotic iteration strategies with widenings", 1993) does that for any graph.
#ifndef TESSERA_TESTS_PTX_PARSER_CONTROL_FLOW_H_
#define TESSERA_TESTS_PTX_PARSER_CONTROL_FLOW_H_

#include <vector>

#include "tests/ptx/parser/module.h"

namespace tessera::ptx {

// Indices of the instructions that may follow body[index] in the same call. Empty after an unconditional ret or exit.
std::vector<int> Successors(const Function& function, int index);

// Sets Instruction::priority of the whole body.
void OrderBlocks(Function& function);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_PARSER_CONTROL_FLOW_H_
