#include "server/engine/request_stream.h"

#include <iterator>
#include <utility>

namespace tessera {
namespace {

template <typename T>
void MoveAppend(std::vector<T>* from, std::vector<T>* to) {
  to->insert(to->end(), std::make_move_iterator(from->begin()), std::make_move_iterator(from->end()));
}

}  // namespace

RequestStream::RequestStream(std::string request_id, std::function<void()> on_ready,
                             std::function<void()> on_cancel)
    : request_id_(std::move(request_id)), on_ready_(std::move(on_ready)), on_cancel_(std::move(on_cancel)) {}

bool RequestStream::Take(std::vector<RequestEvent>* events) {
  events->clear();
  std::lock_guard<std::mutex> lock(mu_);
  events->swap(events_);  // both vectors keep their capacity in use
  backlog_ = Backlog{};
  return !closed_;
}

void RequestStream::Cancel() {
  if (!cancelled_.exchange(true, std::memory_order_acq_rel) && on_cancel_) on_cancel_();
}

RequestStream::Backlog RequestStream::backlog() const {
  std::lock_guard<std::mutex> lock(mu_);
  return backlog_;
}

bool RequestStream::Merge(OutputDelta* delta) {
  for (auto it = events_.rbegin(); it != events_.rend(); ++it) {
    auto* earlier = std::get_if<OutputDelta>(&*it);
    if (earlier == nullptr || earlier->index != delta->index) continue;
    earlier->text += delta->text;
    MoveAppend(&delta->token_ids, &earlier->token_ids);
    MoveAppend(&delta->logprobs, &earlier->logprobs);
    MoveAppend(&delta->prompt_logprobs, &earlier->prompt_logprobs);
    return true;
  }
  return false;
}

RequestStream::Backlog RequestStream::Push(RequestEvent event, absl::Time now) {
  Backlog backlog;
  bool wake = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (closed_) return backlog_;
    wake = events_.empty();
    auto* delta = std::get_if<OutputDelta>(&event);
    if (delta != nullptr && !delta->token_ids.empty()) {
      if (backlog_.tokens == 0) backlog_.since = now;
      backlog_.tokens += static_cast<int32_t>(delta->token_ids.size());
    }
    if (delta == nullptr || !Merge(delta)) events_.push_back(std::move(event));
    backlog = backlog_;
  }
  if (wake && on_ready_) on_ready_();
  return backlog;
}

void RequestStream::PushLast(RequestEvent event) {
  bool wake = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (closed_) return;
    wake = events_.empty();
    events_.push_back(std::move(event));
    closed_ = true;
  }
  if (wake && on_ready_) on_ready_();
}

void RequestStream::Close() {
  bool wake = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (closed_) return;
    closed_ = true;
    wake = events_.empty();
  }
  if (wake && on_ready_) on_ready_();
}

}  // namespace tessera
