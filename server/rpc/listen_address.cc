#include "server/rpc/listen_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera {

absl::StatusOr<HostPort> ParseHostPort(const std::string& address) {
  auto wrong = [&address](const char* why) {
    return absl::InvalidArgumentError(
        absl::StrCat("found \"", address, "\", expected HOST:PORT or [IPV6]:PORT: ", why));
  };
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return wrong("there is no port");
  HostPort out;
  out.host = address.substr(0, colon);
  if (out.host.size() >= 2 && out.host.front() == '[' && out.host.back() == ']') {
    out.host = out.host.substr(1, out.host.size() - 2);
  } else if (out.host.find(':') != std::string::npos) {
    return wrong("an IPv6 address stands in brackets");
  }
  if (out.host.empty()) return wrong("there is no host (0.0.0.0 and [::] stand for all)");
  const std::string port = address.substr(colon + 1);
  const bool digits = !port.empty() && port.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || !absl::SimpleAtoi(port, &out.port) || out.port > 65535)
    return wrong("the port is 0 to 65535");
  return out;
}

absl::Status CheckCanListen(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return absl::OkStatus();
  absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) return parsed.status();
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(parsed->host.c_str(), absl::StrCat(parsed->port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  int cause = 0;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    const int fd = socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC, info->ai_protocol);
    if (fd < 0) {
      cause = errno;
      continue;
    }
    const int on = 1;  // as gRPC does: a port whose old connections linger may be taken
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    const bool ok = bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, 1) == 0;
    cause = errno;
    close(fd);
    if (ok) return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", std::strerror(cause)));
}

}  // namespace tessera
