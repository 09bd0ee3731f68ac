#include "client/status.h"

#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/tessera_client.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace tessera {
namespace {

constexpr char kBadRequestUrl[] = "type.googleapis.com/google.rpc.BadRequest";

// The serialized BadRequest among the details of a serialized google.rpc.Status; empty if there is none.
std::string FindBadRequest(const std::string& serialized) {
  google::rpc::Status status;
  if (!status.ParseFromString(serialized)) return "";
  for (const google::protobuf::Any& detail : status.details()) {
    if (detail.type_url() == kBadRequestUrl) return detail.value();
  }
  return "";
}

std::vector<FieldViolation> ParseBadRequest(const std::string& serialized) {
  google::rpc::BadRequest bad_request;
  if (!bad_request.ParseFromString(serialized)) return {};
  std::vector<FieldViolation> violations;
  for (const auto& violation : bad_request.field_violations()) {
    violations.push_back({violation.field(), violation.description()});
  }
  return violations;
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  // The two enumerations share their numbers; a code outside them becomes UNKNOWN in absl.
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  const std::string bad_request = FindBadRequest(status.error_details());
  std::string message = status.error_message();
  for (const FieldViolation& violation : ParseBadRequest(bad_request)) {
    if (absl::StrContains(message, violation.description)) continue;
    absl::StrAppend(&message, "\n  ", violation.field, ": ", violation.description);
  }
  absl::Status result(code, message);
  if (!bad_request.empty()) result.SetPayload(kBadRequestUrl, absl::Cord(bad_request));
  return result;
}

std::optional<int64_t> RetryPushback(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find("grpc-retry-pushback-ms");
  if (found == trailers.end()) return std::nullopt;
  int64_t value;
  if (!absl::SimpleAtoi(absl::string_view(found->second.data(), found->second.size()), &value)) return -1;
  return value;
}

std::vector<FieldViolation> FieldViolations(const absl::Status& status) {
  const auto payload = status.GetPayload(kBadRequestUrl);
  if (!payload.has_value()) return {};
  return ParseBadRequest(std::string(*payload));
}

}  // namespace tessera
