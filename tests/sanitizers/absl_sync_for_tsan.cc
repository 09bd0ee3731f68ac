// Linked into every program of a ThreadSanitizer build.
//
// The system's Abseil and gRPC are not instrumented, and absl::Mutex is built on atomics and futexes: ThreadSanitizer
// sees none of the order that it makes, neither in our own code nor where gRPC hands work from thread to thread, and
// would report races that are none. The definitions here stand before the library's in symbol lookup, for all
// libraries of the process. They call the library's own and tell ThreadSanitizer what happened.
//
// Releases and acquires alone are told, which is what race detection needs; a wait releases before and acquires after.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);

namespace {

#define TESSERA_STRING_(x) #x
#define TESSERA_STRING(x) TESSERA_STRING_(x)

// The library's definition of a member of absl::{inline namespace}. `suffix` is its mangled name after the namespaces.
template <typename Function>
Function Real(const char* suffix) {
  constexpr char kNamespace[] = TESSERA_STRING(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  char name[256];
  std::snprintf(name, sizeof name, "%s4absl%zu%s%s", suffix[0] == 'K' ? "_ZNK" : "_ZN", sizeof kNamespace - 1, kNamespace,
                suffix[0] == 'K' ? suffix + 1 : suffix);
  void* const symbol = dlsym(RTLD_NEXT, name);
  if (symbol == nullptr) {
    std::fprintf(stderr, "absl_sync_for_tsan: %s is not in this Abseil\n", name);
    std::abort();
  }
  return reinterpret_cast<Function>(symbol);
}

void Release(const void* address) { __tsan_release(const_cast<void*>(address)); }
void Acquire(const void* address) { __tsan_acquire(const_cast<void*>(address)); }

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static const auto real = Real<void (*)(Mutex*)>("5Mutex4LockEv");
  real(this);
  Acquire(this);
}

void Mutex::Unlock() {
  static const auto real = Real<void (*)(Mutex*)>("5Mutex6UnlockEv");
  Release(this);
  real(this);
}

bool Mutex::TryLock() {
  static const auto real = Real<bool (*)(Mutex*)>("5Mutex7TryLockEv");
  const bool locked = real(this);
  if (locked) Acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  static const auto real = Real<void (*)(Mutex*)>("5Mutex10ReaderLockEv");
  real(this);
  Acquire(this);
}

void Mutex::ReaderUnlock() {
  static const auto real = Real<void (*)(Mutex*)>("5Mutex12ReaderUnlockEv");
  Release(this);
  real(this);
}

void Mutex::LockWhen(const Condition& condition) {
  static const auto real = Real<void (*)(Mutex*, const Condition&)>("5Mutex8LockWhenERKNS0_9ConditionE");
  real(this, condition);
  Acquire(this);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, absl::Duration timeout) {
  static const auto real = Real<bool (*)(Mutex*, const Condition&, absl::Duration)>(
      "5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  const bool met = real(this, condition, timeout);
  Acquire(this);
  return met;
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, absl::Time deadline) {
  static const auto real = Real<bool (*)(Mutex*, const Condition&, absl::Time)>(
      "5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  const bool met = real(this, condition, deadline);
  Acquire(this);
  return met;
}

void Mutex::Await(const Condition& condition) {
  static const auto real = Real<void (*)(Mutex*, const Condition&)>("5Mutex5AwaitERKNS0_9ConditionE");
  Release(this);
  real(this, condition);
  Acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, absl::Duration timeout) {
  static const auto real = Real<bool (*)(Mutex*, const Condition&, absl::Duration)>(
      "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  Release(this);
  const bool met = real(this, condition, timeout);
  Acquire(this);
  return met;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, absl::Time deadline) {
  static const auto real =
      Real<bool (*)(Mutex*, const Condition&, absl::Time)>("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  Release(this);
  const bool met = real(this, condition, deadline);
  Acquire(this);
  return met;
}

void CondVar::Wait(Mutex* mutex) {
  static const auto real = Real<void (*)(CondVar*, Mutex*)>("7CondVar4WaitEPNS0_5MutexE");
  Release(mutex);
  real(this, mutex);
  Acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, absl::Duration timeout) {
  static const auto real =
      Real<bool (*)(CondVar*, Mutex*, absl::Duration)>("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  Release(mutex);
  const bool timed_out = real(this, mutex, timeout);
  Acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, absl::Time deadline) {
  static const auto real =
      Real<bool (*)(CondVar*, Mutex*, absl::Time)>("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  Release(mutex);
  const bool timed_out = real(this, mutex, deadline);
  Acquire(mutex);
  return timed_out;
}

// HasBeenNotified() is an inline atomic load, which ThreadSanitizer sees; the store that it pairs with is in the
// library. The address is the first member's on both sides.
void Notification::Notify() {
  static const auto real = Real<void (*)(Notification*)>("12Notification6NotifyEv");
  Release(this);
  real(this);
}

ABSL_NAMESPACE_END
}  // namespace absl
