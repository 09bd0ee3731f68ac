#ifndef TESSERA_SERVER_BACKEND_CUDA_GRAPH_CACHE_H_
#define TESSERA_SERVER_BACKEND_CUDA_GRAPH_CACHE_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <utility>

#include "absl/status/status.h"

namespace tessera::cuda {

// Replays the launches of steps of the same shape as one CUDA graph, so that a decode step does not wait for some
// hundreds of launches. A shape is run plainly the first time, captured the second, replayed from then on; the least
// recently used graphs are dropped.
class GraphCache {
 public:
  // What fixes every launch of a step but the contents of its inputs.
  using Key = std::pair<int32_t, int32_t>;

  GraphCache(cudaStream_t stream, size_t capacity) : stream_(stream), capacity_(capacity) {}
  ~GraphCache() { Clear(); }
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  // `launch` enqueues the step on the stream. It must neither allocate nor wait.
  absl::Status Run(Key key, const std::function<absl::Status()>& launch);

  // Forgets all graphs: a buffer that they use has moved.
  void Clear();

 private:
  struct Entry {
    Key key;
    cudaGraphExec_t graph = nullptr;  // null: seen once
  };

  absl::Status Capture(const std::function<absl::Status()>& launch, cudaGraphExec_t* graph);

  const cudaStream_t stream_;
  const size_t capacity_;
  std::list<Entry> entries_;  // most recently used first
  std::map<Key, std::list<Entry>::iterator> by_key_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_SERVER_BACKEND_CUDA_GRAPH_CACHE_H_
