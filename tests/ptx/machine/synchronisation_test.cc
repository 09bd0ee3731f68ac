// Divergence, barriers, mbarriers, clusters, asynchronous copies: what waits for what, and the deadlock report.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ptx/testing/mini_kernel.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

using ::testing::HasSubstr;

// %r1 = tid, %rd2 = address of the thread's own word.
constexpr const char* kOwnWord =
    "mov.u32 %r1, %tid.x;\n mul.wide.u32 %rd1, %r1, 8;\n add.s64 %rd2, %rd0, %rd1;\n";

TEST(Divergence, LanesMeetBehindABranch) {
  MiniRunner runner;
  // An aligned barrier after an if with a loop in one arm and an early way out of it: all lanes must be together again.
  ASSERT_EQ(runner.Run(MiniKernel(Cat(kOwnWord, R"(
mov.u32 %r2, 0;
and.b32 %r3, %r1, 3;
setp.eq.u32 %p1, %r3, 0;
@%p1 bra JOIN;
LOOP:
add.u32 %r2, %r2, 1;
setp.ge.u32 %p2, %r2, %r1;
@%p2 bra JOIN;
setp.eq.u32 %p3, %r2, 20;
@%p3 bra OUT;
bra LOOP;
OUT:
add.u32 %r2, %r2, 1000;
JOIN:
bar.sync 0;
activemask.b32 %r4;
cvt.u64.u32 %rd3, %r2;
cvt.u64.u32 %rd4, %r4;
shl.b64 %rd4, %rd4, 32;
or.b64 %rd3, %rd3, %rd4;
st.global.u64 [%rd2], %rd3;
)"))),
            absl::OkStatus());
  for (uint32_t l = 0; l < 32; ++l) {
    const uint32_t want = l % 4 == 0 ? 0 : l <= 20 ? l : 1020;
    EXPECT_EQ(runner.words[l], uint64_t{0xFFFFFFFF} << 32 | want) << l;
  }
}

TEST(Divergence, LaneWaitsForALaterLaneOfItsWarp) {
  // Lane 0 spins, in the earlier block, on an mbarrier that lane 1 arrives at in the later one.
  MiniRunner runner;
  runner.config.dynamic_shared_bytes = 64;
  EXPECT_EQ(runner.Run(MiniKernel(R"(
mov.u32 %r1, %tid.x;
mov.u32 %r2, 1024;
setp.ne.u32 %p1, %r1, 0;
@!%p1 mbarrier.init.shared.b64 [%r2], 1;
bar.warp.sync -1;
@%p1 bra OTHER;
WAIT:
mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0;
@!%p2 bra WAIT;
bra END;
OTHER:
setp.eq.u32 %p3, %r1, 1;
@%p3 mbarrier.arrive.shared.b64 _, [%r2];
END:
)")),
            absl::OkStatus());
}

TEST(Divergence, LaneSpinsOnMemoryThatALaterLaneWrites) {
  MiniRunner runner;
  EXPECT_EQ(runner.Run(MiniKernel(R"(
mov.u32 %r1, %tid.x;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra OTHER;
WAIT:
ld.volatile.global.u32 %r2, [%rd0];
setp.eq.u32 %p2, %r2, 0;
@%p2 bra WAIT;
bra END;
OTHER:
st.volatile.global.u32 [%rd0], 1;
END:
)")),
            absl::OkStatus());
}

TEST(Divergence, LanesThatWereOvertakenAreAwaitedAtAnAlignedInstruction) {
  // Lane 0 alone counts for longer than the others' patience; they come to the barrier, and wait there.
  MiniRunner runner;
  ASSERT_EQ(runner.Run(MiniKernel(Cat(kOwnWord, R"(
mov.u32 %r2, 0;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra JOIN;
LOOP: add.u32 %r2, %r2, 1;
setp.lt.u32 %p2, %r2, 100000;
@%p2 bra LOOP;
JOIN: mov.u32 %r3, 7;
bar.sync 0;
activemask.b32 %r4;
cvt.u64.u32 %rd4, %r4;
st.global.u64 [%rd2], %rd4;
)"))),
            absl::OkStatus());
  for (int l = 0; l < 32; ++l) EXPECT_EQ(runner.words[l], 0xFFFFFFFFu);
}

TEST(Divergence, ShuffleGathersLanesFromBothArms) {
  // The arms run one after the other; the shuffle behind the join names all lanes.
  MiniRunner runner;
  ASSERT_EQ(runner.Run(MiniKernel(Cat(kOwnWord, R"(
setp.lt.u32 %p1, %r1, 16;
@%p1 bra A;
mul.lo.u32 %r2, %r1, 3;
bra J;
A: mul.lo.u32 %r2, %r1, 5;
J: shfl.sync.bfly.b32 %r3|%p2, %r2, 16, 31, -1;
cvt.u64.u32 %rd3, %r3;
st.global.u64 [%rd2], %rd3;
)"))),
            absl::OkStatus());
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(runner.words[l], (l ^ 16) < 16 ? (l ^ 16) * 5 : (l ^ 16) * 3);
}

TEST(Divergence, IndexedBranchAndCall) {
  MiniRunner runner;
  const std::string module = R"(
.func (.param .b32 r) triple(.param .b32 a)
{
.reg .b32 %t<4>;
ld.param.u32 %t0, [a];
setp_free: mul.lo.u32 %t1, %t0, 3;
st.param.b32 [r], %t1;
ret;
}
)";
  ASSERT_EQ(runner.Run(MiniKernel(Cat(kOwnWord, R"(
and.b32 %r3, %r1, 3;
T: .branchtargets A, B, C, D;
brx.idx %r3, T;
A: mov.u32 %r2, 10; bra E;
B: mov.u32 %r2, 11; bra E;
C:
{
.param .b32 p0;
st.param.b32 [p0], %r1;
.param .b32 q0;
call.uni (q0), triple, (p0);
ld.param.b32 %r2, [q0];
}
bra E;
D: mov.u32 %r2, 13;
E: bar.sync 0;
cvt.u64.u32 %rd3, %r2;
st.global.u64 [%rd2], %rd3;
)"),
                                  module)),
            absl::OkStatus());
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(runner.words[l], l % 4 == 2 ? 3 * l : 10 + l % 4) << l;
}

TEST(Barriers, NamedBarrierOfTwoWarpsLeavesTheThirdAlone) {
  MiniRunner runner;
  runner.config.block.x = 96;
  ASSERT_EQ(runner.Run(MiniKernel(R"(
mov.u32 %r1, %tid.x;
shr.u32 %r2, %r1, 5;
setp.eq.u32 %p1, %r2, 2;
@%p1 bra END;
setp.eq.u32 %p2, %r2, 0;
@%p2 st.global.u32 [%rd0], 7;
bar.sync 3, 64;
ld.global.u32 %r3, [%rd0];
setp.eq.u32 %p3, %r1, 40;
@%p3 st.global.u32 [%rd0+8], %r3;
END:
)")),
            absl::OkStatus());
  EXPECT_EQ(runner.words[1], 7u);
}

TEST(Barriers, ReductionAndExitedWarps) {
  MiniRunner runner;
  runner.config.block.x = 80;  // the last warp has 16 threads
  ASSERT_EQ(runner.Run(MiniKernel(R"(
mov.u32 %r1, %tid.x;
setp.ge.u32 %p1, %r1, 64;
@%p1 exit;
setp.lt.u32 %p2, %r1, 40;
bar.red.popc.u32 %r2, 0, %p2;
bar.red.and.pred %p3, 0, %p2;
bar.red.or.pred %p4, 0, %p2;
setp.eq.u32 %p5, %r1, 63;
selp.u32 %r3, 1, 0, %p3;
selp.u32 %r4, 1, 0, %p4;
@%p5 st.global.u32 [%rd0], %r2;
@%p5 st.global.u32 [%rd0+8], %r3;
@%p5 st.global.u32 [%rd0+16], %r4;
)")),
            absl::OkStatus());
  EXPECT_EQ(runner.words[0], 40u);
  EXPECT_EQ(runner.words[1], 0u);
  EXPECT_EQ(runner.words[2], 1u);
}

// Warp 0 hands 8 values through one slot of shared memory to warp 1, with a full and an empty barrier.
constexpr const char* kPipeline = R"(
.reg .b32 %full, %empty, %slot;
mov.u32 %full, 1024;
mov.u32 %empty, 1032;
mov.u32 %slot, 1040;
mov.u32 %r1, %tid.x;
setp.eq.u32 %p1, %r1, 0;
@%p1 mbarrier.init.shared.b64 [%full], 1;
@%p1 mbarrier.init.shared.b64 [%empty], 1;
bar.sync 0;
mov.u32 %r2, 0;
mov.u32 %r5, 0;
and.b32 %r9, %r1, 31;
setp.ne.u32 %p2, %r9, 0;
@%p2 exit;
setp.ge.u32 %p3, %r1, 32;
@%p3 bra CONSUMER;
PRODUCER:
and.b32 %r3, %r2, 1;
xor.b32 %r4, %r3, 1;
W1: mbarrier.try_wait.parity.shared.b64 %p4, [%empty], %r4;
@!%p4 bra W1;
mad.lo.u32 %r6, %r2, %r2, 5;
st.shared.u32 [%slot], %r6;
mbarrier.arrive.shared.b64 _, [%full];
add.u32 %r2, %r2, 1;
setp.lt.u32 %p5, %r2, 8;
@%p5 bra PRODUCER;
exit;
CONSUMER:
and.b32 %r3, %r2, 1;
W2: mbarrier.test_wait.parity.shared.b64 %p4, [%full], %r3;
@!%p4 bra W2;
ld.shared.u32 %r6, [%slot];
mbarrier.arrive.shared.b64 _, [%empty];
mul.wide.u32 %rd1, %r2, 8;
add.u64 %rd2, %rd0, %rd1;
st.global.u32 [%rd2], %r6;
add.u32 %r2, %r2, 1;
setp.lt.u32 %p5, %r2, 8;
@%p5 bra CONSUMER;
)";

TEST(Mbarriers, PipelineGivesTheSameUnderEverySeed) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    MiniRunner runner;
    runner.config.block.x = 64;
    runner.config.dynamic_shared_bytes = 64;
    runner.options.seed = seed;
    ASSERT_EQ(runner.Run(MiniKernel(kPipeline)), absl::OkStatus()) << seed;
    for (uint64_t k = 0; k < 8; ++k) EXPECT_EQ(runner.words[k], k * k + 5);
  }
}

TEST(Mbarriers, DeadlockNamesEveryWaiterAndTheBarrier) {
  // The producer forgets to arrive.
  std::string body = kPipeline;
  const std::string arrive = "mbarrier.arrive.shared.b64 _, [%full];";
  body.replace(body.find(arrive), arrive.size(), "");
  MiniRunner runner;
  runner.config.block.x = 64;
  runner.config.dynamic_shared_bytes = 64;
  const absl::Status status = runner.Run(MiniKernel(body));
  const std::string message(status.message());
  EXPECT_TRUE(message.starts_with("deadlock")) << message;
  EXPECT_THAT(message, HasSubstr("warp 0"));
  EXPECT_THAT(message, HasSubstr("warp 1"));
  EXPECT_THAT(message, HasSubstr("waits for the mbarrier at shared offset 0x400, parity 0"));
  EXPECT_THAT(message, HasSubstr("waits for the mbarrier at shared offset 0x408, parity 0"));
  EXPECT_THAT(message, HasSubstr("0x400 of CTA rank 0: phase 0 under way, 1 of 1 arrivals"));
}

TEST(Mbarriers, StateTokens) {
  MiniRunner runner;
  runner.config.dynamic_shared_bytes = 64;
  ASSERT_EQ(runner.Run(MiniKernel(R"(
mov.u32 %r2, 1024;
elect.sync _|%p1, -1;
@!%p1 exit;
mbarrier.init.shared.b64 [%r2], 3;
mbarrier.arrive.shared.b64 %rd1, [%r2];
mbarrier.test_wait.shared.b64 %p2, [%r2], %rd1;
mbarrier.arrive.shared.b64 %rd2, [%r2], 2;
mbarrier.test_wait.shared.b64 %p3, [%r2], %rd1;
mbarrier.pending_count.b64 %r3, %rd2;
selp.u32 %r4, 1, 0, %p2;
selp.u32 %r5, 1, 0, %p3;
st.global.u32 [%rd0], %r4;
st.global.u32 [%rd0+8], %r5;
st.global.u32 [%rd0+16], %r3;
mbarrier.inval.shared.b64 [%r2];
mov.u32 %r6, 9;
st.shared.u32 [%r2], %r6;
)")),
            absl::OkStatus());
  EXPECT_EQ(runner.words[0], 0u);
  EXPECT_EQ(runner.words[1], 1u);
  EXPECT_EQ(runner.words[2], 2u);  // pending before the second arrival
}

TEST(Deadlock, BarrierThatOneWarpNeverReaches) {
  MiniRunner runner;
  runner.config.block.x = 64;
  const absl::Status status = runner.Run(MiniKernel(R"(
mov.u32 %r1, %tid.x;
setp.lt.u32 %p1, %r1, 32;
@%p1 bra A;
bar.sync 1, 64;
bra E;
A: bar.sync 2, 64;
E: mov.u32 %r1, 0;
)"));
  const std::string message(status.message());
  EXPECT_TRUE(message.starts_with("deadlock")) << message;
  EXPECT_THAT(message, HasSubstr("waits for barrier 1 of 64 threads"));
  EXPECT_THAT(message, HasSubstr("waits for barrier 2 of 64 threads"));
}

// Warp groups of 4 warps: the first gives registers back, the others take `wanted` a thread.
absl::Status HandOnRegisters(int given_back_to, int wanted) {
  MiniRunner runner;
  runner.config.block.x = 384;
  return runner.Run(MiniKernel(Cat(R"(
mov.u32 %r1, %tid.x;
setp.lt.u32 %p1, %r1, 128;
@%p1 bra A;
setmaxnreg.inc.sync.aligned.u32 )",
                                   wanted, R"(;
bra E;
A: setmaxnreg.dec.sync.aligned.u32 )",
                                   given_back_to, R"(;
E: mov.u32 %r1, 0;
)"),
                               "", ".maxntid 384, 1, 1\n.minnctapersm 1"));
}

// 384 threads are launched with 168 registers each, 504 for the three warp groups: not 512.
TEST(Deadlock, RegistersThatNobodyGivesBack) {
  EXPECT_EQ(HandOnRegisters(24, 240), absl::OkStatus());
  EXPECT_EQ(HandOnRegisters(56, 224), absl::OkStatus());
  const std::string message(HandOnRegisters(48, 232).message());
  EXPECT_TRUE(message.starts_with("deadlock")) << message;
  EXPECT_THAT(message, HasSubstr("setmaxnreg.inc to 232: 64 registers a thread more than the warp's 168"));
  EXPECT_THAT(message, HasSubstr("launched with 168 a thread"));
  EXPECT_THAT(std::string(HandOnRegisters(176, 240).message()), HasSubstr("setmaxnreg.dec to 176"));
}

TEST(Deadlock, EndlessLoopMeetsTheLimit) {
  MiniRunner runner;
  runner.options.instruction_limit = 10'000;
  const absl::Status status = runner.Run(MiniKernel("L: bra L;"));
  EXPECT_TRUE(std::string(status.message()).starts_with("instruction limit")) << status;
}

TEST(CopyAsync, GroupsCompleteUnderEveryPolicy) {
  for (const AsyncPolicy policy : {AsyncPolicy::kLazy, AsyncPolicy::kEager, AsyncPolicy::kRandom}) {
    MiniRunner runner;
    runner.config.dynamic_shared_bytes = 1024;
    runner.options.async = policy;
    runner.options.seed = 3;
    for (uint64_t k = 0; k < 64; ++k) runner.words[k] = 100 + k;
    ASSERT_EQ(runner.Run(MiniKernel(Cat(kOwnWord, R"(
shl.b32 %r2, %r1, 3;
add.u32 %r2, %r2, 1024;
cp.async.ca.shared.global [%r2], [%rd2], 8;
cp.async.commit_group;
cp.async.ca.shared.global [%r2+256], [%rd2+256], 8, 4;
cp.async.commit_group;
cp.async.wait_group 1;
ld.shared.u64 %rd3, [%r2];
cp.async.wait_all;
ld.shared.u64 %rd4, [%r2+256];
add.u64 %rd3, %rd3, %rd4;
st.global.u64 [%rd2+512], %rd3;
)"))),
              absl::OkStatus());
    for (uint64_t k = 0; k < 32; ++k) EXPECT_EQ(runner.words[64 + k], 100 + k + 132 + k);
  }
}

TEST(CopyAsync, ArrivesOnAnMbarrier) {
  MiniRunner runner;
  runner.config.dynamic_shared_bytes = 1024;
  for (uint64_t k = 0; k < 32; ++k) runner.words[k] = k * k;
  ASSERT_EQ(runner.Run(MiniKernel(Cat(kOwnWord, R"(
mov.u32 %r5, 1024;
setp.eq.u32 %p1, %r1, 0;
@%p1 mbarrier.init.shared.b64 [%r5], 32;
bar.sync 0;
shl.b32 %r2, %r1, 3;
add.u32 %r2, %r2, 1280;
cp.async.ca.shared.global [%r2], [%rd2], 8;
cp.async.mbarrier.arrive.noinc.shared.b64 [%r5];
W: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0;
@!%p2 bra W;
xor.b32 %r3, %r2, 8;
ld.shared.u64 %rd3, [%r3];
st.global.u64 [%rd2+512], %rd3;
)"))),
            absl::OkStatus());
  for (uint64_t k = 0; k < 32; ++k) EXPECT_EQ(runner.words[64 + k], (k ^ 1) * (k ^ 1));
}

TEST(Clusters, DistributedSharedMemory) {
  MiniRunner runner;
  runner.config.grid.x = 8;
  runner.config.cluster.x = 4;
  runner.config.dynamic_shared_bytes = 256;
  // Each CTA writes its id into its neighbour, through shared::cluster and generic addresses in turn.
  ASSERT_EQ(runner.Run(MiniKernel(R"(
.reg .b32 %base;
mov.u32 %base, dynamic;
mov.u32 %r1, %tid.x;
setp.ne.u32 %p1, %r1, 0;
mov.u32 %r2, %ctaid.x;
mov.u32 %r3, %cluster_ctarank;
add.u32 %r4, %r3, 1;
and.b32 %r4, %r4, 3;
@%p1 bra SYNC;
mapa.shared::cluster.u32 %r5, %base, %r4;
st.shared::cluster.u32 [%r5], %r2;
cvt.u64.u32 %rd1, %base;
cvta.shared.u64 %rd1, %rd1;
mapa.u64 %rd2, %rd1, %r4;
st.u32 [%rd2+4], %r3;
SYNC:
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
ld.shared.u32 %r6, [%base];
ld.shared.u32 %r7, [%base+4];
mad.lo.u32 %r6, %r7, 100, %r6;
mul.wide.u32 %rd3, %r2, 8;
add.u64 %rd4, %rd0, %rd3;
st.global.u32 [%rd4], %r6;
getctarank.shared::cluster.u32 %r8, %base;
setp.ne.u32 %p2, %r8, %r3;
@%p2 trap;
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
)",
                                  ".extern .shared .align 128 .b8 dynamic[];")),
            absl::OkStatus());
  for (uint32_t cta = 0; cta < 8; ++cta) {
    const uint32_t from = (cta & ~3u) | ((cta + 3) & 3);
    EXPECT_EQ(runner.words[cta], from + 100 * (from % 4)) << cta;
  }
}

TEST(Clusters, StAsyncCompletesOnTheRemoteBarrier) {
  MiniRunner runner;
  runner.config.grid.x = runner.config.cluster.x = 2;
  runner.config.dynamic_shared_bytes = 256;
  ASSERT_EQ(runner.Run(MiniKernel(R"(
.reg .b32 %base;
mov.u32 %base, dynamic;
mov.u32 %r1, %tid.x;
mov.u32 %r3, %cluster_ctarank;
setp.eq.u32 %p1, %r1, 0;
@%p1 mbarrier.init.shared.b64 [%base], 1;
@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%base], 8;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
xor.b32 %r4, %r3, 1;
mapa.shared::cluster.u32 %r5, %base, %r4;
add.u32 %r6, %r3, 70;
add.u32 %r7, %r3, 80;
@%p1 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%r5+16], {%r6, %r7}, [%r5];
W: mbarrier.try_wait.parity.shared.b64 %p2, [%base], 0;
@!%p2 bra W;
ld.shared.v2.u32 {%r8, %r9}, [%base+16];
mul.wide.u32 %rd3, %r3, 8;
add.u64 %rd4, %rd0, %rd3;
st.global.v2.u32 [%rd4], {%r8, %r9};
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
)",
                                  ".extern .shared .align 128 .b8 dynamic[];")),
            absl::OkStatus());
  EXPECT_EQ(runner.words[0], uint64_t{81} << 32 | 71);
  EXPECT_EQ(runner.words[1], uint64_t{80} << 32 | 70);
}

TEST(Scheduler, SeedsExposeAMissingBarrier) {
  // Warp 1 reads what warp 0 writes, without a barrier: some seed reads it before.
  int early = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    MiniRunner runner;
    runner.config.block.x = 64;
    runner.options.seed = seed;
    ASSERT_EQ(runner.Run(MiniKernel(R"(
mov.u32 %r1, %tid.x;
setp.ge.u32 %p1, %r1, 32;
@%p1 bra READ;
st.global.u32 [%rd0], 5;
exit;
READ:
ld.global.u32 %r2, [%rd0];
st.global.u32 [%rd0+8], %r2;
)")),
              absl::OkStatus());
    early += runner.words[1] == 0;
  }
  EXPECT_GT(early, 0);
  EXPECT_LT(early, 20);
}

TEST(Scheduler, CtasThatWaitForEachOtherAreResidentTogether) {
  MiniRunner runner;
  runner.config.grid.x = 16;
  runner.options.threads = 2;
  runner.options.instruction_limit = uint64_t{1} << 40;
  // A grid barrier by counter.
  EXPECT_EQ(runner.Run(MiniKernel(R"(
mov.u32 %r1, %tid.x;
setp.ne.u32 %p1, %r1, 0;
@%p1 exit;
atom.acq_rel.gpu.global.add.u32 %r2, [%rd0], 1;
W: ld.acquire.gpu.global.u32 %r3, [%rd0];
setp.lt.u32 %p2, %r3, 16;
@%p2 bra W;
)")),
            absl::OkStatus());
  EXPECT_EQ(runner.words[0], 16u);
}

TEST(Calls, PrintfAndAssert) {
  MiniRunner runner;
  const std::string module = R"(
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.global .align 1 .b8 text[24] = {37, 100, 32, 37, 46, 50, 102, 32, 37, 115, 32, 37, 108, 108, 117, 10, 0};
.global .align 1 .b8 word[4] = {97, 98, 99};
)";
  ASSERT_EQ(runner.Run(MiniKernel(R"(
.local .align 8 .b8 args[32];
mov.u32 %r1, %tid.x;
setp.ne.u32 %p1, %r1, 2;
@%p1 exit;
mov.u64 %rd1, args;
cvta.local.u64 %rd2, %rd1;
st.local.u32 [%rd1], -7;
mov.f64 %fd1, 0d3FF8000000000000;
st.local.f64 [%rd1+8], %fd1;
mov.u64 %rd3, word;
cvta.global.u64 %rd3, %rd3;
st.local.u64 [%rd1+16], %rd3;
mov.u64 %rd4, 5000000000;
st.local.u64 [%rd1+24], %rd4;
mov.u64 %rd5, text;
cvta.global.u64 %rd5, %rd5;
{
.param .b64 p0;
st.param.b64 [p0], %rd5;
.param .b64 p1;
st.param.b64 [p1], %rd2;
.param .b32 q;
call.uni (q), vprintf, (p0, p1);
ld.param.b32 %r2, [q];
}
st.global.u32 [%rd0], %r2;
)",
                                  module)),
            absl::OkStatus());
  EXPECT_EQ(runner.printed, "-7 1.50 abc 5000000000\n");
  EXPECT_EQ(runner.words[0], runner.printed.size());
}

TEST(LaunchChecks, LimitsAreRefusedBeforeAnythingRuns) {
  const auto refused = [](auto change, const char* attributes = "") {
    MiniRunner runner;
    change(runner.config);
    return std::string(runner.Run(MiniKernel("st.global.u32 [%rd0], 1;", "", attributes)).message());
  };
  EXPECT_THAT(refused([](LaunchConfig& c) { c.dynamic_shared_bytes = 227 * 1024 + 1; }), HasSubstr("227 KB"));
  EXPECT_THAT(refused([](LaunchConfig& c) { c.block.x = 1025; }), HasSubstr("1024 threads"));
  EXPECT_THAT(refused([](LaunchConfig& c) { c.grid.x = 0; }), HasSubstr("without threads"));
  EXPECT_THAT(refused([](LaunchConfig& c) { c.block.x = 64; }, ".maxntid 32, 1, 1"), HasSubstr(".maxntid"));
  EXPECT_THAT(refused([](LaunchConfig& c) { c.block.x = 64; }, ".reqntid 32, 1, 1"), HasSubstr(".reqntid"));
  EXPECT_THAT(refused([](LaunchConfig& c) { c.cluster.x = 2; }), HasSubstr("multiple of the cluster"));
  EXPECT_THAT(refused([](LaunchConfig& c) { c.cluster.x = c.grid.x = 32; }), HasSubstr("limit is 16"));
}

}  // namespace
}  // namespace tessera::ptx
