// Races between warps, and the same kernels put in order.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ptx/testing/mini_kernel.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Two warps; %p1 is the first one's, %r2 the address of shared memory, an mbarrier of one arrival at %r3 and an other at
// %r4, made before all is in order.
std::string RunTwoWarps(std::string_view body) {
  MiniRunner runner;
  runner.config.block.x = 64;
  runner.config.dynamic_shared_bytes = 512;
  runner.options.check_races = true;
  const absl::Status status = runner.Run(MiniKernel(Cat(R"(
mov.u32 %r1, %tid.x;
setp.lt.u32 %p1, %r1, 32;
mov.u32 %r2, 1088;
mov.u32 %r3, 1024;
mov.u32 %r4, 1032;
and.b32 %r5, %r1, 31;
setp.eq.u32 %p2, %r5, 0;
setp.eq.u32 %p3, %r1, 0;
@%p3 mbarrier.init.shared.b64 [%r3], 1;
@%p3 mbarrier.init.shared.b64 [%r4], 1;
@%p3 st.shared.u32 [%r2], 0;
bar.sync 0;
)",
                                                        body)));
  return status.ok() ? "" : std::string(status.message());
}

TEST(Races, WriteThenReadNeedsABarrier) {
  EXPECT_THAT(RunTwoWarps("@%p3 st.shared.u32 [%r2], 7;\n @!%p1 ld.shared.u32 %r6, [%r2];"),
              AllOf(HasSubstr("data race: a "), HasSubstr(" of shared offset 0x440")));
  EXPECT_EQ(RunTwoWarps("@%p3 st.shared.u32 [%r2], 7;\n bar.sync 1;\n @!%p1 ld.shared.u32 %r6, [%r2];"), "");
}

TEST(Races, ReadThenWriteNeedsABarrier) {
  EXPECT_THAT(RunTwoWarps("@%p1 ld.shared.u32 %r6, [%r2];\n @!%p1 st.shared.u32 [%r2], %r5;"),
              AllOf(HasSubstr("data race: a "), HasSubstr(" of shared offset 0x440")));
  EXPECT_EQ(RunTwoWarps("@%p1 ld.shared.u32 %r6, [%r2];\n bar.sync 1;\n @!%p1 st.shared.u32 [%r2], %r5;"),
            "");
}

TEST(Races, BarrierOfOthersDoesNotHelp) {
  EXPECT_THAT(
      RunTwoWarps("@%p3 st.shared.u32 [%r2], 7;\n @%p1 bar.sync 1, 32;\n @!%p1 bar.sync 2, 32;\n @!%p1 "
                  "ld.shared.u32 %r6, [%r2];"),
      HasSubstr("data race"));
}

TEST(Races, SameValueAndSeparateBytesAreNone) {
  EXPECT_EQ(RunTwoWarps("@%p2 st.shared.u32 [%r2], 0;"), "");
  EXPECT_EQ(RunTwoWarps("@!%p1 add.u32 %r2, %r2, 2;\n mov.b16 %rs1, 5;\n @%p2 st.shared.u16 [%r2], %rs1;"),
            "");
}

TEST(Races, MbarrierOrders) {
  const std::string wait = "W: mbarrier.try_wait.parity.shared.b64 %p4, [%r3], 0;\n @!%p4 bra W;\n";
  EXPECT_EQ(
      RunTwoWarps(Cat("@!%p1 bra R;\n @%p3 st.shared.u32 [%r2], 7;\n @%p3 mbarrier.arrive.shared.b64 _, "
                      "[%r3];\n bra E;\nR:\n",
                      wait, "ld.shared.u32 %r6, [%r2];\nE:\n")),
      "");
  // The store comes after the arrival.
  EXPECT_THAT(
      RunTwoWarps(Cat("@!%p1 bra R;\n @%p3 mbarrier.arrive.shared.b64 _, [%r3];\n @%p3 st.shared.u32 [%r2], "
                      "7;\n bra E;\nR:\n",
                      wait, "ld.shared.u32 %r6, [%r2];\nE:\n")),
      HasSubstr("data race"));
}

TEST(Races, StageGivenBackTooEarly) {
  // The consumer arrives at `empty` before it has read; the producer writes the stage again.
  const std::string producer =
      "@!%p1 bra C;\n @%p3 st.shared.u32 [%r2], 7;\n @%p3 mbarrier.arrive.shared.b64 _, [%r3];\n"
      "P: mbarrier.try_wait.parity.shared.b64 %p4, [%r4], 0;\n @!%p4 bra P;\n @%p3 st.shared.u32 [%r2], 8;\n "
      "bra E;\nC:\n"
      "W: mbarrier.try_wait.parity.shared.b64 %p4, [%r3], 0;\n @!%p4 bra W;\n";
  const std::string arrive = "@%p2 mbarrier.arrive.shared.b64 _, [%r4];\n",
                    read = "ld.shared.u32 %r6, [%r2];\n";
  EXPECT_EQ(RunTwoWarps(Cat(producer, read, arrive, "E:\n")), "");
  EXPECT_THAT(RunTwoWarps(Cat(producer, arrive, "nanosleep.u32 1;\n", read, "E:\n")), HasSubstr("data race"));
}

TEST(Races, AtomicsAndFlagsOrder) {
  EXPECT_EQ(RunTwoWarps("@%p2 atom.shared.add.u32 %r6, [%r2], 1;"), "");
  EXPECT_EQ(RunTwoWarps(R"(
@!%p1 bra R;
@%p3 st.shared.u32 [%r2+4], 9;
@%p3 st.release.cta.global.u32 [%rd0], 1;
bra E;
R: ld.acquire.cta.global.u32 %r6, [%rd0];
setp.eq.u32 %p5, %r6, 0;
@%p5 bra R;
ld.shared.u32 %r7, [%r2+4];
E:
)"),
            "");
}

}  // namespace
}  // namespace tessera::ptx
