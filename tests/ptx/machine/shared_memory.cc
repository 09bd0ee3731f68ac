#include "tests/ptx/machine/shared_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/ptx/machine/fault.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

// The bytes of granule `g` that [offset, offset + bytes) touches, a bit each.
uint8_t BytesOf(uint32_t g, uint32_t offset, uint32_t bytes) {
  const uint32_t begin = std::max(offset, g * 4) - g * 4;
  const uint32_t end = std::min(offset + bytes, g * 4 + 4) - g * 4;
  return static_cast<uint8_t>(((1u << end) - 1) & ~((1u << begin) - 1));
}

}  // namespace

SharedMemory::SharedMemory(uint32_t bytes, int warps)
    : end_(kSharedReserved + bytes),
      data_(end_ + 3),
      granules_(end_ / 4 + 1),
      fenced_(warps),
      init_fenced_(warps),
      synchronised_(warps) {}

template <class F>
inline void SharedMemory::ForGranules(uint32_t offset, uint32_t bytes, F f) {
  for (uint32_t g = offset / 4; g * 4 < offset + bytes; ++g) f(granules_[g], BytesOf(g, offset, bytes));
}

void SharedMemory::CheckBounds(uint32_t offset, uint32_t bytes, const char* what) const {
  if (offset >= kSharedReserved && uint64_t{offset} + bytes <= end_) [[likely]]
    return;
  Raise(Rule::kOutOfBounds,
        Cat(what, " of ", bytes, " bytes at shared offset ", Hex(offset), "; the CTA has ",
            Hex(kSharedReserved), " to ", Hex(end_), " (", end_ - kSharedReserved, " bytes)"));
}

void SharedMemory::Undefined(uint32_t offset) const {
  Raise(Rule::kUninitialisedMemory,
        Cat("read of shared offset ", Hex(offset), ", which nothing has written"));
}

// Bounds, mbarrier objects and operations under way; for loads also that every byte was written.
inline void SharedMemory::CheckAccess(uint32_t offset, uint32_t bytes, bool store, const char* what) const {
  CheckBounds(offset, bytes, what);
  for (uint32_t g = offset / 4; g * 4 < offset + bytes; ++g) {
    const Granule& granule = granules_[g];
    if (granule.mbarrier) [[unlikely]] {
      Raise(Rule::kMbarrier, Cat(what, " at shared offset ", Hex(offset), " touches the mbarrier object at ",
                                 Hex(g * 4 / 8 * 8)));
    }
    if (granule.writers != 0) [[unlikely]] {
      Raise(Rule::kUnfinishedOperation, Cat(what, " at shared offset ", Hex(offset),
                                            ", which an asynchronous operation is still writing"));
    }
    if (store && granule.readers != 0) [[unlikely]] {
      Raise(Rule::kUnfinishedOperation, Cat(what, " at shared offset ", Hex(offset),
                                            ", which an asynchronous operation is still reading"));
    }
    if (!store) {
      const uint8_t missing = BytesOf(g, offset, bytes) & ~granule.defined;
      if (missing != 0) [[unlikely]]
        Undefined(g * 4 + std::countr_zero(missing));
    }
  }
}

void SharedMemory::Load(uint32_t offset, uint32_t bytes, void* out) const {
  CheckAccess(offset, bytes, false, "load");
  if (log_ != nullptr) {
    for (uint32_t g = offset / 4; g * 4 < offset + bytes; ++g) log_->Read(g, BytesOf(g, offset, bytes));
  }
  std::memcpy(out, data_.data() + offset, bytes);
}

void SharedMemory::Store(uint32_t offset, uint32_t bytes, const void* in, int warp) {
  CheckAccess(offset, bytes, true, "store");
  if (log_ != nullptr) {
    const bool changes = std::memcmp(data_.data() + offset, in, bytes) != 0;
    for (uint32_t g = offset / 4; g * 4 < offset + bytes; ++g)
      log_->Write(g, BytesOf(g, offset, bytes), changes);
  }
  std::memcpy(data_.data() + offset, in, bytes);
  ForGranules(offset, bytes, [&](Granule& g, uint8_t mask) {
    g.written = time_;
    g.writer = static_cast<uint16_t>(warp);
    g.defined |= mask;
  });
}

bool SharedMemory::VisibleToAsync(const Granule& g) const {
  return g.written <= fenced_[g.writer] || g.written <= fenced_for_all_;
}

void SharedMemory::CheckAsyncReadable(uint32_t offset, uint32_t bytes) const {
  CheckBounds(offset, bytes, "asynchronous read");
  for (uint32_t g = offset / 4; g * 4 < offset + bytes; ++g) {
    const Granule& granule = granules_[g];
    const uint8_t missing = BytesOf(g, offset, bytes) & ~granule.defined;
    if (missing != 0) Undefined(g * 4 + std::countr_zero(missing));
    if (granule.written != 0 && !VisibleToAsync(granule)) {
      Raise(Rule::kProxy,
            Cat("shared offset ", Hex(g * 4), " was written by ordinary stores of warp ", granule.writer,
                " of the cluster and is read through the async proxy without a fence.proxy.async between"));
    }
  }
}

void SharedMemory::AsyncLoad(uint32_t offset, uint32_t bytes, void* out) const {
  CheckAsyncReadable(offset, bytes);
  std::memcpy(out, data_.data() + offset, bytes);
}

void SharedMemory::AsyncStore(uint32_t offset, uint32_t bytes, const void* in) {
  CheckBounds(offset, bytes, "asynchronous write");
  std::memcpy(data_.data() + offset, in, bytes);
  ForGranules(offset, bytes, [&](Granule& g, uint8_t mask) {
    if (g.mbarrier)
      Raise(Rule::kMbarrier,
            Cat("an asynchronous write at shared offset ", Hex(offset), " hits an mbarrier"));
    g.defined |= mask;
    if (mask == 0xF) g.written = 0;
  });
}

