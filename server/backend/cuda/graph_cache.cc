#include "server/backend/cuda/graph_cache.h"

#include "server/backend/cuda/device_memory.h"

namespace tessera::cuda {

absl::Status GraphCache::Run(Key key, const std::function<absl::Status()>& launch) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) {
    if (entries_.size() >= capacity_) {
      if (entries_.back().graph != nullptr) cudaGraphExecDestroy(entries_.back().graph);
      by_key_.erase(entries_.back().key);
      entries_.pop_back();
    }
    entries_.push_front({key, nullptr});
    by_key_[key] = entries_.begin();
    return launch();
  }
  entries_.splice(entries_.begin(), entries_, found->second);
  Entry& entry = entries_.front();
  if (entry.graph == nullptr) {
    if (absl::Status status = Capture(launch, &entry.graph); !status.ok()) return status;
  }
  return CudaStatus(cudaGraphLaunch(entry.graph, stream_), "launching a step's graph");
}

absl::Status GraphCache::Capture(const std::function<absl::Status()>& launch, cudaGraphExec_t* graph) {
  absl::Status status =
      CudaStatus(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing a step");
  if (!status.ok()) return status;
  status = launch();
  cudaGraph_t captured = nullptr;
  status.Update(CudaStatus(cudaStreamEndCapture(stream_, &captured), "capturing a step"));
  if (status.ok())
    status = CudaStatus(cudaGraphInstantiate(graph, captured, 0), "instantiating a step's graph");
  if (captured != nullptr) cudaGraphDestroy(captured);
  return status;
}

void GraphCache::Clear() {
  for (const Entry& entry : entries_) {
    if (entry.graph != nullptr) cudaGraphExecDestroy(entry.graph);
  }
  entries_.clear();
  by_key_.clear();
}

}  // namespace tessera::cuda
