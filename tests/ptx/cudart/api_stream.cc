// Streams, events, captures and graphs.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/ptx/cudart/runtime.h"

namespace tessera::ptx {
namespace {

Runtime& R() { return Runtime::Get(); }

cudaError_t FindStream(cudaStream_t handle, EmulatedStream** stream) {
  *stream = R().streams.Find(handle);
  return *stream != nullptr ? cudaSuccess : R().Fail(cudaErrorInvalidResourceHandle, "no such stream");
}

cudaError_t FindEvent(cudaEvent_t handle, EmulatedEvent** event) {
  *event = reinterpret_cast<EmulatedEvent*>(handle);
  const auto& events = R().events;
  if (std::find(events.begin(), events.end(), *event) != events.end()) return cudaSuccess;
  return R().Fail(cudaErrorInvalidResourceHandle, "no such event");
}

// A call that waits for a stream or asks for its state.
cudaError_t RefuseCapturing(EmulatedStream* stream, const char* name) {
  if (stream->capture == nullptr) return cudaSuccess;
  stream->broken = absl::StrCat(name, " of the capturing stream");
  return R().Fail(cudaErrorStreamCaptureUnsupported, stream->broken);
}

bool Reached(const EmulatedEvent& event) {
  return event.stream == nullptr || event.reached->time_since_epoch().count() != 0;
}

cudaError_t CreateStream(cudaStream_t* handle, unsigned flags) {
  if (flags > cudaStreamNonBlocking) return R().Fail(cudaErrorInvalidValue, "unknown stream flags");
  *handle = reinterpret_cast<cudaStream_t>(R().streams.Create(flags == cudaStreamDefault));
  return cudaSuccess;
}

cudaError_t CreateEvent(cudaEvent_t* handle, unsigned flags) {
  auto* event = new EmulatedEvent;
  event->timing = (flags & cudaEventDisableTiming) == 0;
  R().events.push_back(event);
  *handle = reinterpret_cast<cudaEvent_t>(event);
  return cudaSuccess;
}

}  // namespace
}  // namespace tessera::ptx

