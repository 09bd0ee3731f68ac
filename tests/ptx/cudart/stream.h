// Streams, events and graphs. Enqueued work waits until something waits for it (or is run at once, if so wished): code
// that reads a result without waiting, or overwrites pinned memory under a copy, sees old bytes.
#ifndef TESSERA_TESTS_PTX_CUDART_STREAM_H_
#define TESSERA_TESTS_PTX_CUDART_STREAM_H_

#include <driver_types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace tessera::ptx {

// Does its work and says how it went. A graph runs it once a launch.
using StreamWork = std::function<cudaError_t()>;

// What a capture collects: the work of one stream, in order.
struct EmulatedGraph {
  std::vector<StreamWork> work;
};

struct EmulatedStream {
  struct Item {
    uint64_t order;  // among all streams
    StreamWork work;
  };
  std::deque<Item> queue;
  bool blocking = true;  // waits for the default stream, and that for it
  uint64_t id = 0;

  // Of a capture.
  std::unique_ptr<EmulatedGraph> capture;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  std::thread::id capture_thread;
  std::string broken;  // why the capture is of no use any more
};

struct EmulatedEvent {
  EmulatedStream* stream = nullptr;  // null: never recorded
  uint64_t order = 0;
  bool timing = true;
  std::shared_ptr<std::chrono::steady_clock::time_point> reached;  // zero until the stream came to it
};

class StreamSet {
 public:
  explicit StreamSet(bool lazy) : lazy_(lazy) { default_.id = 1; }

  EmulatedStream* Create(bool blocking);
  bool Destroy(EmulatedStream* stream);  // runs what is queued; false if there is no such stream
  // The stream of a handle: null, cudaStreamLegacy and cudaStreamPerThread are the default stream. Null if unknown.
  EmulatedStream* Find(cudaStream_t handle);
  EmulatedStream* default_stream() { return &default_; }

  // cudaErrorStreamCaptureImplicit: work for the default stream while a blocking stream captures.
  cudaError_t Enqueue(EmulatedStream* stream, StreamWork work);
  void Record(EmulatedEvent* event, EmulatedStream* stream);
  // The stream's later work waits for the event.
  cudaError_t Wait(EmulatedStream* stream, const EmulatedEvent& event);

  // Runs the stream's work up to the given place, and what must run before it. The first error.
  cudaError_t RunUntil(EmulatedStream* stream, uint64_t order);
  cudaError_t RunAll(EmulatedStream* stream) { return RunUntil(stream, next_order_); }
  cudaError_t RunEverything();
  void DropEverything();  // after a fault

  // A capture that forbids calls which might wait, for this thread; null if there is none.
  EmulatedStream* CaptureOf(std::thread::id thread);

 private:
  const bool lazy_;
  uint64_t next_order_ = 1;
  uint64_t next_id_ = 2;
  EmulatedStream default_;
  std::vector<std::unique_ptr<EmulatedStream>> streams_;
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_CUDART_STREAM_H_
