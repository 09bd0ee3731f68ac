#include "server/rpc/open_calls.h"

#include "server/rpc/inference_call.h"

namespace tessera {

void OpenCalls::Add(const std::shared_ptr<InferenceCall>& call) {
  absl::MutexLock lock(&mu_);
  calls_.emplace(call.get(), call);
}

void OpenCalls::Remove(const InferenceCall* call) {
  absl::MutexLock lock(&mu_);
  calls_.erase(call);
}

bool OpenCalls::WaitUntilNone(absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return calls_.empty(); };
  return mu_.AwaitWithDeadline(absl::Condition(&none), deadline);
}

int OpenCalls::CloseBlockedSince(absl::Time time) {
  std::vector<std::shared_ptr<InferenceCall>> blocked;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [key, weak] : calls_) {
      std::shared_ptr<InferenceCall> call = weak.lock();
      if (call != nullptr && call->WriteStarted() < time) blocked.push_back(std::move(call));
    }
  }
  for (const std::shared_ptr<InferenceCall>& call : blocked) call->Close();
  return static_cast<int>(blocked.size());
}

}  // namespace tessera
