#include "tests/ptx/tensor/smem_descriptor.h"

#include "absl/strings/str_format.h"

namespace tessera::ptx {
namespace {

// Sizes and offsets are 18 bits wide, in units of 16 bytes.
constexpr uint32_t kFieldLimit = 1u << 18;

uint64_t Bits(uint64_t word, int first, int last) {
  return (word >> first) & ((uint64_t{1} << (last - first + 1)) - 1);
}

absl::Status RequireZero(uint64_t word, int first, int last) {
  const uint64_t value = Bits(word, first, last);
  if (value == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "matrix descriptor 0x%016x: reserved bits %d-%d hold %d, must be 0", word, first, last, value));
}

absl::StatusOr<Swizzle> DecodeSwizzle(DescriptorTarget target, uint64_t word) {
  if (target == DescriptorTarget::kSm90) {
    constexpr Swizzle kCodes[] = {Swizzle::kNone, Swizzle::k128B, Swizzle::k64B, Swizzle::k32B};
    return kCodes[Bits(word, 62, 63)];
  }
  switch (Bits(word, 61, 63)) {
    case 0:
      return Swizzle::kNone;
    case 1:
      return Swizzle::k128B32BAtom;
    case 2:
      return Swizzle::k128B;
    case 4:
      return Swizzle::k64B;
    case 6:
      return Swizzle::k32B;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("matrix descriptor 0x%016x: layout code %d in bits 61-63 does not exist on sm_100 (0 "
                      "none, 1 128B with 32B atoms, "
                      "2 128B, 4 64B, 6 32B)",
                      word, Bits(word, 61, 63)));
}

absl::Status CheckField(std::string_view name, uint32_t value) {
  if (value % 16 != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("matrix descriptor: %s %d is no multiple of 16 bytes", name, value));
  }
  if (value >= kFieldLimit) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "matrix descriptor: %s %d does not fit 18 bits (limit %d bytes)", name, value, kFieldLimit));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::kNone:
      return "none";
    case Swizzle::k32B:
      return "32B";
    case Swizzle::k64B:
      return "64B";
    case Swizzle::k128B:
      return "128B";
    case Swizzle::k128B32BAtom:
      return "128B with 32B atoms";
  }
  return "?";
}

int SwizzleWidth(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::kNone:
      return 16;
    case Swizzle::k32B:
      return 32;
    case Swizzle::k64B:
      return 64;
    case Swizzle::k128B:
    case Swizzle::k128B32BAtom:
      return 128;
  }
  return 16;
}

int SwizzlePeriod(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::kNone:
      return 16;
    case Swizzle::k32B:
      return 256;
    case Swizzle::k64B:
      return 512;
    case Swizzle::k128B:
      return 1024;
    case Swizzle::k128B32BAtom:
      return 512;
  }
  return 16;
}

std::string_view Name(Major major) { return major == Major::kK ? "K-major" : "MN-major"; }

std::string MatrixDescriptor::ToString() const {
  return absl::StrFormat("{start 0x%x, LBO %d%s, SBO %d, base offset %d, swizzle %s}", start_address,
                         leading_offset, leading_is_absolute ? " (absolute)" : "", stride_offset, base_offset,
                         Name(swizzle));
}

