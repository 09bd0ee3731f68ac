// The shared memory of one CTA, byte-checked: bounds, alignment, what was written, by whom and through which proxy,
// and which bytes an asynchronous operation is still using.
//
// Offsets are inside the CTA's window. The first kSharedReserved bytes belong to the system, as on hardware since
// compute capability 8, so that address 0 is never a variable. A window address is (CTA rank << 24) | offset; see
// Cluster::Resolve.
//
// Proxies. Ordinary loads and stores go through the generic proxy. TMA, wgmma and tcgen05 read and write through the
// async proxy, which sees a generic write only after a fence.proxy.async by the writing warp after the write, or by any
// warp that had synchronised after the write.
#ifndef TESSERA_TESTS_PTX_MACHINE_SHARED_MEMORY_H_
#define TESSERA_TESTS_PTX_MACHINE_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/ptx/machine/mbarrier.h"
#include "tests/ptx/machine/race_detector.h"

namespace tessera::ptx {

inline constexpr uint32_t kSharedReserved = 1024;
inline constexpr uint32_t kMaxSharedPerCta = 227 * 1024;  // static and dynamic, without the reserved bytes
inline constexpr uint32_t kSharedWindowBits = 24;

class SharedMemory {
 public:
  // `bytes`: static plus dynamic; `warps` of the whole cluster, whose writes are told apart.
  SharedMemory(uint32_t bytes, int warps);

  // Records and checks accesses from now on. `detector` outlives the memory.
  void DetectRaces(RaceDetector& detector);
  // After a successful wait: what arrivals made known is known to the waiting warp.
  void AcquireMbarrier(uint32_t offset);

  uint32_t end() const { return end_; }  // first offset past the allocation

  // Generic proxy. `warp` is the cluster-wide index (Warp::cluster_index). Alignment is checked by the caller, who knows
  // the access size. Loads of bytes never written fault; so do accesses to bytes under an asynchronous operation.
  void Load(uint32_t offset, uint32_t bytes, void* out) const;
  void Store(uint32_t offset, uint32_t bytes, const void* in, int warp);

  // Async proxy: the same, with the proxy rule instead of a writer. An operation that takes time marks what it will
  // touch with Begin, calls these when it completes, and then End.
  void AsyncLoad(uint32_t offset, uint32_t bytes, void* out) const;
  void AsyncStore(uint32_t offset, uint32_t bytes, const void* in);
  void BeginAsyncRead(uint32_t offset, uint32_t bytes);  // until End, ordinary stores to the bytes fault
  void EndAsyncRead(uint32_t offset, uint32_t bytes);
  void BeginAsyncWrite(uint32_t offset, uint32_t bytes);  // until End, ordinary loads and stores fault
  void EndAsyncWrite(uint32_t offset, uint32_t bytes);
  // The proxy and initialisation rules alone, for operations that check when issued and read when they complete.
  void CheckAsyncReadable(uint32_t offset, uint32_t bytes) const;

  // fence.proxy.async by a warp, and "this warp has just synchronised with others" (barrier, mbarrier wait).
  void FenceProxyAsync(int warp);
  void NoteSynchronised(int warp) { synchronised_[warp] = time_++; }

  // mbarrier objects. Raise kMbarrier where there is none, or one already.
  Mbarrier& InitMbarrier(uint32_t offset, uint32_t count, int warp);
  void InvalidateMbarrier(uint32_t offset);
  Mbarrier& At(uint32_t offset);
  // For the async proxy (complete_tx, commit): also raises if the initialisation was not made visible to it by a
  // fence.mbarrier_init or fence.proxy.async.
  Mbarrier& AsyncAt(uint32_t offset);
  void FenceMbarrierInit(int warp) { init_fenced_[warp] = time_++; }
  const std::map<uint32_t, Mbarrier>& mbarriers() const { return mbarriers_; }

  // Unchecked, for dumps and for the loader.
  std::byte* data() { return data_.data(); }

 private:
  struct Granule {         // 4 bytes
    uint32_t written = 0;  // time of the last generic write; 0 if none since the last async write
    uint16_t writer = 0;
    uint8_t defined : 4 = 0;  // a bit a byte
    uint8_t writers : 3 = 0;  // asynchronous operations under way
    uint8_t mbarrier : 1 = 0;
    uint8_t readers = 0;
  };
  void CheckBounds(uint32_t offset, uint32_t bytes, const char* what) const;
  bool VisibleToAsync(const Granule& g) const;
  void CheckAccess(uint32_t offset, uint32_t bytes, bool store, const char* what) const;
  template <class F>
  void ForGranules(uint32_t offset, uint32_t bytes, F f);
  [[noreturn]] void Undefined(uint32_t offset) const;

  uint32_t end_;
  std::vector<std::byte> data_;
  std::vector<Granule> granules_;
  uint32_t time_ = 1;                   // advances at every fence and synchronisation
  std::vector<uint32_t> fenced_;        // by warp: time of its last proxy fence
  std::vector<uint32_t> init_fenced_;   // by warp: of its last fence.mbarrier_init
  std::vector<uint32_t> synchronised_;  // by warp: time of its last synchronisation
  uint32_t fenced_for_all_ = 0;         // writes up to this time are visible whoever wrote them
  std::map<uint32_t, Mbarrier> mbarriers_;
  RaceDetector* detector_ = nullptr;
  mutable std::unique_ptr<AccessLog> log_;          // null unless races are looked for
  std::map<uint32_t, RaceDetector::Phased> known_;  // by mbarrier
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_MACHINE_SHARED_MEMORY_H_
