// The puzzles of a first attempt at Blackwell kernels (tests/ptx/blackwell-notes.md), on PTX that nvcc made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/ptx/emulator.h"
#include "tests/ptx/tensor/puzzles.h"
#include "tests/ptx/tensor/tensor_kernel.h"

namespace tessera::ptx {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace puzzles;

constexpr uint32_t kRows = 128;
constexpr uint32_t kKeys = 64;
constexpr uint32_t kTiles = (kRows + kKeys) * 128;  // bytes

class PuzzlesTest : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef TESSERA_PUZZLES_PTX
    std::ifstream file(TESSERA_PUZZLES_PTX);
    ASSERT_TRUE(file) << "cannot read " << TESSERA_PUZZLES_PTX;
    ptx_.assign(std::istreambuf_iterator<char>(file), {});
#else
    GTEST_SKIP() << "built without nvcc, which makes the PTX of these kernels";
#endif
  }

  // Parameters: pointers and integers, as the kernels take them.
  absl::Status Launch(std::string_view entry, const std::vector<std::byte>& params, GlobalMemory& memory,
                      uint32_t shared_bytes) {
    LaunchConfig config;
    config.block = {128, 1, 1};
    config.dynamic_shared_bytes = shared_bytes;
    ExecutionOptions options;
    options.threads = 1;
    return LaunchEntry(ptx_, entry, config, params, memory, options);
  }

  // Q and K hold small integers; s gets what the kernel wrote.
  absl::Status Qk(uint32_t head_dim, uint32_t offset, Mistake mistake, uint32_t shared_bytes) {
    q_.assign(kRows * head_dim, 0);
    k_.assign(kKeys * head_dim, 0);
    for (size_t i = 0; i < q_.size(); ++i) q_[i] = Bf16(static_cast<int>(i * 7 % 11) - 5);
    for (size_t i = 0; i < k_.size(); ++i) k_[i] = Bf16(static_cast<int>(i * 5 % 13) - 6);
    s_.assign(kRows * kKeys, 0);
    GlobalMemory memory;
    memory.Add(q_.data(), q_.size() * 2, "q");
    memory.Add(k_.data(), k_.size() * 2, "k");
    memory.Add(s_.data(), s_.size() * 4, "s");
    std::vector<std::byte> params;
    Put(params, q_.data());
    Put(params, k_.data());
    Put(params, s_.data());
    Put(params, offset);
    Put(params, mistake);
    return Launch(head_dim == 16 ? "qk_16" : "qk_64", params, memory, shared_bytes);
  }
  absl::Status Qk(uint32_t head_dim, Mistake mistake = kNone) { return Qk(head_dim, 0, mistake, kTiles); }
  std::string QkFault(uint32_t head_dim, Mistake mistake, uint32_t offset = 0) {
    const absl::Status status = Qk(head_dim, offset, mistake, offset + kTiles);
    EXPECT_FALSE(status.ok()) << "ran without a fault";
    return std::string(status.message());
  }

  float Dot(uint32_t row, uint32_t key, uint32_t head_dim) const {
    float sum = 0;
    for (uint32_t i = 0; i < head_dim; ++i)
      sum += Value(q_[row * head_dim + i]) * Value(k_[key * head_dim + i]);
    return sum;
  }
  void ExpectDots(uint32_t head_dim) {
    for (uint32_t row = 0; row < kRows; ++row) {
      for (uint32_t key = 0; key < kKeys; ++key)
        ASSERT_EQ(s_[row * kKeys + key], Dot(row, key, head_dim)) << row << " " << key;
    }
  }

  absl::Status Stores(uint32_t columns, uint32_t step, uint32_t count) {
    out_.assign(128 * 32, ~0u);
    GlobalMemory memory;
    memory.Add(out_.data(), out_.size() * 4, "out");
    std::vector<std::byte> params;
    Put(params, out_.data());
    Put(params, columns);
    Put(params, step);
    Put(params, count);
    return Launch("stores", params, memory, 0);
  }
  std::string StoresFault(uint32_t columns, uint32_t step, uint32_t count) {
    const absl::Status status = Stores(columns, step, count);
    EXPECT_FALSE(status.ok()) << "ran without a fault";
    return std::string(status.message());
  }

  static uint16_t Bf16(int value) {
    return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
  }
  static float Value(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  template <class T>
  static void Put(std::vector<std::byte>& params, const T& value) {
    const size_t at = (params.size() + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    params.resize(at + sizeof(T));
    std::memcpy(&params[at], &value, sizeof(T));
  }

  std::string ptx_;
  std::vector<uint16_t> q_, k_;
  std::vector<float> s_;
  std::vector<uint32_t> out_;
};

// "The MMA's result is exactly four times the reference." With head dim 16 it is the reference that is a quarter: it had
// the softmax scale 1/sqrt(16) in it. The ratio follows the head dim, which a factor of the hardware would not.
TEST_F(PuzzlesTest, RatioOfFour) {
  for (uint32_t head_dim : {16u, 64u}) {
    ASSERT_TRUE(Qk(head_dim).ok());
    ExpectDots(head_dim);  // ratio 1 against the raw product
    const float scaled = Dot(3, 5, head_dim) / std::sqrt(static_cast<float>(head_dim));
    ASSERT_NE(scaled, 0);
    EXPECT_EQ(s_[3 * kKeys + 5] / scaled, head_dim == 16 ? 4 : 8);
  }
}

// "The second tcgen05.st crashes." One 16x256b.x1 covers 16 lanes by 8 columns: the next starts 8 columns on, or 16 lanes.
TEST_F(PuzzlesTest, StoresInARow) {
  ASSERT_TRUE(Stores(32, 8, 4).ok()) << Stores(32, 8, 4);
  for (uint32_t thread = 0; thread < 128; ++thread) {
    for (uint32_t column = 0; column < 32; ++column) {
      ASSERT_EQ(out_[thread * 32 + column], thread % 32 < 16 ? column / 8 + 1 : 0);
    }
  }
  ASSERT_TRUE(Stores(32, 16 << 16, 2).ok());
  EXPECT_EQ(out_[16 * 32], 2u);
  // Advanced in bytes: 32 bytes a row of 8 columns.
  EXPECT_THAT(StoresFault(32, 32, 2), HasSubstr("touches columns 32-39 of tensor memory; allocated: 0-31"));
  // Advanced by the 8 rows of a register.
  EXPECT_THAT(StoresFault(32, 8 << 16, 2), HasSubstr(".16x256b starts at lane"));
  // Advanced by 32 lanes: the next warp's quarter.
  EXPECT_THAT(StoresFault(32, 32 << 16, 2), HasSubstr("reaches lanes"));
  // By the 4 registers of a thread: the second store lands on half of the first, and nothing says which wins.
  EXPECT_THAT(StoresFault(32, 4, 2), HasSubstr("that store needs tcgen05.wait::st by its warp first"));
}

// A descriptor's address has 14 bits of 16-byte units: 256 KB, all of shared memory.
TEST_F(PuzzlesTest, DescriptorAbove128KB) {
  constexpr uint32_t kOffset = 200 * 1024;
  ASSERT_TRUE(Qk(64, kOffset, kNone, kOffset + kTiles).ok());
  ExpectDots(64);
  EXPECT_THAT(QkFault(64, kShortAddress, kOffset),
              AllOf(HasSubstr("tcgen05.mma"), HasSubstr("nothing has written")));
}

// "All zeros, and printf prints nothing." The kernel never ran: it asked for more shared memory than a CTA can have.
TEST_F(PuzzlesTest, LaunchThatNeverRan) {
  const absl::Status status = Qk(64, 0, kNone, 228 * 1024);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("shared"), HasSubstr("232448")));
  EXPECT_EQ(s_, std::vector<float>(kRows * kKeys, 0.0f));
}

