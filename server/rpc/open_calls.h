#ifndef TESSERA_SERVER_RPC_OPEN_CALLS_H_
#define TESSERA_SERVER_RPC_OPEN_CALLS_H_

#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tessera {

class InferenceCall;

// The calls to the engine that gRPC has not done with: for shutdown, which waits for their last bytes, and for the
// watch over callers that do not read. Thread-safe.
class OpenCalls {
 public:
  void Add(const std::shared_ptr<InferenceCall>& call);
  void Remove(const InferenceCall* call);
  // False if calls are still open at `deadline`.
  bool WaitUntilNone(absl::Time deadline);
  // Ends those whose write has been pending since before `time`: the caller does not read, and what was generated for
  // it would be kept as long as its connection lives. The caller sees CANCELLED. Returns how many.
  int CloseBlockedSince(absl::Time time);

 private:
  absl::Mutex mu_;
  std::unordered_map<const InferenceCall*, std::weak_ptr<InferenceCall>> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_SERVER_RPC_OPEN_CALLS_H_
