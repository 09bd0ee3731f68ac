// Special registers (PTX ISA, "Special Registers").
#ifndef TESSERA_TESTS_PTX_PARSER_SPECIAL_H_
#define TESSERA_TESTS_PTX_PARSER_SPECIAL_H_

#include <optional>
#include <string_view>

namespace tessera::ptx {

// clang-format off
enum class Special : int {
  kTidX, kTidY, kTidZ, kNtidX, kNtidY, kNtidZ,
  kCtaidX, kCtaidY, kCtaidZ, kNctaidX, kNctaidY, kNctaidZ,
  kLaneid, kWarpid, kNwarpid, kSmid, kNsmid, kGridid,
  kClusteridX, kClusteridY, kClusteridZ, kNclusteridX, kNclusteridY, kNclusteridZ,
  kClusterCtaidX, kClusterCtaidY, kClusterCtaidZ, kClusterNctaidX, kClusterNctaidY, kClusterNctaidZ,
  kClusterCtarank, kClusterNctarank, kIsExplicitCluster,
  kLanemaskEq, kLanemaskLe, kLanemaskLt, kLanemaskGe, kLanemaskGt,
  kClock, kClockHi, kClock64, kGlobaltimer, kGlobaltimerLo, kGlobaltimerHi,
  kDynamicSmemSize, kTotalSmemSize, kAggrSmemSize, kReservedSmemBegin, kReservedSmemEnd, kReservedSmemCap,
  kCurrentGraphExec,
};
// clang-format on

// "%tid.x" -> kTidX.
std::optional<Special> ParseSpecial(std::string_view name);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_PARSER_SPECIAL_H_
