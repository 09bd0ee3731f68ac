#ifndef TESSERA_SERVER_ENGINE_UNSHARED_STATUS_H_
#define TESSERA_SERVER_ENGINE_UNSHARED_STATUS_H_

#include "absl/status/status.h"

namespace tessera {

// A copy that shares nothing, for a status that goes to another thread while others keep theirs. Plain copies share a
// reference count inside the Abseil library: correct, but a library that was built without ThreadSanitizer hides it,
// and each such copy would be reported as a race. Payloads stay behind.
inline absl::Status Unshared(const absl::Status& status) { return absl::Status(status.code(), status.message()); }

}  // namespace tessera

#endif  // TESSERA_SERVER_ENGINE_UNSHARED_STATUS_H_
