#ifndef TESSERA_SERVER_BACKEND_LOAD_PROGRESS_H_
#define TESSERA_SERVER_BACKEND_LOAD_PROGRESS_H_

#include <cstdint>

namespace tessera {

// How far a backend has got with loading a checkpoint's weights.
struct LoadProgress {
  int64_t bytes_done = 0;
  int64_t bytes_total = 0;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_BACKEND_LOAD_PROGRESS_H_
