// A cluster of CTAs, the unit that one host thread runs: its CTAs share distributed shared memory, mbarriers and the
// queue of asynchronous operations, so nothing in it needs a lock. A grid without clusters has clusters of one CTA.
#ifndef TESSERA_TESTS_PTX_MACHINE_CLUSTER_H_
#define TESSERA_TESTS_PTX_MACHINE_CLUSTER_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/ptx/machine/async_queue.h"
#include "tests/ptx/machine/barrier.h"
#include "tests/ptx/machine/extension.h"
#include "tests/ptx/machine/lanes.h"
#include "tests/ptx/machine/shared_memory.h"
#include "tests/ptx/machine/warp.h"

namespace tessera::ptx {

class Cluster;
struct GridContext;  // machine/launch.h: what all clusters of a launch share

class Cta : public Extensible {
 public:
  Cta(Cluster& cluster, Dim3 id, uint32_t rank);

  Cluster& cluster() { return cluster_; }
  const GridContext& grid() const;
  Dim3 id() const { return id_; }          // %ctaid
  uint32_t rank() const { return rank_; }  // %cluster_ctarank
  SharedMemory& shared() { return shared_; }
  CtaBarriers& barriers() { return barriers_; }
  std::vector<std::unique_ptr<Warp>>& warps() { return warps_; }
  uint32_t window_base() const { return rank_ << kSharedWindowBits; }
  uint32_t dynamic_shared_offset() const { return dynamic_shared_offset_; }
  bool exited() const;

 private:
  friend class Cluster;
  Cluster& cluster_;
  Dim3 id_;
  uint32_t rank_;
  uint32_t dynamic_shared_offset_;
  SharedMemory shared_;
  CtaBarriers barriers_;
  std::vector<std::unique_ptr<Warp>> warps_;
};

class Cluster : public Extensible {
 public:
  Cluster(GridContext& grid, Dim3 id, uint64_t seed);
  ~Cluster();

  GridContext& grid() { return grid_; }
  Dim3 id() const { return id_; }  // %clusterid
  std::vector<std::unique_ptr<Cta>>& ctas() { return ctas_; }
  AsyncQueue& async() { return async_; }
  ClusterBarrier& barrier() { return barrier_; }

  // A shared-window address (32 bits, .shared::cta or .shared::cluster) -> the CTA and the offset in its memory. Raises
  // for a rank the cluster does not have.
  Cta& Resolve(uint64_t address, uint32_t* offset);

  // Runs about `budget` warp instructions. True when all threads have exited and all asynchronous work is done. Raises
  // faults with their location; a deadlock is one.
  bool Run(uint64_t budget);

  // The warp has just synchronised with others; it executes a fence.proxy.async. For all shared memory of the cluster.
  void NoteSynchronised(const Warp& warp);
  void FenceProxyAsync(const Warp& warp);

  RaceDetector* races() { return races_.get(); }  // null unless ExecutionOptions::check_races

  uint64_t now() const {
    return now_;
  }  // warp instructions executed so far; the clock of %clock and of the queue
  // Something changed that a waiting thread might be waiting for; handlers need not call it for what the scheduler
  // polls, only to show that a loop of timed-out waits is no deadlock.
  void NoteProgress() { ++progress_; }
  std::string DescribeWaits() const;

 private:
  void Finish();
  GridContext& grid_;
  Dim3 id_;
  std::mt19937_64 random_;
  AsyncQueue async_;
  ClusterBarrier barrier_;
  std::unique_ptr<RaceDetector> races_;
  std::vector<std::unique_ptr<Cta>> ctas_;
  std::vector<Warp*> warps_;  // of all CTAs
  uint64_t now_ = 0;
  uint64_t progress_ = 0;
  uint64_t stuck_since_ = 0;  // progress_ when last nothing could run
  int stuck_ = 0;             // rounds since
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_MACHINE_CLUSTER_H_
