#ifndef TESSERA_SERVER_RPC_READY_CALLS_H_
#define TESSERA_SERVER_RPC_READY_CALLS_H_

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera {

class ReadyCall {
 public:
  virtual ~ReadyCall() = default;
  virtual void Answer() = 0;
};

// Calls that have something to answer, and the threads that answer: the way from the engine's thread, which must not
// wait for a socket. First come, first served. Has no bound of its own: who pushes sees to it that a call is in it at
// most once (InferenceCall::Signal).
//
// A step of the engine makes many calls ready one after the other. Only a thread that sleeps is woken, each once; the
// others find what was added when they come back.
class ReadyCalls {
 public:
  explicit ReadyCalls(int num_threads);
  // Answers what is queued, then joins.
  ~ReadyCalls();
  ReadyCalls(const ReadyCalls&) = delete;
  ReadyCalls& operator=(const ReadyCalls&) = delete;

  void Push(std::shared_ptr<ReadyCall> call);

 private:
  void Run();

  std::mutex mu_;  // guards what follows
  std::condition_variable work_;
  std::deque<std::shared_ptr<ReadyCall>> queue_;
  int sleeping_ = 0;  // threads that wait and were not woken yet
  int woken_ = 0;     // threads that were, and have not noticed yet
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_READY_CALLS_H_
