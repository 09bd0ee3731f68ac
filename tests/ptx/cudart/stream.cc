#include "tests/ptx/cudart/stream.h"

#include <driver_types.h>

#include <algorithm>
#include <utility>

namespace tessera::ptx {

EmulatedStream* StreamSet::Create(bool blocking) {
  streams_.push_back(std::make_unique<EmulatedStream>());
  streams_.back()->blocking = blocking;
  streams_.back()->id = next_id_++;
  return streams_.back().get();
}

bool StreamSet::Destroy(EmulatedStream* stream) {
  for (auto at = streams_.begin(); at != streams_.end(); ++at) {
    if (at->get() != stream) continue;
    RunAll(stream);
    streams_.erase(at);
    return true;
  }
  return false;
}

EmulatedStream* StreamSet::Find(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) return &default_;
  for (const auto& stream : streams_) {
    if (reinterpret_cast<cudaStream_t>(stream.get()) == handle) return stream.get();
  }
  return nullptr;
}

cudaError_t StreamSet::Enqueue(EmulatedStream* stream, StreamWork work) {
  if (stream->capture != nullptr) {
    stream->capture->work.push_back(std::move(work));
    return cudaSuccess;
  }
  if (stream == &default_) {
    for (const auto& other : streams_) {
      if (other->capture == nullptr || !other->blocking) continue;
      other->broken = "work for the default stream, which waits for the capturing stream";
      return cudaErrorStreamCaptureImplicit;
    }
  }
  stream->queue.push_back({next_order_++, std::move(work)});
  return lazy_ ? cudaSuccess : RunAll(stream);
}

cudaError_t StreamSet::RunUntil(EmulatedStream* stream, uint64_t order) {
  cudaError_t first = cudaSuccess;
  const auto note = [&](cudaError_t error) {
    if (first == cudaSuccess) first = error;
  };
  while (!stream->queue.empty() && stream->queue.front().order <= order) {
    EmulatedStream::Item item = std::move(stream->queue.front());
    stream->queue.pop_front();
    // The default stream and the blocking ones wait for what was enqueued before.
    if (stream == &default_) {
      for (const auto& other : streams_) {
        if (other->blocking) note(RunUntil(other.get(), item.order));
      }
    } else if (stream->blocking) {
      note(RunUntil(&default_, item.order));
    }
    note(item.work());
  }
  // Waiting for the default stream is waiting for the blocking ones too.
  if (stream == &default_) {
    for (const auto& other : streams_) {
      if (other->blocking && !other->queue.empty() && other->queue.front().order <= order) {
        note(RunUntil(other.get(), order));
      }
    }
  }
  return first;
}

cudaError_t StreamSet::RunEverything() {
  cudaError_t first = RunAll(&default_);
  for (size_t i = 0; i < streams_.size(); ++i) {
    const cudaError_t error = RunAll(streams_[i].get());
    if (first == cudaSuccess) first = error;
  }
  return first;
}

void StreamSet::DropEverything() {
  default_.queue.clear();
  for (const auto& stream : streams_) stream->queue.clear();
}

void StreamSet::Record(EmulatedEvent* event, EmulatedStream* stream) {
  event->stream = stream;
  event->order = next_order_;
  event->reached = std::make_shared<std::chrono::steady_clock::time_point>();
  Enqueue(stream, [time = event->reached] {
    *time = std::chrono::steady_clock::now();
    return cudaSuccess;
  });
}

cudaError_t StreamSet::Wait(EmulatedStream* stream, const EmulatedEvent& event) {
  if (event.stream == nullptr) return cudaSuccess;
  return Enqueue(stream, [this, other = event.stream, order = event.order] {
    // The other stream may be gone: it then has run everything.
    const bool exists = other == &default_ || std::any_of(streams_.begin(), streams_.end(),
                                                          [&](const auto& s) { return s.get() == other; });
    return exists ? RunUntil(other, order) : cudaSuccess;
  });
}

EmulatedStream* StreamSet::CaptureOf(std::thread::id thread) {
  for (const auto& stream : streams_) {
    if (stream->capture == nullptr || stream->capture_mode == cudaStreamCaptureModeRelaxed) continue;
    if (stream->capture_mode == cudaStreamCaptureModeGlobal || stream->capture_thread == thread)
      return stream.get();
  }
  return nullptr;
}

}  // namespace tessera::ptx
