// Bulk async-groups (PTX ISA, "cp.async.bulk.commit_group", "cp.async.bulk.wait_group"): each thread has its own.
#ifndef TESSERA_TESTS_PTX_TMA_BULK_GROUPS_H_
#define TESSERA_TESTS_PTX_TMA_BULK_GROUPS_H_

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/ptx/machine/extension.h"
#include "tests/ptx/machine/lanes.h"

namespace tessera::ptx {

class Warp;

// A copy whose end a thread learns by waiting for its group.
struct BulkOperation {
  std::string what;     // for messages
  bool read = false;    // its source has been read
  bool done = false;    // its writes are made
  bool waited = false;  // a wait_group, with or without .read, covered it
};

// Of a warp's lanes.
class BulkGroups {
 public:
  std::shared_ptr<BulkOperation> Begin(int lane, std::string what);
  void Commit(int lane);
  // True once all groups of these lanes but each one's latest `keep` have completed, or with `read` have read their
  // sources.
  bool Ready(LaneMask lanes, uint64_t keep, bool read) const;
  // What Ready waits for: the first operation that is not complete.
  std::string Describe(LaneMask lanes, uint64_t keep, bool read) const;
  // After Ready: the operations count as waited for.
  void Finish(LaneMask lanes, uint64_t keep);

  // Raises for a copy that no wait covered: it may still read the CTA's shared memory when the CTA gives it up.
  void CheckAllWaited() const;

 private:
  using Group = std::vector<std::shared_ptr<BulkOperation>>;
  struct Lane {
    Group open;
    std::deque<Group> committed;
  };
  // The operations that a wait covers.
  template <class F>
  void ForEachCovered(LaneMask lanes, uint64_t keep, F&& f) const;

  std::array<Lane, kWarpSize> lanes_;
};

// Of a CTA's warps.
class CtaBulkGroups : public ExtensionState {
 public:
  static BulkGroups& Of(Warp& warp);
  void OnCtaExit(Cta& cta) override;

 private:
  std::map<int, BulkGroups> warps_;
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TMA_BULK_GROUPS_H_
