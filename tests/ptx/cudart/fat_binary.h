// The PTX inside the fat binary that nvcc puts into an object file and __cudaRegisterFatBinary gets.
//
// The layout is not documented; this is what nvcc 13.0 writes for `-gencode=arch=compute_90a,code=compute_90a
// --compress-mode=none`: a wrapper (fatbinary_section.h), a container header, and entries, each with a header, a name
// and a payload. Anything unexpected is refused.
#ifndef TESSERA_TESTS_PTX_CUDART_FAT_BINARY_H_
#define TESSERA_TESTS_PTX_CUDART_FAT_BINARY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::ptx {

struct PtxImage {
  int arch = 0;      // 90 for sm_90 and sm_90a
  std::string name;  // of the source file
  std::string text;
};

// `wrapper` is what __cudaRegisterFatBinary gets. Machine code in it is passed over; a compressed PTX entry is
// Unimplemented.
absl::StatusOr<std::vector<PtxImage>> ReadFatBinary(const void* wrapper);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_CUDART_FAT_BINARY_H_
