#include "server/rpc/status.h"

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace tessera {
namespace {

constexpr char kTypePrefix[] = "type.googleapis.com/";
constexpr char kBadRequestUrl[] = "type.googleapis.com/google.rpc.BadRequest";
constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";
constexpr char kPushbackTrailer[] = "grpc-retry-pushback-ms";

// Message and details both travel in the trailers, which gRPC limits to 8 KiB by default; the message may grow
// threefold by percent-encoding.
constexpr size_t kMaxViolations = 16;
constexpr size_t kMaxFieldBytes = 96;
constexpr size_t kMaxDescriptionBytes = 192;
constexpr size_t kMaxMessageBytes = 1024;

// The first `limit` bytes of `text`, not ending inside a UTF-8 character.
std::string Cut(std::string text, size_t limit) {
  if (text.size() <= limit) return text;
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0) == 0x80) --limit;
  text.resize(limit);
  return absl::StrCat(text, "...");
}

}  // namespace

void Violations::Add(std::string field, std::string description) {
  ++total_;
  if (kept_.size() >= kMaxViolations) return;
  kept_.emplace_back(Cut(std::move(field), kMaxFieldBytes),
                     Cut(std::move(description), kMaxDescriptionBytes));
}

absl::Status Violations::ToStatus() const {
  if (empty()) return absl::OkStatus();
  google::rpc::BadRequest details;
  std::string message = total_ == 1 ? std::string() : absl::StrCat(total_, " invalid fields: ");
  const char* separator = "";
  size_t named = 0;
  for (const auto& [field, description] : kept_) {
    google::rpc::BadRequest::FieldViolation* violation = details.add_field_violations();
    violation->set_field(field);
    violation->set_description(description);
    if (message.size() + field.size() + description.size() < kMaxMessageBytes - 64) {
      absl::StrAppend(&message, separator, field, ": ", description);
      separator = "; ";
      ++named;
    }
  }
  if (named < total_) absl::StrAppend(&message, "; and ", total_ - named, " more");
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kBadRequestUrl, absl::Cord(details.SerializeAsString()));
  return status;
}

std::string Quoted(const std::string& text) {
  constexpr size_t kMaxQuoted = 64;
  const std::string escaped = absl::CHexEscape(text.substr(0, kMaxQuoted));
  return absl::StrCat("\"", escaped, text.size() > kMaxQuoted ? "...\"" : "\"");
}

absl::Status InvalidField(std::string field, std::string description) {
  Violations violations;
  violations.Add(std::move(field), std::move(description));
  return violations.ToStatus();
}

absl::Status WithRetryAfter(absl::Status status, absl::Duration delay) {
  google::rpc::RetryInfo info;
  info.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(delay));
  info.mutable_retry_delay()->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(delay - absl::Seconds(absl::ToInt64Seconds(delay)))));
  status.SetPayload(kRetryInfoUrl, absl::Cord(info.SerializeAsString()));
  return status;
}

std::optional<absl::Duration> RetryAfter(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryInfoUrl);
  google::rpc::RetryInfo info;
  if (!payload || !info.ParseFromString(std::string(*payload))) return std::nullopt;
  return absl::Seconds(info.retry_delay().seconds()) + absl::Nanoseconds(info.retry_delay().nanos());
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status details;
  status.ForEachPayload([&details](absl::string_view url, const absl::Cord& payload) {
    if (url.substr(0, sizeof(kTypePrefix) - 1) != kTypePrefix) return;
    google::protobuf::Any* any = details.add_details();
    any->set_type_url(std::string(url));
    any->set_value(std::string(payload));
  });
  const std::string message = Cut(std::string(status.message()), kMaxMessageBytes);
  const grpc::StatusCode code = static_cast<grpc::StatusCode>(status.raw_code());
  if (details.details().empty()) return grpc::Status(code, message);
  details.set_code(status.raw_code());
  details.set_message(message);
  return grpc::Status(code, message, details.SerializeAsString());
}

grpc::Status FinishStatus(const absl::Status& status, grpc::CallbackServerContext* context) {
  if (const std::optional<absl::Duration> delay = RetryAfter(status)) {
    context->AddTrailingMetadata(kPushbackTrailer, absl::StrCat(absl::ToInt64Milliseconds(*delay)));
  }
  return ToGrpcStatus(status);
}

}  // namespace tessera
