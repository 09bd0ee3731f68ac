// One failing kernel for each diagnostic of the core: the message must name the rule, the line, CTA, warp and lane.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ptx/testing/mini_kernel.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Case {
  const char* name;
  const char* body;
  const char* rule;    // how the message begins
  const char* detail;  // somewhere in it
  uint32_t threads = 32;
  uint32_t shared = 0;
  uint32_t cluster = 1;
};

const Case kCases[] = {
    {"Register", "add.s32 %r1, %r2, 1;", "uninitialised register", "%r2"},
    {"RegisterOfSomeLanes",
     "mov.u32 %r1, %tid.x;\n setp.ne.u32 %p1, %r1, 13;\n @%p1 mov.u32 %r2, 1;\n add.u32 %r3, %r2, 1;",
     "uninitialised register", "lane 13"},
    {"CopiedNothing", "mov.u32 %r1, %r2;\n selp.b32 %r3, %r1, %r1, 1;\n add.u32 %r4, %r3, 1;",
     "uninitialised register", "%r3"},
    {"UpperHalfOfAPair",
     "mov.u32 %r1, 5;\n mov.b64 %rd1, {%r1, %r2};\n cvt.u32.u64 %r3, %rd1;\n mov.b64 {%r4, %r5}, %rd1;\n"
     "add.u32 %r6, %r3, %r4;\n add.u32 %r6, %r5, 1;",
     "uninitialised register", "%r5"},
    {"PairWithNothing",
     "mov.u32 %r1, 5;\n mov.b64 %rd1, {%r1, %r2};\n mov.b64 %rd2, %rd1;\n cvt.u32.u64 %r3, %rd2;\n add.u64 "
     "%rd3, %rd2, 1;",
     "uninitialised register", "%rd2"},
    {"Guard", "@%p7 mov.u32 %r1, 1;", "uninitialised register", "%p7"},
    {"GlobalPastTheEnd", "ld.global.u32 %r1, [%rd0+2048];", "address out of bounds",
     "0 bytes past the end of words"},
    {"GlobalBefore", "st.global.u32 [%rd0+-4], 1;", "address out of bounds", "4 bytes before words"},
    {"GlobalStraddling", "mov.u32 %r1, 0;\n st.global.v4.u32 [%rd0+2048], {%r1, %r1, %r1, %r1};",
     "address out of bounds", "words"},
    {"NullPointer", "mov.u64 %rd1, 0;\n ld.global.u8 %rs1, [%rd1];", "address out of bounds",
     "global address 0x0"},
    {"GlobalMisaligned", "ld.global.u32 %r1, [%rd0+2];", "misaligned address", "4 bytes"},
    {"VectorMisaligned", "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd0+8];", "misaligned address",
     "16 bytes"},
    {"SharedMisaligned", "mov.u32 %r1, 1025;\n st.shared.u16 [%r1], %r1;", "misaligned address", "2 bytes",
     32, 64},
    {"SharedPastTheEnd", "mov.u32 %r1, 1088;\n st.shared.u32 [%r1], %r1;", "address out of bounds",
     "64 bytes", 32, 64},
    {"SharedReserved", "mov.u32 %r1, 0;\n st.shared.u32 [%r1], %r1;", "address out of bounds", "0x400", 32,
     64},
    {"SharedUninitialised", "mov.u32 %r1, 1028;\n ld.shared.u32 %r2, [%r1];", "uninitialised memory", "0x404",
     32, 64},
    {"SharedHalfWritten", "mov.u32 %r1, 1024;\n st.shared.u16 [%r1], %r1;\n ld.shared.u32 %r2, [%r1];",
     "uninitialised memory", "0x402", 32, 64},
    {"LocalPastTheEnd", ".local .align 4 .b8 stack[16];\n mov.u32 %r1, stack;\n st.local.u32 [%r1+16], %r1;",
     "address out of bounds", "local"},
    {"LocalUninitialised",
     ".local .align 4 .b8 stack[16];\n mov.u32 %r1, stack;\n ld.local.u32 %r2, [%r1+4];",
     "uninitialised memory", "local"},
    {"GenericIsGlobal", "cvta.to.shared.u64 %rd1, %rd0;", "wrong state space", "global"},
    {"StoreToConstant", "mov.u64 %rd1, constant;\n st.u32 [%rd1], 1;", "write to read-only memory",
     "constant"},
    {"StoreToParameter", "cvta.param.u64 %rd1, k_param_0;\n st.u32 [%rd1], 1;", "write to read-only memory",
     "parameters"},
    {"ParameterPastTheEnd", "ld.param.u64 %rd1, [k_param_0+8];", "", "kernel k"},
    {"DivergentBarrier", "mov.u32 %r1, %tid.x;\n setp.lt.u32 %p1, %r1, 9;\n @%p1 bar.sync 0;",
     "divergent warp", "0x1ff"},
    {"DivergentBarrierInBranch",
     "mov.u32 %r1, %tid.x;\n setp.lt.u32 %p1, %r1, 9;\n @!%p1 bra L;\n bar.sync 0;\n L: mov.u32 %r2, 1;",
     "divergent warp", "0xfffffe00 are at line"},
    {"SetMaxRegistersDiverged",
     "mov.u32 %r1, %tid.x;\n setp.lt.u32 %p1, %r1, 9;\n @%p1 setmaxnreg.inc.sync.aligned.u32 64;",
     "divergent warp", "setmaxnreg"},
    {"NotAMember", "shfl.sync.idx.b32 %r1, 5, 0, 31, 1;", "bad operand", "member mask 0x1"},
    {"ShuffleFromAnotherLane",
     "mov.u32 %r1, %tid.x;\n setp.lt.u32 %p1, %r1, 8;\n mov.u32 %r9, 7;\n @%p1 shfl.sync.idx.b32 %r2, %r1, "
     "%r9, 31, 0xFF;\n"
     "mov.u32 %r9, 8;\n @%p1 shfl.sync.idx.b32 %r2, %r1, %r9, 31, 0xFF;\n @%p1 add.u32 %r3, %r2, 1;",
     "uninitialised register", "%r2"},
    {"BarrierNumber", "bar.sync 16;", "barrier misuse", "0 to 15"},
    {"BarrierCount", "bar.sync 1, 48;", "barrier misuse", "multiple of 32"},
    {"BarrierTooWide", "bar.sync 1, 64;", "barrier misuse", "never complete"},
    {"BarrierDisagreement",
     "mov.u32 %r1, %tid.x;\n setp.lt.u32 %p1, %r1, 32;\n @%p1 bra L;\n bar.sync 1, 96;\n bra E;\n L: "
     "bar.sync 1, 64;\n E: mov.u32 %r1, 0;",
     "barrier misuse", "64", 96},
    {"MbarrierMissing", "mov.u32 %r1, 1024;\n mbarrier.arrive.shared.b64 _, [%r1];", "mbarrier misuse",
     "no mbarrier", 32, 64},
    {"MbarrierTwice",
     "mov.u32 %r1, 1024;\n elect.sync _|%p1, -1;\n @%p1 mbarrier.init.shared.b64 [%r1], 1;\n @%p1 "
     "mbarrier.init.shared.b64 [%r1], 1;",
     "mbarrier misuse", "where there is one", 32, 64},
    {"MbarrierMisaligned", "mov.u32 %r1, 1028;\n mbarrier.init.shared.b64 [%r1], 1;", "misaligned address",
     "8 bytes", 32, 64},
    {"MbarrierCount", "mov.u32 %r1, 1024;\n mbarrier.init.shared.b64 [%r1], 0;", "mbarrier misuse",
     "arrivals", 32, 64},
    {"MbarrierTooManyArrivals",
     "mov.u32 %r1, 1024;\n elect.sync _|%p1, -1;\n @%p1 mbarrier.init.shared.b64 [%r1], 3;\n"
     "mbarrier.arrive.shared.b64 _, [%r1], 2;",
     "mbarrier misuse", "more threads arrive", 32, 64},
    {"MbarrierTouched",
     "mov.u32 %r1, 1024;\n elect.sync _|%p1, -1;\n @%p1 mbarrier.init.shared.b64 [%r1], 40;\n ld.shared.u64 "
     "%rd1, [%r1];",
     "mbarrier misuse", "mbarrier object", 32, 64},
    {"MbarrierParity",
     "mov.u32 %r1, 1024;\n elect.sync _|%p1, -1;\n @%p1 mbarrier.init.shared.b64 [%r1], 1;\n"
     "mbarrier.try_wait.parity.shared.b64 %p2, [%r1], 2;",
     "mbarrier misuse", "parity 2", 32, 64},
    {"TooManyBytes",
     "mov.u32 %r1, 1024;\n elect.sync _|%p1, -1;\n @%p1 mbarrier.init.shared.b64 [%r1], 1;\n"
     "@%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 16;\n @%p1 mbarrier.arrive.shared.b64 _, "
     "[%r1];",
     "mbarrier misuse", "16 bytes completed more", 32, 64},
    {"CopyNotAwaited",
     "mov.u32 %r1, %tid.x;\n setp.eq.u32 %p1, %r1, 3;\n mov.u32 %r2, 1024;\n @%p1 cp.async.ca.shared.global "
     "[%r2], [%rd0], 8;\n"
     "@%p1 ld.shared.u32 %r3, [%r2];",
     "unfinished asynchronous operation", "still writing", 32, 64},
    {"CopySource", "mov.u32 %r2, 1024;\n cp.async.ca.shared.global [%r2], [%rd0+4], 8;", "misaligned address",
     "cp.async", 32, 64},
    {"OtherCtaOfNoCluster", "mov.u32 %r1, 0x1000400;\n ld.shared::cluster.u32 %r2, [%r1];",
     "address out of bounds", "cluster of 1", 32, 64},
    {"OtherCtaThroughCta",
     "mapa.shared::cluster.u32 %r1, 1024, 1;\n mov.u32 %r3, %cluster_ctarank;\n setp.eq.u32 %p1, %r3, 0;\n"
     "@%p1 ld.shared::cta.u32 %r2, [%r1];",
     "wrong state space", "own window", 32, 64, 2},
    {"ExitedCta",
     "mov.u32 %r3, %cluster_ctarank;\n setp.eq.u32 %p1, %r3, 1;\n @%p1 exit;\n nanosleep.u32 100;\n "
     "nanosleep.u32 100;\n"
     "mapa.shared::cluster.u32 %r1, 1024, 1;\n st.shared::cluster.u32 [%r1], 5;",
     "address out of bounds", "have exited", 32, 64, 2},
    {"ClusterWaitAlone", "barrier.cluster.wait.aligned;", "barrier misuse", "without an arrive"},
    {"ClusterArriveTwice", "barrier.cluster.arrive.aligned;\n barrier.cluster.arrive.aligned;",
     "barrier misuse", "twice", 32, 0, 2},
    {"BranchTable", "mov.u32 %r1, 2;\n T: .branchtargets A, B;\n brx.idx %r1, T;\n A:\n B: mov.u32 %r2, 1;",
     "address out of bounds", "2 targets"},
    {"Trap", "trap;", "trap", "executed trap"},
    {"Unknown", "frobnicate.u32 %r1, 1;", "unsupported instruction", "frobnicate"},
    {"UnknownType", "popc.b16 %rs1, %rs2;", "unsupported instruction", "b16"},
    {"StochasticRounding",
     "mov.f32 %f1, 0f3F800000;\n mov.u32 %r2, 7;\n cvt.rs.f16x2.f32 %r1, %f1, %f1, %r2;",
     "unsupported instruction", "cvt with stochastic rounding"},
    {"Multimem", "multimem.ld_reduce.relaxed.sys.global.add.f32 %f1, [%rd0];", "unsupported instruction",
     "multimem.ld_reduce"},
};

class Diagnostics : public ::testing::TestWithParam<Case> {};

TEST_P(Diagnostics, StopsWithTheRule) {
  const Case& c = GetParam();
  MiniRunner runner;
  runner.config.block.x = c.threads;
  runner.config.dynamic_shared_bytes = c.shared;
  runner.config.cluster.x = runner.config.grid.x = c.cluster;
  const absl::Status status = runner.Run(MiniKernel(c.body, ".const .align 4 .u32 constant = 5;"));
  ASSERT_FALSE(status.ok());
  const std::string message(status.message());
  EXPECT_TRUE(message.starts_with(c.rule)) << message;
  EXPECT_THAT(message, AllOf(HasSubstr(c.detail), HasSubstr("kernel k, mini.ptx:"), HasSubstr("CTA ("),
                             HasSubstr("warp "), HasSubstr("lane")));
}

INSTANTIATE_TEST_SUITE_P(All, Diagnostics, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::ptx