absl::StatusOr<MatrixDescriptor> DecodeDescriptor(DescriptorTarget target, uint64_t bits) {
  for (auto [first, last] : {std::pair{14, 15}, std::pair{30, 31}}) {
    if (absl::Status status = RequireZero(bits, first, last); !status.ok()) return status;
  }
  if (target == DescriptorTarget::kSm100) {
    if (Bits(bits, 46, 48) != 1) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "matrix descriptor 0x%016x: bits 46-48 hold %d, must be 0b001 on sm_100%s", bits,
          Bits(bits, 46, 48), Bits(bits, 46, 48) == 0 ? "; 0 there is the form of sm_90 (wgmma)" : ""));
    }
    if (absl::Status status = RequireZero(bits, 53, 60); !status.ok()) return status;
  } else {
    if (Bits(bits, 46, 48) != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "matrix descriptor 0x%016x: bits 46-48 hold %d, must be 0 on sm_90%s", bits, Bits(bits, 46, 48),
          Bits(bits, 46, 48) == 1 ? "; 0b001 there is the form of sm_100 (tcgen05)" : ""));
    }
    if (absl::Status status = RequireZero(bits, 52, 61); !status.ok()) return status;
  }
  absl::StatusOr<Swizzle> swizzle = DecodeSwizzle(target, bits);
  if (!swizzle.ok()) return swizzle.status();

  MatrixDescriptor descriptor;
  descriptor.start_address = static_cast<uint32_t>(Bits(bits, 0, 13) << 4);
  descriptor.leading_offset = static_cast<uint32_t>(Bits(bits, 16, 29) << 4);
  descriptor.stride_offset = static_cast<uint32_t>(Bits(bits, 32, 45) << 4);
  descriptor.base_offset = static_cast<uint8_t>(Bits(bits, 49, 51));
  descriptor.leading_is_absolute = target == DescriptorTarget::kSm100 && Bits(bits, 52, 52) != 0;
  descriptor.swizzle = *swizzle;
  if (descriptor.leading_is_absolute) {
    return absl::InvalidArgumentError(
        absl::StrFormat("matrix descriptor 0x%016x: bit 52 makes the leading offset an absolute address, "
                        "which only sm_103a has",
                        bits));
  }
  if (descriptor.base_offset != 0 && descriptor.swizzle == Swizzle::kNone) {
    return absl::InvalidArgumentError(
        absl::StrFormat("matrix descriptor 0x%016x: base offset %d without a swizzle, must be 0", bits,
                        descriptor.base_offset));
  }
  return descriptor;
}

absl::StatusOr<uint64_t> EncodeDescriptor(DescriptorTarget target, const MatrixDescriptor& descriptor) {
  for (auto [name, value] : {std::pair{"start address", descriptor.start_address},
                             std::pair{"leading dimension offset", descriptor.leading_offset},
                             std::pair{"stride dimension offset", descriptor.stride_offset}}) {
    if (absl::Status status = CheckField(name, value); !status.ok()) return status;
  }
  if (descriptor.base_offset > 7) {
    return absl::InvalidArgumentError(
        absl::StrFormat("matrix descriptor: base offset %d does not fit three bits", descriptor.base_offset));
  }
  uint64_t code = 0;
  switch (descriptor.swizzle) {
    case Swizzle::kNone:
      break;
    case Swizzle::k32B:
      code = target == DescriptorTarget::kSm90 ? uint64_t{3} << 62 : uint64_t{6} << 61;
      break;
    case Swizzle::k64B:
      code = target == DescriptorTarget::kSm90 ? uint64_t{2} << 62 : uint64_t{4} << 61;
      break;
    case Swizzle::k128B:
      code = target == DescriptorTarget::kSm90 ? uint64_t{1} << 62 : uint64_t{2} << 61;
      break;
    case Swizzle::k128B32BAtom:
      if (target == DescriptorTarget::kSm90) {
        return absl::InvalidArgumentError("matrix descriptor: sm_90 has no 128B swizzle with 32B atoms");
      }
      code = uint64_t{1} << 61;
      break;
  }
  if (target == DescriptorTarget::kSm90 && descriptor.leading_is_absolute) {
    return absl::InvalidArgumentError("matrix descriptor: sm_90 has no absolute leading address");
  }
  return static_cast<uint64_t>(descriptor.start_address >> 4) |
         static_cast<uint64_t>(descriptor.leading_offset >> 4) << 16 |
         static_cast<uint64_t>(descriptor.stride_offset >> 4) << 32 |
         (target == DescriptorTarget::kSm100 ? uint64_t{1} << 46 : 0) |
         static_cast<uint64_t>(descriptor.base_offset) << 49 |
         static_cast<uint64_t>(descriptor.leading_is_absolute) << 52 | code;
}