void SharedMemory::BeginAsyncRead(uint32_t offset, uint32_t bytes) {
  CheckBounds(offset, bytes, "asynchronous read");
  ForGranules(offset, bytes, [&](Granule& g, uint8_t) {
    if (g.writers != 0) {
      Raise(Rule::kUnfinishedOperation, Cat("asynchronous read at shared offset ", Hex(offset),
                                            ", which another operation is still writing"));
    }
    if (g.readers == 255) Raise(Rule::kResource, "more than 255 asynchronous operations read the same bytes");
    ++g.readers;
  });
  if (log_ != nullptr) {
    for (uint32_t g = offset / 4; g * 4 < offset + bytes; ++g) log_->AsyncRead(g, BytesOf(g, offset, bytes));
  }
}

void SharedMemory::EndAsyncRead(uint32_t offset, uint32_t bytes) {
  ForGranules(offset, bytes, [](Granule& g, uint8_t) { --g.readers; });
}

void SharedMemory::BeginAsyncWrite(uint32_t offset, uint32_t bytes) {
  CheckBounds(offset, bytes, "asynchronous write");
  ForGranules(offset, bytes, [&](Granule& g, uint8_t) {
    if (g.writers != 0 || g.readers != 0) {
      Raise(Rule::kUnfinishedOperation,
            Cat("asynchronous write at shared offset ", Hex(offset), ", which another operation is still ",
                g.writers != 0 ? "writing" : "reading"));
    }
    if (g.mbarrier)
      Raise(Rule::kMbarrier,
            Cat("an asynchronous write at shared offset ", Hex(offset), " hits an mbarrier"));
    ++g.writers;
  });
  if (log_ != nullptr) {
    for (uint32_t g = offset / 4; g * 4 < offset + bytes; ++g) log_->AsyncWrite(g, BytesOf(g, offset, bytes));
  }
}

void SharedMemory::EndAsyncWrite(uint32_t offset, uint32_t bytes) {
  ForGranules(offset, bytes, [](Granule& g, uint8_t) { --g.writers; });
}

// Covers the warp's own writes, and all that others wrote before the warp last synchronised.
void SharedMemory::FenceProxyAsync(int warp) {
  fenced_[warp] = time_;
  fenced_for_all_ = std::max(fenced_for_all_, synchronised_[warp]);
  ++time_;
}

Mbarrier& SharedMemory::InitMbarrier(uint32_t offset, uint32_t count, int warp) {
  if (offset % 8 != 0)
    Raise(Rule::kMisalignedAddress,
          Cat("mbarrier at shared offset ", Hex(offset), " needs 8 bytes alignment"));
  CheckBounds(offset, 8, "mbarrier.init");
  ForGranules(offset, 8, [&](Granule& g, uint8_t mask) {
    if (g.mbarrier) {
      Raise(Rule::kMbarrier, Cat("mbarrier.init at shared offset ", Hex(offset),
                                 ", where there is one; mbarrier.inval comes first"));
    }
    if (g.readers != 0 || g.writers != 0) {
      Raise(Rule::kUnfinishedOperation,
            Cat("mbarrier.init at shared offset ", Hex(offset), ", which is in asynchronous use"));
    }
    g.mbarrier = 1;
    g.defined |= mask;
    g.written = time_;
    g.writer = static_cast<uint16_t>(warp);
  });
  return mbarriers_.insert_or_assign(offset, Mbarrier(count)).first->second;
}

void SharedMemory::InvalidateMbarrier(uint32_t offset) {
  At(offset);
  mbarriers_.erase(offset);
  ForGranules(offset, 8, [](Granule& g, uint8_t) {
    g.mbarrier = 0;
    g.defined = 0;
  });
}

Mbarrier& SharedMemory::At(uint32_t offset) {
  if (const auto it = mbarriers_.find(offset); it != mbarriers_.end()) {
    // Whoever asks for it by an instruction arrives, or waits, which makes known little.
    if (detector_ != nullptr) detector_->Release(known_[offset], it->second.phase());
    return it->second;
  }
  if (offset % 8 != 0)
    Raise(Rule::kMisalignedAddress,
          Cat("mbarrier at shared offset ", Hex(offset), " needs 8 bytes alignment"));
  CheckBounds(offset, 8, "mbarrier operation");
  std::string known;
  for (const auto& [at, barrier] : mbarriers_) known += (known.empty() ? "" : ", ") + Hex(at);
  Raise(Rule::kMbarrier, Cat("no mbarrier was initialised at shared offset ", Hex(offset),
                             "; the CTA's: ", known.empty() ? "none" : known));
}

void SharedMemory::DetectRaces(RaceDetector& detector) {
  detector_ = &detector;
  log_ = std::make_unique<AccessLog>(detector, end_);
}

void SharedMemory::AcquireMbarrier(uint32_t offset) {
  if (detector_ != nullptr) detector_->Acquire(known_[offset], At(offset).phase());
}

Mbarrier& SharedMemory::AsyncAt(uint32_t offset) {
  Mbarrier& barrier = At(offset);
  const Granule& g = granules_[offset / 4];
  if (g.written > init_fenced_[g.writer] && !VisibleToAsync(g)) {
    Raise(Rule::kProxy, Cat("the mbarrier at shared offset ", Hex(offset),
                            " is used by the async proxy, but no fence.mbarrier_init or "
                            "fence.proxy.async followed its mbarrier.init by warp ",
                            g.writer));
  }
  return barrier;
}

}  // namespace tessera::ptx
