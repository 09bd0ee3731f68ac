#include "tests/ptx/tensor/smem_operand.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"
#include "tests/ptx/machine/fault.h"
#include "tests/ptx/tensor/canonical_layout.h"

namespace tessera::ptx {

MatrixDescriptor RequireDescriptor(DescriptorTarget target, uint64_t bits, std::string_view name) {
  absl::StatusOr<MatrixDescriptor> descriptor = DecodeDescriptor(target, bits);
  if (!descriptor.ok()) {
    Raise(Rule::kDescriptor, absl::StrFormat("%s: %s", name, descriptor.status().message()));
  }
  return *descriptor;
}

SmemRange::SmemRange(Cta& cta, std::vector<uint32_t> chunk_addresses) : shared_(&cta.shared()) {
  std::sort(chunk_addresses.begin(), chunk_addresses.end());
  for (uint32_t address : chunk_addresses) {
    if (!ranges_.empty() && address <= ranges_.back().first + ranges_.back().second) {
      ranges_.back().second = address + kChunkBytes - ranges_.back().first;
    } else {
      ranges_.push_back({address, kChunkBytes});
    }
  }
}

void SmemRange::CheckReadable() const {
  for (auto [offset, bytes] : ranges_) shared_->CheckAsyncReadable(offset, bytes);
}

void SmemRange::Begin() {
  for (auto [offset, bytes] : ranges_) shared_->BeginAsyncRead(offset, bytes);
}

void SmemRange::End() {
  for (auto [offset, bytes] : ranges_) shared_->EndAsyncRead(offset, bytes);
}

SmemOperand::SmemOperand(Cta& cta, DescriptorTarget target, uint64_t descriptor, std::string_view name,
                         Major major, ElementType type, Packing packing, int rows, int k)
    : cta_(&cta), major_(major), type_(type), packing_(packing), rows_(rows), k_(k) {
  descriptor_ = RequireDescriptor(target, descriptor, name);
  const int elements = ChunkElements(type, packing);
  const int k_chunks = k / elements;
  const int bits = packing == Packing::kPadded ? 8 : BitsOf(type);
  if (absl::Status s = CheckOperand(descriptor_, major, bits, rows, k_chunks); !s.ok()) {
    Raise(Rule::kDescriptor, absl::StrFormat("%s: %s", name, s.message()));
  }
  std::vector<uint32_t> chunks;
  if (major == Major::kK) {
    for (int row = 0; row < rows; ++row) {
      for (int chunk = 0; chunk < k_chunks; ++chunk)
        chunks.push_back(KMajorChunkAddress(descriptor_, row, chunk));
    }
  } else {
    for (int x = 0; x < k; ++x) {
      for (int chunk = 0; chunk * elements < rows; ++chunk) {
        chunks.push_back(MnMajorChunkAddress(descriptor_, x, chunk));
      }
    }
  }
  range_ = SmemRange(cta, std::move(chunks));
}

void SmemOperand::Issue() {
  range_.CheckReadable();
  range_.Begin();
}

Matrix SmemOperand::Complete() {
  absl::StatusOr<Matrix> matrix =
      LoadOperand(descriptor_, major_, type_, packing_, rows_, k_, [&](uint32_t address, uint8_t* bytes) {
        cta_->shared().AsyncLoad(address, kChunkBytes, bytes);
        return absl::OkStatus();
      });
  range_.End();
  return *std::move(matrix);
}

}  // namespace tessera::ptx
