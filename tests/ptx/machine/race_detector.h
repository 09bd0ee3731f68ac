// Finds shared-memory accesses of two warps of a cluster that nothing orders, one of them a write: happens-before by
// vector clocks, in the manner of FastTrack (C. Flanagan, S. Freund, 2009). Optional, ExecutionOptions::check_races.
//
// What orders: CTA and cluster barriers, mbarrier arrivals and waits (those that asynchronous operations make count for
// the warp that issued them), atomics, and accesses with .acquire, .release, .volatile or .relaxed at the same address.
// Lanes of one warp are taken as ordered. Writes through the async proxy are checked when issued, against what went
// before; what comes after them is the matter of SharedMemory's marks.
#ifndef TESSERA_TESTS_PTX_MACHINE_RACE_DETECTOR_H_
#define TESSERA_TESTS_PTX_MACHINE_RACE_DETECTOR_H_

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::ptx {

class RaceDetector {
 public:
  using Clock = std::vector<uint32_t>;  // by warp of the cluster

  explicit RaceDetector(int warps);

  // The warp on whose behalf the machine acts, or -1: nothing is recorded then.
  void SetActor(int warp) { actor_ = warp; }
  int actor() const { return actor_; }

  // The actor makes known what it did so far, or learns what was made known. For barriers with phases, what a release
  // makes known can be acquired when the phase has advanced.
  struct Phased {
    Clock gathered, published;
    uint64_t phase = 0;
  };
  void Release(Phased& object, uint64_t phase);
  void Acquire(Phased& object, uint64_t phase);
  // Around an atomic or strong access at an address: it learns what earlier ones there made known, and makes known.
  void AcquireAt(uint64_t address);
  void ReleaseAt(uint64_t address);

  // True if the access (epoch) happened before everything the actor does from now on.
  bool Before(int warp, uint32_t time) const { return warp == actor_ || clocks_[actor_][warp] >= time; }
  uint32_t now() const { return clocks_[actor_][actor_]; }

 private:
  static void Join(Clock& to, const Clock& from);
  int actor_ = -1;
  std::vector<Clock> clocks_;
  std::unordered_map<uint64_t, Clock> addresses_;
};

// The accesses to one CTA's shared memory, a record for each 4 bytes.
class AccessLog {
 public:
  AccessLog(RaceDetector& detector, uint32_t bytes) : detector_(detector), records_(bytes / 4 + 1) {}

  // Raise kRace. `changes`: the store alters the bytes; storing what is there already harms nobody.
  void Read(uint32_t granule, uint8_t bytes);
  void Write(uint32_t granule, uint8_t bytes, bool changes);
  // An asynchronous write or read that the actor issues.
  void AsyncWrite(uint32_t granule, uint8_t bytes);
  void AsyncRead(uint32_t granule, uint8_t bytes);

 private:
  struct Access {
    uint32_t time = 0;  // 0: none
    uint16_t warp = 0;
    uint8_t bytes = 0;
  };
  struct Record {
    Access write;
    Access read;  // of the last reader; others that are not ordered with it are in readers_
  };
  void Check(const Access& earlier, uint32_t granule, uint8_t bytes, const char* what_earlier,
             const char* what) const;
  void CheckReaders(uint32_t granule, uint8_t bytes, const char* what);

  RaceDetector& detector_;
  std::vector<Record> records_;
  std::unordered_map<uint32_t, std::vector<Access>> readers_;
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_MACHINE_RACE_DETECTOR_H_
