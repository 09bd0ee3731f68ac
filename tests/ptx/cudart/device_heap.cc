#include "tests/ptx/cudart/device_heap.h"

#include <sys/mman.h>

#include "absl/strings/str_cat.h"

namespace tessera::ptx {
namespace {

constexpr uint64_t kPage = 4096;

uint64_t RoundUp(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

DeviceHeap::~DeviceHeap() {
  for (const auto& [address, size] : sizes_) memory_.Remove(reinterpret_cast<void*>(address));
  if (base_ != 0) munmap(reinterpret_cast<void*>(base_), kReserved);
}

bool DeviceHeap::Reserve() {
  if (base_ != 0) return true;
  void* range = mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return false;
  base_ = reinterpret_cast<uint64_t>(range);
  next_ = base_;
  return true;
}

void* DeviceHeap::Allocate(uint64_t bytes) {
  if (bytes > capacity_ - used_ || !Reserve()) return nullptr;
  // The allocation ends close to the end of its pages, so that even the host cannot run past it unnoticed.
  const uint64_t pages = RoundUp(bytes, kPage);
  const uint64_t first = RoundUp(next_ + kGuardBytes, kPage);
  if (first + pages + kGuardBytes > base_ + kReserved) return nullptr;
  if (mprotect(reinterpret_cast<void*>(first), pages, PROT_READ | PROT_WRITE) != 0) return nullptr;
  const uint64_t address = first + (pages - bytes) / kAlignment * kAlignment;
  next_ = first + pages;
  used_ += bytes;
  sizes_[address] = bytes;
  memory_.Add(reinterpret_cast<void*>(address), bytes, absl::StrCat("cudaMalloc #", ++count_),
              {.writable = true, .track_defined = true});
  return reinterpret_cast<void*>(address);
}

bool DeviceHeap::Free(void* pointer) {
  const auto found = sizes_.find(reinterpret_cast<uint64_t>(pointer));
  if (found == sizes_.end()) return false;
  const uint64_t begin = found->first / kPage * kPage;
  const uint64_t pages = RoundUp(found->first + found->second - begin, kPage);
  memory_.Remove(pointer);
  // Gives the pages back and makes them inaccessible.
  mmap(reinterpret_cast<void*>(begin), pages, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  used_ -= found->second;
  sizes_.erase(found);
  return true;
}

}  // namespace tessera::ptx