// "It hangs": ld is the whole warp's instruction.
TEST_F(PuzzlesTest, LoadUnderABranchOfOneThread) {
  EXPECT_THAT(QkFault(64, kOneThreadLoads),
              AllOf(HasSubstr("needs all lanes of the warp"), HasSubstr("tcgen05.cuh")));
}

TEST_F(PuzzlesTest, MisalignedAddressAtTheMma) {
  EXPECT_THAT(QkFault(64, kInstructionFromMatrix), HasSubstr("instruction descriptor of kind::f16"));
  EXPECT_THAT(QkFault(64, kNone, 128), HasSubstr("align the tile to 1024 bytes"));
  EXPECT_THAT(QkFault(64, kNone, 16), HasSubstr("align the tile to 1024 bytes"));
  EXPECT_THAT(QkFault(64, kRowMajorAsNone), HasSubstr("SBO is 0 but separates the groups of 8 rows"));
}

// A swizzle that is no permutation leaves bytes that nothing wrote.
TEST_F(PuzzlesTest, SwizzleThatIsNoPermutation) {
  EXPECT_THAT(QkFault(64, kNoExclusiveOr), AllOf(HasSubstr("tcgen05.mma"), HasSubstr("nothing has written")));
}

TEST_F(PuzzlesTest, BarrierInsteadOfCommit) {
  EXPECT_THAT(QkFault(64, kNoWait),
              HasSubstr("has not completed; needs tcgen05.commit and a wait on its mbarrier"));
}

}  // namespace
}  // namespace tessera::ptx
