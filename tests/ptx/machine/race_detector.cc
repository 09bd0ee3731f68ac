#include "tests/ptx/machine/race_detector.h"

#include <algorithm>

#include "tests/ptx/machine/fault.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {

RaceDetector::RaceDetector(int warps) : clocks_(warps, Clock(warps)) {
  for (int w = 0; w < warps; ++w) clocks_[w][w] = 1;
}

void RaceDetector::Join(Clock& to, const Clock& from) {
  if (to.empty()) {
    to = from;
    return;
  }
  for (size_t k = 0; k < from.size(); ++k) to[k] = std::max(to[k], from[k]);
}

void RaceDetector::Release(Phased& object, uint64_t phase) {
  if (actor_ < 0) return;
  if (object.phase != phase) object.published = object.gathered;
  object.phase = phase;
  Join(object.gathered, clocks_[actor_]);
  ++clocks_[actor_][actor_];
}

void RaceDetector::Acquire(Phased& object, uint64_t phase) {
  if (actor_ < 0) return;
  if (object.phase != phase) object.published = object.gathered;
  object.phase = phase;
  Join(clocks_[actor_], object.published);
}

void RaceDetector::AcquireAt(uint64_t address) {
  if (actor_ >= 0) Join(clocks_[actor_], addresses_[address]);
}

void RaceDetector::ReleaseAt(uint64_t address) {
  if (actor_ < 0) return;
  Join(addresses_[address], clocks_[actor_]);
  ++clocks_[actor_][actor_];
}

void AccessLog::Check(const Access& earlier, uint32_t granule, uint8_t bytes, const char* what_earlier,
                      const char* what) const {
  if (earlier.time == 0 || (earlier.bytes & bytes) == 0 || detector_.Before(earlier.warp, earlier.time))
    return;
  Raise(Rule::kRace,
        Cat(what, " of shared offset ", Hex(granule * 4), " by warp ", detector_.actor(),
            " of the cluster: nothing orders it after a ", what_earlier, " by warp ", earlier.warp));
}

void AccessLog::CheckReaders(uint32_t granule, uint8_t bytes, const char* what) {
  Check(records_[granule].read, granule, bytes, "read", what);
  if (const auto it = readers_.find(granule); it != readers_.end()) {
    for (const Access& a : it->second) Check(a, granule, bytes, "read", what);
    readers_.erase(it);
  }
  records_[granule].read = {};
}

void AccessLog::Read(uint32_t granule, uint8_t bytes) {
  if (detector_.actor() < 0) return;
  Record& r = records_[granule];
  Check(r.write, granule, bytes, "write", "a read");
  const Access now{detector_.now(), static_cast<uint16_t>(detector_.actor()), bytes};
  if (r.read.time != 0 && r.read.warp != now.warp && !detector_.Before(r.read.warp, r.read.time)) {
    readers_[granule].push_back(r.read);
  }
  r.read = now;
}

void AccessLog::Write(uint32_t granule, uint8_t bytes, bool changes) {
  if (detector_.actor() < 0) return;
  Record& r = records_[granule];
  if (changes) {
    Check(r.write, granule, bytes, "write", "a write");
    CheckReaders(granule, bytes, "a write");
  }
  r.write = {detector_.now(), static_cast<uint16_t>(detector_.actor()), bytes};
}

void AccessLog::AsyncWrite(uint32_t granule, uint8_t bytes) {
  if (detector_.actor() < 0) return;
  Check(records_[granule].write, granule, bytes, "write", "an asynchronous write");
  CheckReaders(granule, bytes, "an asynchronous write");
  records_[granule].write = {};
}

void AccessLog::AsyncRead(uint32_t granule, uint8_t bytes) {
  if (detector_.actor() < 0) return;
  Check(records_[granule].write, granule, bytes, "write", "an asynchronous read");
}

}  // namespace tessera::ptx
