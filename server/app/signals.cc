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
  sigaddset(&set, SIGHUP);  // the terminal is gone: as good a reason to drain, and no reason to drop streams
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
    std::lock_guard<std::mutex> lock(mu_);
    stop_ = true;
  }
  pthread_kill(thread_.native_handle(), kStop);
  thread_.join();
}

void Signals::ExpectSignals() {
  std::lock_guard<std::mutex> lock(mu_);
  expected_ = true;
}

int Signals::WaitForSignal() {
  std::unique_lock<std::mutex> lock(mu_);
  arrived_.wait(lock, [this] { return signal_ != 0; });
  return signal_;
}

void Signals::Run() {
  const sigset_t set = Handled();
  for (;;) {
    int number = 0;
    if (sigwait(&set, &number) != 0) continue;
    std::lock_guard<std::mutex> lock(mu_);
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
    arrived_.notify_all();
  }
}

}  // namespace tessera
