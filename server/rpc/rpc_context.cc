#include "server/rpc/rpc_context.h"

#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "server/rpc/status.h"

namespace tessera {
namespace {

constexpr size_t kMaxTokenizing = 1024;  // calls waiting to be checked and tokenised

}  // namespace

const char* ServerStateName(ServerState state) {
  switch (state) {
    case ServerState::kStarting:
      return "starting";
    case ServerState::kServing:
      return "serving";
    case ServerState::kDraining:
      return "draining";
    case ServerState::kFailed:
      return "failed";
  }
  return "";
}

bool ArrivingRequests::Add(const std::string& id) {
  absl::MutexLock lock(&mu_);
  return aborted_.emplace(id, false).second;
}

bool ArrivingRequests::Abort(const std::string& id) {
  absl::MutexLock lock(&mu_);
  const auto found = aborted_.find(id);
  if (found == aborted_.end()) return false;
  found->second = true;
  return true;
}

std::vector<std::string> ArrivingRequests::AbortAll() {
  absl::MutexLock lock(&mu_);
  std::vector<std::string> ids;
  for (auto& [id, aborted] : aborted_) {
    aborted = true;
    ids.push_back(id);
  }
  return ids;
}

bool ArrivingRequests::Remove(const std::string& id) {
  absl::MutexLock lock(&mu_);
  const auto found = aborted_.find(id);
  if (found == aborted_.end()) return false;
  const bool aborted = found->second;
  aborted_.erase(found);
  return aborted;
}

RpcContext::RpcContext(Options options, Metrics* metrics)
    : options_(std::move(options)),
      metrics_(metrics),
      writers_({.name = "rpc-write", .num_threads = options_.writer_threads}),
      tokenizers_(
          {.name = "tokenize", .num_threads = options_.tokenizer_threads, .max_queued = kMaxTokenizing}) {}

void RpcContext::Serve(Serving serving) {
  owned_serving_ = std::make_unique<const Serving>(std::move(serving));
  serving_.store(owned_serving_.get(), std::memory_order_release);
  SetState(ServerState::kServing);
}

absl::StatusOr<const Serving*> RpcContext::Loaded() const {
  const Serving* current = serving();
  if (current == nullptr) return absl::UnavailableError("the server is starting: the model is being loaded");
  return current;
}

absl::Status RpcContext::Authenticate(const grpc::CallbackServerContext& context) const {
  if (!options_.api_keys.required()) return absl::OkStatus();
  return options_.api_keys.Check(Metadata(context, "authorization"));
}

absl::StatusOr<const Serving*> RpcContext::Admit() const {
  switch (state()) {
    case ServerState::kStarting:
    case ServerState::kServing:
      return Loaded();
    case ServerState::kDraining:
      return absl::UnavailableError("the server is draining: it takes no new requests");
    case ServerState::kFailed:
      break;
  }
  return absl::UnavailableError("the engine has failed or does not answer");
}

absl::Status WithPushback(absl::Status status) {
  thread_local absl::BitGen gen;
  return WithRetryAfter(std::move(status), absl::Milliseconds(absl::Uniform(gen, 750, 1250)));
}

std::string Metadata(const grpc::CallbackServerContext& context, const std::string& key, int* count) {
  const auto [begin, end] = context.client_metadata().equal_range(grpc::string_ref(key));
  if (count != nullptr) *count = static_cast<int>(std::distance(begin, end));
  return begin == end ? std::string() : std::string(begin->second.data(), begin->second.size());
}

RequestId ResolveRequestId(const std::string& field, const grpc::CallbackServerContext& context) {
  RequestId out;
  if (!field.empty()) {
    out.id = field;
    return out;
  }
  int count = 0;
  out.id = Metadata(context, "x-request-id", &count);
  if (count > 0) {
    out.field = "metadata x-request-id";
    out.repeated = count > 1;
    return out;
  }
  thread_local absl::BitGen gen;
  out.id = absl::StrCat("req-", absl::Hex(absl::Uniform<uint64_t>(gen), absl::kZeroPad16),
                        absl::Hex(absl::Uniform<uint32_t>(gen), absl::kZeroPad8));
  return out;
}

}  // namespace tessera