using tessera::ptx::EmulatedEvent;
using tessera::ptx::EmulatedGraph;
using tessera::ptx::EmulatedStream;
using tessera::ptx::Runtime;

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return Runtime::Get().Call([&] { return tessera::ptx::CreateStream(stream, cudaStreamDefault); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return Runtime::Get().Call([&] { return tessera::ptx::CreateStream(stream, flags); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int) {
  return Runtime::Get().Call([&] { return tessera::ptx::CreateStream(stream, flags); });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    EmulatedStream* stream = nullptr;
    if (const cudaError_t error = tessera::ptx::FindStream(handle, &stream); error != cudaSuccess)
      return error;
    return r.streams.Destroy(stream)
               ? cudaSuccess
               : r.Fail(cudaErrorInvalidResourceHandle, "the default stream cannot be destroyed");
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  Runtime& r = Runtime::Get();
  return r.CallThatMayWait("cudaStreamSynchronize", [&] {
    EmulatedStream* stream = nullptr;
    cudaError_t error = tessera::ptx::FindStream(handle, &stream);
    if (error == cudaSuccess) error = tessera::ptx::RefuseCapturing(stream, "cudaStreamSynchronize");
    return error != cudaSuccess ? error : r.streams.RunAll(stream);
  });
}

// A stream with work left says so once; asking again finds it done.
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  Runtime& r = Runtime::Get();
  cudaError_t result = cudaSuccess;
  const cudaError_t error = r.CallThatMayWait("cudaStreamQuery", [&] {
    EmulatedStream* stream = nullptr;
    cudaError_t e = tessera::ptx::FindStream(handle, &stream);
    if (e == cudaSuccess) e = tessera::ptx::RefuseCapturing(stream, "cudaStreamQuery");
    if (e != cudaSuccess) return e;
    if (!stream->queue.empty()) result = cudaErrorNotReady;
    return r.streams.RunAll(stream);
  });
  return error != cudaSuccess ? error : result;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned int) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    EmulatedStream* stream = nullptr;
    EmulatedEvent* event = nullptr;
    cudaError_t error = tessera::ptx::FindStream(handle, &stream);
    if (error == cudaSuccess) error = tessera::ptx::FindEvent(event_handle, &event);
    if (error != cudaSuccess) return error;
    if (stream->capture != nullptr || (event->stream != nullptr && event->stream->capture != nullptr)) {
      return r.Fail(cudaErrorNotSupported, "captures of more than one stream are not emulated");
    }
    return r.streams.Wait(stream, *event);
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    EmulatedStream* stream = nullptr;
    if (const cudaError_t error = tessera::ptx::FindStream(handle, &stream); error != cudaSuccess)
      return error;
    return r.streams.Enqueue(stream, [=] {
      function(data);
      return cudaSuccess;
    });
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return Runtime::Get().Call([&] { return tessera::ptx::CreateEvent(event, cudaEventDefault); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return Runtime::Get().Call([&] { return tessera::ptx::CreateEvent(event, flags); });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    EmulatedEvent* event = nullptr;
    if (const cudaError_t error = tessera::ptx::FindEvent(handle, &event); error != cudaSuccess) return error;
    r.events.erase(std::find(r.events.begin(), r.events.end(), event));
    delete event;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    EmulatedEvent* event = nullptr;
    EmulatedStream* stream = nullptr;
    cudaError_t error = tessera::ptx::FindEvent(handle, &event);
    if (error == cudaSuccess) error = tessera::ptx::FindStream(stream_handle, &stream);
    if (error != cudaSuccess) return error;
    if (stream->capture != nullptr)
      return r.Fail(cudaErrorNotSupported, "events in captures are not emulated");
    r.streams.Record(event, stream);
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  Runtime& r = Runtime::Get();
  return r.CallThatMayWait("cudaEventSynchronize", [&] {
    EmulatedEvent* event = nullptr;
    if (const cudaError_t error = tessera::ptx::FindEvent(handle, &event); error != cudaSuccess) return error;
    return tessera::ptx::Reached(*event) ? cudaSuccess : r.streams.RunUntil(event->stream, event->order);
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  Runtime& r = Runtime::Get();
  cudaError_t result = cudaSuccess;
  const cudaError_t error = r.CallThatMayWait("cudaEventQuery", [&] {
    EmulatedEvent* event = nullptr;
    if (const cudaError_t e = tessera::ptx::FindEvent(handle, &event); e != cudaSuccess) return e;
    if (tessera::ptx::Reached(*event)) return cudaSuccess;
    result = cudaErrorNotReady;
    return r.streams.RunUntil(event->stream, event->order);
  });
  return error != cudaSuccess ? error : result;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start_handle, cudaEvent_t end_handle) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    EmulatedEvent *start = nullptr, *end = nullptr;
    cudaError_t error = tessera::ptx::FindEvent(start_handle, &start);
    if (error == cudaSuccess) error = tessera::ptx::FindEvent(end_handle, &end);
    if (error != cudaSuccess) return error;
    if (!start->timing || !end->timing || start->stream == nullptr || end->stream == nullptr) {
      return r.Fail(cudaErrorInvalidResourceHandle, "an event without timing, or that was never recorded");
    }
    if (!tessera::ptx::Reached(*start) || !tessera::ptx::Reached(*end)) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(*end->reached - *start->reached).count();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    EmulatedStream* stream = nullptr;
    if (const cudaError_t error = tessera::ptx::FindStream(handle, &stream); error != cudaSuccess)
      return error;
    if (stream == r.streams.default_stream() || stream->capture != nullptr) {
      return r.Fail(cudaErrorStreamCaptureUnsupported,
                    "the default stream, or one that is capturing already");
    }
    stream->capture = std::make_unique<EmulatedGraph>();
    stream->capture_mode = mode;
    stream->capture_thread = std::this_thread::get_id();
    stream->broken.clear();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    *graph = nullptr;
    EmulatedStream* stream = nullptr;
    if (const cudaError_t error = tessera::ptx::FindStream(handle, &stream); error != cudaSuccess)
      return error;
    if (stream->capture == nullptr) return r.Fail(cudaErrorIllegalState, "the stream is not capturing");
    if (stream->capture_mode != cudaStreamCaptureModeRelaxed &&
        stream->capture_thread != std::this_thread::get_id()) {
      return r.Fail(cudaErrorStreamCaptureWrongThread, "the capture was begun by another thread");
    }
    std::unique_ptr<EmulatedGraph> captured = std::move(stream->capture);
    if (!stream->broken.empty()) return r.Fail(cudaErrorStreamCaptureInvalidated, stream->broken);
    *graph = reinterpret_cast<cudaGraph_t>(captured.release());
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return Runtime::Get().Call([&] {
    EmulatedStream* stream = nullptr;
    if (const cudaError_t error = tessera::ptx::FindStream(handle, &stream); error != cudaSuccess)
      return error;
    *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
              : stream->broken.empty()   ? cudaStreamCaptureStatusActive
                                         : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return Runtime::Get().Call([&] {
    *executable =
        reinterpret_cast<cudaGraphExec_t>(new EmulatedGraph(*reinterpret_cast<EmulatedGraph*>(graph)));
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  Runtime& r = Runtime::Get();
  return r.Call([&] {
    EmulatedStream* stream = nullptr;
    if (const cudaError_t error = tessera::ptx::FindStream(handle, &stream); error != cudaSuccess)
      return error;
    for (const auto& work : reinterpret_cast<EmulatedGraph*>(executable)->work) {
      if (const cudaError_t error = r.streams.Enqueue(stream, work); error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return Runtime::Get().Call([&] {
    delete reinterpret_cast<EmulatedGraph*>(executable);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return Runtime::Get().Call([&] {
    delete reinterpret_cast<EmulatedGraph*>(graph);
    return cudaSuccess;
  });
}

}  // extern "C"
