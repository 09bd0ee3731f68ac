#include "server/app/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "server/logging/logging.h"

namespace tessera {
namespace {

constexpr int kStop = SIGUSR1;  // from the destructor, to the thread alone

sigset_t Handled() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, kStop);
  return set;
}

}  // namespace

Signals::Signals() {
  signal(SIGPIPE, SIG_IGN);
  const sigset_t set = Handled();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::thread([this] { Run(); });
}

Signals::~Signals() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  pthread_kill(thread_.native_handle(), kStop);
  thread_.join();
}

void Signals::ExpectSignals() {
  absl::MutexLock lock(&mu_);
  expected_ = true;
}

int Signals::WaitForSignal() {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(
      +[](int* signal) { return *signal != 0; }, &signal_));
  return signal_;
}

void Signals::Run() {
  const sigset_t set = Handled();
  for (;;) {
    int number = 0;
    if (sigwait(&set, &number) != 0) continue;
    absl::MutexLock lock(&mu_);
    if (number == kStop) {
      if (stop_) return;
      continue;
    }
    if (!expected_ || signal_ != 0) {
      LogWarning(expected_ ? "a second signal: exiting at once" : "stopped while starting",
                 {{"signal", number}});
      _exit(128 + number);
    }
    signal_ = number;
  }
}

}  // namespace tessera