absl::Status CheckOperand(const MatrixDescriptor& descriptor, Major major, int element_bits, int rows,
                          int k_chunks) {
  const auto refuse = [&](std::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s operand with descriptor %s: %s", Name(major), descriptor.ToString(), why));
  };
  const Swizzle swizzle = descriptor.swizzle;
  if (major == Major::kK && swizzle == Swizzle::k128B32BAtom) {
    return refuse("the 128B swizzle with 32B atoms exists for MN-major 32-bit elements only");
  }
  if (major == Major::kMN && element_bits != 8 && element_bits != 16 && element_bits != 32) {
    return refuse(absl::StrFormat("elements of %d bits have no MN-major form", element_bits));
  }
  if (major == Major::kMN && (swizzle == Swizzle::k128B32BAtom) != (element_bits == 32)) {
    return refuse(element_bits == 32
                      ? "MN-major 32-bit elements need the 128B swizzle with 32B atoms"
                      : "the 128B swizzle with 32B atoms exists for MN-major 32-bit elements only");
  }

  // Row 0 of the operand must be row 0 of an atom: the start may lie anywhere in that row (an advance along K), but
  // a start in a later row puts the rows that follow it into another period of the pattern.
  if (swizzle != Swizzle::kNone) {
    const uint32_t period = SwizzlePeriod(swizzle);
    const uint32_t width = SwizzleWidth(swizzle);
    const uint32_t pattern = static_cast<uint32_t>(descriptor.base_offset) << 7;
    const uint32_t into = (descriptor.start_address - pattern) % period;
    if (into >= width) {
      return refuse(
          absl::StrFormat("the start lies %d bytes into the swizzle pattern, outside the first row of %d "
                          "bytes; align the tile to %d "
                          "bytes (tiles that start elsewhere need the base offset)",
                          into, width, period));
    }
    if (major == Major::kK && into % 32 != 0) {
      return refuse(
          absl::StrFormat("the start lies %d bytes into its row; steps along K are 32 bytes, so the tile is "
                          "misplaced: align the tile to "
                          "%d bytes",
                          into, period));
    }
    if (major == Major::kK && into + 16 * k_chunks > width) {
      return refuse(
          absl::StrFormat("the %d bytes of K starting %d bytes into a row leave the row of %d bytes",
                          16 * k_chunks, into, width));
    }
  }

  // A stride of zero makes two different parts of the operand the same bytes. The leading offset of a swizzled MN-major
  // operand is let be: rows of M that repeat an atom are how a kernel pads a tile without memory for it.
  const int chunk_elements = 128 / element_bits;
  const int k_elements = k_chunks * chunk_elements;
  const auto need = [&](std::string_view name, uint32_t value, std::string_view between) {
    return value != 0 ? absl::OkStatus() : refuse(absl::StrFormat("%s is 0 but separates %s", name, between));
  };
  if (major == Major::kK) {
    if (rows > 8) {
      if (absl::Status s = need("SBO", descriptor.stride_offset, "the groups of 8 rows"); !s.ok()) return s;
    }
    if (swizzle == Swizzle::kNone && k_chunks > 1) {
      return need("LBO", descriptor.leading_offset, "the 16-byte columns of K");
    }
    return absl::OkStatus();
  }
  const int atom_k = swizzle == Swizzle::k128B32BAtom ? 4 : 8;
  const bool swapped = swizzle == Swizzle::kNone;  // without a swizzle LBO and SBO trade places
  if (swapped && rows > chunk_elements) {
    if (absl::Status s = need("SBO", descriptor.stride_offset, "the chunks of M or N"); !s.ok()) return s;
  }
  if (k_elements > atom_k) {
    return need(swapped ? "LBO" : "SBO", swapped ? descriptor.leading_offset : descriptor.stride_offset,
                absl::StrFormat("the groups of %d K", atom_k));
  }
  return absl::OkStatus();
}

}  // namespace tessera::ptx
