#include "tests/ptx/parser/special.h"

#include <map>

namespace tessera::ptx {

std::optional<Special> ParseSpecial(std::string_view name) {
  static const auto* const kNames = new std::map<std::string_view, Special>{
      {"%tid.x", Special::kTidX},
      {"%tid.y", Special::kTidY},
      {"%tid.z", Special::kTidZ},
      {"%ntid.x", Special::kNtidX},
      {"%ntid.y", Special::kNtidY},
      {"%ntid.z", Special::kNtidZ},
      {"%ctaid.x", Special::kCtaidX},
      {"%ctaid.y", Special::kCtaidY},
      {"%ctaid.z", Special::kCtaidZ},
      {"%nctaid.x", Special::kNctaidX},
      {"%nctaid.y", Special::kNctaidY},
      {"%nctaid.z", Special::kNctaidZ},
      {"%laneid", Special::kLaneid},
      {"%warpid", Special::kWarpid},
      {"%nwarpid", Special::kNwarpid},
      {"%smid", Special::kSmid},
      {"%nsmid", Special::kNsmid},
      {"%gridid", Special::kGridid},
      {"%clusterid.x", Special::kClusteridX},
      {"%clusterid.y", Special::kClusteridY},
      {"%clusterid.z", Special::kClusteridZ},
      {"%nclusterid.x", Special::kNclusteridX},
      {"%nclusterid.y", Special::kNclusteridY},
      {"%nclusterid.z", Special::kNclusteridZ},
      {"%cluster_ctaid.x", Special::kClusterCtaidX},
      {"%cluster_ctaid.y", Special::kClusterCtaidY},
      {"%cluster_ctaid.z", Special::kClusterCtaidZ},
      {"%cluster_nctaid.x", Special::kClusterNctaidX},
      {"%cluster_nctaid.y", Special::kClusterNctaidY},
      {"%cluster_nctaid.z", Special::kClusterNctaidZ},
      {"%cluster_ctarank", Special::kClusterCtarank},
      {"%cluster_nctarank", Special::kClusterNctarank},
      {"%is_explicit_cluster", Special::kIsExplicitCluster},
      {"%lanemask_eq", Special::kLanemaskEq},
      {"%lanemask_le", Special::kLanemaskLe},
      {"%lanemask_lt", Special::kLanemaskLt},
      {"%lanemask_ge", Special::kLanemaskGe},
      {"%lanemask_gt", Special::kLanemaskGt},
      {"%clock", Special::kClock},
      {"%clock_hi", Special::kClockHi},
      {"%clock64", Special::kClock64},
      {"%globaltimer", Special::kGlobaltimer},
      {"%globaltimer_lo", Special::kGlobaltimerLo},
      {"%globaltimer_hi", Special::kGlobaltimerHi},
      {"%dynamic_smem_size", Special::kDynamicSmemSize},
      {"%total_smem_size", Special::kTotalSmemSize},
      {"%aggr_smem_size", Special::kAggrSmemSize},
      {"%reserved_smem_offset_begin", Special::kReservedSmemBegin},
      {"%reserved_smem_offset_end", Special::kReservedSmemEnd},
      {"%reserved_smem_offset_cap", Special::kReservedSmemCap},
      {"%current_graph_exec", Special::kCurrentGraphExec},
  };
  const auto it = kNames->find(name);
  if (it == kNames->end()) return std::nullopt;
  return it->second;
}

}  // namespace tessera::ptx
