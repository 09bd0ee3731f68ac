#ifndef TESSERA_SERVER_APP_SIGNALS_H_
#define TESSERA_SERVER_APP_SIGNALS_H_

#include <condition_variable>
#include <mutex>
#include <thread>

namespace tessera {

// SIGTERM and SIGINT, taken by a thread of its own. The first one asks for an orderly end once ExpectSignals was called;
// before that, and from the second on, a signal ends the process at once with exit code 128 + its number. SIGPIPE is
// ignored. Make it before any other thread.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // From now on the first signal is for WaitForSignal.
  void ExpectSignals();
  // Waits for the first signal; returns its number.
  int WaitForSignal();

 private:
  void Run();

  std::mutex mu_;  // guards what follows
  std::condition_variable arrived_;
  bool expected_ = false;
  bool stop_ = false;
  int signal_ = 0;
  std::thread thread_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_APP_SIGNALS_H_
