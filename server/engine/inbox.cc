#include "server/engine/inbox.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/engine/unshared_status.h"

namespace tessera {
namespace {

using Lock = std::unique_lock<std::mutex>;

// Waits on the system clock, which can't express the far ends of absl's.
template <typename Predicate>
bool WaitUntil(std::condition_variable* condition, Lock* lock, absl::Time deadline, Predicate predicate) {
  constexpr absl::Duration kFar = absl::Hours(24 * 365);
  const absl::Time now = absl::Now();
  deadline = std::max(deadline, now);
  if (deadline - now > kFar) {
    condition->wait(*lock, predicate);
    return true;
  }
  return condition->wait_until(*lock, absl::ToChronoTime(deadline), predicate);
}

}  // namespace

absl::Status Inbox::CheckRoomLocked(const std::string& request_id, int64_t sequences, int64_t tokens) const {
  if (!refusal_.ok()) return Unshared(refusal_);
  if (live_ids_.contains(request_id)) {
    return absl::AlreadyExistsError(
        absl::StrCat("request id '", request_id, "' is in use by a request that still runs"));
  }
  if (queued_sequences_ == 0) return absl::OkStatus();  // or a large request could never be served
  if (queued_sequences_ + sequences > max_queued_sequences_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", queued_sequences_, " sequences wait, ", sequences,
                     " more would pass the limit of ", max_queued_sequences_));
  }
  if (queued_tokens_ + tokens > max_queued_tokens_) {
    return absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", queued_tokens_,
                                                     " prompt tokens wait, ", tokens,
                                                     " more would pass the limit of ", max_queued_tokens_));
  }
  return absl::OkStatus();
}

absl::Status Inbox::CheckRoom(const std::string& request_id, int64_t sequences, int64_t tokens) const {
  Lock lock(mu_);
  return CheckRoomLocked(request_id, sequences, tokens);
}

absl::Status Inbox::Submit(std::unique_ptr<ActiveRequest> request, absl::FunctionRef<void()> on_accepted) {
  const int64_t sequences = static_cast<int64_t>(request->sequences.size());
  const int64_t tokens = request->queued_tokens();
  {
    Lock lock(mu_);
    if (absl::Status status = CheckRoomLocked(request->stream->request_id(), sequences, tokens);
        !status.ok()) {
      return status;
    }
    live_ids_.emplace(request->stream->request_id(), request->serial);
    ++live_requests_;
    queued_sequences_ += sequences;
    queued_tokens_ += tokens;
    submitted_sequences_ += static_cast<int32_t>(sequences);
    on_accepted();
    contents_.submitted.push_back(std::move(request));
  }
  work_.notify_one();
  return absl::OkStatus();
}

bool Inbox::End(const std::string& request_id, absl::Status why) {
  {
    Lock lock(mu_);
    const auto it = live_ids_.find(request_id);
    if (it == live_ids_.end()) return false;
    contents_.ends.push_back({it->second, std::move(why)});
  }
  work_.notify_one();
  return true;
}

void Inbox::EndBySerial(uint64_t serial, absl::Status why) {
  {
    Lock lock(mu_);
    contents_.ends.push_back({serial, std::move(why)});
  }
  work_.notify_one();
}

std::vector<std::string> Inbox::EndAll(absl::Status why) {
  std::vector<std::string> ids;
  {
    Lock lock(mu_);
    ids.reserve(live_ids_.size());
    for (const auto& [id, serial] : live_ids_) {
      ids.push_back(id);
      contents_.ends.push_back({serial, why});
    }
  }
  work_.notify_one();
  std::sort(ids.begin(), ids.end());
  return ids;
}

void Inbox::Wake() {
  {
    Lock lock(mu_);
    woken_ = true;
  }
  work_.notify_one();
}

void Inbox::Stop() {
  {
    Lock lock(mu_);
    contents_.stop = true;
  }
  work_.notify_one();
}

void Inbox::Refuse(absl::Status status) {
  Lock lock(mu_);
  if (refusal_.ok()) refusal_ = std::move(status);
}

bool Inbox::WaitUntilNoneLive(absl::Time deadline) {
  Lock lock(mu_);
  return WaitUntil(&none_live_, &lock, deadline, [this] { return live_requests_ == 0; });
}

int32_t Inbox::submitted_sequences() const {
  Lock lock(mu_);
  return submitted_sequences_;
}

bool Inbox::refusing() const {
  Lock lock(mu_);
  return !refusal_.ok();
}

void Inbox::Take(Contents* contents) {
  contents->submitted.clear();
  contents->ends.clear();
  Lock lock(mu_);
  std::swap(contents->submitted, contents_.submitted);
  std::swap(contents->ends, contents_.ends);
  contents->stop = contents_.stop;
  submitted_sequences_ = 0;
  woken_ = false;
}

void Inbox::Wait(absl::Time deadline) {
  Lock lock(mu_);
  WaitUntil(&work_, &lock, deadline, [this] {
    return woken_ || contents_.stop || !contents_.submitted.empty() || !contents_.ends.empty();
  });
}

void Inbox::LeaveQueue(int32_t sequences, int64_t tokens) {
  Lock lock(mu_);
  queued_sequences_ -= sequences;
  queued_tokens_ -= tokens;
}

void Inbox::ReleaseId(const std::string& request_id) {
  Lock lock(mu_);
  live_ids_.erase(request_id);
}

void Inbox::Delivered(int32_t requests) {
  bool none_live = false;
  {
    Lock lock(mu_);
    live_requests_ -= requests;
    none_live = live_requests_ == 0;
  }
  if (none_live) none_live_.notify_all();
}

}  // namespace tessera
